package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"tidemark/client"
	"tidemark/index"
	"tidemark/manager/api/v1"
)

// topIndexes limits the indexes that top shows: those that are not ready first.
const topIndexes = 20

// topSample is one sample of the cluster.
type topSample struct {
	at      time.Time
	status  v1.Status
	indexes v1.IndexList
	stats   v1.Stats
}

// topView is the content of top, with rates over the time since the previous sample.
type topView struct {
	AtMS     int64              `json:"at_ms"`
	Status   v1.Status          `json:"status"`
	Updates  float64            `json:"updates_per_second"` // of the replicated state
	Promoted map[string]float64 `json:"promotions_per_second"`
	// Documents holds the rate of mutations and deletions of each projector, by id.
	Documents map[index.ProjectorID]float64 `json:"documents_per_second"`
	Indexes   []v1.IndexInfo                `json:"indexes"` // at most 20, those that are not ready first
	Hidden    int                           `json:"indexes_hidden"`
	// Stats holds the figures of those indexes and of all indexers.
	Stats v1.Stats `json:"stats"`
	// Scans is the rate of scans that have ended by index, and Latency their mean duration, over the interval.
	Scans   map[index.ID]float64 `json:"scans_per_second"`
	Latency map[index.ID]uint64  `json:"scan_latency"` // nanoseconds
}

func newTop(s Streams) *cobra.Command {
	f := &serverFlags{}
	var every time.Duration
	var once bool
	cmd := &cobra.Command{Use: "top", Short: "Show the cluster live: managers, projectors, indexers, buckets, indexes",
		Args: noArgs, ValidArgsFunction: noFiles,
		Long: `Shows the cluster until Ctrl-C, once every --interval: in place on a terminal, otherwise as one block after the
other, or with --output json or jsonl as one line of JSON each. Rates are averages over the interval. Components that do
not answer are named, and queried again. On a terminal q quits, s changes the order of the indexes, / filters them by a
part of their names, the arrow keys scroll, and ? lists the keys; long lines are cut off at its edge.`,
		Example: "  tidemark top\n  tidemark top --once --interval 500ms\n  tidemark top --output json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := noCSV(f.output); err != nil {
				return err
			}
			if every < 100*time.Millisecond || every > time.Hour {
				return usage("--interval %s: want 100ms to 1h", every)
			}
			return runTop(cmd.Context(), s, f, every, once)
		}}
	f.add(cmd, s)
	cmd.Flags().DurationVar(&every, "interval", 2*time.Second, "time between two updates")
	cmd.Flags().BoolVar(&once, "once", false, "print one block, with rates over one interval, and end")
	return cmd
}

func runTop(ctx context.Context, s Streams, f *serverFlags, every time.Duration, once bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	take := func() (n topSample, err error) {
		err = f.do(ctx, func(ctx context.Context, c *client.Client) error {
			if n.status, err = c.Status(ctx); err != nil {
				return err
			}
			if n.indexes, err = c.Indexes(ctx, ""); err != nil {
				return err
			}
			n.stats, err = c.Stats(ctx, "")
			return err
		})
		n.at = time.Now()
		return n, err
	}
	first, err := take()
	if err != nil {
		return err
	}
	d := &topDisplay{streams: s, output: f.output, last: first, next: first}
	if !once && f.output == formatTable {
		var restore func()
		if d.keys, restore = keyboard(ctx, s); d.keys != nil {
			d.screen = &topScreen{}
			if isTerminal(s.Err) {
				f.streams.Err = lastLine{s.Out}
			}
			err = d.show()
		}
		defer restore()
	}
	if err != nil {
		return err
	}
	return d.run(ctx, take, every, once)
}

// topDisplay shows one sample after another.
type topDisplay struct {
	streams    Streams
	output     format
	last, next topSample
	failure    error         // why the newest sample failed
	keys       <-chan string // nil: not interactive
	screen     *topScreen    // nil: no keys
}

func (d *topDisplay) run(ctx context.Context, take func() (topSample, error), every time.Duration, once bool) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	samples, sampling := make(chan func() error, 1), false // keys work while a sample is being taken
	for {
		select {
		case <-ctx.Done():
			return nil
		case k, ok := <-d.keys:
			if !ok || d.screen.key(k) {
				return nil
			}
			if err := d.show(); err != nil {
				return err
			}
		case <-tick.C:
			if !sampling {
				sampling = true
				go func() {
					n, err := take()
					samples <- func() error { return d.take(n, err, once) }
				}()
			}
		case take := <-samples:
			sampling = false
			if err := take(); ctx.Err() != nil {
				return nil
			} else if err != nil || once {
				return err
			}
		}
	}
}

