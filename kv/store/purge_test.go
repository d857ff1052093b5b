package store

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// Housekeeping purges old tombstones even if there is no garbage to compact: in a log of one segment that is not
// full.
func TestHousekeepingForgetsOldTombstones(t *testing.T) {
	w := newWorld(t, 2)
	w.opts.Housekeep, w.opts.PurgeAfter = time.Millisecond, time.Hour
	w.restart(true)
	for i := range 20 {
		w.set(0, fmt.Sprint("k", i), "1")
	}
	for i := range 10 {
		w.delete(0, fmt.Sprint("k", i))
	}
	w.set(0, "last", "1")
	w.set(1, "other", "1")
	w.delete(1, "other") // the newest version of its vbucket
	run := func(until func() bool) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.b.Run(ctx) }()
		for deadline := time.Now().Add(60 * time.Second); !until(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%+v", w.b.VBucket(0).Info())
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	w.now = w.now.Add(2 * time.Hour)
	run(func() bool { // documents are counted before the segment with them is dropped
		return w.b.VBucket(0).Info().Tombstones == 0 && len(w.b.log.Sealed()) == 0
	})
	if i := w.b.VBucket(0).Info(); i.Purge != 30 || i.Items != 11 {
		t.Errorf("%+v", i)
	}
	if i := w.b.VBucket(1).Info(); i.Purge != 0 || i.Tombstones != 1 {
		t.Errorf("%+v", i)
	}
	w.restart(false)
	if i := w.b.VBucket(0).Info(); i.Purge != 30 || i.Items != 11 || i.Tombstones != 0 {
		t.Errorf("after a restart: %+v", i)
	}
}

// The log is rewritten for tombstones only if some are due, and at most once per PurgeAfter.
func TestPurgeIsRare(t *testing.T) {
	w := newWorld(t, 1)
	w.opts.PurgeAfter = time.Hour
	w.restart(true)
	purge := func() (segments int64) {
		t.Helper()
		before := w.b.Counters().SegmentsDropped.Load()
		if err := w.b.purgeDue(t.Context()); err != nil {
			t.Fatal(err)
		}
		return w.b.Counters().SegmentsDropped.Load() - before
	}
	forgotten := func(want int64) {
		t.Helper()
		if n := w.b.Counters().Purged.Load(); n != want {
			t.Fatalf("%d tombstones were forgotten, want %d", n, want)
		}
	}
	w.set(0, "a", "1")
	w.delete(0, "a")
	w.now = w.now.Add(30 * time.Minute)
	w.set(0, "b", "1")
	w.delete(0, "b")
	w.set(0, "c", "1")
	if n := purge(); n != 0 {
		t.Fatalf("%d segments rewritten for nothing", n)
	}
	if again := w.b.nextPurge.Sub(w.now); again < 30*time.Second || again > time.Minute {
		t.Fatalf("all documents are looked through again after %v", again)
	}
	w.now = w.now.Add(45 * time.Minute)
	if n := purge(); n == 0 {
		t.Fatal("nothing was rewritten")
	}
	forgotten(1)
	w.now = w.now.Add(30 * time.Minute) // the second one is due, but not yet searched for
	if n := purge(); n != 0 {
		t.Fatalf("%d segments rewritten too early", n)
	}
	w.now = w.now.Add(31 * time.Minute)
	if n := purge(); n == 0 {
		t.Fatal("nothing was rewritten")
	}
	forgotten(2)
	w.now = w.now.Add(24 * time.Hour)
	if n := purge(); n != 0 {
		t.Fatalf("%d segments rewritten without a tombstone", n)
	}
}
