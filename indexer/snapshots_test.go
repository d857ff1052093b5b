package indexer

import (
	"testing"
	"time"

	"tidemark/indexer/scan"
	"tidemark/stability"
)

// TestQueryKeepsItsTimestamp: a timestamp that a query has named stays over many newer ones, for as long as it is used
// now and then, and goes after that.
func TestQueryKeepsItsTimestamp(t *testing.T) {
	w := built(t)
	clock := time.Now()
	w.x.snapshots.mu.Lock()
	w.x.snapshots.now = func() time.Time { return clock }
	w.x.snapshots.mu.Unlock()
	pass := func(d time.Duration) {
		w.x.snapshots.mu.Lock()
		defer w.x.snapshots.mu.Unlock()
		clock = clock.Add(d)
	}
	ref := w.last.Named()
	p := pins{w.x}
	move := func() {
		w.write(docs(0, 5, int(w.number)*10)...)
		w.promote(t.Context())
		w.held(10, 20)
	}
	holds := func() bool {
		h, ok := w.x.snapshots.acquire(10, &ref)
		if ok {
			_ = h.snap.Close()
		}
		return ok
	}
	w.x.snapshots.keepFor(ref, time.Minute)
	for range 3 * DefaultKeepSnapshots {
		move()
	}
	if !holds() || len(w.x.snapshots.refs(10)) != DefaultKeepSnapshots+1 {
		t.Errorf("%s is gone, held are %v", "the timestamp", w.x.snapshots.refs(10))
	}
	pass(50 * time.Second)
	w.x.snapshots.keepFor(ref, time.Minute) // used again
	pass(50 * time.Second)
	move()
	if !holds() {
		t.Error("it went although it was used")
	}
	pass(11 * time.Second)
	move()
	if holds() {
		t.Error("it is still held when its time is over")
	}
	// However often it is used, it goes when its greatest age is over, and using it then does not begin anew.
	ref = w.last.Named()
	for used := time.Duration(0); used <= scan.MaxKeep; used += 50 * time.Second {
		w.x.snapshots.keepFor(ref, time.Minute)
		if used+50*time.Second > scan.MaxKeep {
			for range DefaultKeepSnapshots + 1 {
				move()
			}
			if !holds() {
				t.Errorf("it went %s after its first use", used)
			}
		}
		pass(50 * time.Second)
	}
	w.x.snapshots.keepFor(ref, time.Minute)
	move()
	if holds() {
		t.Error("it is held for ever when it is used again and again")
	}
	for i := range uint64(3 * maxKept) { // more than can be kept: the ones used last stay
		r := ref
		r.Number = 1000 + i
		p.x.snapshots.keepFor(r, time.Minute)
	}
	if n := len(w.x.snapshots.kept); n != maxKept || w.x.snapshots.kept[n-1].ref.Number != 1000+3*maxKept-1 {
		t.Errorf("%d are kept", n)
	}
}

// TestMoreSnapshotsThanPromotionsOutstanding: the fastest indexer is as many promotions ahead of the slowest as may be
// outstanding, and has the one that the slowest is at among those it keeps, together with one that is being made.
func TestMoreSnapshotsThanPromotionsOutstanding(t *testing.T) {
	if most := stability.DefaultConfig().MaxOutstanding; DefaultKeepSnapshots < most+2 {
		t.Errorf("%d snapshots are kept beside %d promotions outstanding", DefaultKeepSnapshots, most)
	}
}
