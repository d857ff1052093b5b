package copies

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"tidemark/index"
	"tidemark/indexer/core"
	"tidemark/indexer/storage"
	"tidemark/ingest"
	"tidemark/wire"
)

// serve processes the events of the bucket's loop, but hands out nothing more.
func (w *laneWorld) serve() {
	ctx, stop := context.WithCancel(w.t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case f := <-w.k.calls.queue:
				f()
			case r := <-w.k.results:
				w.k.finish(r)
			case <-ctx.Done():
				return
			}
		}
	}()
	w.t.Cleanup(func() {
		stop()
		<-ended
	})
}

// TestOnlyWrittenTimestampsAreReported: the leader paces promotions by what is written, not by what was handed out.
func TestOnlyWrittenTimestampsAreReported(t *testing.T) {
	w := newLaneWorld(t)
	w.promote()
	w.begins()
	w.begins()
	if b, _ := w.k.report(map[index.ID]index.State{}, true); b.Heartbeat.LastNumber != 0 {
		t.Errorf("stability timestamp %d is reported, and no copy has it", b.Heartbeat.LastNumber)
	}
	w.ends(1)
	w.ends(2)
	for w.k.work.InFlight() > 0 {
		w.result()
	}
	if b, _ := w.k.report(map[index.ID]index.State{}, true); b.Heartbeat.LastNumber != 1 {
		t.Errorf("stability timestamp %d is reported, all copies have 1", b.Heartbeat.LastNumber)
	}
}

// TestACopyIsRemovedOnce: the removal of a copy waits for the write in progress, also when it is requested again.
func TestACopyIsRemovedOnce(t *testing.T) {
	w := newLaneWorld(t)
	w.promote()
	w.begins()
	w.begins()
	w.serve()
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if err := w.k.Remove(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("removed while it is being written to: %v", err)
		}
		cancel()
	}
	w.ends(1)
	if err := w.k.Remove(t.Context(), 1); err != nil {
		t.Error(err)
	}
	w.ends(2)
}

// TestWritesOfARemovedCopyDelayNothing: a copy whose write hangs delays completions for its bucket's other
// copies until it is removed, and no longer; what it writes in the end does not count.
func TestWritesOfARemovedCopyDelayNothing(t *testing.T) {
	w := newLaneWorld(t)
	w.promote()
	w.begins()
	w.begins()
	w.serve()
	w.ends(2)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := w.k.Remove(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("removed while it is being written to: %v", err)
	}
	under := func() (n int) {
		if err := w.k.do(t.Context(), func() { n = w.k.work.InFlight() }); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for until := time.Now().Add(time.Minute); under() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("the other copy has written it, and it is still under way")
		}
	}
	if f := w.k.Flushed(); f == nil || f.Number != 1 {
		t.Errorf("got %+v, want timestamp 1", f)
	}
	w.ends(1)
	if err := w.k.Remove(t.Context(), 1); err != nil {
		t.Error(err)
	}
	if n := under(); n != 0 {
		t.Errorf("%d are under way", n)
	}
}

