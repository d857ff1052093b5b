package copies

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/semaphore"

	"tidemark/index"
	"tidemark/indexer/core"
	"tidemark/indexer/snapshots"
	"tidemark/indexer/storage"
	"tidemark/ingest"
	"tidemark/keyversion"
	"tidemark/timestamp"
)

// patience is how long a test waits for what must happen.
const patience = 3 * time.Minute

// writeNow hands a batch out and waits until it is written and acknowledged.
func writeNow(t testing.TB, k *Bucket, b *ingest.Batch) {
	t.Helper()
	if k.lanes.lanes == nil {
		k.lanes.lanes = newLanes(runtime.GOMAXPROCS(0), func(n *lane, task task) { k.doTask(t.Context(), n, task) })
	}
	k.hand(k.work.Hand(b))
	for k.work.InFlight() > 0 {
		k.finish(<-k.results)
	}
	for _, c := range b.Copies {
		if b.Kind == ingest.AtStability && c.Exact && len(k.node.Snapshots.Refs(c.ID)) == 0 {
			t.Fatalf("copy %s was not written", c.ID)
		}
	}
}

// laneWorld is a bucket of two vbuckets with a ready copy, 1, and one that is being built, 2, both on disk. Each task
// waits in its writer until the test releases it.
type laneWorld struct {
	t      *testing.T
	k      *Bucket
	dir    string
	begun  chan task
	goOn   map[index.CopyID]chan struct{}
	seqno  uint64 // of the side stream
	number uint64 // of the newest stability timestamp
}

const laneActive = 100_000

