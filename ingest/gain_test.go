package ingest

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"tidemark/timestamp"
)

// TestCachedGainEqualsGainOfEachPart checks that the cached gain of parts that have passed the same events is the
// gain of each of them, even if there are more different ones than the cache holds.
func TestCachedGainEqualsGainOfEachPart(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		v := &vbucket{}
		epoch := rapid.Uint32Range(0, 3).Draw(rt, "first epoch")
		for range rapid.IntRange(1, 12).Draw(rt, "events") {
			epoch += rapid.Uint32Range(0, 1).Draw(rt, "epoch")
			q := rapid.Uint64Range(1, 12).Draw(rt, "seqno") // a restarted stream steps back
			v.queue = append(v.queue, Entry{Seqno: q, epoch: epoch, empty: rapid.Bool().Draw(rt, "empty"),
				Window: timestamp.Window{Start: q - min(q, rapid.Uint64Range(0, 3).Draw(rt, "before")),
					End: q + rapid.Uint64Range(0, 3).Draw(rt, "behind")}})
		}
		seqno := rapid.Uint64Range(1, 14).Draw(rt, "up to")
		events := v.upTo(seqno)
		var g gains
		g.begin(v)
		for range rapid.IntRange(1, 3*mostGains).Draw(rt, "parts") {
			p := &part{from: rapid.Uint32Range(0, 5).Draw(rt, "from")}
			p.pos.Main = rapid.Uint64Range(0, 12).Draw(rt, "main")
			if got, want := g.straddled(v, p, seqno), v.straddles(p, seqno); got != want {
				rt.Fatalf("straddles to %d, want %d", got, want)
			}
			pt := Part{after: p.pos.Main, upTo: seqno, epoch: p.from}
			var want gain
			for i := range events {
				if e := &events[i]; pt.Selects(e) {
					want.some, want.empty = true, want.empty || e.empty
					want.top, want.end = max(want.top, e.Seqno), max(want.end, e.Window.End)
				}
			}
			if got := g.of(&pt, events); got.some != want.some || got.empty != want.empty || got.top != want.top ||
				got.end != want.end {
				rt.Fatalf("it gains %+v, want %+v", *got, want)
			}
		}
	})
}

// TestQueuesAreTrimmedForLeavingCopies checks that queued events are removed when the last copy that needs them is
// removed, in any order of removals, and whichever copy is checked first.
func TestQueuesAreTrimmedForLeavingCopies(t *testing.T) {
	const copies = 4
	var orders [][]int
	var extend func(order []int)
	extend = func(order []int) {
		if len(order) == copies {
			orders = append(orders, slices.Clone(order))
		}
		for i := range copies {
			if !slices.Contains(order, i) {
				extend(append(order, i))
			}
		}
	}
	extend(nil)
	for _, order := range orders {
		for holds := range 2 * copies {
			s := idle(t, 1, copies, true)
			v := &s.vbs[0]
			v.holds = holds
			s.enqueue(v, Entry{Seqno: 101, epoch: v.epoch})
			for n, i := range order {
				if len(v.queue) != 1 || s.queued == 0 {
					t.Fatalf("%v, from %d: after %d have left, it is gone", order, holds, n)
				}
				s.reset(s.copies[i], 0)
			}
			if len(v.queue) != 0 || s.queued != 0 {
				t.Fatalf("%v, from %d: all have left, and it is there", order, holds)
			}
		}
	}
}
