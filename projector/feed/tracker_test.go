package feed_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"tidemark/projector/feed"
)

func TestTrackerScripts(t *testing.T) {
	datadriven.RunTest(t, "testdata/tracker", func(t *testing.T, d *datadriven.TestData) string {
		var out strings.Builder
		var tr feed.Tracker
		for line := range strings.SplitSeq(strings.TrimSpace(d.Input), "\n") {
			var op string
			var a, b, c uint64
			_, _ = fmt.Sscan(line, &op, &a, &b, &c)
			e := feed.Event{Seqno: a}
			switch op {
			case "open":
				tr = feed.NewTracker(feed.Position{Seqno: a, SnapStart: b, SnapEnd: c})
				line = op
			case "marker":
				e = feed.Event{Kind: feed.SnapshotMarker, SnapStart: a, SnapEnd: b}
			case "item":
				e.Kind = feed.Mutation
			case "system":
				e.Kind = feed.SystemEvent
			case "advance":
				e.Kind = feed.SeqnoAdvanced
			case "oso":
				e.Kind = feed.OSO
			}
			before := tr
			p, err := tr.Observe(&e)
			if err != nil {
				if !errors.Is(err, feed.ErrOrder) || tr != before {
					t.Fatalf("%s: %v; the tracker must be unchanged", line, err)
				}
				_, what, _ := strings.Cut(err.Error(), "vbucket 0: ")
				fmt.Fprintf(&out, "%-13s error: %s\n", line, what)
				continue
			}
			star := ""
			if p.Completed {
				star = " *"
			}
			fmt.Fprintf(&out, "%-13s %d [%d-%d] complete %d%s\n", line, p.Seqno, p.SnapStart, p.SnapEnd, p.Complete, star)
		}
		return out.String()
	})
}

// Against a simple model: a node with a history of de-duplicated windows, some of them cut short. Complete is always
// the end of a window all of whose items have arrived, the position is always one that a node accepts (start ≤ seqno
// ≤ end), and complete never exceeds what arrived.
func TestTrackerProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		start := uint64(rapid.IntRange(0, 50).Draw(t, "start"))
		tr := feed.NewTracker(feed.Position{Seqno: start, SnapStart: start, SnapEnd: start})
		seqno, complete, since := start, start, start
		for range rapid.IntRange(1, 8).Draw(t, "windows") {
			first := seqno + uint64(rapid.IntRange(1, 3).Draw(t, "gap"))
			end := first + uint64(rapid.IntRange(0, 6).Draw(t, "length"))
			if complete == seqno {
				since = first // from here on nothing is complete until the end of a window
			}
			cut := rapid.Bool().Draw(t, "cut short")
			if _, err := tr.Observe(&feed.Event{Kind: feed.SnapshotMarker, SnapStart: first, SnapEnd: end}); err != nil {
				t.Fatal(err)
			}
			for s := first; s <= end; s++ {
				last := s == end
				if last && cut || !last && rapid.Bool().Draw(t, "de-duplicated") {
					continue
				}
				kind := feed.Deletion
				if last && rapid.Bool().Draw(t, "filtered") {
					kind = feed.SeqnoAdvanced
				}
				p, err := tr.Observe(&feed.Event{Kind: kind, Seqno: s})
				if err != nil {
					t.Fatal(err)
				}
				seqno = s
				if last {
					complete = s
				}
				if p.Completed != last || p.Complete != complete || p.Seqno != s {
					t.Fatalf("after %d: %+v, want complete %d", s, p, complete)
				}
				if p.SnapStart > p.Seqno || p.Seqno > p.SnapEnd {
					t.Fatalf("no node accepts %+v", p)
				}
				if p.SnapStart > since {
					t.Fatalf("%+v hides that the state is incomplete since %d", p, since)
				}
			}
		}
	})
}

// TestTrackerIsCheap: it runs for every mutation.
func TestTrackerIsCheap(t *testing.T) {
	tr := feed.NewTracker(feed.Position{})
	_, _ = tr.Observe(&feed.Event{Kind: feed.SnapshotMarker, SnapEnd: 1 << 40})
	e := feed.Event{Kind: feed.Mutation}
	if n := testing.AllocsPerRun(1000, func() {
		e.Seqno++
		if _, err := tr.Observe(&e); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Fatalf("%v allocations per event", n)
	}
}
