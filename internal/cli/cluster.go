package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"tidemark/client"
	"tidemark/manager/api/v1"
)

func newCluster(s Streams) *cobra.Command {
	f := &serverFlags{}
	cmd := group("cluster", "Show the cluster, and change its members", "  tidemark cluster status",
		clusterStatus(s, f), clusterTimestamps(s, f), clusterStreams(s, f), clusterHistory(s, f), clusterLogging(s, f),
		clusterJoin(s, f),
		clusterLeave(s, f),
		clusterRemove(s, f), clusterTransfer(s, f), clusterRecover(s), newBackup(s, f), newRestore(s, f),
		newFinalizeUpgrade(s, f), newLimits(s, f))
	f.add(cmd, s)
	return cmd
}

func clusterStatus(s Streams, f *serverFlags) *cobra.Command {
	var every time.Duration
	var wait string
	cmd := &cobra.Command{Use: "status", Short: "Show managers, projectors, indexers and buckets, and their problems",
		Args: noArgs, ValidArgsFunction: noFiles,
		Long: `Shows all members with their state, and a verdict with its reasons: ready; degraded, if the cluster serves but
something is missing; or not ready. The exit code does not depend on the verdict, except with --wait, which waits until
the cluster is ready and exits with code 6 if it is not ready within --timeout. A cluster is not ready without a
projector and an indexer, nor while a bucket that has indexes is not streamed. --wait=members waits only until all
managers, projectors and indexers that have registered are up.`,
		Example: "  tidemark cluster status --server 127.0.0.1:9520\n  tidemark cluster status --watch\n  tidemark cluster " +
			"status --wait --timeout 2m",
		RunE: func(cmd *cobra.Command, _ []string) error {
			until := waitConditions[wait]
			switch {
			case wait != "" && until == nil:
				return usage("--wait %s: want %s or %s", wait, waitForReady, waitForMembers)
			case wait != "" && every != 0:
				return usage("--wait ends when the cluster is ready, --watch never ends: use one of them")
			case wait != "":
				return f.do(cmd.Context(), func(ctx context.Context, c *client.Client) error {
					return waitHealthy(ctx, s, f.output, c, until)
				})
			}
			return repeat(cmd.Context(), s, every, func(ctx context.Context, w io.Writer) error {
				return f.do(ctx, func(ctx context.Context, c *client.Client) error {
					st, err := c.Status(ctx)
					if err != nil {
						return err
					}
					return printStatus(w, f.output, st)
				})
			})
		}}
	watchFlag(cmd.Flags(), &every)
	cmd.Flags().StringVar(&wait, "wait", "", "wait until the verdict is ready; with =members, until all members are up")
	cmd.Flags().Lookup("wait").NoOptDefVal = waitForReady
	complete(cmd, "wait", fixed(waitForReady, waitForMembers))
	return cmd
}

// The values of --wait.
const (
	waitForReady   = "ready"
	waitForMembers = "members"
)

// waitConditions holds, for each value, a function that returns what is missing; nothing once the condition is met.
var waitConditions = map[string]func(st *v1.Status) []string{
	waitForReady: func(st *v1.Status) []string {
		if st.Verdict == v1.VerdictReady {
			return nil
		}
		return st.Reasons
	},
	waitForMembers: membersMissing,
}

// membersMissing returns the members that are not up.
func membersMissing(st *v1.Status) (missing []string) {
	if st.Coordinator != stateActive {
		missing = append(missing, "no active leader answers")
	}
	for _, m := range st.Managers {
		switch {
		case !m.Alive:
			missing = append(missing, fmt.Sprintf("manager %s does not answer", m.ID))
		case len(m.NotReady) > 0:
			missing = append(missing, fmt.Sprintf("manager %s is not ready: %s", m.ID, m.NotReady[0].Detail))
		}
	}
	for _, p := range st.Projectors {
		if p.State != stateActive {
			missing = append(missing, fmt.Sprintf("projector %s is %s", p.ID, p.State))
		}
	}
	for i := range st.Indexers {
		if x := &st.Indexers[i]; x.State != stateActive {
			missing = append(missing, fmt.Sprintf("indexer %s is %s", x.ID, x.State))
		}
	}
	return missing
}

// States of projectors and indexers; stateActive is also v1.Status.Coordinator of a leader that has taken over.
const (
	stateActive  = "active"
	stateOffline = "offline"
	stateUnknown = "unknown"
)

// waitHealthy polls the status until nothing is missing, and reports each new reason.
func waitHealthy(ctx context.Context, s Streams, as format, c *client.Client,
	until func(st *v1.Status) []string) error {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	reported := ""
	for {
		st, err := c.Status(ctx)
		if err != nil && reported != "" && ctx.Err() != nil {
			return fmt.Errorf("still not ready: %s: %w", reported, ctx.Err())
		}
		if err != nil {
			return err
		}
		missing := until(&st)
		if len(missing) == 0 {
			return printStatus(s.Out, as, st)
		}
		if why := strings.Join(missing, "; "); why != reported {
			fmt.Fprintf(s.Err, "%s: %s\n", st.Verdict, why)
			reported = why
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("still %s: %s: %w", st.Verdict, reported, ctx.Err())
		case <-tick.C:
		}
	}
}

