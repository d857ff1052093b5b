package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"tidemark/client"
	"tidemark/expression"
	"tidemark/index"
)

// alterFlags say what ALTER INDEX is to do; one of them is given.
type alterFlags struct {
	nodes                 []string
	replicas, dropReplica int
	dryRun                bool
	wait                  waitFlags
}

func indexAlter(s Streams, f *serverFlags) *cobra.Command {
	a := &alterFlags{}
	cmd := &cobra.Command{Use: "alter BUCKET/NAME|ID", Short: "Change where the copies of an index are, and how many",
		ValidArgsFunction: f.indexes(false),
		Long: `Says what ALTER INDEX says: how many replicas an index has (--replicas), which indexers hold it (--nodes), or
that one replica goes (--drop-replica). Setting what is so already does nothing and succeeds. New copies are filled
while the others serve; other nodes begin a rebalance (tidemark rebalance status).`,
		Example: "  tidemark index alter world/by_name --replicas 1\n  tidemark index alter world/by_name --nodes i1,i2 " +
			"--dry-run",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage("%s takes %s", cmd.CommandPath(), refWords)
			}
			st, err := a.statement(cmd)
			if err != nil {
				return err
			}
			bucket, name, named := strings.Cut(args[0], "/")
			path, err := ref(args[0])
			if err != nil {
				return err
			}
			named = named && len(index.Keyspaces(bucket)) == 1 // else it may be one of a collection: ask
			if st.Keyspace, st.Name = index.InBucket(bucket), name; named && a.dryRun {
				return printStatements(s.Out, f.output, []expression.Statement{st})
			}
			return f.do(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				if !named {
					info, err := c.Index(ctx, path)
					if err != nil {
						return err
					}
					st.Keyspace, st.Name = index.KeyspaceOf(info.Bucket, info.Scope, info.Collection), info.Name
				}
				if a.dryRun {
					return printStatements(s.Out, f.output, []expression.Statement{st})
				}
				results, err := c.Statement(ctx, st.String())
				if err != nil {
					return err
				}
				if a.wait.wanted() {
					if err := waitResults(ctx, s, c, results); err != nil {
						return err
					}
				}
				return printResults(s.Out, f.output, results)
			})
		}}
	fl := cmd.Flags()
	fl.IntVar(&a.replicas, "replicas", 0, "copies beside the first, from now on")
	fl.StringSliceVar(&a.nodes, "nodes", nil, "indexers that hold it from now on")
	fl.IntVar(&a.dropReplica, "drop-replica", 0, "the number of the replica that goes")
	fl.BoolVar(&a.dryRun, "dry-run", false, "print the statement that it would run")
	a.wait.add(fl)
	complete(cmd, "nodes", f.nodes())
	return cmd
}

// statement is what the flags say, of no index yet.
func (a *alterFlags) statement(cmd *cobra.Command) (*expression.AlterIndex, error) {
	st := &expression.AlterIndex{}
	given := 0
	for flag, set := range map[string]func(){
		"replicas":     func() { st.Action, st.NumReplica = expression.ActionReplicaCount, &a.replicas },
		"nodes":        func() { st.Action, st.Nodes = expression.ActionMove, a.nodes },
		"drop-replica": func() { st.Action, st.ReplicaID = expression.ActionDropReplica, &a.dropReplica },
	} {
		if cmd.Flags().Changed(flag) {
			given++
			set()
		}
	}
	switch {
	case given != 1:
		return nil, usage("say one thing to change: --replicas N, --nodes NAME,… or --drop-replica N")
	case a.replicas < 0 || a.replicas > expression.MaxReplicas || a.dropReplica < 0 ||
		a.dropReplica > expression.MaxReplicas:
		return nil, usage("--replicas and --drop-replica take 0 to %d", expression.MaxReplicas)
	case st.Action == expression.ActionMove && len(a.nodes) == 0:
		return nil, usage("--nodes takes the names of indexers")
	}
	return st, nil
}
