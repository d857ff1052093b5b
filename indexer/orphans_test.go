package indexer

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/wire"
)

// build makes copies of indexes 1 and 2 and waits until they hold what KV has now.
func build(t testing.TB, w *world) {
	t.Helper()
	w.write(docs(0, 100, 1)...)
	w.start()
	if err := w.define(10, 20); err != nil {
		t.Fatal(err)
	}
	w.begin(nil)
	w.promote(t.Context())
	w.held(10, 20)
}

// there reports whether a copy's folder exists.
func (w *world) there(id index.CopyID) bool {
	_, err := os.Stat(filepath.Join(w.dir, copiesDir, id.String()))
	return err == nil
}

func (w *world) dropOrphans(refs ...wire.OrphanRef) ([]wire.OrphanRef, error) {
	w.mu.Lock()
	f := w.fence()
	w.mu.Unlock()
	reply, err := w.admin.DropOrphans(w.t.Context(), w.endpoint.Admin, &wire.DropOrphans{Fence: f, Copies: refs})
	if err != nil {
		return nil, err
	}
	return reply.Dropped, nil
}

// reported waits until exactly these orphans are reported.
func (w *world) reported(ids ...index.CopyID) []wire.Orphan {
	w.t.Helper()
	var all []wire.Orphan
	w.until("orphans are reported", func() bool {
		all = w.orphans
		if len(all) != len(ids) {
			return false
		}
		for i, id := range ids {
			if all[i].Copy != id {
				return false
			}
		}
		return true
	})
	return all
}

// TestOrphanAdopted checks that a copy that is not in the list of a new epoch stays, is reported and is not served.
// If the list of a later epoch contains it, it is adopted, and only what is new comes from KV.
func TestOrphanAdopted(t *testing.T) {
	w := newWorld(t)
	build(t, w)
	w.epoch++
	if err := w.define(20); err != nil {
		t.Fatal(err)
	}
	o := w.reported(10)[0]
	if o.Index != 1 || o.Bucket != testBucket || o.LeftMS < time.Minute.Milliseconds() ||
		o.LeftMS > DefaultOrphanGrace.Milliseconds() || o.SinceMS == 0 {
		t.Errorf("reported %+v", o)
	}
	if _, err := w.scan(1, `{}`); err == nil || rpc.AsProblem(err).Code != "INDEX_NOT_HOSTED" {
		t.Errorf("scan of an orphan: %v", err)
	}
	if gone, err := w.dropOrphans(wire.OrphanRef{Copy: 10, Index: 1}, wire.OrphanRef{Copy: 20, Index: 2}); err != nil ||
		len(gone) != 0 || !w.there(10) || !w.there(20) {
		t.Errorf("within its grace: dropped %v, %v", gone, err)
	}
	w.begin(nil)
	w.write(docs(50, 120, 500)...)
	w.check(2)
	calls := len(w.calls())
	w.epoch++
	if err := w.define(10, 20); err != nil {
		t.Fatal(err)
	}
	w.reported()
	w.begin(nil)
	w.write(docs(110, 130, 900)...)
	w.check(1)
	for _, q := range w.calls()[calls:] {
		for i, vb := range q.Buckets[0].Restart.VBuckets {
			if q.Buckets[0].Restart.Seqnos[i] == 0 {
				t.Errorf("vbucket %d was streamed from 0: the copy was built anew", vb)
			}
		}
	}
	// Within one epoch a copy that is no longer in the list was dropped.
	if err := w.define(20); err != nil {
		t.Fatal(err)
	}
	w.until("the copy is gone", func() bool { return !w.there(10) })
	w.reported()
}