func printStatus(w io.Writer, as format, st v1.Status) error {
	return show(w, as, st, []v1.Status{st}, func(t *tabwriter.Writer) {
		leader := st.Leader.ID
		if leader == "" {
			leader = "none"
		}
		fmt.Fprintf(t, "%s  cluster %s  leader %s  term %d  cas %d  version %s\n", st.Verdict, st.ClusterID, leader, st.Term,
			st.CAS, st.Version)
		for _, r := range st.Reasons {
			fmt.Fprintf(t, "  - %s\n", r)
		}
		fmt.Fprintln(t, "\nROLE\tID\tSTATE\tADDRESS\tDETAIL")
		for _, m := range st.Managers {
			state := m.Role
			if !m.Alive {
				state += ", not seen"
			}
			fmt.Fprintf(t, "manager\t%s\t%s\t%s\traft %s, %s\n", m.ID, state, m.REST, m.Raft, m.ServerID)
		}
		for _, p := range st.Projectors {
			fmt.Fprintf(t, "projector\t%s\t%s\t%s\t%s\n", p.ID, p.State, p.Admin, projectorDetail(&p))
		}
		for i := range st.Indexers {
			tableIndexer(t, &st.Indexers[i])
		}
		for i := range st.Buckets {
			tableBucket(t, &st.Buckets[i], st.Coordinator == stateActive)
		}
	})
}

// projectorDetail returns the streams of a projector, and how many data ports of indexers it cannot use; the reasons
// list them.
func projectorDetail(p *v1.ProjectorStatus) string {
	if p.State == stateUnknown {
		return "-"
	}
	detail := fmt.Sprintf("%d streams", p.Streams)
	if n := len(p.Unreached) + p.UnreachedOmitted; n > 0 && p.State == stateActive {
		detail += fmt.Sprintf(", cannot use %d data ports of indexers", n)
	}
	return detail
}

// tableIndexer prints one indexer and its orphans.
func tableIndexer(t *tabwriter.Writer, i *v1.IndexerStatus) {
	state := i.State
	if i.OfflineForMS > 0 && i.State != stateActive {
		state += " for " + seconds(i.OfflineForMS)
	}
	if i.Evicting {
		state += ", being removed"
	}
	fmt.Fprintf(t, "indexer\t%s\t%s\t%s\t%s\n", i.ID, state, i.Admin, indexerDetail(i))
	for _, o := range i.Orphans {
		what := "a damaged folder"
		if o.Index != 0 {
			what = fmt.Sprintf("index %s on %s, slice %d", o.Index, o.Bucket, o.Slice)
		}
		fmt.Fprintf(t, "orphan\tcopy %s\t%s\t%s\t%s, %d bytes\n", o.Copy, orphanState(o), i.ID, what, o.Bytes)
	}
	if more := i.OrphanCount - len(i.Orphans); more > 0 {
		fmt.Fprintf(t, "orphan\t%d more\t\t%s\t\n", more, i.ID)
	}
}

func indexerDetail(i *v1.IndexerStatus) string {
	detail := fmt.Sprintf("%d slices, %d MiB", i.Copies, i.Bytes>>20)
	if i.State == stateOffline || i.State == stateUnknown { // the leader, if there is one, does not have its reports
		detail = fmt.Sprintf("%s%d slices", repairState(i), i.Placed)
	}
	if i.Role != "" && i.Role != "serving" {
		detail += ", " + i.Role
	}
	if i.State != stateActive {
		detail += ", uuid " + i.UUID
	}
	if i.Zone != "" {
		detail += ", zone " + i.Zone
	}
	if i.Capacity > 1 {
		detail += fmt.Sprintf(", capacity %d", i.Capacity)
	}
	if i.DifferingCopies > 0 {
		detail += fmt.Sprintf(", %d slices differ from KV", i.DifferingCopies)
	}
	if i.Health != "" {
		detail += ", " + i.Health
	}
	return detail
}

// repairState returns when an offline indexer's copies are made anew elsewhere.
func repairState(i *v1.IndexerStatus) string {
	switch in := i.RepairInMS; {
	case in == nil || i.State == stateActive:
		return ""
	case *in > 0:
		return "its slices are rebuilt on other indexers in " + seconds(*in) + "; "
	}
	return "its slices are being rebuilt on other indexers with room; "
}

// seconds formats milliseconds as seconds.
func seconds(ms int64) string {
	return (time.Duration(ms) * time.Millisecond).Round(time.Second).String()
}

// tableBucket prints one bucket. Only a leader that has taken over knows its streams.
func tableBucket(t *tabwriter.Writer, b *v1.BucketStatus, led bool) {
	state := fmt.Sprintf("%d of %d vbuckets streamed", b.StreamsBegun, b.VBuckets)
	switch {
	case !led:
		state = stateUnknown
	case b.Rollback != "":
		state += ", rolling back"
	case !b.Wanted && b.StreamsBegun == 0:
		state = "not streamed: no index needs it"
	}
	detail := fmt.Sprintf("stability timestamp %d", b.StabilityNumber)
	if b.Rollback != "" {
		detail += ", " + rollbackState(b)
	}
	fmt.Fprintf(t, "bucket\t%s\t%s\t-\t%s\n", b.Name, state, detail)
}

// rollbackState returns the step of a rollback, what it waits for, and since when.
func rollbackState(b *v1.BucketStatus) string {
	if b.RollbackForMS <= 0 {
		return b.Rollback
	}
	return fmt.Sprintf("%s, for %v", b.Rollback,
		(time.Duration(b.RollbackForMS) * time.Millisecond).Round(100*time.Millisecond))
}

// orphanState returns what will happen to an orphan.
func orphanState(o v1.Orphan) string {
	switch {
	case o.LeftMS < 0:
		return "kept"
	case o.LeftMS == 0:
		return "to be dropped"
	}
	return "kept for " + (time.Duration(o.LeftMS) * time.Millisecond).Round(time.Second).String()
}
