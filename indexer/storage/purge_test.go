package storage

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/go-hclog"
)

// purgeAll removes the tombstones of vbuckets, in as many purges as that takes.
func purgeAll(s *Slice, vbs ...uint16) error {
	for len(vbs) > 0 {
		done, err := s.PurgeTombstones(context.Background(), vbs, true)
		if err != nil {
			return err
		}
		if done == 0 {
			return fmt.Errorf("nothing of %d vbuckets is done", len(vbs))
		}
		vbs = vbs[done:]
	}
	return nil
}

// TestPurgesAreBounded: one purge takes as many vbuckets as it reads at a time, and removes exactly their tombstones,
// of the first and the last document too.
func TestPurgesAreBounded(t *testing.T) {
	store := openTest(t, "data", func(o *Options) { o.FS = vfs.NewMem() })
	s, err := store.Create(testMeta(1))
	must(t, err)
	const of = purgeReads/2 + 2
	m := newModel()
	for vb := range uint16(testVBuckets) {
		b := Batch{KeepTombstones: func(uint16) bool { return true }}
		for doc := range of {
			u := Update{VBucket: vb, DocID: fmt.Appendf(nil, "%d-%06d", vb, doc), Seqno: uint64(doc + 1)}
			if doc%5 > 0 && doc < of-1 {
				u.Keys = [][]byte{testKey(doc % 100)}
			}
			b.Updates = append(b.Updates, u)
		}
		must(t, s.Flush(t.Context(), b))
		m.apply(b)
	}
	m.sameSlice(t, s)
	purge := func(vbs []uint16, want int) {
		t.Helper()
		done, err := s.PurgeTombstones(t.Context(), vbs, false)
		must(t, err)
		if done != want {
			t.Fatalf("of vbuckets %v %d are done, want %d", vbs, done, want)
		}
		for name, doc := range m.docs {
			if len(doc.keys) == 0 && doc.vb != 1 && doc.vb <= vbs[done-1] {
				delete(m.docs, name)
			}
		}
		m.sameSlice(t, s)
	}
	purge([]uint16{0, 2, 3}, 2)
	purge([]uint16{3}, 1)
	if done, err := s.PurgeTombstones(t.Context(), nil, true); done != 0 || err != nil {
		t.Errorf("no vbucket: %d done, %v", done, err)
	}
	must(t, store.Close())
}

// TestPurgedTombstonesStayAway checks that when the last purge, of several passes, has ended, a crash brings back none
// of the tombstones, which nobody would look for any more; and that a purge before the last, and one that removes
// none, writes nothing.
func TestPurgedTombstonesStayAway(t *testing.T) {
	fs := vfs.NewCrashableMem()
	open := func() *Store { return openTest(t, "data", func(o *Options) { o.FS = fs }) }
	store := open()
	s, err := store.Create(testMeta(1))
	must(t, err)
	b := Batch{KeepTombstones: func(uint16) bool { return true },
		Updates: []Update{{VBucket: 2, DocID: []byte("x"), Seqno: 1}}}
	for doc := range purgeReads + 1 { // the first of each vbucket is a tombstone; the others make two passes of it
		u := Update{VBucket: uint16(doc / purgeReads), DocID: fmt.Appendf(nil, "%06d", doc), Seqno: uint64(doc + 1)}
		if doc%purgeReads > 0 {
			u.Keys = [][]byte{testKey(1)}
		}
		b.Updates = append(b.Updates, u)
	}
	must(t, s.Flush(t.Context(), b))
	must(t, s.Persist(t.Context()))
	eng := s.gen.eng.(*pebbleEngine)
	flushes := eng.flushes.Load()
	if done, err := s.PurgeTombstones(t.Context(), []uint16{2}, false); done != 1 || err != nil {
		t.Fatalf("%d done, %v", done, err)
	}
	if n := eng.flushes.Load() - flushes; n > 0 {
		t.Errorf("a purge before the last has written %d memtables", n)
	}
	must(t, purgeAll(s, 0, 1))
	lost := fs.CrashClone(vfs.CrashCloneCfg{RNG: rand.New(rand.NewPCG(1, 1))})
	must(t, store.Close())
	fs = lost
	store = open()
	s, _ = store.Slice(1)
	eng = s.gen.eng.(*pebbleEngine)
	here, left := eng.view(), 0
	it, err := here.back(0)
	must(t, err)
	for vb := range uint16(3) {
		for it.to(vb); it.next(); {
			if _, _, keys := it.entry(); len(keys) == 0 {
				left++
			}
		}
	}
	must(t, it.close())
	must(t, here.close())
	if left > 0 {
		t.Errorf("%d of 3 tombstones are back after a crash", left)
	}
	flushes = eng.flushes.Load()
	must(t, purgeAll(s, 0, 1, 2))
	if n := eng.flushes.Load() - flushes; n > 0 {
		t.Errorf("a purge that removes nothing has written %d memtables", n)
	}
	must(t, store.Close())
}

// BenchmarkPurge measures the removal of the tombstones of a whole copy of 1,024 vbuckets that has none, as after a
// start. One operation is one copy.
func BenchmarkPurge(b *testing.B) {
	for _, docs := range []int{0, 25_000, 200_000} {
		b.Run(fmt.Sprintf("docs=%d", docs), func(b *testing.B) {
			store, err := Open(Options{Dir: b.TempDir(), Logger: hclog.NewNullLogger()})
			if err != nil {
				b.Fatal(err)
			}
			meta := testMeta(1)
			meta.VBuckets = 1024
			s, err := store.Create(meta)
			if err != nil {
				b.Fatal(err)
			}
			next := sequentialDocs()
			for left := docs; left > 0; left -= benchBatchSize / 2 {
				if err := s.Flush(b.Context(), Batch{Updates: benchBatch(benchBatchSize/2, next)}); err != nil {
					b.Fatal(err)
				}
			}
			if err := s.Persist(b.Context()); err != nil {
				b.Fatal(err)
			}
			all := make([]uint16, meta.VBuckets)
			for vb := range all {
				all[vb] = uint16(vb)
			}
			before := cpu()
			for b.Loop() {
				if err := purgeAll(s, all...); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64((cpu()-before).Microseconds())/float64(b.N), "cpu-µs/copy")
			if err := store.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}
