package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"tidemark/client"
	"tidemark/index"
	"tidemark/manager/api/v1"
	"tidemark/manager/watch"
	"tidemark/statecontext"
)

// watchForever is the default of --timeout for watch.
const watchForever = time.Duration(math.MaxInt64)

// watchFlags select what is watched.
type watchFlags struct {
	serverFlags
	kinds []string
	since string
	count uint64
}

// run watches until ctx ends.
func (f *watchFlags) run(ctx context.Context, s Streams) error {
	if err := noCSV(f.output); err != nil {
		return err
	}
	if f.timeout == 0 {
		f.timeout = watchForever
	}
	c, limited, cancel, err := f.client(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	defer c.Close()
	var lost atomic.Bool
	c.Waiting = func(err error) {
		if !lost.Swap(true) {
			fmt.Fprintln(s.Err, "tidemark:", err, "- connecting again")
		}
	}
	// It matters if --timeout ends before a stream has begun: managers delay a stream from a future position although
	// they can be reached.
	future := reportFuture(limited, s.Err, c, f.since)
	seen := uint64(0)
	for e, err := range c.Watch(limited, f.since, f.kinds...) {
		switch {
		case err == nil:
		case errors.Is(err, client.ErrUnavailable) && ctx.Err() == nil && !future:
			return err
		case limited.Err() != nil: // --timeout is over
			return nil
		default:
			return err
		}
		lost.Store(false)
		if err := printWatch(s, f.output, &e); err != nil {
			return err
		}
		if e.Snapshot == nil {
			if seen++; seen == f.count {
				return nil
			}
		}
	}
	return nil
}

func newWatch(s Streams) *cobra.Command {
	f := &watchFlags{}
	cmd := &cobra.Command{Use: "watch", Short: "Follow the changes of the replicated state", Args: noArgs,
		ValidArgsFunction: noFiles,
		Long: `Prints the present state in a line, then a line for each change: in order, each exactly once, even if managers
come and go. It ends with exit code 0 at Ctrl-C, --timeout or --count. With --since it continues after a position: a
cas, or an "id" of --output json. Stability timestamps and backfill timestamps, of which there are several a second, and
sessions of the console are printed only if --kinds names them or is all.`,
		Example: "  tidemark watch\n  tidemark watch --kinds index,topology --output json\n  tidemark watch --since 87 " +
			"--count 1 --timeout 1m",
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), s) }}
	f.add(cmd, s)
	if t := cmd.PersistentFlags().Lookup("timeout"); t != nil {
		f.timeout, t.DefValue, t.Usage = 0, "0s", "how long to watch; 0: no limit"
	}
	cmd.Flags().StringSliceVar(&f.kinds, "kinds", nil, "kinds of changes: "+kindList()+", or all (default: all but "+
		"stability, backfill and session)")
	cmd.Flags().StringVar(&f.since, "since", "", "continue after this `POSITION`: a cas or an id")
	cmd.Flags().Uint64Var(&f.count, "count", 0, "end after this many updates")
	return cmd
}

// reportFuture reports that a cas is in the future, and returns whether it is. If no manager returns the newest cas at
// once, it reports nothing.
func reportFuture(ctx context.Context, w io.Writer, c *client.Client, since string) bool {
	cas, err := strconv.ParseUint(since, 10, 64) // the id of an event is not in the future
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, reportAfter)
	defer cancel()
	st, err := c.Status(ctx)
	if err != nil || cas <= st.CAS {
		return false
	}
	fmt.Fprintf(w, "tidemark: position %s is in the future: the newest cas is %d; after %s without it the present state "+
		"is shown\n", since, st.CAS, watch.BehindWait)
	return true
}

func kindList() string {
	var names []string
	for _, k := range statecontext.EventKinds() {
		names = append(names, string(k))
	}
	return strings.Join(names, ", ")
}

// watchLine is an event in the output formats json and jsonl, one line each.
type watchLine struct {
	ID       string         `json:"id"`
	CAS      uint64         `json:"cas"`
	Reason   string         `json:"reason,omitempty"` // of a snapshot
	Snapshot *v1.WatchState `json:"snapshot,omitempty"`
	Changes  []v1.Change    `json:"changes,omitempty"`
}