func newLaneWorld(t *testing.T) *laneWorld {
	t.Helper()
	k := testBucketLoop(t)
	k.node.Queue = func() int64 { return 64 << 20 }
	dir := t.TempDir()
	st, err := storage.Open(storage.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	w := &laneWorld{t: t, k: k, dir: dir, begun: make(chan task, 100),
		goOn: map[index.CopyID]chan struct{}{1: make(chan struct{}, 100), 2: make(chan struct{}, 100)}}
	k.lanes.lanes = newLanes(runtime.GOMAXPROCS(0), func(n *lane, task task) {
		w.begun <- task
		<-w.goOn[n.copy]
		k.doTask(t.Context(), n, task)
	})
	t.Cleanup(func() {
		for _, c := range w.goOn {
			close(c)
		}
		k.lanes.close()
		k.node.Snapshots.CloseAll()
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	log := timestamp.FailoverLog{{VBUUID: 7}}
	held := ingest.Position{VBUUID: 7, Main: laneActive, Side: laneActive, A: laneActive}
	both := []ingest.Position{held, held}
	for _, c := range []ingest.Copy{{ID: 1, Index: 1, Ready: true, Positions: both,
		Logs: []timestamp.FailoverLog{log, log}}, {ID: 2, Index: 2}} {
		s, err := st.Create(storage.Meta{Copy: c.ID, Index: c.Index, Bucket: "b", BucketUUID: "u", VBuckets: 2,
			Desc: []bool{false}})
		if err == nil {
			err = k.st.Add(c)
		}
		if err != nil {
			t.Fatal(err)
		}
		k.slices[c.ID] = s
	}
	for vb := range uint16(2) {
		w.accept(false, keyversion.Event{Kind: keyversion.StreamBegin, VBucket: vb,
			Begin: &keyversion.Begin{Start: laneActive, Log: log, Copies: []index.CopyID{1, 2}}})
	}
	for _, want := range k.st.Wants() {
		k.st.OpenSide(want, 5)
	}
	w.accept(true, keyversion.Event{Kind: keyversion.StreamBegin, Begin: &keyversion.Begin{Log: log,
		Copies: []index.CopyID{1, 2}}})
	return w
}

func (w *laneWorld) accept(side bool, e keyversion.Event) {
	w.t.Helper()
	var v ingest.Verdict
	if side {
		e.Incarnation.Counter = 5
		v = w.k.st.AcceptSide(ingest.Source{Connection: 2}, &e)
	} else {
		v = w.k.st.Accept(ingest.Source{Connection: 1}, &e)
	}
	if v != ingest.Taken {
		w.t.Fatalf("%v of vbucket %d: %v", e.Kind, e.VBucket, v)
	}
	w.k.work.Look()
}

// bring makes the side stream deliver several pieces.
func (w *laneWorld) bring() {
	key := make([]byte, 4<<10)
	key[0] = 1
	for w.k.st.SideBytes() < 4*sideBatch {
		w.seqno++
		w.accept(true, keyversion.Event{Kind: keyversion.Insert, Seqno: w.seqno, DocID: fmt.Appendf(nil, "d%d", w.seqno),
			Window: timestamp.Window{End: laneActive}, Statements: []keyversion.Statement{{Index: 2, Keys: [][]byte{key}}}})
	}
}

// promote publishes the next stability timestamp; everything up to it has arrived.
func (w *laneWorld) promote() {
	w.t.Helper()
	w.number++
	v := timestamp.New(2)
	for vb, at := range []uint64{laneActive + w.number, laneActive} {
		w.accept(false, keyversion.Event{Kind: keyversion.Sync, VBucket: uint16(vb), Seqno: at})
		v.Set(vb, timestamp.Position{VBUUID: 7, Seqno: at})
	}
	if !w.k.st.Publish(timestamp.Stability{Ref: timestamp.Ref{Number: w.number}, Vector: v}) {
		w.t.Fatalf("stability timestamp %d is not taken", w.number)
	}
	w.k.pump(w.t.Context())
}

// begins waits until a writer has started the next task, and returns it.
func (w *laneWorld) begins() task {
	w.t.Helper()
	select {
	case t := <-w.begun:
		return t
	case <-time.After(patience):
		w.t.Fatal("no writer begins")
		return task{}
	}
}

// ends releases the task of a copy, and waits for the result that the loop gets.
func (w *laneWorld) ends(id index.CopyID) {
	w.goOn[id] <- struct{}{}
}

func (w *laneWorld) result() result {
	w.t.Helper()
	select {
	case r := <-w.k.results:
		w.k.finish(r)
		return r
	case <-time.After(patience):
		w.t.Fatal("the loop gets no result")
		return result{}
	}
}

func (w *laneWorld) acked() (numbers []uint64) {
	for _, a := range w.k.st.Acks() {
		numbers = append(numbers, a.Number)
	}
	return numbers
}

// TestLanes: while the writes of a copy that is being built are held up, the ready copy of its bucket takes stability
// timestamps and holds them for scans, and they are acknowledged, in order, however many they are. One of them waits
// for the other copy, which then takes the newest.
func TestLanes(t *testing.T) {
	const many = 3 * core.MaxStability
	w := newLaneWorld(t)
	w.bring()
	w.k.pump(t.Context())
	if first := w.begins(); first.of.Batch.Kind != ingest.FromSide || first.of.Batch.Bytes() > sideBatch {
		t.Fatalf("begun: %v of %d bytes", first.of.Batch.Kind, first.of.Batch.Bytes())
	}
	for n := uint64(1); n <= many; n++ {
		w.promote()
		if at := w.begins(); at.of.Batch.Ref.Number != n || !at.of.Batch.Copies[at.at].Serves {
			t.Fatalf("begun: a task of timestamp %d, want the ready copy's of %d", at.of.Batch.Ref.Number, n)
		}
		w.ends(1)
		if r := w.result(); (r.shown != nil) != (n == 1) {
			t.Fatalf("got %+v of timestamp %d, want that the first is shown, and the others are written", r, n)
		}
		if refs := w.k.node.Snapshots.Refs(1); len(refs) == 0 || refs[len(refs)-1].Number != n {
			t.Fatalf("the ready copy holds %v, want %d", refs, n)
		}
		if s := w.k.st.States()[0]; s.Held.Number != n {
			t.Fatalf("the ready copy is reported to hold %+v, want %d", s.Held, n)
		}
		if got := w.acked(); len(got) != int(n) || got[n-1] != n {
			t.Fatalf("acknowledged after timestamp %d: %v", n, got)
		}
		if last, ok := w.k.st.LastAck(); ok {
			t.Fatalf("timestamp %d counts as written, with the first under way", last.Number)
		}
	}
	w.ends(2)
	w.result()
	if at := w.begins(); at.of.Batch.Ref.Number != 1 {
		t.Fatalf("begun: a task of timestamp %d, want the first", at.of.Batch.Ref.Number)
	}
	w.ends(2)
	w.result()
	if last, _ := w.k.st.LastAck(); last.Number != many {
		t.Fatalf("timestamp %d counts as written, want %d", last.Number, many)
	}
	if got := w.acked(); len(got) != many {
		t.Fatalf("acknowledged: %v, want each once", got)
	}
	if s := w.k.slices[2].Positions()[0]; s.Side == 0 || s.Main != laneActive+1 {
		t.Errorf("the copy that is built holds %+v", s)
	}
	w.promote()
	w.k.work.Look()
	w.k.pump(t.Context())
	kinds := map[ingest.BatchKind]int{}
	for range 3 { // a result may have to be taken before the next task begins
		w.ends(1)
		w.ends(2)
	}
	for w.k.work.InFlight() > 0 {
		w.result()
	}
	for range 3 {
		kinds[w.begins().of.Batch.Kind]++
	}
	if kinds[ingest.FromSide] != 1 || kinds[ingest.AtStability] != 2 {
		t.Errorf("then begun: %v, want a piece of the side stream and a timestamp for both", kinds)
	}
	if s := w.k.slices[2].Positions()[0]; s.Main != laneActive+many+1 {
		t.Errorf("then the copy that is built holds %+v", s)
	}
}

// TestWritersOfBuilds: busy writers of builds leave one processor to everything else. A writer whose task takes long
// does not count, so that a copy that cannot be written holds up no other.
func TestWritersOfBuilds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		begun, goOn := 0, make(chan struct{})
		l := newLanes(runtime.GOMAXPROCS(0), func(*lane, task) {
			mu.Lock()
			begun++
			mu.Unlock()
			<-goOn
		})
		l.most, l.usual[building] = 3, 1
		for range 5 {
			l.give(&lane{}, task{class: building})
		}
		at := func(what string, want int) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if begun != want {
				t.Errorf("%s: %d tasks have begun, want %d", what, begun, want)
			}
		}
		at("at once", 1)
		time.Sleep(writerPatience)
		at("when the first is slow", 2)
		time.Sleep(writerPatience)
		at("when two are", 3)
		time.Sleep(time.Hour)
		at("at the most", 3)
		goOn <- struct{}{}
		at("when a slow one has ended", 4)
		close(goOn)
		at("at the end", 5)
		l.close()
		if l.writers[building] != 0 || l.slow[building] != 0 {
			t.Errorf("%d writers are left, %d slow", l.writers[building], l.slow[building])
		}
	})
}

