package storage

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"tidemark/index"
)

// TestMergesYield: the opener of the store can pause a merge of tables, block by block.
func TestMergesYield(t *testing.T) {
	var tables, blocks atomic.Int64
	store := openTest(t, t.TempDir(), func(o *Options) {
		o.Yield = func() func(time.Duration) {
			tables.Add(1)
			return func(worked time.Duration) {
				if worked < 0 {
					t.Errorf("it has worked %v", worked)
				}
				blocks.Add(1)
			}
		}
	})
	slice, err := store.Create(testMeta(1))
	must(t, err)
	for n := uint64(1); tables.Load() == 0 || blocks.Load() == 0; n++ {
		must(t, slice.Flush(context.Background(), historyBatch(n)))
		must(t, slice.Persist(context.Background()))
	}
	must(t, store.Close())
}

// TestOverdue: a merge does not pause while scans read too many tables of level 0.
func TestOverdue(t *testing.T) {
	for _, c := range []struct {
		name   string
		level  int
		tables int
		want   bool
	}{
		{"as soon as it is due", 0, l0Threshold / 2, false},
		{"nearly late", 0, 2*l0Threshold - 1, false},
		{"late", 0, 2 * l0Threshold, true},
		{"of a lower level, where one table is read for a key", 5, 4 * l0Threshold, false},
	} {
		in := pebble.LevelInfo{Level: c.level, Tables: make([]pebble.TableInfo, c.tables)}
		if got := overdue(pebble.CompactionInfo{Input: []pebble.LevelInfo{in, {Level: 6}}}); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestNoPauseForManyStores: a merge pauses while few stores wait for its slot, for none of its writes while many do,
// however long that is, and again when they have had it.
func TestNoPauseForManyStores(t *testing.T) {
	store := openTest(t, "data", func(o *Options) { o.FS, o.Compactions = vfs.NewMem(), 1 })
	all := store.res.compactions
	waiting := func() int {
		all.mu.Lock()
		defer all.mu.Unlock()
		return all.waiting
	}
	file, err := vfs.NewMem().Create("table", diskCategory)
	must(t, err)
	pauses := 0
	f := mergeFile{File: file, compact: all.member(), yield: func(time.Duration) { pauses++ }}
	write := func(n int) (paused int) {
		pauses = 0
		for range n {
			_, err := f.Write([]byte("block"))
			must(t, err)
		}
		return pauses
	}
	all.mu.Lock()
	f.compact.take() // the only slot
	all.mu.Unlock()
	for id := range index.CopyID(crowd) {
		if n := write(10); n != 10 {
			t.Errorf("%d pauses in 10 writes while %d stores wait", n, id)
		}
		slice, err := store.Create(testMeta(id + 1))
		must(t, err)
		for n := uint64(1); waiting() <= int(id); n++ {
			must(t, slice.Flush(t.Context(), historyBatch(n)))
			must(t, slice.Persist(t.Context()))
			if n == 10*l0Threshold {
				t.Fatalf("%d stores wait for a slot, after %d tables in each of %d", waiting(), n, id+1)
			}
		}
	}
	if n := write(1000); n != 0 {
		t.Errorf("%d pauses in 1000 writes while %d stores wait", n, waiting())
	}
	f.compact.Done()
	until(t, func() error {
		if n := waiting(); n > 0 {
			return fmt.Errorf("%d stores wait for a slot that is free", n)
		}
		return nil
	})
	if n := write(10); n != 10 {
		t.Errorf("%d pauses in 10 writes when no store waits any more", n)
	}
	must(t, f.Close())
	must(t, store.Close())
}
