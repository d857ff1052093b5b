package fill

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/copies"
	"tidemark/indexer/health"
	"tidemark/indexer/peers"
	"tidemark/indexer/snapshots"
	"tidemark/indexer/storage"
	"tidemark/indexer/storage/storagetest"
	"tidemark/indexer/transfer"
	"tidemark/internal/detector"
	"tidemark/internal/rpc"
	"tidemark/partition"
	"tidemark/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// created returns a new copy in a store.
func created(t *testing.T, st *storage.Store, id index.CopyID) *storage.Slice {
	t.Helper()
	s, err := st.Create(storage.Meta{Copy: id, Index: 1, Bucket: "b", BucketUUID: "u", VBuckets: 2, Desc: []bool{false}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// running returns a filler, with a new copy 1 of a running bucket.
func running(t *testing.T) (*Filler, *copies.Bucket, *storage.Slice) {
	t.Helper()
	return runningOn(t, vfs.Default)
}

// runningOn is running with a given disk.
func runningOn(t *testing.T, disk vfs.FS) (*Filler, *copies.Bucket, *storage.Slice) {
	t.Helper()
	log := hclog.NewNullLogger()
	st, s := storagetest.OpenOn(t, disk)
	marks, err := copies.LoadMarks(t.TempDir(), log)
	if err != nil {
		t.Fatal(err)
	}
	r, snaps := prometheus.NewRegistry(), snapshots.New(2, log, time.Now)
	k, err := copies.NewBucket(&copies.Node{Store: st, Snapshots: snaps, Marks: marks, Health: &health.Health{},
		Metrics: copies.NewMetrics(r), Log: log, Now: time.Now, Queue: func() int64 { return 1 << 20 }, Piece: 1 << 20,
		Report: func() {}, Sides: func() {}, Touch: func(string) {}},
		wire.Bucket{Name: "b", UUID: "u", VBuckets: 2, Generation: 3, RollbackID: 5})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- k.Run(t.Context()) }()
	t.Cleanup(func() {
		k.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	none := func() (d wire.Definitions) { return d }
	return New(Options{Store: st, Snapshots: snaps, Marks: marks, UUID: func() string { return "i" }, Rate: 1 << 20,
		Health: &health.Health{},
		Bucket: func(string) *copies.Bucket { return k }, Orphan: func(index.CopyID) bool { return false }, Settled: none,
		Present: none, Sides: func() {}, Registry: r, Log: log, Now: time.Now}), k, s
}

// waiting returns the number of queued fills.
func (f *Filler) waiting() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.queue)
}

// TestFillsTakeTurns checks that a copy with busy sources does not delay another one, and is tried again after it.
func TestFillsTakeTurns(t *testing.T) {
	st, _ := storagetest.Open(t)
	now := time.Unix(1000, 0)
	f := &Filler{Options: Options{Now: func() time.Time { return now }}, wake: make(chan struct{}, 1)}
	for _, id := range []index.CopyID{20, 21} {
		f.add(nil, created(t, st, id), nil)
	}
	var got []index.CopyID
	for range 2 {
		_, o, _ := f.next(t.Context())
		got = append(got, o.s.Meta().Copy)
		if !f.putBack(o) {
			t.Fatal("it is not tried again")
		}
	}
	if _, o, pause := f.next(t.Context()); o != nil || pause != fillPause {
		t.Errorf("%v again after %s, want none before %s", o, pause, fillPause)
	}
	now = now.Add(fillPause)
	_, o, _ := f.next(t.Context())
	if got = append(got, o.s.Meta().Copy); !slices.Equal(got, []index.CopyID{20, 21, 20}) {
		t.Errorf("in turn %v", got)
	}
	if err := f.Drop(t.Context(), 20); err != nil || f.putBack(o) {
		t.Errorf("a dropped copy is tried again: %v", err)
	}
}

// TestFillOfAnotherRollback checks that files from before a rollback of the bucket, or of an earlier bucket of the
// same name, are not installed.
func TestFillOfAnotherRollback(t *testing.T) {
	f, k, s := running(t)
	if err := f.Take(t.Context(), k, s, []index.NodeID{4}); err != nil {
		t.Fatal(err)
	}
	_, o, _ := f.next(t.Context())
	if o == nil {
		t.Fatal("nothing is to be filled")
	}
	for _, said := range []about{{Generation: 3, RollbackID: 6}, {Generation: 4, RollbackID: 5}} {
		if err := f.install(t.Context(), o, nil, &said); !errors.Is(err, errAnew) {
			t.Errorf("files of %+v: %v", said, err)
		}
	}
	o.cancel()
}

// TestDropWaitsForInstallation checks that a drop of a copy waits until the installation of its files has ended, and
// that it gets none afterwards.
func TestDropWaitsForInstallation(t *testing.T) {
	_, s := storagetest.Open(t)
	f := New(Options{Registry: prometheus.NewRegistry(), Now: time.Now})
	f.add(nil, s, nil)
	_, o, _ := f.next(t.Context())
	done, err := f.putting(o)
	if err != nil {
		t.Fatal(err)
	}
	dropped := make(chan error, 1)
	go func() { dropped <- f.Drop(t.Context(), 1) }()
	for !o.gone.Load() {
		time.Sleep(time.Millisecond)
	}
	select {
	case err := <-dropped:
		t.Errorf("it is dropped while its files are installed: %v", err)
	default:
	}
	done()
	if err := <-dropped; err != nil {
		t.Error(err)
	}
	if err := f.install(t.Context(), o, nil, &about{}); !errors.Is(err, copies.ErrUnwanted) {
		t.Errorf("files for a copy that is gone: %v", err)
	}
}

// TestFillPatience checks that a copy waits for its turn as long as there is progress, here or at a busy source, but
// not forever.
func TestFillPatience(t *testing.T) {
	began := time.Unix(1000, 0)
	fresh := func() *fill {
		return &fill{moved: began, sent: map[index.NodeID]uint64{}}
	}
	o := fresh()
	if !o.patient(began.Add(fillPatience)) || o.patient(began.Add(fillPatience+1)) {
		t.Errorf("where nothing moves it does not wait for %s", fillPatience)
	}
	at := began
	f := &Filler{queue: []*fill{o}}
	for n := uint64(1); f.expire(at, 0) == 0 && at.Sub(began) <= 2*fillLongest; n++ {
		at = at.Add(fillPatience)
		o.waited += fillPatience
		o.saw(4, n, at)
	}
	if waited := at.Sub(began); waited < fillLongest || waited > fillLongest+fillPatience {
		t.Errorf("where its source moves it waits for %s, want %s", waited, fillLongest)
	}
	// While the files of other copies are received first, the time does not count.
	o = fresh()
	ahead := &fill{}
	ahead.expected.Store(1)
	f = &Filler{queue: []*fill{o}, turn: ahead}
	for at = began; at.Sub(began) <= 2*fillLongest; at = at.Add(time.Minute) {
		if at.Sub(ahead.taken) > fillPatience {
			ahead.taken = at // the next one
		}
		if f.expire(at, time.Minute) > 0 {
			t.Fatalf("it is given up after %s, and others are filled before it", at.Sub(began))
		}
	}
	// Unless one of them takes long.
	slow := fresh()
	f.queue = []*fill{slow}
	for slow.moved, ahead.taken = at, at; f.expire(at, time.Minute) == 0; at = at.Add(time.Minute) {
		if at.Sub(ahead.taken) > 2*fillLongest {
			t.Fatal("it waits for ever for the end of one transfer")
		}
	}
	if waited := at.Sub(ahead.taken); waited < fillLongest+fillPatience {
		t.Errorf("it is given up %s after the transfer ahead of it began, want after %s", waited, fillLongest+fillPatience)
	}
	f.queue = []*fill{o}
	o.moved = at
	f.turn = nil
	for from := at; f.expire(at, time.Minute) == 0; at = at.Add(time.Minute) {
		if o.saw(4, uint64(at.Unix()), at); at.Sub(from) > 2*fillLongest {
			t.Fatal("it waits for ever")
		}
	}
	o = fresh()
	o.saw(4, 7, began.Add(time.Minute))
	for n := range 20 {
		o.saw(4, 7, began.Add(time.Duration(n)*time.Minute))
	}
	if o.patient(began.Add(time.Minute + fillPatience + 1)) {
		t.Error("a source that has sent nothing meanwhile counts as one that moves")
	}
}

// TestFillAfterAnAbortedDrop checks that a copy whose removal was aborted half-way, and that is wanted again, gets its
// files.
func TestFillAfterAnAbortedDrop(t *testing.T) {
	f, k, s := running(t)
	others := []index.NodeID{4}
	if err := f.Take(t.Context(), k, s, others); err != nil {
		t.Fatal(err)
	}
	_, o, _ := f.next(t.Context())
	done, err := f.putting(o) // installing its files takes longer than the leader waits
	if err != nil {
		t.Fatal(err)
	}
	ctx, giveUp := context.WithCancelCause(t.Context())
	giveUp(context.DeadlineExceeded)
	if err := f.Drop(ctx, 1); !errors.Is(err, context.DeadlineExceeded) || !o.gone.Load() {
		t.Fatalf("its removal was not given up: %v", err)
	}
	done()
	if err := f.Take(t.Context(), k, s, others); err != nil {
		t.Fatal(err)
	}
	if _, again, _ := f.next(t.Context()); again != nil {
		t.Error("it is filled while the fill before is not done with its folder")
	}
	f.ended(o)
	for range 2 { // the second time it is queued already
		if err := f.Take(t.Context(), k, s, others); err != nil || f.waiting() != 1 {
			t.Fatalf("wanted again: %v, %d wait to be filled", err, f.waiting())
		}
	}
	if _, again, _ := f.next(t.Context()); again == nil || again.s != s || again == o {
		t.Errorf("next is %v", again)
	} else {
		again.cancel()
	}
}

// TestLaterFillBesideAHungOne checks that a copy whose id another one had before, whose fill still hangs, is
// left to KV in time, and touches no received files.
func TestLaterFillBesideAHungOne(t *testing.T) {
	f, k, s := running(t)
	others := []index.NodeID{4}
	if err := f.Take(t.Context(), k, s, others); err != nil {
		t.Fatal(err)
	}
	_, o, _ := f.next(t.Context())
	defer o.cancel()
	f.begins(o, "writing what is received")
	if err := f.Drop(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if err := f.Take(t.Context(), k, s, others); err != nil {
		t.Fatal(err)
	}
	f.hung(f.Now().Add(health.Hangs + time.Second))
	if _, again, _ := f.next(t.Context()); again != nil {
		t.Fatal("it uses the folder of a fill that hangs")
	}
	f.expire(f.Now(), fillLongest+1)
	below, late, _ := f.next(t.Context())
	if late == nil {
		t.Fatal("it waits without an end for the fill before")
	}
	defer late.cancel()
	if f.one(below, late) {
		t.Error("it is not left to KV")
	}
	f.ended(late)
	if later, err := k.Add(t.Context(), s, true, f.filling); later || err != nil {
		t.Errorf("it still waits for files: %v, %v", later, err)
	}
	if why := f.Health.First(); !strings.HasPrefix(why, "filling copy 1: writing") {
		t.Errorf("what is wrong: %q", why)
	}
	f.ended(o)
}

// TestProgressOfABusySourceIsAwaited checks that the progress of a busy source is recorded, and that a copy waits for
// it patiently as long as there is progress.
func TestProgressOfABusySourceIsAwaited(t *testing.T) {
	now := time.Unix(1000, 0)
	f := &Filler{Options: Options{Now: func() time.Time { return now }}}
	o := &fill{moved: now, sent: map[index.NodeID]uint64{}}
	for _, moved := range []uint64{1, 2, 2} {
		was := o.moved
		now = now.Add(fillPatience)
		if !f.again(o, 4, &transfer.Busy{Why: "sends to others", Moved: moved}) || o.sent[4] != moved {
			t.Errorf("it has recorded %d as sent by its source, which reported %d", o.sent[4], moved)
		}
		if grown := o.moved != was; grown != (moved == uint64(now.Sub(time.Unix(1000, 0))/fillPatience)) {
			t.Errorf("at %d it counts as one that moves: %v", moved, grown)
		}
	}
}

// TestWrongCopySendsNoFiles checks that no files of a copy are sent while a vbucket is to be taken anew and
// its rows are still there: the files would claim that the vbucket is whole.
func TestWrongCopySendsNoFiles(t *testing.T) {
	_, s := storagetest.Open(t)
	storagetest.FlushAt(t, s, 7, 50)
	want := &transfer.Want{Index: 1, BucketUUID: "u", Generation: 3, RollbackID: 5}
	for what, c := range map[string]struct {
		at    copies.Standing
		sends bool
	}{
		"as it should be": {copies.Standing{Fit: true, Empty: 1}, true},
		"wrong":           {copies.Standing{Fit: true, Wrong: true}, false},
		"put back":        {copies.Standing{}, false}, "nearly empty": {copies.Standing{Fit: true, Empty: 2}, false},
	} {
		q := sendable{Standing: c.at, about: about{Meta: s.Meta(), Generation: 3, RollbackID: 5}}
		err := q.refusal(s, want)
		var problem *rpc.Problem
		if c.sends != (err == nil) || err != nil && (!errors.As(err, &problem) || problem.Code != errcode.Unavailable) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// asksOf lets a filler send requests to node 4 at an address.
func asksOf(t *testing.T, f *Filler, addr string) {
	t.Helper()
	asks(t, f, func() (d wire.Definitions) {
		d.Indexers = []wire.Endpoint{{Node: 4, Scan: addr}}
		return d
	})
}

// asks lets a filler send requests to the indexers of definitions.
func asks(t *testing.T, f *Filler, defs func() wire.Definitions) {
	t.Helper()
	p := peers.New(nil, func() (index.NodeID, string) { return 3, "127.0.0.1:2" },
		func() []wire.Endpoint { return defs().Indexers })
	f.Settled, f.Present, f.Nodes = defs, defs, p.Ask(1)
	t.Cleanup(func() {
		f.Nodes.Close()
		p.Close()
	})
}

// TestUnreachableSourceIsAwaited checks that all copies that wait for a source that is away, as during its restart,
// continue to wait, and that the next one does not request from it again at once; in the end KV fills them.
func TestUnreachableSourceIsAwaited(t *testing.T) {
	f, k, _ := running(t)
	var asked atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == transfer.Path {
			asked.Add(1)
		}
		panic(http.ErrAbortHandler) // the source goes away
	}))
	t.Cleanup(s.Close)
	asksOf(t, f, strings.TrimPrefix(s.URL, "http://"))
	for id := index.CopyID(20); id < 25; id++ {
		if err := f.Take(t.Context(), k, created(t, f.Store, id), []index.NodeID{4}); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 {
		below, o, _ := f.next(t.Context())
		for n := range fillsAway + 1 {
			suspect, was := f.Nodes.Suspect(4), asked.Load()
			_, err := f.fill(below, o)
			if later := errors.Is(err, errLater); later != (n < fillsAway) || !errors.Is(err, errAway) {
				t.Errorf("copy %s: time %d: %v", o.s.Meta().Copy, n, err)
			}
			if suspect && f.Nodes.Suspect(4) && asked.Load() > was { // it was suspect all the time
				t.Errorf("copy %s: time %d: it is asked though it has just gone", o.s.Meta().Copy, n)
			}
		}
		o.cancel()
		f.ended(o)
	}
	if asked.Load() == 0 {
		t.Error("it was never asked")
	}
}

// TestSourcesFollowTheCurrentDefinitions checks that a copy that waits for a busy source also tries the holders of
// its slice by the current definitions. If the source has released the slice, a new holder is tried, also one that
// could not send it before; one whose files were invalid, or of an unknown format, is not tried again.
func TestSourcesFollowTheCurrentDefinitions(t *testing.T) {
	f, k, s := running(t)
	busy := rpc.Refuse(errcode.Unavailable, "it is put back now")
	none := rpc.Refuse(errcode.NotFound, "no copy of the slice is here")
	var mu sync.Mutex
	said, asked := map[index.NodeID]error{}, map[index.NodeID]int{}
	d := wire.Definitions{Indexes: []index.Definition{{ID: 1, Bucket: "b", State: index.Maintenance}}}
	for node := index.NodeID(4); node <= 7; node++ {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			if r.URL.Path == transfer.Path {
				asked[node]++
			}
			rpc.WriteProblem(w, said[node])
		}))
		t.Cleanup(srv.Close)
		d.Indexers = append(d.Indexers, wire.Endpoint{Node: node, Scan: strings.TrimPrefix(srv.URL, "http://")})
	}
	asks(t, f, func() wire.Definitions { return d })
	if err := f.Take(t.Context(), k, s, []index.NodeID{4}); err != nil {
		t.Fatal(err)
	}
	below, o, _ := f.next(t.Context())
	defer func() { o.cancel() }()
	o.failed[6], o.failed[7] = errSlow, rpc.Refuse(errcode.UnsupportedFormat, "copies of format 1, this version sends 2")
	copyOf := func(node index.NodeID, state partition.CopyState) partition.Copy {
		return partition.Copy{ID: index.CopyID(node), Node: node, State: state}
	}
	here := partition.Copy{ID: s.Meta().Copy, Node: 3, State: partition.Placed}
	for _, step := range []struct {
		what   string
		copies []partition.Copy
		said   [2]error // by nodes 4 and 5
		later  bool
		asked  []index.NodeID
		turn   *fill // of another copy
	}{
		{"as when it was queued", []partition.Copy{copyOf(4, partition.Allocated)}, [2]error{busy, none}, true,
			[]index.NodeID{4}, nil},
		{"others that have none yet", []partition.Copy{copyOf(4, partition.Allocated), copyOf(5, partition.Allocated),
			copyOf(6, partition.Allocated), copyOf(7, partition.Allocated)}, [2]error{busy, none}, true,
			[]index.NodeID{4, 5}, nil},
		{"the first has let it go", []partition.Copy{copyOf(5, partition.Allocated), copyOf(6, partition.Allocated)},
			[2]error{none, busy}, true, []index.NodeID{4, 5}, nil},
		{"from then on", []partition.Copy{copyOf(5, partition.Allocated), copyOf(6, partition.Allocated)},
			[2]error{none, busy}, true, []index.NodeID{5}, nil},
		{"none can", []partition.Copy{copyOf(5, partition.Allocated)}, [2]error{none, none}, false, []index.NodeID{5}, nil},
		{"another copy has the turn by then", []partition.Copy{copyOf(4, partition.Allocated),
			copyOf(5, partition.Allocated)},
			[2]error{none, busy}, true, []index.NodeID{4}, &fill{}},
	} {
		mu.Lock()
		said[4], said[5] = step.said[0], step.said[1]
		clear(asked)
		mu.Unlock()
		d.Topologies = []partition.Topology{{Index: 1, Copies: append([]partition.Copy{here}, step.copies...)}}
		f.mu.Lock()
		f.turn = step.turn
		f.mu.Unlock()
		_, err := f.fill(below, o)
		mu.Lock()
		if got := slices.Sorted(maps.Keys(asked)); errors.Is(err, errLater) != step.later || !slices.Equal(got, step.asked) {
			t.Errorf("%s: %v were asked, want %v: %v", step.what, got, step.asked, err)
		}
		mu.Unlock()
	}
}

// TestRefusingSourceIsNotUnreachable checks that an answer that something does not exist, or is not possible now,
// does not mean that the source is away.
func TestRefusingSourceIsNotUnreachable(t *testing.T) {
	for what, c := range map[string]struct {
		err  error
		away bool
	}{
		"refused connection": {syscall.ECONNREFUSED, true}, "silence": {detector.ErrSilent, true},
		"a proxy's word": {rpc.NewProblem(http.StatusBadGateway, errcode.Internal, "no"), true},
		"no such route":  {rpc.NewProblem(http.StatusNotFound, errcode.Internal, "404"), false},
		"no such copy":   {rpc.Refuse(errcode.NotFound, "no"), false},
	} {
		if got := silent(fmt.Errorf("asking: %w", c.err)); got != c.away {
			t.Errorf("%s: away %v, want %v", what, got, c.away)
		}
	}
}
