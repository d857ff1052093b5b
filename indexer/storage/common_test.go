package storage

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"tidemark/index"
	"tidemark/ingest"
	_ "tidemark/internal/testing/draws"
	"tidemark/timestamp"
)

// line is a branch of a vbucket: the copy that has the document of each seqno, 0 for none.
type line []index.CopyID

// commonRun takes two copies with common positions through crashes, and compares each with the position it reports.
type commonRun struct {
	fs    *vfs.MemFS
	store *Store
	lines [testVBuckets][]line // all branches; the newest is the current one
}

func newCommonRun(t fataler) *commonRun {
	r := &commonRun{fs: vfs.NewCrashableMem()}
	for vb := range r.lines {
		r.lines[vb] = []line{{}}
	}
	r.open(t)
	return r
}

func (r *commonRun) open(t fataler) {
	r.store = openTest(t, "data", func(o *Options) { o.FS = r.fs })
}

// copies returns both copies, which it creates if they do not exist.
func (r *commonRun) copies(t fataler) (all []*Slice) {
	for id := range index.CopyID(2) {
		s, ok := r.store.Slice(id + 1)
		if !ok {
			var err error
			s, err = r.store.Create(testMeta(id + 1))
			must(t, err)
		}
		all = append(all, s)
	}
	return all
}

// present returns the position of a copy that has everything of every vbucket.
func (r *commonRun) present() *ingest.Common {
	c := &ingest.Common{Positions: make([]ingest.Position, testVBuckets),
		Logs: make([]timestamp.FailoverLog, testVBuckets)}
	for vb, lines := range r.lines {
		top, branch := uint64(len(lines[len(lines)-1])), uint64(len(lines))
		c.Positions[vb] = ingest.Position{VBUUID: branch, Main: top, Side: top, A: top}
		c.Logs[vb] = timestamp.FailoverLog{{VBUUID: branch}}
	}
	return c
}

func commonDoc(vb int, branch, seqno uint64) []byte {
	return fmt.Appendf(nil, "%d-%d-%d", vb, branch, seqno)
}

// flush brings both copies up to date: it removes what is not on the branch, and adds what is missing, in one batch
// each.
func (r *commonRun) flush(t fataler) {
	common := r.present()
	at := timestamp.New(testVBuckets)
	for vb, p := range common.Positions {
		at.Set(vb, timestamp.Position{VBUUID: p.VBUUID, Seqno: p.Main})
	}
	for i, s := range r.copies(t) {
		b := Batch{Common: common, Timestamp: at}
		for vb, p := range s.Positions() {
			lines := r.lines[vb]
			if p.VBUUID != uint64(len(lines)) {
				p = ingest.Position{VBUUID: uint64(len(lines))}
				must(t, s.DeleteVBuckets(context.Background(), VBPosition{VBucket: uint16(vb), Position: p}))
			}
			for n, id := range lines[len(lines)-1][p.Main:] {
				seqno := p.Main + uint64(n) + 1
				u := Update{VBucket: uint16(vb), DocID: commonDoc(vb, uint64(len(lines)), seqno), Seqno: seqno}
				if id == index.CopyID(i+1) {
					u.Keys = [][]byte{{1, byte(seqno)}}
				}
				b.Updates = append(b.Updates, u)
			}
		}
		must(t, s.Flush(context.Background(), b))
	}
}

// check fails unless each copy has exactly the documents of the position it reports.
func (r *commonRun) check(t fataler) {
	for i, s := range r.copies(t) {
		snap, err := s.Snapshot()
		must(t, err)
		for vb, p := range s.Positions() {
			var want, got []string
			if p.Main > 0 {
				for n, id := range r.lines[vb][p.VBUUID-1][:p.Main] {
					if id == index.CopyID(i+1) {
						want = append(want, string(commonDoc(vb, p.VBUUID, uint64(n)+1)))
					}
				}
			}
			must(t, snap.Back(context.Background(), uint16(vb), func(doc []byte, _ uint64, _ [][]byte) error {
				got = append(got, string(doc))
				return nil
			}))
			slices.Sort(want)
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Fatalf("copy %d stands at %+v in vbucket %d with %v, want %v", i+1, p, vb, got, want)
			}
		}
		must(t, snap.Close())
	}
}

