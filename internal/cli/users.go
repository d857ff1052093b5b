package cli

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"tidemark/client"
	"tidemark/manager/api/v1"
	"tidemark/statecontext"
)

// asClient calls do with a client of the cluster selected by the flags.
func asClient(cmd *cobra.Command, f *serverFlags, do func(ctx context.Context, c *client.Client) error) error {
	return f.do(cmd.Context(), do)
}

func newUser(s Streams) *cobra.Command {
	f := &serverFlags{}
	cmd := &cobra.Command{Use: "user", Short: "Add, list, change and remove users", Args: noArgs,
		Long: `Each user has a role: metrics (only the metrics of managers, projectors and indexers), read (also listings,
status and scans), ddl (also changes of indexes) or admin (everything). As soon as the cluster has a user, requests
without credentials are refused. Passwords are read from a file, standard input or the terminal.`,
		Example: "  tidemark user add alice --role ddl --new-password-file ./alice\n  tidemark user list",
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	f.add(cmd, s)
	cmd.AddCommand(userPut(s, f, "add"), userPut(s, f, "passwd"), userList(s, f), userRemove(s, f), userWhoAmI(s, f))
	return cmd
}

// userPut returns the commands add and passwd.
func userPut(s Streams, f *serverFlags, verb string) *cobra.Command {
	var req v1.UserRequest
	var file string
	cmd := &cobra.Command{Use: verb + " NAME", Args: exactArgs("NAME"), ValidArgsFunction: f.users(),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			switch {
			case file != "":
				req.Password, err = readSecret(s, file)
			case req.New || req.Role == "":
				req.Password, err = askSecret(cmd.Context(), s, "new password of "+args[0],
					"--new-password-file FILE (- for standard input)")
			}
			if err != nil {
				return err
			}
			return asClient(cmd, f, func(ctx context.Context, c *client.Client) error {
				u, err := c.PutUser(ctx, args[0], req)
				if err == nil {
					fmt.Fprintf(s.Err, "user %s: %s\n", u.Name, u.Role)
				}
				return err
			})
		}}
	cmd.Flags().StringVar(&file, "new-password-file", "", "`FILE` with the user's password, - for standard input "+
		"(default: ask on the terminal)")
	if verb == "add" {
		req.New = true
		cmd.Short, cmd.Example = "Add a user", "  tidemark user add alice --role ddl --new-password-file ./alice"
		cmd.Flags().StringVar(&req.Role, "role", "read", "metrics, read, ddl or admin")
	} else {
		cmd.Short, cmd.Example = "Change a user's password, or role with --role",
			"  tidemark user passwd alice\n  tidemark user passwd alice --role admin"
		cmd.Flags().StringVar(&req.Role, "role", "", "the new role: metrics, read, ddl or admin; the password stays "+
			"unless --new-password-file is given")
	}
	return cmd
}

func userList(s Streams, f *serverFlags) *cobra.Command {
	return &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List the users", Args: noArgs,
		Example: "  tidemark user list --output json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return asClient(cmd, f, func(ctx context.Context, c *client.Client) error {
				users, err := c.Users(ctx)
				if err != nil {
					return err
				}
				return show(s.Out, f.output, users, users, func(t *tabwriter.Writer) {
					fmt.Fprintln(t, "NAME\tROLE")
					for _, u := range users {
						fmt.Fprintf(t, "%s\t%s\n", u.Name, u.Role)
					}
				})
			})
		}}
}

func userRemove(s Streams, f *serverFlags) *cobra.Command {
	var sure bool
	cmd := &cobra.Command{Use: "remove NAME", Short: "Remove a user and the user's tokens", Args: exactArgs("NAME"),
		ValidArgsFunction: f.users(),
		Example:           "  tidemark user remove alice",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := ask(cmd.Context(), s, sure, "remove user "+args[0]+" and the user's tokens"); err != nil {
				return err
			}
			return asClient(cmd, f, func(ctx context.Context, c *client.Client) error {
				err := c.RemoveUser(ctx, args[0])
				if err == nil {
					fmt.Fprintf(s.Err, "removed %s\n", args[0])
				}
				return err
			})
		}}
	cmd.Flags().BoolVar(&sure, "yes", false, "do not ask on a terminal")
	return cmd
}

