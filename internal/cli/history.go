package cli

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"tidemark/client"
	"tidemark/index"
	"tidemark/manager/api/v1"
)

func clusterHistory(s Streams, f *serverFlags) *cobra.Command {
	var req v1.HistoryRequest
	cmd := &cobra.Command{Use: "history", Short: "Show scans, index changes and buckets of the last hour",
		Args: noArgs, ValidArgsFunction: noFiles,
		Long: `Asks all managers and indexers for their history of the last hour: percentiles of the duration of scans, by
consistency, and of changes of indexes (DDL); the indexes that were scanned most; and for each interval of --step how
many scans and changes ended, and the largest number of changes of a bucket that no scan could see yet. Each process
keeps its own part in memory and loses it when it restarts; missing parts are listed. A percentile is at most 19 % off.
The last interval may still be running.`,
		Example: "  tidemark cluster history\n  tidemark cluster history --for 10m --step 10s --bucket world -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case req.For < time.Minute || req.For > time.Hour || req.For%time.Minute != 0:
				return usage("--for %s: want whole minutes, 1m to 1h", req.For)
			case req.Step < 10*time.Second || req.Step > 10*time.Minute || req.Step%(10*time.Second) != 0:
				return usage("--step %s: want a multiple of 10s, at most 10m", req.Step)
			case req.Limit < 1 || req.Limit > 64:
				return usage("--limit %d: want 1 to 64", req.Limit)
			}
			return f.do(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				h, err := c.History(ctx, req)
				if err != nil {
					return err
				}
				err = show(s.Out, f.output, h, []v1.History{h}, func(t *tabwriter.Writer) { tableHistory(t, &h, req.Bucket) })
				printGaps(s.Err, &h)
				return err
			})
		}}
	cmd.Flags().DurationVar(&req.For, "for", time.Hour, "how far back, whole minutes")
	cmd.Flags().DurationVar(&req.Step, "step", 5*time.Minute, "length of an interval, a multiple of 10s")
	cmd.Flags().StringVar(&req.Bucket, "bucket", "", "show only this bucket and its indexes; durations of scans and DDL "+
		"are still those of all buckets")
	cmd.Flags().IntVar(&req.Limit, "limit", 12, "maximum number of indexes, 1 to 64")
	complete(cmd, "bucket", f.buckets())
	return cmd
}

// tableHistory prints a history. If one bucket was requested, the figures that cover all buckets are marked.
func tableHistory(t io.Writer, h *v1.History, bucket string) {
	of, all := "", ""
	if bucket != "" {
		of, all = " of all buckets", " (ALL)"
	}
	fmt.Fprintln(t, "WHAT\tCOUNT\tMEAN\tP50\tP95\tP99")
	line := func(what string, l v1.Latency) {
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\n", what, l.Count, formatMS(l.MeanMS), formatMS(l.P50MS), formatMS(l.P95MS),
			formatMS(l.P99MS))
	}
	for i := range h.Scans {
		line("scans"+of+", "+h.Scans[i].Consistency, h.Scans[i].Latency)
	}
	line("DDL"+of, h.DDL.Latency)
	if len(h.Indexes) > 0 {
		fmt.Fprintln(t, "\nINDEX\tSCANS\tROWS\tERRORS\tMEAN")
	}
	for i := range h.Indexes {
		x := &h.Indexes[i]
		name := "index " + x.ID.String()
		if x.Name != "" {
			name = index.KeyspaceOf(x.Bucket, x.Scope, x.Collection).String() + "/" + x.Name
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%s\n", name, x.Scans, x.Rows, x.Errors, formatMS(x.MeanMS))
	}
	tablePoints(t, h, all)
}

// pointSum is the total of a point over all buckets and indexes.
type pointSum struct {
	scans, ddl, lag uint64
	p99             float64
	known           bool // lag is known
}

// sums returns the points with data, by time.
func sums(h *v1.History) map[int64]*pointSum {
	points := map[int64]*pointSum{}
	at := func(ms int64) *pointSum {
		if points[ms] == nil {
			points[ms] = &pointSum{}
		}
		return points[ms]
	}
	for i := range h.Scans {
		for _, p := range h.Scans[i].Points {
			at(p.AtMS).scans += p.Count
			at(p.AtMS).p99 = max(at(p.AtMS).p99, p.P99MS)
		}
	}
	for _, p := range h.DDL.Points {
		at(p.AtMS).ddl += p.Count
	}
	for i := range h.Buckets {
		for _, p := range h.Buckets[i].Points {
			at(p.AtMS).lag, at(p.AtMS).known = max(at(p.AtMS).lag, p.Lag), true
		}
	}
	return points
}

// tablePoints prints a line per point with data, over all buckets and indexes; all is appended to the headings of
// figures that cover all buckets.
func tablePoints(t io.Writer, h *v1.History, all string) {
	points := sums(h)
	if len(points) == 0 {
		return
	}
	fmt.Fprintf(t, "\nFROM\tSCANS%s\tWORST P99%s\tDDL%s\tMOST NOT VISIBLE\n", all, all, all)
	for ms := h.FromMS; ms < h.ToMS; ms += max(h.StepMS, 1) {
		p := points[ms]
		if p == nil {
			continue
		}
		lag, p99 := "-", "-"
		if p.known {
			lag = fmt.Sprint(p.lag)
		}
		if p.scans > 0 {
			p99 = formatMS(p.p99)
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t%d\t%s\n", clockOf(ms), p.scans, p99, p.ddl, lag)
	}
}

// printGaps reports what is missing from a history.
func printGaps(w io.Writer, h *v1.History) {
	for _, o := range h.Of {
		if o.SinceMS > h.FromMS {
			fmt.Fprintf(w, "%s %s has no records from before %s\n", o.Role, o.Name, clockOf(o.SinceMS))
		}
	}
	for _, u := range h.Unreachable {
		fmt.Fprintf(w, "%s %s does not answer, its figures are missing: %s\n", u.Role, u.Name, u.Error)
	}
	if h.IndexesOmitted > 0 {
		fmt.Fprintf(w, "%s more: see --limit\n", counted(h.IndexesOmitted, "index", "indexes"))
	}
	if h.ScansUnnamed > 0 {
		fmt.Fprintf(w, "%d scans were of further indexes, which are not recorded by name\n", h.ScansUnnamed)
	}
	if h.BucketsOmitted > 0 {
		fmt.Fprintf(w, "%s more, which are not recorded\n", counted(h.BucketsOmitted, "bucket", "buckets"))
	}
}
