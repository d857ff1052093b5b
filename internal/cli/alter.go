package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"tidemark/client"
	"tidemark/expression"
	"tidemark/index"
)

// alterFlags are the flags of index alter: exactly one change, and its options.
type alterFlags struct {
	nodes                 []string
	splitAt, mergeAt      []string
	partitions            int
	split, cancel         bool
	autoSplit             bool
	replicas, dropReplica int
	instead               insteadFlags
	wait                  waitFlags
}

// run alters the index named by the arguments.
func (a *alterFlags) run(cmd *cobra.Command, s Streams, f *serverFlags, args []string) error {
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
	named = named && len(index.Keyspaces(bucket)) == 1 // else a collection is possible: only the cluster knows
	if st.Keyspace, st.Name = index.InBucket(bucket), name; named && a.instead.print {
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
		return a.do(ctx, s, f.output, c, st)
	})
}

// do executes the statement, prints it, or does a dry run.
func (a *alterFlags) do(ctx context.Context, s Streams, output format, c *client.Client,
	st expression.Statement) error {
	switch {
	case a.instead.print:
		return printStatements(s.Out, output, []expression.Statement{st})
	case a.instead.dryRun:
		return rehearse(ctx, s, output, c, []expression.Statement{st})
	}
	results, err := c.Statement(ctx, st.String())
	if err != nil {
		return err
	}
	if err := a.wait.results(ctx, s, c, results); err != nil {
		return err
	}
	return printResults(s.Out, output, results)
}

func indexAlter(s Streams, f *serverFlags) *cobra.Command {
	a := &alterFlags{}
	cmd := &cobra.Command{Use: "alter BUCKET/NAME|ID", Short: "Change the number and the placement of an index's copies",
		ValidArgsFunction: f.indexes(false),
		Long: `Changes the number of replicas of an index (--replicas) or the indexers that hold it (--nodes), or removes one
replica (--drop-replica), like the statement ALTER INDEX. A setting that the index already has is not an error and
changes nothing. The existing copies serve scans while new copies are filled. Other --nodes begin a rebalance (tidemark
rebalance status).

It also changes the slices. --split doubles their number, --partitions N makes them N; where a range is cut depends on
its entries. --split-at cuts a range at additional values, --merge-at removes split values. An index with the new slices
is built beside the existing one, which serves scans until the new index is ready and takes its name; --cancel-split
cancels that. With --auto-split=false the number of slices no longer changes automatically.`,
		Example: `  tidemark index alter world/by_name --replicas 1
  tidemark index alter world/by_name --nodes i1,i2 --dry-run
  tidemark index alter world/by_name --split-at '"M"' --wait
  tidemark index alter world/by_name --partitions 12`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.run(cmd, s, f, args) }}
	fl := cmd.Flags()
	fl.IntVar(&a.replicas, "replicas", 0, "number of copies in addition to the first")
	fl.StringSliceVar(&a.nodes, "nodes", nil, "indexers that hold the index")
	fl.IntVar(&a.dropReplica, "drop-replica", 0, "number of the replica to drop")
	fl.BoolVar(&a.split, "split", false, "double the number of slices")
	fl.IntVar(&a.partitions, "partitions", 0, "number of slices")
	fl.StringArrayVar(&a.splitAt, "split-at", nil, "additional split `VALUE` of the ranges, an expression; repeat for "+
		"more")
	fl.StringArrayVar(&a.mergeAt, "merge-at", nil, "split `VALUE` of the ranges to remove; repeat for more")
	fl.BoolVar(&a.cancel, "cancel-split", false, "cancel a split or merge that is running")
	fl.BoolVar(&a.autoSplit, "auto-split", true, "change the number of slices automatically, by --split-above and "+
		"--split-above-rate of the managers")
	a.instead.add(fl)
	a.wait.add(fl)
	complete(cmd, "nodes", f.nodes())
	return cmd
}

// statement returns the statement that the flags describe, without its index.
func (a *alterFlags) statement(cmd *cobra.Command) (*expression.AlterIndex, error) {
	st := &expression.AlterIndex{}
	given := 0
	var valueErr error
	for flag, set := range map[string]func(){
		"replicas":     func() { st.Action, st.NumReplica = expression.ActionReplicaCount, &a.replicas },
		"nodes":        func() { st.Action, st.Nodes = expression.ActionMove, a.nodes },
		"drop-replica": func() { st.Action, st.ReplicaID = expression.ActionDropReplica, &a.dropReplica },
		"split":        func() { st.Action = expression.ActionSplit },
		"partitions":   func() { st.Action, st.NumPartition = expression.ActionSplit, &a.partitions },
		"split-at":     func() { valueErr = alterAt(st, expression.ActionSplit, a.splitAt) },
		"merge-at":     func() { valueErr = alterAt(st, expression.ActionMerge, a.mergeAt) },
		"cancel-split": func() { st.Action = expression.ActionCancelSplit },
		"auto-split":   func() { st.Action, st.AutoSplit = expression.ActionAutoSplit, &a.autoSplit },
	} {
		if cmd.Flags().Changed(flag) {
			given++
			set()
		}
	}
	if given != 1 {
		return nil, usage("give one change: --replicas N, --nodes NAME,…, --drop-replica N, --split, " +
			"--partitions N, --split-at VALUE, --merge-at VALUE, --cancel-split or --auto-split=BOOL")
	}
	if valueErr != nil {
		return nil, valueErr
	}
	return st, a.check(st)
}

// check checks the limits of the values of flags.
func (a *alterFlags) check(st *expression.AlterIndex) error {
	switch {
	case st.NumPartition != nil && (a.partitions < 1 || a.partitions > 1024):
		return usage("--partitions accepts 1 to 1024")
	case a.replicas < 0 || a.replicas > expression.MaxReplicas || a.dropReplica < 0 ||
		a.dropReplica > expression.MaxReplicas:
		return usage("--replicas and --drop-replica accept 0 to %d", expression.MaxReplicas)
	case st.Action == expression.ActionMove && len(a.nodes) == 0:
		return usage("--nodes needs the names of indexers")
	}
	return nil
}

// alterAt sets the values of ALTER INDEX, which are given as expressions.
func alterAt(st *expression.AlterIndex, action string, values []string) error {
	all, err := expression.Parse(`ALTER INDEX x ON b WITH {"action":"` + action + `","at":[` +
		strings.Join(values, ", ") + `]}`)
	if err == nil && len(all) == 1 {
		if read, ok := all[0].(*expression.AlterIndex); ok && read.Name == "x" {
			st.Action, st.At = action, read.At
			return nil
		}
	}
	return usage(`want constants as values, such as '"m"' (text in quotes) or 10, got %s`, strings.Join(values, ", "))
}
