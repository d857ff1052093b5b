package copies

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"tidemark/index"
	"tidemark/indexer/core"
	"tidemark/indexer/health"
)

// TestRestoresOfANode: the number of places is bounded for all buckets together; a restore that does not end loses
// its place.
func TestRestoresOfANode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const patience = ownPlace / 2
		r, began := NewRestores(1), time.Now()
		enter := func(ctx context.Context, bucket string, patience time.Duration) (func(), error) {
			turn := r.turn()
			defer turn.end()
			return turn.enter(ctx, bucket, 1, time.Now(), patience)
		}
		var leave [2]func()
		for i := range leave {
			var err error
			if leave[i], err = enter(t.Context(), "ab"[i:i+1], patience); err != nil {
				t.Fatal(err)
			}
		}
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := enter(soon, "c", patience); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a third place: %v", err)
		}
		leave[0]()
		leave[0]()
		third, err := enter(t.Context(), "c", 2*patience)
		if err != nil || time.Since(began) != time.Second {
			t.Fatalf("after one has ended: %v, at %v", err, time.Since(began))
		}
		fourth, err := enter(t.Context(), "d", patience) // the other one hangs
		if err != nil || time.Since(began) != patience {
			t.Fatalf("while one hangs: %v, at %v", err, time.Since(began))
		}
		leave[1]()
		third()
		fourth()
		if len(r.places) > 0 || len(r.taken) > 0 {
			t.Error("places are lost")
		}
	})
}

// TestStarvedBucketGetsARestorePlace: if another bucket occupies all places for long, a bucket gets a place of its
// own, and restores its copies one after the other.
func TestStarvedBucketGetsARestorePlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const patience = time.Hour
		r, began := NewRestores(2), time.Now()
		hangs, waits := r.turn(), r.turn()
		defer hangs.end()
		defer waits.end()
		for id := range index.CopyID(2) {
			leave, err := hangs.enter(t.Context(), "hangs", id, time.Now(), patience)
			if err != nil {
				t.Fatal(err)
			}
			defer leave()
		}
		const each = time.Minute
		for i := range 3 {
			leave, err := waits.enter(t.Context(), "waits", 1, time.Now(), patience)
			if want := ownPlace + time.Duration(i)*each; err != nil || time.Since(began) != want {
				t.Fatalf("copy %d: %v after %v, want %v", i, err, time.Since(began), want)
			}
			soon, cancel := context.WithTimeout(t.Context(), each)
			if _, err := waits.enter(soon, "waits", 2, time.Now(), patience); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("beside copy %d: %v", i, err)
			}
			cancel()
			leave()
		}
	})
}

// TestRestoresOfManyBucketsStayWithinTheLimit: many buckets that roll back at once, none of which hangs, use the
// node's places and no more, however long all of them take.
func TestRestoresOfManyBucketsStayWithinTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const places, buckets, each = 2, 20, ownPlace / 2
		r, began := NewRestores(places), time.Now()
		var all sync.WaitGroup
		for i := range buckets {
			turn := r.turn()
			all.Go(func() {
				defer turn.end()
				leave, err := turn.enter(t.Context(), "b", index.CopyID(i), time.Now(), time.Hour)
				if err != nil {
					t.Error(err)
					return
				}
				time.Sleep(each)
				leave()
			})
		}
		all.Wait()
		if took, want := time.Since(began), buckets/places*each; took != want {
			t.Errorf("%d buckets took %v, want %v: %d at a time", buckets, took, want, places)
		}
	})
}

// TestHealthReportsCopiesWaitingForRestore: the node's health reports since when a copy waits for a place, and for
// which copies, until it gets one.
func TestHealthReportsCopiesWaitingForRestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, r := testBucketLoop(t), NewRestores(1)
		other := r.turn()
		defer other.end()
		var leave [2]func()
		for i := range leave {
			var err error
			if leave[i], err = other.enter(t.Context(), "other", index.CopyID(i), time.Now(), time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		turn := r.turn()
		turn.end() // it waits for one of these two
		since, done := time.Now(), make(chan error, 1)
		go func() {
			left, err := k.place(t.Context(), turn, 7, time.Hour)
			if err == nil {
				left()
			}
			done <- err
		}()
		time.Sleep(health.Hangs - time.Millisecond)
		synctest.Wait()
		if all := k.node.Health.All(); len(all) > 0 {
			t.Errorf("before it is long: %v", all)
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		at := since.UTC().Format(time.RFC3339)
		want := "it waits since " + at + " to be restored to its state before a rollback, after copy " +
			index.CopyID(0).String() + " of bucket other (since " + at + "), copy " + index.CopyID(1).String() +
			" of bucket other (since " + at + ")"
		if got := k.node.Health.All()[CopySource+index.CopyID(7).String()]; got != want {
			t.Errorf("health says %q, want %q", got, want)
		}
		leave[0]()
		if err := <-done; err != nil || len(k.node.Health.All()) > 0 {
			t.Errorf("%v, health says %v", err, k.node.Health.All())
		}
		leave[1]()
	})
}

