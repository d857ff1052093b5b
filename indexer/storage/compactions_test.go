package storage

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// mergeable is a store that has something to merge.
type mergeable struct {
	m       *compactor
	granted atomic.Int32
}

func (d *mergeable) GetAllowedWithoutPermission() int { return 1 }
func (d *mergeable) GetWaitingCompaction() (bool, pebble.WaitingCompaction) {
	return true, pebble.WaitingCompaction{}
}
func (d *mergeable) Schedule(pebble.CompactionGrantHandle) bool { d.granted.Add(1); return true }

// TestFailedMergesAreRetried: a store whose merge failed retries on its own, after increasing pauses, even if nothing
// is written to it and no other store releases a slot; one that was stopped does not.
func TestFailedMergesAreRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &mergeable{m: newCompactions(1).member()}
		d.m.Register(1, d)
		d.m.TrySchedule()
		if synctest.Wait(); d.granted.Load() != 1 {
			t.Fatal("no slot is free")
		}
		rests := func(delay time.Duration) {
			t.Helper()
			before := d.granted.Load()
			d.m.ended(false)
			d.m.Done()
			time.Sleep(delay - 1)
			synctest.Wait()
			if ok, _ := d.m.TrySchedule(); ok || d.granted.Load() != before {
				t.Fatalf("it runs again before %v are over", delay)
			}
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			if d.granted.Load() != before+1 {
				t.Fatalf("it does not run again after %v", delay)
			}
		}
		for delay := firstDelay; delay < maxRest; delay *= 2 {
			rests(delay)
		}
		rests(maxRest)
		rests(maxRest)
		before := d.granted.Load()
		d.m.ended(true)
		d.m.Done()
		if synctest.Wait(); d.granted.Load() != before+1 {
			t.Error("it rests after a merge that went well")
		}
		rests(firstDelay)
		before = d.granted.Load()
		d.m.ended(false)
		d.m.stop()
		d.m.Done()
		d.m.ended(false)
		if time.Sleep(2 * maxRest); d.granted.Load() != before {
			t.Error("one that was stopped tries again")
		}
		d.m.Unregister()
	})
}

// hanging is a store that wants to merge, whose calls and merges end when the test lets them. Like Pebble, it has asked
// for a slot, and does not ask again, from a refusal until it has nothing to merge.
type hanging struct {
	m      *compactor
	want   pebble.WaitingCompaction
	idle   atomic.Bool                   // nothing is to be merged any more
	hang   atomic.Pointer[chan struct{}] // calls wait for it
	merges atomic.Int32                  // in progress
	late   bool                          // the scheduler has asked it before it asks for a slot after a merge
	mu     sync.Mutex                    // Pebble's DB lock, guards waits
	waits  bool                          // for a slot
}

func newHanging(all *compactions, score float64) *hanging {
	h := &hanging{m: all.member(), want: pebble.WaitingCompaction{Score: score}}
	h.m.Register(1, h)
	return h
}

func (h *hanging) wait() {
	if gate := h.hang.Load(); gate != nil {
		<-*gate
	}
}

func (h *hanging) GetAllowedWithoutPermission() int { return 1 }

func (h *hanging) GetWaitingCompaction() (bool, pebble.WaitingCompaction) {
	h.wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waits = h.waits && !h.idle.Load()
	return h.waits, h.want
}

func (h *hanging) Schedule(pebble.CompactionGrantHandle) bool {
	h.wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waits {
		h.merges.Add(1)
	}
	return h.waits
}

// ask asks for a slot, as Pebble does after a flush and after a merge. With a slot that it gets at once, it does not
// wait, and tells nobody what else there is to merge.
func (h *hanging) ask() {
	h.mu.Lock()
	if !h.waits {
		if ok, _ := h.m.TrySchedule(); ok {
			h.merges.Add(1)
		} else {
			h.waits = true
		}
	}
	h.mu.Unlock()
	synctest.Wait()
}

// done ends a merge.
func (h *hanging) done() {
	h.merges.Add(-1)
	h.m.Done()
	if h.late {
		synctest.Wait()
	}
	if !h.idle.Load() {
		h.ask()
	}
	synctest.Wait()
}

// TestUrgentMergesFirst checks that the slot of a merge that ends goes to the store that waits with a more urgent one,
// although the first store asks for it again at once, also if the first store does not answer how urgent its next merge
// is; and that a store keeps its slot while its merges are more urgent than those of others, however late it asks.
func TestUrgentMergesFirst(t *testing.T) {
	for _, late := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) { urgentMergesFirst(t, late) })
	}
}

