package cli

import (
	"fmt"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"tidemark/kv"
	"tidemark/kv/clustermap"
)

func kvBucket(s Streams) *cobra.Command {
	cmd := &cobra.Command{Use: "bucket", Short: "List, make, change and drop buckets of the embedded KV"}
	cmd.AddCommand(kvBucketList(s), kvBucketCreate(s), kvBucketEdit(s), kvBucketDrop(s))
	return cmd
}

func kvBucketList(s Streams) *cobra.Command {
	f := &kvAdminFlags{}
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List the buckets", Args: noArgs,
		Long: `Lists the buckets of the newest map that any node has. ITEMS is the number of documents on the nodes that
answer, FLUSH whether tidemark kv flush can empty the bucket, MADE how it was made: by --buckets of the nodes, or while
the cluster ran.`,
		Example: "  tidemark kv bucket list --data ./cluster",
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := f.open()
			if err != nil {
				return err
			}
			all, err := a.Buckets(cmd.Context())
			if err != nil {
				return err
			}
			return show(s.Out, f.output, all, all, func(t *tabwriter.Writer) { kvBucketTable(t, all) })
		}}
	f.add(cmd)
	return cmd
}

func kvBucketTable(t *tabwriter.Writer, all []kv.BucketInfo) {
	fmt.Fprintln(t, "BUCKET\tUUID\tVBUCKETS\tREPLICAS\tITEMS\tFLUSH\tMADE")
	for _, b := range all {
		flush, made := "no", "while the cluster ran"
		if b.Flush {
			flush = "yes"
		}
		if b.Configured {
			made = "with the cluster"
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\t%s\t%s\n", b.Name, b.UUID, b.VBuckets, b.Replicas, b.Items, flush, made)
	}
}

func kvBucketCreate(s Streams) *cobra.Command {
	f := &kvAdminFlags{}
	c := clustermap.BucketChange{Replicas: 1}
	cmd := &cobra.Command{Use: "create BUCKET", Short: "Create a bucket while the cluster runs",
		Long: `Makes a bucket on all nodes. All nodes must answer, and no rebalance may be running. The bucket is part of the
cluster's map: nodes need not name it in --buckets. For a Couchbase cluster, use its own tools.`,
		Example: "  tidemark kv bucket create travel --data ./cluster\n  tidemark kv bucket create travel --vbuckets 64 " +
			"--replicas 2 --data ./cluster", Args: exactArgs("BUCKET"),
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := f.open()
			if err != nil {
				return err
			}
			c.Name = args[0]
			uuid, _, err := a.ChangeBuckets(cmd.Context(), c)
			if err != nil {
				return err
			}
			made := struct {
				Name string `json:"name"`
				UUID string `json:"uuid"`
			}{c.Name, uuid}
			return show(s.Out, f.output, made, []any{made}, func(t *tabwriter.Writer) {
				fmt.Fprintf(t, "bucket %s created: uuid %s\n", made.Name, made.UUID)
			})
		}}
	f.add(cmd)
	fl := cmd.Flags()
	fl.IntVar(&c.VBuckets, "vbuckets", 0, "number of vbuckets, a power of two up to 1024 (default: that of the first of "+
		"the nodes' --buckets)")
	fl.IntVar(&c.Replicas, "replicas", c.Replicas, "replicas of each vbucket, 0 to 3; with too few nodes, "+
		"as many as possible")
	fl.BoolVar(&c.NoFlush, "no-flush", false, "the bucket cannot be flushed")
	return cmd
}

// noFlush parses a value of --flush; nil: unchanged.
func noFlush(flush string) (*bool, error) {
	switch flush {
	case "":
		return nil, nil //nolint:nilnil // it stays as it is
	case "on", "off":
		return new(flush == "off"), nil
	}
	return nil, usage("--flush %s: want on or off", flush)
}

func kvBucketEdit(s Streams) *cobra.Command {
	f := &kvAdminFlags{}
	var replicas int
	var flush string
	var noWait bool
	cmd := &cobra.Command{Use: "edit BUCKET", Short: "Change the settings of a bucket, while the cluster runs",
		Long: `Changes the given settings of a bucket and shows the bucket. All nodes must answer. Replicas are made and
removed by a rebalance of this bucket alone, while traffic continues; no other rebalance may be running. The command
waits for its end; the rebalance continues without the command, and after the restart of a killed node. Other settings
take effect immediately. The name and the number of vbuckets cannot be changed.`,
		Example: "  tidemark kv bucket edit travel --replicas 2 --data ./cluster\n" +
			"  tidemark kv bucket edit travel --flush off --data ./cluster", Args: exactArgs("BUCKET"),
		RunE: func(cmd *cobra.Command, args []string) error {
			e := &clustermap.BucketEdit{}
			if cmd.Flags().Changed("replicas") {
				e.Replicas = &replicas
			}
			var err error
			if e.NoFlush, err = noFlush(flush); err != nil {
				return err
			}
			if *e == (clustermap.BucketEdit{}) {
				return usage("nothing to change: give --replicas or --flush")
			}
			a, err := f.open()
			if err != nil {
				return err
			}
			uuid, operation, err := a.ChangeBuckets(cmd.Context(), clustermap.BucketChange{Name: args[0], Edit: e})
			if err == nil && operation != "" && e.Replicas != nil && !noWait {
				err = waitRebalance(cmd.Context(), s, a.Status, operation)
			}
			if err != nil {
				return err
			}
			all, err := a.Buckets(cmd.Context())
			if err != nil {
				return err
			}
			all = slices.DeleteFunc(all, func(b kv.BucketInfo) bool { return b.UUID != uuid })
			return show(s.Out, f.output, all, all, func(t *tabwriter.Writer) { kvBucketTable(t, all) })
		}}
	f.add(cmd)
	fl := cmd.Flags()
	fl.IntVar(&replicas, "replicas", 0, "replicas of each vbucket, 0 to 3; with too few nodes, as many as "+
		"possible (default: unchanged)")
	fl.StringVar(&flush, "flush", "", "whether the bucket can be flushed: on or off (default: unchanged)")
	complete(cmd, "flush", fixed("on", "off"))
	fl.BoolVar(&noWait, "no-wait", false, "do not wait until the replicas are made or removed")
	return cmd
}

func kvBucketDrop(s Streams) *cobra.Command {
	f := &kvAdminFlags{}
	var yes bool
	cmd := &cobra.Command{Use: "drop BUCKET", Short: "Drop a bucket with all of its documents",
		Long: `Drops a bucket on all nodes, which must all answer: its connections are closed and its files removed. Its
indexes enter the state error with the reason BUCKET_GONE. This cannot be undone: a bucket that is made again under the
same name is another bucket, for which BUILD INDEX builds the indexes anew. A bucket of the nodes' --buckets stays
dropped, too.`,
		Example: "  tidemark kv bucket drop travel --yes --data ./cluster", Args: exactArgs("BUCKET"),
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := f.open()
			if err != nil {
				return err
			}
			if err := confirm(cmd.Context(), s, yes, "drop bucket "+args[0]+" with all of its documents"); err != nil {
				return err
			}
			_, _, err = a.ChangeBuckets(cmd.Context(), clustermap.BucketChange{Name: args[0], Drop: true})
			return err
		}}
	f.add(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask for confirmation")
	return cmd
}
