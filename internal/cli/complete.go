package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tidemark/client"
	"tidemark/index"
	"tidemark/internal/localcluster"
	"tidemark/manager/api/v1"
)

// completeTimeout is how long the shell's completion waits for the cluster; without an answer there are no words.
const completeTimeout = 800 * time.Millisecond

// completion returns the completions of a partly typed argument or flag.
type completion = cobra.CompletionFunc

// complete sets the completion of a flag. A missing flag is a bug, which the tests find.
func complete(cmd *cobra.Command, flag string, f completion) {
	if err := cmd.RegisterFlagCompletionFunc(flag, f); err != nil {
		panic(err)
	}
}

// fixed completes from a fixed list.
func fixed(words ...string) completion {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return words, cobra.ShellCompDirectiveNoFileComp
	}
}

// noFiles completes nothing.
func noFiles(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// fromCluster returns a completion with the words that the cluster returns within completeTimeout; after an error there
// are no words and no output.
func (f *serverFlags) fromCluster(words func(ctx context.Context, c *client.Client, args []string) ([]string,
	error)) completion {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if _, err := resolve(cmd); err != nil { // flags and environment select the cluster
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		quiet := *f
		quiet.timeout = completeTimeout
		var found []string
		err := quiet.do(cmd.Context(), func(ctx context.Context, c *client.Client) (err error) {
			c.Waiting = nil
			found, err = words(ctx, c, args)
			return err
		})
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		found = slices.DeleteFunc(found, func(w string) bool {
			return !strings.HasPrefix(w, typed) ||
				slices.Contains(args, w)
		})
		slices.Sort(found)
		return slices.Compact(found), cobra.ShellCompDirectiveNoFileComp
	}
}

// indexes completes bucket/name, for one argument or many.
func (f *serverFlags) indexes(many bool) completion {
	named := f.fromCluster(func(ctx context.Context, c *client.Client, _ []string) (words []string, err error) {
		list, err := c.Indexes(ctx, "")
		for _, i := range list.Indexes {
			if i.State != index.Dropping {
				words = append(words, i.Bucket+"/"+i.Name)
			}
		}
		return words, err
	})
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 && !many {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return named(cmd, args, typed)
	}
}

// buckets completes the names of buckets that have or had indexes.
func (f *serverFlags) buckets() completion {
	return f.fromCluster(func(ctx context.Context, c *client.Client, _ []string) (words []string, err error) {
		st, err := c.Status(ctx)
		for _, b := range st.Buckets {
			words = append(words, b.Name)
		}
		return words, err
	})
}

// nodes completes the names of indexers.
func (f *serverFlags) nodes() completion {
	return f.fromCluster(func(ctx context.Context, c *client.Client, _ []string) (words []string, err error) {
		st, err := c.Status(ctx)
		for _, i := range st.Indexers {
			words = append(words, i.ID)
		}
		return words, err
	})
}

// members completes the name of one member: a manager, projector or indexer, or only those of the given roles.
func (f *serverFlags) members(roles ...string) completion {
	return one(f.fromCluster(func(ctx context.Context, c *client.Client, _ []string) (words []string, err error) {
		st, err := c.Status(ctx)
		for _, name := range namesOfMembers(&st) {
			if of := rolesOf(&st, name); len(roles) == 0 || slices.ContainsFunc(roles, func(r string) bool {
				return slices.Contains(of, r)
			}) {
				words = append(words, name)
			}
		}
		return words, err
	}))
}

// one completes the first argument only.
func one(words completion) completion {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return words(cmd, args, typed)
	}
}

// users completes the name of a user.
func (f *serverFlags) users() completion {
	return one(f.fromCluster(func(ctx context.Context, c *client.Client, _ []string) (words []string, err error) {
		list, err := c.Users(ctx)
		for _, u := range list {
			words = append(words, u.Name)
		}
		return words, err
	}))
}

// tokens completes the id of a token.
func (f *serverFlags) tokens() completion {
	return one(f.fromCluster(func(ctx context.Context, c *client.Client, _ []string) (words []string, err error) {
		list, err := c.Tokens(ctx)
		for _, t := range list {
			words = append(words, t.ID)
		}
		return words, err
	}))
}

func namesOfMembers(st *v1.Status) (names []string) {
	for _, m := range st.Managers {
		names = append(names, m.ID)
	}
	for _, p := range st.Projectors {
		names = append(names, string(p.ID))
	}
	for _, i := range st.Indexers {
		names = append(names, i.ID)
	}
	return names
}

// loggers completes a member, and then a level.
func (f *serverFlags) loggers() completion {
	members, levels := f.members(), fixed(append(slices.Clone(logLevels), resetLevel)...)
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 1 {
			return levels(cmd, args, typed)
		}
		return members(cmd, args, typed)
	}
}

// deferred completes BUCKET, and then the names of its deferred indexes.
func (f *serverFlags) deferred() completion {
	buckets := f.buckets()
	names := f.fromCluster(func(ctx context.Context, c *client.Client, args []string) (words []string, err error) {
		list, err := c.Indexes(ctx, args[0])
		for _, i := range list.Indexes {
			if i.Deferred && i.State == index.Pending {
				words = append(words, i.Name)
			}
		}
		return words, err
	})
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return buckets(cmd, args, typed)
		}
		return names(cmd, args, typed)
	}
}

// servers completes the managers of the present cluster, or of the running up of --data.
func (f *serverFlags) servers(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	f.server = nil // the value being typed is not the server to query
	if m, err := localcluster.ReadRunning(f.data); err == nil && f.data != "" {
		return hostports(m.Servers()), cobra.ShellCompDirectiveNoFileComp
	}
	return f.fromCluster(func(ctx context.Context, c *client.Client, _ []string) ([]string, error) {
		st, err := c.Status(ctx)
		var urls []string
		for _, m := range st.Managers {
			urls = append(urls, m.REST)
		}
		return hostports(urls), err
	})(cmd, args, typed)
}

func hostports(urls []string) (short []string) {
	for _, u := range urls {
		_, addr, _ := strings.Cut(u, "://")
		short = append(short, addr)
	}
	return short
}
