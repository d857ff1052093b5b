package storage

import (
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

// TestMergesRest: a store whose merge failed retries on its own, after increasing pauses, even if nothing is written
// to it and no other store releases a slot; one that was stopped does not.
func TestMergesRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &mergeable{m: newCompactions(1).member()}
		d.m.Register(1, d)
		if ok, _ := d.m.TrySchedule(); !ok {
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
		if d.m.Done(); d.granted.Load() != before+1 {
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