// take stores a sample, or its error, and shows it.
func (d *topDisplay) take(n topSample, err error, once bool) error {
	switch d.failure = err; {
	case err != nil && once:
		return err
	case err != nil && d.screen == nil:
		fmt.Fprintln(d.streams.Err, "tidemark:", err)
		return nil
	case err == nil:
		d.last, d.next = d.next, n
	}
	return d.show()
}

// show draws the newest sample, as selected by the user.
func (d *topDisplay) show() error {
	v := compare(&d.last, &d.next, d.screen)
	if d.screen == nil {
		return printTop(d.streams.Out, d.output, v)
	}
	text := topKeysText
	if !d.screen.help {
		var err error
		if text, err = topText(v); err != nil {
			return err
		}
		if d.failure != nil {
			text = "no answer: " + d.failure.Error() + "\n" + text
		}
	}
	width, height := sizeOf(d.streams.Out)
	_, err := io.WriteString(d.streams.Out, d.screen.frame(text, width, height))
	return err
}

// topText formats a view as a table.
func topText(v *topView) (string, error) {
	var text strings.Builder
	t := tabwriter.NewWriter(&text, 2, 0, 2, ' ', 0)
	renderTop(t, v)
	err := t.Flush()
	return text.String(), err
}

// choose sets the indexes that match the user's filter, those that are not ready first.
func (v *topView) choose(all []v1.IndexInfo, chosen *topScreen) map[index.ID]bool {
	shown := map[index.ID]bool{}
	for _, ready := range []bool{false, true} {
		for n := range all {
			if i := &all[n]; (i.State == index.Maintenance) == ready && chosen.has(i) {
				v.Indexes, shown[i.ID] = append(v.Indexes, *i), true
			}
		}
	}
	return shown
}

// compare computes rates from two samples, for the indexes that the user has selected (nil: all).
func compare(last, next *topSample, chosen *topScreen) *topView {
	v := &topView{AtMS: next.at.UnixMilli(), Status: next.status, Promoted: map[string]float64{},
		Documents: map[index.ProjectorID]float64{}, Indexes: []v1.IndexInfo{}}
	seconds := max(next.at.Sub(last.at).Seconds(), 1e-3)
	rate := func(from, to uint64) float64 { return float64(to-min(from, to)) / seconds }
	v.Updates = rate(last.status.CAS, next.status.CAS)
	for _, b := range next.status.Buckets {
		for _, old := range last.status.Buckets {
			if old.Name == b.Name && old.Generation == b.Generation {
				v.Promoted[b.Name] = rate(old.StabilityNumber, b.StabilityNumber)
			}
		}
	}
	for _, p := range next.status.Projectors {
		for _, old := range last.status.Projectors {
			if old.ID == p.ID && old.BootID == p.BootID {
				v.Documents[p.ID] = rate(old.Mutations+old.Deletions, p.Mutations+p.Deletions)
			}
		}
	}
	shown := v.choose(next.indexes.Indexes, chosen)
	v.compareScans(last, next, seconds, shown)
	chosen.sort(v)
	v.Hidden = max(0, len(v.Indexes)-topIndexes)
	for _, i := range v.Indexes[len(v.Indexes)-v.Hidden:] {
		delete(shown, i.ID)
		delete(v.Scans, i.ID)
		delete(v.Latency, i.ID)
	}
	v.Indexes = v.Indexes[:len(v.Indexes)-v.Hidden]
	v.Stats.Indexes = slices.DeleteFunc(v.Stats.Indexes, func(x v1.IndexStats) bool { return !shown[x.ID] })
	return v
}

// compareScans computes the scan figures of the indexes that are shown.
func (v *topView) compareScans(last, next *topSample, seconds float64, shown map[index.ID]bool) {
	v.Scans, v.Latency, v.Stats = map[index.ID]float64{}, map[index.ID]uint64{}, next.stats
	v.Stats.Indexes = []v1.IndexStats{}
	before := make(map[index.ID]*v1.IndexStats, len(last.stats.Indexes))
	for i := range last.stats.Indexes {
		before[last.stats.Indexes[i].ID] = &last.stats.Indexes[i]
	}
	for i := range next.stats.Indexes {
		x := &next.stats.Indexes[i]
		if !shown[x.ID] {
			continue
		}
		v.Stats.Indexes = append(v.Stats.Indexes, *x)
		old := before[x.ID]
		if old == nil {
			continue
		}
		if x.NumRequests > old.NumRequests && x.TotalScanDuration >= old.TotalScanDuration {
			n := x.NumRequests - old.NumRequests
			v.Scans[x.ID], v.Latency[x.ID] = float64(n)/seconds, (x.TotalScanDuration-old.TotalScanDuration)/n
		}
	}
}

func printTop(w io.Writer, output format, v *topView) error {
	if output != formatTable {
		return write(w, output.each(), v)
	}
	text, err := topText(v)
	if err != nil {
		return err
	}
	if isTerminal(w) && !noColor() {
		text = clearScreen + text
	}
	_, err = io.WriteString(w, text+"\n") // in one write, so that the terminal does not flicker
	return err
}