// TestBuildersOfTwoBuckets: buckets that build on one node take turns, and neither waits for a slow task of the
// other.
func TestBuildersOfTwoBuckets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var begun atomic.Int32
		goOn := make(chan struct{})
		do := func(*lane, task) {
			begun.Add(1)
			<-goOn
		}
		a, b := newLanes(runtime.GOMAXPROCS(0), do), newLanes(runtime.GOMAXPROCS(0), do)
		all := &Background{places: semaphore.NewWeighted(1)}
		a.builds, b.builds = all, all
		for range 3 {
			a.give(&lane{}, task{class: building})
			b.give(&lane{}, task{class: building})
		}
		at := func(what string, want int32) {
			t.Helper()
			synctest.Wait()
			if n := begun.Load(); n != want {
				t.Errorf("%s: %d tasks have begun, want %d", what, n, want)
			}
		}
		at("at once", 1)
		goOn <- struct{}{}
		at("when the first has ended", 2)
		time.Sleep(writerPatience)
		at("when the second is slow", 3)
		b.give(&lane{}, task{class: serving})
		at("of what scans wait for", 4)
		close(goOn)
		at("at the end", 7)
		a.close()
		b.close()
		if !all.places.TryAcquire(1) {
			t.Error("a place is not given back")
		}
	})
}