// TestReaddedCopyHoldsNoOldTimestamps: what was in flight when a copy was removed does not count for a later copy of
// its id.
func TestReaddedCopyHoldsNoOldTimestamps(t *testing.T) {
	w := newLaneWorld(t)
	w.promote()
	w.begins()
	w.begins()
	w.serve()
	w.ends(1)
	s := w.k.slices[1]
	if err := w.k.Remove(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	w.k.node.Snapshots.Drop(1)
	err := w.k.do(t.Context(), func() {
		if err := w.k.st.Add(ingest.Copy{ID: 1, Index: 1, Positions: s.Positions(), Logs: s.Logs()}); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	w.ends(2)
	for under := 1; under > 0; {
		if err := w.k.do(t.Context(), func() { under = w.k.work.InFlight() }); err != nil {
			t.Fatal(err)
		}
	}
	err = w.k.do(t.Context(), func() {
		for _, st := range w.k.st.States() {
			if st.ID == 1 && st.Held.Number != 0 {
				t.Errorf("it is reported to hold %+v, and has no snapshot", st.Held)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestRemovalDoesNotWaitForTheDisk: a copy that cannot be written is removed at once.
func TestRemovalDoesNotWaitForTheDisk(t *testing.T) {
	w := newLaneWorld(t)
	n := w.k.lane(1)
	tries := 0
	o := w.k.toLane(t.Context(), n, patience, func() error {
		if tries++; tries == 2 {
			n.lost.Store(true)
		}
		return errors.New("no space left")
	})
	if !o.missing || tries != 2 {
		t.Errorf("%d tries, %+v", tries, o)
	}
}

// TestCopyTakenAwayForFiles: taking a copy away, to give it files, waits for the write in progress. Meanwhile lists of
// definitions treat it as present, and wait for nothing; a list that removes it prevents its return.
func TestCopyTakenAwayForFiles(t *testing.T) {
	w := newLaneWorld(t)
	w.promote()
	w.begins()
	w.begins()
	w.serve()
	here := func(id index.CopyID) (yes bool) {
		if err := w.k.do(t.Context(), func() { yes = w.k.slices[id] != nil }); err != nil {
			t.Fatal(err)
		}
		return yes
	}
	may := func(*core.Bucket) error { return nil }
	w.k.node.Marks = noMarks(t)
	s, no := w.k.slices[1], errors.New("no")
	if err := w.k.TakeAway(t.Context(), s, func(*core.Bucket) error { return no }); !errors.Is(err, no) || !here(1) {
		t.Errorf("taken away against a no: %v", err)
	}
	away := make(chan error, 1)
	go func() { away <- w.k.TakeAway(t.Context(), s, may) }()
	for here(1) {
		time.Sleep(time.Millisecond)
	}
	if _, err := w.k.Add(t.Context(), s, false, nil); err != nil || here(1) {
		t.Errorf("a list of definitions: %v, and it is added: %v", err, here(1))
	}
	select {
	case err := <-away:
		t.Fatalf("it is away while it is being written to: %v", err)
	default:
	}
	w.ends(1)
	if err := <-away; err != nil {
		t.Fatal(err)
	}
	if err := w.k.BringBack(t.Context(), s); err != nil || !here(1) {
		t.Errorf("brought back: %v, here: %v", err, here(1))
	}
	if err := w.k.TakeAway(t.Context(), s, may); err != nil {
		t.Fatal(err)
	}
	if err := w.k.Remove(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if err := w.k.BringBack(t.Context(), s); err != nil || here(1) {
		t.Errorf("removed while it was away, it comes back: %v", err)
	}
	w.ends(2)
}

// TestGenerationIsSetWithoutWaiting: the generation and rollback id that stability timestamps are checked against are
// passed to a blocked loop without waiting, however many calls wait before them, and take effect before later calls.
func TestGenerationIsSetWithoutWaiting(t *testing.T) {
	k := testBucketLoop(t)
	for range ControlInbox {
		k.calls.queue <- func() {}
	}
	k.SetGeneration(3, 1)
	k.SetGeneration(2, 1)
	ended := make(chan error, 1)
	go func() { ended <- k.Run(t.Context()) }()
	if err := k.Do(t.Context(), func(st *core.Bucket) {
		if st.Generation() != 2 {
			t.Errorf("judged by generation %d, want 2", st.Generation())
		}
	}); err != nil {
		t.Fatal(err)
	}
	k.SetGeneration(4, 1)
	if err := k.Do(t.Context(), func(st *core.Bucket) {
		if st.Generation() != 4 {
			t.Errorf("judged by generation %d, want 4", st.Generation())
		}
	}); err != nil {
		t.Fatal(err)
	}
	k.Stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// opening is a shut copy whose files hang during its reopening, from when that is armed until goOn is closed.
type opening struct {
	*fallen
	s           *storage.Slice
	fails, hang atomic.Bool
	begun, goOn chan struct{}
}

// newOpening returns copy 1 durable up to 10, written up to 20, and shut.
func newOpening(t *testing.T) *opening {
	o := &opening{begun: make(chan struct{}, 1), goOn: make(chan struct{})}
	o.fallen = newFallenOn(t, 2, 1, errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		switch {
		case !strings.Contains(op.Path, "/1/db-"):
		case o.fails.Load():
			return errors.New("the disk fails")
		case o.hang.Load():
			select {
			case o.begun <- struct{}{}:
			default:
			}
			<-o.goOn
		}
		return nil
	})))
	o.k.node.Marks = noMarks(t)
	o.s = o.k.slices[1]
	o.fails.Store(true)
	if err := o.k.reopen(t.Context(), o.s); err == nil {
		t.Fatal("opened")
	}
	o.hang.Store(true)
	o.fails.Store(false)
	return o
}

// start runs a bucket's loop; end stops it and waits.
func start(t *testing.T, k *Bucket) (end func()) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- k.Run(t.Context()) }()
	return sync.OnceFunc(func() {
		select {
		case <-k.calls.stop:
		default:
			k.Stop()
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// stir makes the bucket write to the copy.
func (o *opening) stir(t *testing.T, k *Bucket) {
	t.Helper()
	if err := k.do(t.Context(), func() { k.work.Stir(1) }); err != nil {
		t.Fatal(err)
	}
}

// TestRemovalWaitsForReopening: removing a shut copy, also one of a bucket that has stopped, waits until
// nothing reopens it any more: its next user would otherwise start from a position that the reopening changes,
// without being notified. Afterwards its health has no problem.
func TestRemovalWaitsForReopening(t *testing.T) {
	for _, c := range []struct {
		name string
		gone bool
	}{{"in the same bucket", false}, {"of a bucket that has gone", true}} {
		t.Run(c.name, func(t *testing.T) {
			o := newOpening(t)
			k, end := o.k, start(t, o.k)
			defer end()
			o.stir(t, k) // finds it shut
			<-o.begun
			if c.gone {
				k.Stop()
				<-k.Gone()
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			if err := k.Remove(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("removed while it is being opened: %v", err)
			}
			close(o.goOn)
			if err := k.Remove(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			k.node.Health.Set(CopySource+"1", "") // as its removal does
			if c.gone {
				end()
				var err error
				if k, err = NewBucket(o.k.node, wire.Bucket{Name: "b", UUID: "u", VBuckets: 2}); err != nil {
					t.Fatal(err)
				}
				defer start(t, k)()
			}
			if said := k.node.Health.First(); said != "" {
				t.Errorf("it was removed, and health reports %q", said)
			}
			if _, err := k.Add(t.Context(), o.s, false, func(*storage.Slice) bool { return false }); err != nil {
				t.Fatal(err)
			}
			o.stir(t, k)
			var knows ingest.Position
			for until := time.Now().Add(time.Minute); knows.Main != 10; time.Sleep(time.Millisecond) {
				if err := k.Do(t.Context(), func(st *core.Bucket) { knows, _ = st.Position(1, 0) }); err != nil {
					t.Fatal(err)
				}
				if time.Now().After(until) {
					t.Fatalf("its bucket takes it to stand at %d, its store, which has lost the rest, at %d", knows.Main,
						o.s.Positions()[0].Main)
				}
			}
		})
	}
}

// TestRemovalEndsReopening: a copy that was taken away and is being reopened before its return is removed
// once nothing reopens it any more, and no further attempt is made. It does not return, and its health has no
// problem.
func TestRemovalEndsReopening(t *testing.T) {
	o := newOpening(t)
	o.k.node.Health.Set(CopySource+"1", "")
	defer start(t, o.k)()
	if err := o.k.TakeAway(t.Context(), o.s, func(*core.Bucket) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if err := o.k.BringBackOpen(t.Context(), o.s); err != nil {
		t.Fatal(err)
	}
	<-o.begun
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := o.k.Remove(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("removed while it is being opened: %v", err)
	}
	o.fails.Store(true)
	close(o.goOn)
	ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := o.k.Remove(ctx, 1); err != nil {
		t.Fatal(err)
	}
	if said := o.k.node.Health.First(); said != "" {
		t.Errorf("it was removed, and health reports %q", said)
	}
	if err := o.k.do(t.Context(), func() {
		if o.k.slices[1] != nil || o.k.away[1] != nil {
			t.Error("it is here again")
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// TestRemovedCopyIsNotReopened: a writer that finds a removed copy shut does not reopen it.
func TestRemovedCopyIsNotReopened(t *testing.T) {
	o := newOpening(t)
	o.hang.Store(false)
	n := o.k.lane(1)
	o.k.lanes.lanes = newLanes(2, nil)
	if rest := o.k.lanes.lose(n); rest != nil {
		t.Error("something is at its files")
	}
	o.k.revive(t.Context(), n)
	o.k.lanes.all.Wait()
	if _, err := o.s.Durable(); !errors.Is(err, storage.ErrClosed) {
		t.Errorf("it is open: %v", err)
	}
}

// TestAddedCopyWaitsForRemovalOfReceivedFiles: the loop gets an added copy once the files that an earlier
// process received for it are removed, which may hang.
func TestAddedCopyWaitsForRemovalOfReceivedFiles(t *testing.T) {
	begun, goOn, hang := make(chan struct{}, 100), make(chan struct{}), atomic.Bool{}
	f := newFallenOn(t, 2, 1, errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if hang.Load() && strings.Contains(op.Path, "/1/incoming") {
			begun <- struct{}{}
			<-goOn
		}
		return nil
	})))
	f.k.node.Marks = noMarks(t)
	defer start(t, f.k)()
	s := f.k.slices[1]
	if err := f.k.Remove(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	hang.Store(true)
	added := make(chan error, 1)
	go func() {
		_, err := f.k.Add(t.Context(), s, false, func(*storage.Slice) bool { return false })
		added <- err
	}()
	here := func() (here bool) {
		if err := f.k.do(t.Context(), func() { here = f.k.slices[1] != nil }); err != nil {
			t.Error(err)
		}
		return here
	}
	<-begun
	if here() {
		t.Error("the loop has it")
	}
	close(goOn)
	if err := <-added; err != nil || !here() {
		t.Errorf("taken in: %v, and it is here: %v", err, here())
	}
}
