package storage

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// TestMergesYield: who opened the store can let a merge of tables pause, block by block.
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

// TestOverdue: a merge pauses for nobody where scans read too many tables one beside the other.
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