func renderTop(t io.Writer, v *topView) {
	st := &v.Status
	leader := st.Leader.ID
	if leader == "" {
		leader = "none"
	}
	fmt.Fprintf(t, "%s  cluster %s  leader %s  term %d  cas %d  %.1f updates/s\n", clockOf(v.AtMS), st.ClusterID, leader,
		st.Term, st.CAS, v.Updates)
	fmt.Fprintln(t, "\nMANAGER\tROLE\tALIVE\tADDRESS")
	for _, m := range st.Managers {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", m.ID, m.Role, yesNo(m.Alive), m.REST)
	}
	fmt.Fprintln(t, "\nPROJECTOR\tSTATE\tSTREAMS\tREVISION\tDOCUMENTS/s\tERRORS")
	for _, p := range st.Projectors {
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%.0f\t%d\n", p.ID, p.State, p.Streams, p.Revision, v.Documents[p.ID], p.Errors)
	}
	renderTopIndexers(t, v)
	fmt.Fprintln(t, "\nBUCKET\tSTREAMS\tSTABILITY\tPROMOTIONS/s\tAGE\tLAG\tSCANS WAITING\tROLLBACK")
	for _, b := range st.Buckets {
		age := "-"
		if b.StabilityAgeMS != nil {
			age = (time.Duration(*b.StabilityAgeMS) * time.Millisecond).String()
		}
		streams := stateUnknown
		if st.Coordinator == stateActive {
			streams = fmt.Sprintf("%d of %d", b.StreamsBegun, b.VBuckets)
		}
		fmt.Fprintf(t, "%s\t%s\t#%d\t%.1f\t%s\t%d\t%d\t%s\n", b.Name, streams, b.StabilityNumber,
			v.Promoted[b.Name], age, b.Lag, b.ScansWaiting, orWord(b.Rollback, "-"))
	}
	renderTopIndexes(t, v)
}

func renderTopIndexers(t io.Writer, v *topView) {
	fmt.Fprintln(t, "\nINDEXER\tSTATE\tCOPIES\tREVISION\tQUEUE\tMEMORY\tRSS MB\tHEALTH")
	for _, i := range v.Status.Indexers {
		queue := "-"
		if i.QueueLimit > 0 {
			queue = fmt.Sprintf("%.1f MB (%.0f%%)", float64(i.QueueBytes)/1e6, 100*float64(i.QueueBytes)/float64(i.QueueLimit))
		}
		memory, rss := "-", "-"
		if at := slices.IndexFunc(v.Stats.Indexers, func(n v1.IndexerStats) bool { return n.Node == i.Node }); at >= 0 &&
			v.Stats.Indexers[at].MemoryQuota > 0 {
			n := &v.Stats.Indexers[at]
			memory = fmt.Sprintf("%.1f MB (%.0f%%)", megabytes(n.MemoryUsed), 100*float64(n.MemoryUsed)/float64(n.MemoryQuota))
			rss = fmt.Sprintf("%.1f", megabytes(n.MemoryRSS))
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\n", i.ID, i.State, i.Copies, i.Revision, queue, memory, rss,
			indexerHealth(&i))
	}
}

func renderTopIndexes(t io.Writer, v *topView) {
	fmt.Fprintln(t, "\nINDEX\tSTATE\tPROGRESS\tENTRIES\tPENDING\tQUEUED\tMB ON DISK\tSCANS/s\tLATENCY\tERRORS")
	for _, i := range v.Indexes {
		entries, pending, queued := entriesOf(&i), "-", "-"
		if at := slices.IndexFunc(v.Stats.Indexes, func(x v1.IndexStats) bool { return x.ID == i.ID }); at >= 0 {
			x := &v.Stats.Indexes[at]
			entries, pending, queued = fmt.Sprint(x.ItemsCount), pendingOf(x), fmt.Sprint(x.NumDocsQueued)
		}
		fmt.Fprintf(t, "%s/%s\t%s\t%.0f%%\t%s\t%s\t%s\t%.1f\t%.1f\t%s\t%s\n", i.Bucket, i.Name, stateWord(i), i.Progress,
			entries, pending, queued,
			megabytes(i.DiskBytes), v.Scans[i.ID], latency(v.Latency[i.ID]), faultCount(i.Faults))
	}
	if v.Hidden > 0 {
		fmt.Fprintf(t, "and %d more\n", v.Hidden)
	}
}

// indexerHealth returns an indexer's health, "-" for an indexer that is not active and has reported no problem.
func indexerHealth(i *v1.IndexerStatus) string {
	if i.State != stateActive {
		return orWord(i.Health, "-")
	}
	return orWord(i.Health, "ok")
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

func orWord(text, word string) string {
	if text == "" {
		return word
	}
	return text
}