func userWhoAmI(s Streams, f *serverFlags) *cobra.Command {
	return &cobra.Command{Use: "whoami", Short: "Show the identity and the rights of this command in the " +
		"cluster", Args: noArgs,
		Example: "  tidemark user whoami --user alice\n  tidemark user whoami --token-file alice.token --output json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return asClient(cmd, f, func(ctx context.Context, c *client.Client) error {
				w, err := c.WhoAmI(ctx)
				if err != nil {
					return err
				}
				return show(s.Out, f.output, w, []v1.WhoAmI{w}, func(t *tabwriter.Writer) {
					ends := "never"
					if w.EndsMS != 0 {
						ends = time.UnixMilli(w.EndsMS).UTC().Format(time.RFC3339)
					}
					fmt.Fprintln(t, "NAME\tROLE\tBY\tENDS")
					fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", w.Name, w.Role, w.By, ends)
				})
			})
		}}
}

func newToken(s Streams) *cobra.Command {
	f := &serverFlags{}
	cmd := &cobra.Command{Use: "token", Short: "Make, list and revoke tokens", Args: noArgs,
		Long: `A token identifies a user without the password, for programs. Its secret is shown only when it is created; the
cluster stores a hash. A token is valid until it expires, is revoked, or its user is removed.`,
		Example: "  tidemark token create alice --expires 720h > alice.token\n  tidemark index list --token-file alice.token",
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	f.add(cmd, s)
	cmd.AddCommand(tokenCreate(s, f), tokenList(s, f), tokenRevoke(s, f))
	return cmd
}

func tokenCreate(s Streams, f *serverFlags) *cobra.Command {
	var req v1.TokenRequest
	var expires time.Duration
	cmd := &cobra.Command{Use: "create USER", Short: "Create a token for a user and print its secret",
		Args: exactArgs("USER"), ValidArgsFunction: f.users(),
		Example: "  tidemark token create alice --role read --expires 720h --note dashboard > alice.token",
		RunE: func(cmd *cobra.Command, args []string) error {
			if expires < 0 {
				return usage("--expires %s: want a time above 0, or 0 for a token that never ends", expires)
			}
			if req.User = args[0]; expires > 0 {
				req.ExpiresMS = time.Now().Add(expires).UnixMilli()
			}
			return asClient(cmd, f, func(ctx context.Context, c *client.Client) error {
				x, secret, err := c.CreateToken(ctx, req)
				if err != nil {
					return err
				}
				fmt.Fprintf(s.Err, "token %s of %s: %s\n", x.ID, x.User, x.Role)
				_, err = fmt.Fprintln(s.Out, secret)
				return err
			})
		}}
	cmd.Flags().StringVar(&req.Role, "role", "", "metrics, read, ddl or admin: at most the user's role, which is the "+
		"default")
	cmd.Flags().StringVar(&req.Note, "note", "", "purpose of the token")
	cmd.Flags().DurationVar(&expires, "expires", 90*24*time.Hour, "how long it is valid; 0: until it is revoked")
	return cmd
}

func tokenList(s Streams, f *serverFlags) *cobra.Command {
	return &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List the tokens, without their secrets",
		Args:    noArgs,
		Example: "  tidemark token list",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return asClient(cmd, f, func(ctx context.Context, c *client.Client) error {
				tokens, err := c.Tokens(ctx)
				if err != nil {
					return err
				}
				return show(s.Out, f.output, tokens, tokens, func(t *tabwriter.Writer) {
					fmt.Fprintln(t, "ID\tUSER\tROLE\tENDS\tNOTE")
					for _, x := range tokens {
						ends := "never"
						if x.ExpiresMS != 0 {
							ends = time.UnixMilli(x.ExpiresMS).UTC().Format(time.RFC3339)
						}
						fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", x.ID, x.User, x.Role, ends, x.Note)
					}
				})
			})
		}}
}

func tokenRevoke(s Streams, f *serverFlags) *cobra.Command {
	return &cobra.Command{Use: "revoke ID", Short: "Revoke a token", Args: exactArgs("ID"), ValidArgsFunction: f.tokens(),
		Example: "  tidemark token revoke 0f3a9c1b2d4e5f60",
		RunE: func(cmd *cobra.Command, args []string) error {
			if strings.HasPrefix(args[0], statecontext.TokenPrefix) {
				return usage("this is a token's secret, which other users of this machine could read: revoke it by its id, see " +
					"tidemark token list")
			}
			return asClient(cmd, f, func(ctx context.Context, c *client.Client) error {
				err := c.RevokeToken(ctx, args[0])
				if err == nil {
					fmt.Fprintf(s.Err, "revoked %s\n", args[0])
				}
				return err
			})
		}}
}
