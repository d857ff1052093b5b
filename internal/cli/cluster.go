package cli

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"tidemark/client"
)

func newCluster(s Streams) *cobra.Command {
	f := &serverFlags{}
	cmd := &cobra.Command{Use: "cluster", Short: "Look at the cluster", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	f.add(cmd, s)
	cmd.AddCommand(&cobra.Command{Use: "status", Short: "Managers, projectors, indexers and buckets", Args: noArgs,
		Example: "  tidemark cluster status --server 127.0.0.1:9520",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, ctx, cancel, err := f.client(cmd.Context())
			if err != nil {
				return err
			}
			defer cancel()
			defer c.Close()
			status, err := c.Status(ctx)
			if err != nil {
				return err
			}
			if f.output != "table" {
				return printJSON(s.Out, status, f.output == "jsonl")
			}
			return printStatus(s, status)
		}})
	return cmd
}

func printStatus(s Streams, st client.Status) error {
	t := tabwriter.NewWriter(s.Out, 2, 0, 2, ' ', 0)
	fmt.Fprintf(t, "cluster %s  leader %s  term %d  cas %d\n\n", st.ClusterID, st.Leader.ID, st.Term, st.CAS)
	fmt.Fprintln(t, "ROLE\tID\tSTATE\tADDRESS\t")
	for _, m := range st.Managers {
		state := m.Role
		if !m.Alive {
			state += ", not seen"
		}
		fmt.Fprintf(t, "manager\t%s\t%s\t%s\t\n", m.ID, state, m.REST)
	}
	for _, p := range st.Projectors {
		fmt.Fprintf(t, "projector\t%s\t%s\t%s\t%d streams\n", p.ID, p.State, p.Admin, p.Streams)
	}
	for _, i := range st.Indexers {
		state := i.State
		if i.Health != "" {
			state += ": " + i.Health
		}
		fmt.Fprintf(t, "indexer\t%s\t%s\t%s\t%d slices\n", i.ID, state, i.Admin, i.Copies)
	}
	for _, b := range st.Buckets {
		state := fmt.Sprintf("%d of %d vbuckets streamed", b.StreamsBegun, b.VBuckets)
		if b.Rollback != "" {
			state += ", rollback: " + b.Rollback
		}
		fmt.Fprintf(t, "bucket\t%s\t%s\t\tstability %d\n", b.Name, state, b.StabilityNumber)
	}
	return t.Flush()
}