func urgentMergesFirst(t *testing.T, late bool) {
	all := newCompactions(1)
	low, high := newHanging(all, 1), newHanging(all, 100)
	low.late, high.late = late, late
	merging := func(when string, want *hanging) {
		t.Helper()
		for _, h := range []*hanging{low, high} {
			if got := h.merges.Load(); got != 0 && h != want || got != 1 && h == want {
				t.Fatalf("asked late %v, %s: the store of score %v has %d merges in progress", late, when, h.want.Score, got)
			}
		}
	}
	high.ask()
	low.ask()
	merging("no store waited", high)
	high.done()
	merging("the first merge has ended, and the store has more to merge", high)
	high.idle.Store(true)
	high.done()
	merging("the store has nothing to merge", low)
	high.idle.Store(false)
	high.ask()
	low.done()
	merging("a merge has ended", high)
	high.done()
	merging("the more urgent store has more to merge", high)
	high.idle.Store(true)
	high.done()
	merging("the more urgent store has nothing to merge", low)

	high.idle.Store(false)
	high.ask()
	gate := make(chan struct{})
	low.hang.Store(&gate)
	low.done()
	merging("the less urgent store does not answer", nil)
	time.Sleep(patience)
	synctest.Wait()
	merging("the less urgent store has not answered for patience", high)
	for _, h := range []*hanging{low, high} {
		h.idle.Store(true)
	}
	low.hang.Store(nil)
	close(gate)
	high.done()
	merging("no store has anything to merge", nil)
	for _, h := range []*hanging{low, high} {
		h.m.Unregister()
	}
	if all.running != 0 || all.waiting != 0 || len(all.busy) != 0 {
		t.Errorf("%d slots are taken by %d stores, %d stores wait at the end", all.running, len(all.busy), all.waiting)
	}
}

// TestHungStores checks that a slot goes to the most urgent store; that one that hangs in a call loses its turn after
// patience, and so does a merge without progress, but not more than spare of them at a time.
func TestHungStores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newCompactions(1)
		first := newHanging(all, 0)
		first.ask()
		first.idle.Store(true)
		var stores []*hanging // the most urgent first
		for n := range spare + 3 {
			h := newHanging(all, float64(100-n))
			stores = append(stores, h)
			h.ask()
		}
		running := func(want int) {
			t.Helper()
			for n, h := range stores {
				if got := int(h.merges.Load()); got != 0 && n != want || got != 1 && n == want {
					t.Fatalf("store %d has %d merges in progress, want one of store %d alone", n, got, want)
				}
			}
		}
		running(-1)
		time.Sleep(patience - 1)
		first.m.MeasureCPU(pebble.CompactionGoroutinePrimary)
		time.Sleep(patience)
		synctest.Wait()
		running(-1) // the first one makes progress
		first.done()
		running(0)
		stores[0].idle.Store(true)

		gate := make(chan struct{})
		stores[1].hang.Store(&gate) // it hangs when it is offered a slot
		stores[0].done()
		running(-1)
		time.Sleep(2 * patience)
		synctest.Wait()
		running(2)
		stores[2].m.Unregister()       // Pebble waits for the merges of a store that it closes
		for n := 2; n < 1+spare; n++ { // these hang in their merges
			time.Sleep(2 * patience)
			synctest.Wait()
			if stores[n+1].merges.Load() != 1 {
				t.Fatalf("store %d does not merge while %d others hang", n+1, n)
			}
		}
		time.Sleep(10 * patience)
		synctest.Wait()
		if last := stores[spare+2]; last.merges.Load() != 0 {
			t.Error("merges that hang have no bound")
		}
		stores[1].hang.Store(nil)
		close(gate)
		synctest.Wait()
		for _, h := range stores[1 : spare+2] {
			if h.merges.Load() != 1 {
				t.Error("a store that answers late does not merge")
			}
			h.idle.Store(true)
			h.done()
		}
		last := stores[spare+2]
		if last.merges.Load() != 1 {
			t.Error("the last store never merges")
		}
		last.idle.Store(true)
		last.done()
		if all.running != 0 || all.waiting != 0 || len(all.busy) != 0 {
			t.Errorf("%d slots are taken by %d stores, %d stores wait at the end", all.running, len(all.busy), all.waiting)
		}
		for _, h := range append(stores, first) {
			h.m.Unregister()
		}
	})
}