func printWatch(s Streams, output format, e *client.WatchEvent) error {
	if output != formatTable {
		return write(s.Out, output.each(), watchLine{ID: e.ID, CAS: e.CAS, Reason: e.Reason, Snapshot: e.Snapshot,
			Changes: e.Changes})
	}
	if e.Snapshot != nil {
		_, err := fmt.Fprintf(s.Out, "%s cas %d snapshot: %s (%s)\n", clockOf(e.Snapshot.TimeMS), e.CAS, e.Detail,
			countsOf(e.Snapshot))
		return err
	}
	for i := range e.Changes {
		c := &e.Changes[i]
		if _, err := fmt.Fprintf(s.Out, "%s cas %d %s\n", clockOf(c.TimeMS), c.CAS, changeLine(c)); err != nil {
			return err
		}
	}
	return nil
}

func clockOf(ms int64) string {
	if ms <= 0 {
		return "-"
	}
	return time.UnixMilli(ms).Format("15:04:05")
}

// countsOf describes the contents of a snapshot.
func countsOf(s *v1.WatchState) string {
	var parts []string
	count := func(n int, have bool, one, many string) {
		if have {
			parts = append(parts, counted(n, one, many))
		}
	}
	if s.Leader != nil {
		parts = append(parts, fmt.Sprintf("term %d", s.Leader.Term))
	}
	count(len(s.Managers), s.Managers != nil, "manager", "managers")
	count(len(s.Projectors), s.Projectors != nil, "projector", "projectors")
	count(len(s.Indexers), s.Indexers != nil, "indexer", "indexers")
	count(len(s.Buckets), s.Buckets != nil, "bucket", "buckets")
	count(len(s.Indexes), s.Indexes != nil, "index", "indexes")
	count(len(s.Rollbacks), s.Rollbacks != nil, "rollback", "rollbacks")
	count(len(s.Rebalances), s.Rebalances != nil, "rebalance", "rebalances")
	count(len(s.Differences), len(s.Differences) > 0, "copy that differs", "copies that differ")
	for _, b := range s.Stability {
		parts = append(parts, fmt.Sprintf("stability %s #%d", b.Bucket, b.Number))
	}
	return strings.Join(parts, ", ")
}

// changeLine describes a change.
func changeLine(c *v1.Change) string {
	what := string(c.Kind) + " " + c.Name
	switch c.Kind {
	case statecontext.EventIndex:
		return "index " + c.Bucket + "/" + c.Name + " " + indexChange(c)
	case statecontext.EventTopology:
		return "topology " + c.Bucket + "/" + c.Name + " " + topologyChange(c)
	case statecontext.EventLeader:
		return fmt.Sprintf("%s leads in term %d", what, c.Number)
	case statecontext.EventCluster:
		return what + " " + clusterChange(c)
	case statecontext.EventBucket:
		return what + " " + bucketChange(c)
	case statecontext.EventStability:
		return fmt.Sprintf("%s #%d", what, c.Number)
	case statecontext.EventRebalance:
		if line := rebalanceChange(c); line != "" {
			return line
		}
	case statecontext.EventDifference:
		if c.Difference != nil {
			return differenceChange(c)
		}
	case statecontext.EventSession:
		if c.Removed {
			return what + " has ended"
		}
		return what + " has begun"
	case statecontext.EventRollback:
		return fmt.Sprintf("%s %d step %s", what, c.Number, c.Step)
	}
	return componentChange(c, what)
}

func clusterChange(c *v1.Change) string {
	if c.Restored {
		return "restored from a backup"
	}
	if c.Cluster != nil {
		return fmt.Sprintf("epoch %d, format level %d", c.Cluster.Epoch, c.Cluster.FormatLevel)
	}
	return "changed"
}

