package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"tidemark/client"
	"tidemark/index"
	"tidemark/manager/api/v1"
)

func indexStats(s Streams, f *serverFlags) *cobra.Command {
	return &cobra.Command{Use: "stats [BUCKET/NAME|ID ...]", Short: "Show figures of indexes and indexers: entries, " +
		"backlog, sizes, scans, memory, errors",
		Long: `Shows figures of all indexes, or of the given ones, and of indexers. PENDING is the number of changes in KV
that have not reached the index's copy that lacks most, QUEUED the number of changes that have arrived and that no scan
sees yet. DATA is the live data, DISK the files of all copies, FRAG the estimated share of garbage in them. REQUESTS,
ROWS and LATENCY are those of scans since the start of the indexers' processes. --output json prints all figures, with
the field names of GET /v1/stats.`,
		Example:           "  tidemark index stats\n  tidemark index stats world/places_by_name --output json",
		ValidArgsFunction: f.indexes(true),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.do(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				var wanted []index.ID
				for _, a := range args {
					r, err := ref(a)
					if err != nil {
						return err
					}
					i, err := c.Index(ctx, r)
					if err != nil {
						return err
					}
					wanted = append(wanted, i.ID)
				}
				st, err := c.Stats(ctx, "")
				if err != nil {
					return err
				}
				if wanted != nil {
					st.Indexes = slices.DeleteFunc(st.Indexes, func(i v1.IndexStats) bool {
						return !slices.Contains(wanted,
							i.ID)
					})
				}
				return show(s.Out, f.output, st, st.Indexes, func(t *tabwriter.Writer) { tableStats(t, &st) })
			})
		}}
}

func tableStats(t io.Writer, st *v1.Stats) {
	fmt.Fprintln(t, "INDEX\tSTATE\tBUILD\tITEMS\tPENDING\tQUEUED\tDATA MB\tDISK MB\tFRAG\tREQUESTS\tROWS\tLATENCY\tERRORS")
	for i := range st.Indexes {
		x := &st.Indexes[i]
		fmt.Fprintf(t, "%s/%s\t%s\t%.0f%%\t%d\t%s\t%d\t%.1f\t%.1f\t%.0f%%\t%d\t%d\t%s\t%s\n", x.Bucket, x.Name, statsState(x),
			x.BuildProgress, x.ItemsCount,
			pendingOf(x), x.NumDocsQueued, megabytes(x.DataSize), megabytes(x.DiskSize), x.FragPercent, x.NumRequests,
			x.NumRowsReturned, latency(x.AvgScanLatency),
			faultCount(x.Faults))
	}
	fmt.Fprintln(t, "\nINDEXER\tSTATE\tCOPIES\tITEMS\tPENDING\tQUEUED\tDISK MB\tMEMORY MB\tQUOTA MB\tRSS "+
		"MB\tREQUESTS\tLATENCY")
	for i := range st.Indexers {
		n := &st.Indexers[i]
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\t%d\t%.1f\t%.1f\t%.0f\t%.1f\t%d\t%s\n", n.ID, n.State, n.Copies, n.ItemsCount,
			n.NumDocsPending, n.NumDocsQueued,
			megabytes(n.DiskSize), megabytes(n.MemoryUsed), megabytes(n.MemoryQuota), megabytes(n.MemoryRSS), n.NumRequests,
			latency(n.AvgScanLatency))
	}
	for i := range st.Indexes {
		x := &st.Indexes[i]
		name := x.Bucket + "/" + x.Name
		remark(t, x.Reason, "%s", name)
		if a := x.Availability; a != nil {
			remark(t, a.Why, "%s: %s since %s", name, a.State, clockOf(a.SinceMS))
		}
		if f := x.Faults; f != nil {
			fmt.Fprintf(t, "\n%s: %s documents have no entry: %s\n", name, faultCount(f), faultText(f))
		}
		remark(t, x.LastScanError, "%s: %d scans failed; one", name, x.NumScanErrors)
		remark(t, x.PendingUnknown, "%s: PENDING may be too low", name)
	}
	for i := range st.Indexers {
		remark(t, st.Indexers[i].Health, "indexer %s", st.Indexers[i].ID)
	}
}

func statsState(x *v1.IndexStats) string {
	return stateWord(v1.IndexInfo{State: x.State, Availability: x.Availability})
}

// pendingOf formats the pending changes, with >= if the number may be too low.
func pendingOf(x *v1.IndexStats) string {
	if x.PendingUnknown != "" {
		return fmt.Sprintf(">=%d", x.NumDocsPending)
	}
	return fmt.Sprint(x.NumDocsPending)
}

// faultCount formats the number of documents without an entry, with >= if it may be too low.
func faultCount(f *v1.IndexFaults) string {
	switch {
	case f == nil:
		return "0"
	case f.Incomplete:
		return fmt.Sprintf(">=%d", f.Expression+f.TooLong)
	}
	return fmt.Sprint(f.Expression + f.TooLong)
}

// faultText describes documents without an entry.
func faultText(f *v1.IndexFaults) string {
	text := fmt.Sprintf("%d because an expression failed, %d because a key was too long", f.Expression, f.TooLong)
	if f.Incomplete {
		text += "; a projector or indexer has more such indexes than it reports, and does not report this one"
	}
	if s := f.Sample; s != nil {
		text += fmt.Sprintf("; one is %q (vbucket %d, seqno %d): %s", s.DocID, s.VBucket, s.Seqno, s.Error)
	}
	return text
}

func megabytes(n uint64) float64 { return float64(n) / 1e6 }

// latency formats a mean duration for display.
func latency(nanoseconds uint64) string {
	if nanoseconds == 0 {
		return "-"
	}
	return time.Duration(nanoseconds).Round(10 * time.Microsecond).String()
}