// TestLaneLost: nothing that was handed out for a copy is written after the copy was reopened, and timestamps that it
// held before do not count as held.
func TestLaneLost(t *testing.T) {
	w := newLaneWorld(t)
	w.bring()
	w.k.pump(t.Context())
	w.begins() // the piece, which stays
	for range 3 {
		w.promote()
		w.begins()
		if w.number < 3 {
			w.ends(1)
			w.result()
		}
	}
	n := w.k.lanes.of[1] // its third task has begun
	n.lost.Store(true)
	w.k.node.Snapshots.Drop(1)
	w.k.finish(result{reopened: n})
	if w.k.lanes.of[1] == n {
		t.Fatal("the lane is still in use")
	}
	w.ends(1)
	if r := w.result(); r.ended == nil {
		t.Fatalf("got %+v", r)
	}
	if len(w.k.node.Snapshots.Refs(1)) > 0 {
		t.Errorf("it holds %v, taken after it had gone back", w.k.node.Snapshots.Refs(1))
	}
	for range 2 { // the piece, and the first timestamp
		w.ends(2)
		w.result()
	}
	if s := w.k.st.States()[0]; s.Held.Number != 0 {
		t.Errorf("it is reported to hold %+v", s.Held)
	}
	if acks := w.k.st.Acks(); len(acks) != 3 || acks[2].Made || len(acks[2].Exceptions) > 0 {
		t.Errorf("acknowledged: %+v, want that no copy has the last", acks)
	}
	if got := w.acked(); !slices.Equal(got, []uint64{1, 2, 3}) {
		t.Errorf("acknowledged: %v", got)
	}
}

// TestLaneRemoved: a copy is released when its write in progress has ended; waiting writes are dropped.
func TestLaneRemoved(t *testing.T) {
	w := newLaneWorld(t)
	w.bring()
	w.k.pump(t.Context())
	w.begins()
	w.promote()
	w.begins()
	n := w.k.lanes.of[2]
	w.k.st.Remove(2)
	delete(w.k.lanes.of, 2)
	delete(w.k.slices, 2)
	rest := w.k.lanes.lose(n)
	if rest == nil {
		t.Fatal("something of it is being written")
	}
	w.ends(2) // the lane is lost by now: nothing is written
	w.result()
	select {
	case <-rest:
	case <-time.After(patience):
		t.Fatal("it does not come to rest")
	}
	w.ends(2)
	w.ends(1)
	for w.k.work.InFlight() > 0 {
		w.result()
	}
	if got := w.acked(); !slices.Equal(got, []uint64{1}) {
		t.Errorf("acknowledged: %v", got)
	}
}

// TestRemovedCopiesHaveNoWriters: removed copies whose writes hang hold up no other copy of their bucket, in
// either class; and when they continue, there are no more writers than before.
func TestRemovedCopiesHaveNoWriters(t *testing.T) {
	for c := range classes {
		for _, soon := range []bool{true, false} { // before they count as slow
			synctest.Test(t, func(t *testing.T) {
				goOn := make(chan struct{})
				var hung atomic.Int32
				var mu sync.Mutex
				now, most := 0, 0
				count := func(n int) {
					mu.Lock()
					defer mu.Unlock()
					now += n
					most = max(most, now)
				}
				hangs := map[*lane]bool{}
				l := newLanes(2, func(n *lane, _ task) {
					if hangs[n] {
						hung.Add(1)
						<-goOn
						return
					}
					count(1)
					time.Sleep(time.Millisecond)
					count(-1)
				})
				l.builds = NewBackground(2)
				for range 2 * l.most {
					n := &lane{}
					hangs[n] = true
					l.give(n, task{class: c})
					synctest.Wait()
					if !soon {
						time.Sleep(2 * writerPatience)
					}
					for range 2 { // the removal is repeated
						if l.lose(n) == nil {
							t.Fatal("it is not being written")
						}
					}
					time.Sleep(2 * writerPatience)
				}
				give := func() {
					for range 20 {
						l.give(&lane{}, task{class: c})
					}
					time.Sleep(time.Second)
				}
				give()
				if count(0); most != l.usual[c] || now != 0 || l.waits(c) > 0 {
					t.Errorf("class %d: %d at once, want %d; %d are not written", c, most, l.usual[c], l.waits(c))
				}
				close(goOn)
				give()
				if count(0); int(hung.Load()) != len(hangs) || most != l.usual[c] {
					t.Errorf("class %d: %d at once afterwards, want %d; %d hung", c, most, l.usual[c], hung.Load())
				}
				l.close()
				if l.writers != [classes]int{} || l.slow != [classes]int{} {
					t.Errorf("writers %v, slow %v at last", l.writers, l.slow)
				}
			})
		}
	}
}