// TestListThatCannotBeStored checks that such a list has no effect at all. The next list is stored whole, even if it
// equals the one in force before, and is in force after a restart.
func TestListThatCannotBeStored(t *testing.T) {
	w := newWorld(t)
	w.start()
	if err := w.define(10); err != nil {
		t.Fatal(err)
	}
	inTheWay := filepath.Join(w.x.cfg.Dir, definitionsFile+".tmp")
	if err := os.Mkdir(inTheWay, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, ids := range [][]index.CopyID{{10, 20}, {30}} {
		have := w.x.present().Revision
		if err := w.define(ids...); code(err) != errcode.Unavailable || w.x.present().Revision != have {
			t.Fatalf("a list that cannot be stored: %v; revision %d is in force, %d was", err, w.x.present().Revision, have)
		}
	}
	if err := os.Remove(inTheWay); err != nil {
		t.Fatal(err)
	}
	if err := w.define(10); err != nil {
		t.Fatal(err)
	}
	if !w.there(10) || w.there(20) || w.there(30) {
		t.Errorf("there: 10 %v, which is wanted, 20 %v, 30 %v", w.there(10), w.there(20), w.there(30))
	}
	w.reported()
	stored, _, err := newKeptList(w.x.cfg.Dir).load()
	if err != nil || stored.Revision != w.x.present().Revision || len(stored.Indexes) != 1 {
		t.Errorf("stored: revision %d of %d indexes, %v", stored.Revision, len(stored.Indexes), err)
	}
}

// TestOrphanDropped checks that an orphan is dropped after its grace period only if the current leader commands it.
func TestOrphanDropped(t *testing.T) {
	w := newWorld(t)
	w.tweak = func(c *Config) { c.OrphanGrace = time.Millisecond }
	build(t, w)
	w.epoch++
	if err := w.define(20); err != nil {
		t.Fatal(err)
	}
	w.until("the grace is over", func() bool { return len(w.orphans) == 1 && w.orphans[0].LeftMS == 0 })
	if gone, err := w.dropOrphans(wire.OrphanRef{Copy: 10, Index: 7}, wire.OrphanRef{Copy: 20, Index: 2}); err != nil ||
		len(gone) != 0 || !w.there(10) {
		t.Errorf("another index's, and one that is wanted: dropped %v, %v", gone, err)
	}
	w.epoch--
	if _, err := w.dropOrphans(wire.OrphanRef{Copy: 10, Index: 1}); err == nil ||
		rpc.AsProblem(err).Code != errcode.Fenced || !w.there(10) {
		t.Errorf("a leader of a past epoch: %v", err)
	}
	w.epoch += 2 // its list has not come yet, and may contain the copy
	if gone, err := w.dropOrphans(wire.OrphanRef{Copy: 10, Index: 1}); err != nil || len(gone) != 0 || !w.there(10) {
		t.Errorf("before the list of its epoch: dropped %v, %v", gone, err)
	}
	if err := w.define(20); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Millisecond) // the grace period, which has begun again
	if gone, err := w.dropOrphans(wire.OrphanRef{Copy: 10, Index: 1}); err != nil || len(gone) != 1 {
		t.Errorf("dropped %v, %v", gone, err)
	}
	w.until("its folder goes", func() bool { return !w.there(10) })
	w.reported()
	w.begin(nil)
	w.write(docs(20, 30, 40)...)
	w.check(2)
}

// TestFolderWithForeignContents checks that a folder that does not belong to the copy in its name is an orphan like
// others: it is kept and reported, is removed when its grace period is over and the leader commands it, and makes
// room for the copy of that number when one is wanted.
func TestFolderWithForeignContents(t *testing.T) {
	w := newWorld(t)
	w.tweak = func(c *Config) { c.OrphanGrace = time.Millisecond }
	build(t, w)
	w.stopIndexer()
	for _, name := range []string{"30", "40"} {
		if err := os.CopyFS(filepath.Join(w.dir, copiesDir, name),
			os.DirFS(filepath.Join(w.dir, copiesDir, "10"))); err != nil {
			t.Fatal(err)
		}
	}
	w.start()
	if err := w.define(10, 20); err != nil {
		t.Fatal(err)
	}
	w.until("the grace is over", func() bool {
		return len(w.orphans) == 2 && w.orphans[0].LeftMS == 0 &&
			w.orphans[1].LeftMS == 0
	})
	for i, id := range []index.CopyID{30, 40} {
		if o := w.orphans[i]; o.Copy != id || o.Index != 0 || o.Bytes == 0 || !w.there(id) {
			t.Errorf("reported %+v", o)
		}
	}
	w.epoch++ // its list has not come yet
	if gone, err := w.dropOrphans(wire.OrphanRef{Copy: 30}); err != nil || len(gone) != 0 || !w.there(30) {
		t.Errorf("before the list of its epoch: dropped %v, %v", gone, err)
	}
	if err := w.define(10, 20, 40); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Millisecond) // the grace period, which has begun again
	if gone, err := w.dropOrphans(wire.OrphanRef{Copy: 30}, wire.OrphanRef{Copy: 40}); err != nil || len(gone) != 1 ||
		w.there(30) || !w.there(40) {
		t.Errorf("dropped %v, %v", gone, err)
	}
	w.reported()
	w.begin(nil)
	w.write(docs(20, 30, 40)...)
	w.check(1)
	w.check(2)
}