// TestCommon: whatever crashes, a copy whose common position is ahead of what it has stored never reports a position
// beyond its rows: not when its newest batches are lost, when it has moved to another branch, or when it is another
// copy of the same id.
func TestCommon(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newCommonRun(t)
		vbucket := rapid.IntRange(0, testVBuckets-1)
		mutate := func(t *rapid.T) {
			vb := vbucket.Draw(t, "vb")
			lines := r.lines[vb]
			lines[len(lines)-1] = append(lines[len(lines)-1], index.CopyID(rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t,
				"copy")))
		}
		one := func(t *rapid.T) *Slice { return r.copies(t)[rapid.IntRange(0, 1).Draw(t, "copy")] }
		t.Repeat(map[string]func(*rapid.T){
			"":        func(t *rapid.T) { r.check(t) },
			"mutate":  mutate,
			"flush":   func(t *rapid.T) { mutate(t); r.flush(t) },
			"flush2":  func(t *rapid.T) { mutate(t); r.flush(t) },
			"branch":  func(t *rapid.T) { vb := vbucket.Draw(t, "vb"); r.lines[vb] = append(r.lines[vb], line{}) },
			"persist": func(t *rapid.T) { must(t, one(t).Persist(context.Background())) },
			"keep":    func(t *rapid.T) { must(t, r.store.KeepCommon()) },
			"recover": func(t *rapid.T) {
				_, err := one(t).Recover(context.Background(), time.Minute, nil)
				must(t, err)
			},
			"again": func(t *rapid.T) {
				if s := one(t); rapid.IntRange(0, 3).Draw(t, "drop") == 0 {
					must(t, r.store.Drop(s.meta.Copy))
				}
			},
			"crash": func(t *rapid.T) {
				lost := r.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rapid.SampledFrom([]int{0, 50, 100}).Draw(t,
					"unsynced"),
					RNG: rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))})
				must(t, r.store.Close())
				r.fs = lost
				r.open(t)
			},
			"close": func(t *rapid.T) {
				var before [2][]ingest.Position
				for i, s := range r.copies(t) {
					before[i] = s.Positions()
				}
				must(t, r.store.Close())
				r.open(t)
				for i, s := range r.copies(t) {
					if !slices.Equal(s.Positions(), before[i]) {
						t.Fatalf("closed at %v, opened at %v", before[i], s.Positions())
					}
				}
			},
		})
		must(t, r.store.Close())
	})
}

// TestCommonIsKept: two copies whose positions are ahead of what they have stored, because nothing arrived for them,
// have these positions when the store is reopened, also after a crash that loses everything that was not synced.
func TestCommonIsKept(t *testing.T) {
	for name, crash := range map[string]bool{"close": false, "crash": true} {
		t.Run(name, func(t *testing.T) {
			r := newCommonRun(t)
			add := func(id index.CopyID) {
				for vb := range r.lines {
					r.lines[vb][0] = append(r.lines[vb][0], id)
				}
				r.flush(t)
			}
			add(1)
			add(2)
			for _, s := range r.copies(t) {
				must(t, s.Persist(context.Background()))
			}
			add(0) // of neither
			must(t, r.store.KeepCommon())
			if n := len(r.store.common.all); n != 2 {
				t.Fatalf("%d copies stand further than they have stored, want 2", n)
			}
			lost := r.fs
			if crash {
				lost = r.fs.CrashClone(vfs.CrashCloneCfg{})
			}
			must(t, r.store.Close())
			r.fs = lost
			r.open(t)
			r.check(t)
			for i, s := range r.copies(t) {
				for vb, p := range s.Positions() {
					if p.Main != 3 {
						t.Errorf("copy %d stands at %d in vbucket %d, want 3", i+1, p.Main, vb)
					}
				}
			}
			must(t, r.store.Close())
		})
	}
}