// newHanging returns a bucket that begins a rollback in which copy 1 hangs until free is called. began is closed when
// it does, rolled when the rollback has ended.
func newHanging(ctx context.Context, t *testing.T, copies int, r *Restores) (f *fallen, free func(),
	began, rolled chan struct{}) {
	began, rolled = make(chan struct{}), make(chan struct{})
	goOn := make(chan struct{})
	begins := sync.OnceFunc(func() { close(began) })
	f = newFallenOn(t, 4, copies, errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpOpen && strings.Contains(op.Path, "/1/checkpoints/") {
			begins()
			<-goOn
		}
		return nil
	})))
	f.k.node.Marks = noMarks(t)
	f.k.node.Restores = r
	f.run(t)
	free = sync.OnceFunc(func() { close(goOn) })
	t.Cleanup(free)
	go func() {
		defer close(rolled)
		if err := f.tryRollBack(ctx); err != nil {
			t.Error(err)
		}
	}()
	return f, free, began, rolled
}

func yes(*core.Bucket) error { return nil }

// TestDropDoesNotWaitForARestorePlace: a copy that waits for a place is removed at once, and a removal waits only for
// the copy's own restore, not for another copy's.
func TestDropDoesNotWaitForARestorePlace(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience) // hang guard
	defer cancel()
	r := NewRestores(2)
	r.places <- struct{}{} // another bucket's
	f, free, began, rolled := newHanging(ctx, t, 4, r)
	<-began
	for id := index.CopyID(2); id <= 4; id++ {
		if err := f.k.Remove(ctx, id); err != nil {
			t.Errorf("copy %v, which waits or is back: %v", id, err)
		}
	}
	for range 2 {
		soon, over := context.WithTimeout(ctx, 20*time.Millisecond)
		if err := f.k.Remove(soon, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the copy that is being put back: %v", err)
		}
		over()
	}
	<-rolled // nothing that is here waits
	free()
	if err := f.k.Remove(ctx, 1); err != nil {
		t.Error(err)
	}
}

// TestDroppedHungCopyDoesNotBlockRollback: once a copy whose files hang was removed, the rollback ends for the
// other copies of its bucket, although it still hangs.
func TestDroppedHungCopyDoesNotBlockRollback(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience) // hang guard
	defer cancel()
	f, free, began, rolled := newHanging(ctx, t, 2, NewRestores(2))
	<-began
	soon, over := context.WithTimeout(ctx, 20*time.Millisecond)
	if err := f.k.Remove(soon, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the copy that is being put back: %v", err)
	}
	over()
	select {
	case <-rolled:
	case <-ctx.Done():
		t.Error("the rollback waits for a copy that is no more")
	}
	if err := f.k.do(ctx, func() {
		if n := f.k.st.RestoringOf(2); n > 0 || f.k.backs.current != nil {
			t.Errorf("%d vbuckets of the other copy are still put back", n)
		}
	}); err != nil {
		t.Error(err)
	}
	free()
}

// TestRestoreOfARemovedCopyDoesNotCountForALaterOne: what was restored before a copy was removed does not count for a
// later copy of its id.
func TestRestoreOfARemovedCopyDoesNotCountForALaterOne(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience) // hang guard
	defer cancel()
	f, free, began, rolled := newHanging(ctx, t, 2, NewRestores(2))
	<-began
	s := f.k.slices[2]
	for s.Positions()[3].Main != 10 {
		time.Sleep(time.Millisecond)
	}
	if err := f.k.TakeAway(ctx, s, yes); err != nil {
		t.Fatal(err)
	}
	f.fill(t, s, 20)
	if err := f.k.BringBack(ctx, s); err != nil {
		t.Fatal(err)
	}
	soon, over := context.WithTimeout(ctx, 20*time.Millisecond)
	if err := f.k.TakeAway(soon, f.k.slices[1], yes); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the copy that is being put back: %v", err)
	}
	over()
	<-rolled
	if err := f.tryRollBack(ctx); err != nil { // it has to be restored again
		t.Fatal(err)
	}
	if err := f.k.do(ctx, func() {
		for vb, p := range s.Positions() {
			if at, _ := f.k.st.Position(2, vb); p.Main != 10 || at != p {
				t.Errorf("vbucket %d is at %+v, its copy has %+v", vb, at, p)
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	free()
}

// TestRestoreHoldsAPlace: whichever checkpoint a rollback opens, its bucket holds one of the node's places for it.
func TestRestoreHoldsAPlace(t *testing.T) {
	r := NewRestores(2)
	var opened, without atomic.Int32
	f := newFallenOn(t, 4, 3, errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind != errorfs.OpOpen || !strings.Contains(op.Path, "checkpoints") ||
			!strings.HasPrefix(filepath.Base(op.Path), "MANIFEST") {
			return nil
		}
		opened.Add(1)
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.taken) == 0 {
			without.Add(1)
		}
		return nil
	})))
	f.k.node.Restores = r
	f.run(t)
	opened.Store(0)
	without.Store(0)
	f.rollBack(t)
	if opened.Load() < 3 || without.Load() > 0 {
		t.Errorf("%d checkpoints were opened, %d of them without a place", opened.Load(), without.Load())
	}
	if len(r.places) > 0 {
		t.Error("not all are given back")
	}
}