// TestDroppedWhileAway checks that a copy that was dropped while the indexer was stopped is removed at once, since
// the indexer knows the previous list. Without that list the copy is an orphan, also after another restart.
func TestDroppedWhileAway(t *testing.T) {
	t.Parallel()
	for _, knows := range []bool{true, false} {
		w := newWorld(t)
		build(t, w)
		w.stopIndexer()
		if !knows {
			if err := os.Remove(filepath.Join(w.dir, definitionsFile)); err != nil {
				t.Fatal(err)
			}
		}
		w.start()
		if err := w.define(20); err != nil {
			t.Fatal(err)
		}
		if knows {
			w.until("the copy is gone", func() bool { return !w.there(10) })
			w.reported()
			continue
		}
		w.reported(10)
		w.stopIndexer()
		w.start()
		if err := w.define(20, 30); err != nil {
			t.Fatal(err)
		}
		w.reported(10)
		if !w.there(10) {
			t.Error("a copy that no list named was dropped")
		}
	}
}

// TestMissingFolder checks that a copy whose folder was removed while the indexer was stopped is filled again. It is
// not served until it is complete; the other copies are.
func TestMissingFolder(t *testing.T) {
	w := newWorld(t)
	build(t, w)
	w.stopIndexer()
	if err := os.RemoveAll(filepath.Join(w.dir, copiesDir, "10")); err != nil {
		t.Fatal(err)
	}
	w.locked(func() {
		w.refuse = func(*wire.StreamRequest) wire.StartOutcome { return wire.StartFailed }
		clear(w.report)
	})
	w.start()
	if err := w.define(10, 20); err != nil {
		t.Fatal(err)
	}
	w.begin(nil)
	w.promote(t.Context())
	w.held(20)
	w.check(2)
	w.until("reported as not whole", func() bool {
		r, ok := w.report[10]
		return ok && !r.Ready && r.Held.Number == 0
	})
	type answer struct {
		rows []testRow
		err  error
	}
	scanned := make(chan answer, 1)
	go func() {
		rows, err := w.scan(1, `{"consistency":"session"}`)
		scanned <- answer{rows, err}
	}()
	select {
	case a := <-scanned:
		t.Errorf("a scan of a copy that is not whole gave %d rows, %v", len(a.rows), a.err)
		scanned <- a
	case <-time.After(200 * time.Millisecond): // it waits, which cannot be observed
	}
	w.mu.Lock()
	w.refuse = nil
	w.mu.Unlock()
	if a := <-scanned; a.err != nil || len(a.rows) != len(w.oracle()) {
		t.Errorf("the scan that waited gave %d rows, %v, want %d", len(a.rows), a.err, len(w.oracle()))
	}
	w.check(1)
}

// push sends definitions as a leader does.
func (w *world) push(d *wire.Definitions) {
	w.t.Helper()
	if _, err := w.admin.Definitions(w.t.Context(), w.endpoint.Admin, d); err != nil {
		w.t.Fatal(err)
	}
}

// TestOtherIndexUnderTheId checks that if a list gives a copy's id to another index, the old copy is never served as
// that index's.
func TestOtherIndexUnderTheId(t *testing.T) {
	w := newWorld(t)
	build(t, w)
	w.mu.Lock()
	w.revision++
	d := w.definitionsLocked()
	w.mu.Unlock()
	d.Indexes[0].CreatedMS = 5 // ids began again at a lower number, and index 1 is another one now
	d.Indexes[1].CreatedMS = 6
	s, _ := w.x.store.Slice(10)
	if s.Meta().CreatedMS != 0 {
		t.Fatal("created at", s.Meta().CreatedMS)
	}
	d.Topologies[0].Copies[0].ID, d.Topologies[1].Copies[0].ID = 20, 10
	d.Fence.Epoch = 9
	w.push(d)
	for id, want := range map[index.CopyID]index.ID{10: 2, 20: 1} {
		w.until(fmt.Sprintf("copy %d is of index %d", id, want), func() bool { // when the old one has no readers any more
			s, ok := w.x.store.Slice(id)
			return ok && s.Meta().Index == want && s.Meta().CreatedMS != 0
		})
	}
	d.Fence.Epoch, d.Indexes[0].CreatedMS, d.Revision = 10, 7, d.Revision+1
	w.push(d)
	w.until("the copy of an index of another time has gone", func() bool {
		s, ok := w.x.store.Slice(20)
		return ok && s.Meta().CreatedMS == 7
	})
}