// waits returns how many lanes wait for writers of a class.
func (l *lanes) waits(c class) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting[c])
}

// TestRetakenCopyHoldsNothing: a copy that is retaken because it is wrong offers scans nothing that was in flight
// when this was found: neither what it held, nor what writers that had begun before add. It offers the next snapshot
// that is correct.
func TestRetakenCopyHoldsNothing(t *testing.T) {
	w := newLaneWorld(t)
	for n := range core.MaxStability { // in flight
		w.promote()
		if n == 0 {
			w.begins()
		}
	}
	if !w.k.retake(1, 0, nil, true) {
		t.Fatal("the vbucket is not taken anew")
	}
	w.k.pump(t.Context())
	for range core.MaxStability + 1 {
		w.ends(1)
		w.ends(2)
	}
	for w.k.work.InFlight() > 0 {
		w.result()
		if refs := w.k.node.Snapshots.Refs(1); len(refs) > 0 {
			t.Fatalf("the copy that is taken anew shows scans %v", refs)
		}
	}
	if p := w.k.slices[1].Positions()[0]; p.Side != 0 || p.A == 0 {
		t.Fatalf("it stands at %+v", p)
	}
	snap, err := w.k.slices[1].Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	w.k.node.Snapshots.Add(1, snapshots.Held{Snap: snap}) // as soon as it is exact again
	if len(w.k.node.Snapshots.Refs(1)) != 1 {
		t.Error("it holds no snapshot that was made after it")
	}
}

// TestFailedReopeningIsRetried: a copy that must be reopened, but temporarily cannot be, is opened as soon as possible;
// meanwhile the node's health reports it. No other copy waits for it, and nothing is written to it behind what it
// lacks.
func TestFailedReopeningIsRetried(t *testing.T) {
	w := newLaneWorld(t)
	slice := w.k.slices[1]
	var folder string
	if err := filepath.WalkDir(w.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && folder == "" && strings.HasPrefix(d.Name(), slice.Meta().Copy.String()) {
			folder = path
		}
		return err
	}); err != nil || folder == "" {
		t.Fatal("no folder of the copy", err)
	}
	away := filepath.Join(t.TempDir(), "away")
	if err := errors.Join(os.Rename(folder, away), os.WriteFile(folder, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := w.k.reopen(t.Context(), slice); err == nil {
		t.Fatal("a copy without a folder was opened")
	}
	if said := w.k.node.Health.First(); !strings.Contains(said, "cannot be reopened") {
		t.Errorf("health %q", said)
	}
	for n := range uint64(2) {
		w.promote()
		for range 2 {
			w.begins()
		}
		w.ends(1)
		if r := w.result(); r.shown == nil { // of the copies that serve scans, one has no more to do
			t.Fatalf("got %+v, want that the ready copy is done", r)
		}
		w.ends(2)
		for w.k.work.InFlight() > 0 {
			w.result()
		}
		if got := w.acked(); len(got) != int(n)+1 {
			t.Fatalf("acknowledged %v", got)
		}
	}
	if !w.k.lanes.of[1].lost.Load() {
		t.Error("the lane of a copy that lacks what it was handed is not lost")
	}
	if err := errors.Join(os.Remove(folder), os.Rename(away, folder)); err != nil {
		t.Fatal(err)
	}
	if r := w.result(); r.reopened == nil || r.reopened.copy != 1 {
		t.Fatalf("the loop gets %+v", r)
	}
	if said := w.k.node.Health.First(); said != "" || w.k.lanes.of[1] != nil {
		t.Errorf("health %q, lane %v", said, w.k.lanes.of[1])
	}
	snap, err := slice.Snapshot()
	if err == nil {
		err = snap.Close()
	}
	if err != nil {
		t.Errorf("it is not open: %v", err)
	}
}