// TestCommonCostsNothing: promotions without rows for a copy write nothing to it, and a crash does not take it behind
// the kept position.
func TestCommonCostsNothing(t *testing.T) {
	fs := vfs.NewCrashableMem()
	r := &commonRun{fs: fs}
	for vb := range r.lines {
		r.lines[vb] = []line{{1}}
	}
	r.open(t)
	r.flush(t)
	all := r.copies(t)
	var batches []uint64
	for _, s := range all {
		must(t, s.Persist(context.Background()))
		batches = append(batches, s.Stats().Batch)
	}
	for range 50 {
		for vb := range r.lines {
			r.lines[vb][0] = append(r.lines[vb][0], 0)
		}
		r.flush(t)
	}
	for i, s := range all {
		if n := s.Stats().Batch; n != batches[i] {
			t.Errorf("copy %d has written %d batches without rows", i+1, n-batches[i])
		}
		if p := s.Positions()[2]; p.Main != 51 {
			t.Errorf("copy %d stands at %+v", i+1, p)
		}
	}
	must(t, r.store.KeepCommon())
	d, err := all[0].Durable()
	must(t, err)
	if d.Positions[2].Main != 51 || d.Stable.Seqnos[2] != 51 {
		t.Errorf("durable is %+v at %v", d.Positions[2], d.Stable)
	}
	lost := fs.CrashClone(vfs.CrashCloneCfg{RNG: rand.New(rand.NewPCG(1, 1))})
	must(t, r.store.Close())
	r.fs = lost
	r.open(t)
	r.check(t)
	for i, s := range r.copies(t) {
		if p, log := s.Positions()[2], s.Logs()[2]; p.Main != 51 || len(log) != 1 {
			t.Errorf("copy %d stands at %+v on %v after a crash", i+1, p, log)
		}
	}
	must(t, r.store.Close())
}

// TestCommonPositionOfADroppedCopy: the kept position of a dropped copy does not count for a later one of the same
// id, even if that has as many batches.
func TestCommonPositionOfADroppedCopy(t *testing.T) {
	fs := vfs.NewCrashableMem()
	r := &commonRun{fs: fs}
	for vb := range r.lines {
		r.lines[vb] = []line{{1}}
	}
	r.open(t)
	r.flush(t)
	s := r.copies(t)[0]
	must(t, s.Persist(context.Background()))
	for vb := range r.lines {
		r.lines[vb][0] = append(r.lines[vb][0], 0)
	}
	r.flush(t)
	must(t, r.store.KeepCommon())
	batch := s.Stats().Batch
	must(t, r.store.Drop(1))
	s = r.copies(t)[0]
	for s.Stats().Batch < batch {
		must(t, s.DeleteVBuckets(context.Background(), VBPosition{VBucket: 0}))
	}
	must(t, s.Persist(context.Background()))
	lost := fs.CrashClone(vfs.CrashCloneCfg{RNG: rand.New(rand.NewPCG(1, 1))})
	must(t, r.store.Close())
	r.fs = lost
	r.open(t)
	r.check(t)
	must(t, r.store.Close())
}

// TestMark: a copy whose position advanced with the rows of its checkpoint can be restored to the later position, not
// only to that of the checkpoint.
func TestMark(t *testing.T) {
	r := &commonRun{fs: vfs.NewCrashableMem()}
	for vb := range r.lines {
		r.lines[vb] = []line{{1}}
	}
	r.open(t)
	r.flush(t)
	s := r.copies(t)[0]
	_, err := s.Checkpoint(context.Background(), CheckpointMeta{})
	must(t, err)
	more := func(id index.CopyID) {
		r.lines[2][0] = append(r.lines[2][0], id)
		r.flush(t)
	}
	for range 5 {
		more(0)
		s.Mark()
	}
	more(1)
	s.Mark() // not these rows
	all := s.Pasts()
	if len(all) != DefaultKeepCheckpoints+1 || all[0].Positions[2].Main != 6 || all[len(all)-1].Positions[2].Main != 1 {
		t.Fatalf("can go back to %+v", all)
	}
	must(t, s.RestoreVBucketsTo(context.Background(), []uint16{2}, all[0]))
	if p := s.Positions()[2]; p.Main != 6 {
		t.Errorf("went back to %+v", p)
	}
	r.check(t)
	for range DefaultKeepCheckpoints {
		_, err := s.Checkpoint(context.Background(), CheckpointMeta{})
		must(t, err)
	}
	if all := s.Pasts(); len(all) != DefaultKeepCheckpoints {
		t.Errorf("%d pasts, of %d checkpoints", len(all), DefaultKeepCheckpoints)
	}
	must(t, r.store.Close())
}