func bucketChange(c *v1.Change) string {
	if c.Removed {
		return "is gone"
	}
	line := fmt.Sprintf("generation %d, %d vbuckets", c.Number, c.VBuckets)
	if c.StabilitySource != "" {
		line += ", stability.source " + c.StabilitySource
	}
	return line
}

// differenceChange describes a new, changed or ended difference of a copy from the KV data.
func differenceChange(c *v1.Change) string {
	d := c.Difference
	what := fmt.Sprintf("copy of %s/%s (slice %d, replica %d, indexer %s)",
		c.Bucket, c.Name, d.Slice, d.Replica, d.Indexer)
	switch {
	case c.Removed:
		return what + " agrees with KV again, or no longer exists"
	case d.TakenAnew:
		return fmt.Sprintf("%s differs from KV in %s (%s); they are streamed again", what,
			counted(int(d.Documents), "document", "documents"), d.Kind)
	}
	return fmt.Sprintf("%s differs from KV in %s (%s)", what, counted(int(d.Documents), "document", "documents"), d.Kind)
}

// rebalanceChange describes a change of a rebalance or of one of its steps; "" for other changes.
func rebalanceChange(c *v1.Change) string {
	switch {
	case c.RebalanceStep != nil:
		y := c.RebalanceStep
		return fmt.Sprintf("rebalance %d step %d: slice %d of index %s %s", c.Number, y.Step, y.Slice, y.Index, y.State)
	case c.Rebalance != nil:
		return fmt.Sprintf("rebalance %d (%s) %s: %d of %d steps", c.Number, c.Rebalance.Cause, c.Rebalance.Phase,
			c.Rebalance.Done, c.Rebalance.Steps)
	}
	return ""
}

// componentChange describes a change of a manager, projector or indexer, or of a kind that this version does not
// know.
func componentChange(c *v1.Change, what string) string {
	switch {
	case c.Removed:
		return what + " removed"
	case c.Manager != nil:
		return what + " at " + c.Manager.REST
	case c.Projector != nil:
		return what + " at " + c.Projector.Admin
	case c.Indexer != nil && c.Indexer.Evicting:
		return fmt.Sprintf("indexer %s (node %d) is being removed", c.Indexer.Name, c.Indexer.Node)
	case c.Indexer != nil && c.Indexer.Offline != nil:
		return fmt.Sprintf("indexer %s (node %d) at %s is offline since %s", c.Indexer.Name, c.Indexer.Node, c.Indexer.Admin,
			clockOf(c.Indexer.Offline.SinceMS))
	case c.Indexer != nil:
		return fmt.Sprintf("indexer %s (node %d) at %s", c.Indexer.Name, c.Indexer.Node, c.Indexer.Admin)
	}
	return what + " moved"
}

func indexChange(c *v1.Change) string {
	d := c.Definition
	switch {
	case c.Removed || d == nil:
		return "is gone"
	case c.Was == 0 && d.Deferred:
		return "created, deferred"
	case c.Was == 0 && d.SplitCause != "":
		return fmt.Sprintf("created, %s: automatic split or merge of index %s: %s", d.State, d.Replaces, d.SplitCause)
	case c.Was == 0 && d.Replaces != 0:
		return fmt.Sprintf("created, %s: index %s is split", d.State, d.Replaces)
	case c.Was == 0:
		return "created, " + d.State.String()
	case c.Was == d.State:
		return "changed, " + d.State.String()
	case d.State == index.Error:
		return fmt.Sprintf("%s → error: %s", c.Was, d.Reason)
	}
	return fmt.Sprintf("%s → %s", c.Was, d.State)
}

func topologyChange(c *v1.Change) string {
	if c.Removed || c.Topology == nil {
		return "is gone"
	}
	counts, states := map[string]int{}, []string{}
	for _, p := range c.Topology.Copies {
		state := p.State.String()
		if counts[state]++; counts[state] == 1 {
			states = append(states, state)
		}
	}
	for i, state := range states {
		states[i] = fmt.Sprintf("%d %s", counts[state], state)
	}
	return fmt.Sprintf("copies: %s", strings.Join(states, ", "))
}
