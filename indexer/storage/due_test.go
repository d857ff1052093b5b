package storage

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// TestMergesAreWorthIt: a copy whose few new rows are made durable, as for each export, is not written anew for them,
// though the store wants it, as they remove many keys; it is when they are a part of the copy.
func TestMergesAreWorthIt(t *testing.T) {
	const docs, few = 12_000, 250
	ctx := context.Background()
	store := openTest(t, t.TempDir())
	slice, err := store.Create(testMeta(1))
	must(t, err)
	version := uint64(0)
	write := func(from, to, step int) { // documents, in one table of level 0
		t.Helper()
		version++
		var b Batch
		for d := from; d < to; d += step {
			b.Updates = append(b.Updates, Update{VBucket: uint16(d % testVBuckets), DocID: fmt.Appendf(nil, "doc%05d", d),
				Seqno: version, Keys: [][]byte{testKey(int(version)*docs + d)}})
		}
		must(t, slice.Flush(ctx, b))
		must(t, slice.Persist(ctx))
	}
	eng := slice.eng()
	levels := func() (above, below int) {
		t.Helper()
		all, err := eng.db.SSTables()
		must(t, err)
		return len(all[0]), len(all[len(all)-1])
	}
	until := func(what string, is func(above, below int, wants bool) bool) {
		t.Helper()
		for began := time.Now(); ; time.Sleep(time.Millisecond) {
			above, below := levels()
			wants, w := eng.db.GetWaitingCompaction()
			if is(above, below, wants && w.Optional) {
				return
			}
			if time.Since(began) > time.Minute {
				t.Fatalf("%s: %d tables in level 0, %d in the lowest, wants a merge: %v %+v", what, above, below, wants, w)
			}
		}
	}
	for i := range l0Threshold / 2 {
		write(i, docs, l0Threshold/2)
	}
	merged := func(above, below int, _ bool) bool { return above == 0 && below > 0 }
	until("the first documents", merged)
	for range l0Threshold/2 - 1 {
		write(0, few, 1)
		until("few documents", func(above, below int, wants bool) bool {
			if merged(above, below, wants) {
				t.Fatalf("all of %d documents are written anew for %d", docs, few)
			}
			return wants
		})
	}
	write(0, few, 1)
	until("few documents, often", merged)
	write(0, docs/2, 1)
	until("half of them", merged)
	must(t, store.Close())
}

// TestIsDue: a merge is worth it when level 0 has many tables, or a part of the copy, or is empty.
func TestIsDue(t *testing.T) {
	tables := func(sizes ...uint64) (all []pebble.SSTableInfo) {
		for _, s := range sizes {
			all = append(all, pebble.SSTableInfo{TableInfo: pebble.TableInfo{Size: s}})
		}
		return all
	}
	for _, c := range []struct {
		name   string
		levels [][]pebble.SSTableInfo
		want   bool
	}{
		{"nothing", nil, true},
		{"all merged", [][]pebble.SSTableInfo{tables(), tables(5), tables(700)}, true},
		{"little", [][]pebble.SSTableInfo{tables(40, 50), tables(5), tables(700)}, false},
		{"a part", [][]pebble.SSTableInfo{tables(40, 61), tables(5), tables(700)}, true},
		{"many", [][]pebble.SSTableInfo{tables(make([]uint64, l0Threshold/2)...), tables(700)}, true},
		{"one less", [][]pebble.SSTableInfo{tables(make([]uint64, l0Threshold/2-1)...), tables(700)}, false},
		{"nothing merged", [][]pebble.SSTableInfo{tables(40)}, true},
	} {
		if got := isDue(c.levels); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
