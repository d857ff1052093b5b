package indexer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"
	"github.com/prometheus/client_golang/prometheus"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/storage"
	"tidemark/indexer/transfer"
	"tidemark/ingest"
	"tidemark/internal/rpc"
	"tidemark/partition"
	"tidemark/timestamp"
	"tidemark/wire"
)

// pair is two indexers of one KV: a has copy 10 of a slice, and b is to have copy 11 of it.
type pair struct {
	t    *testing.T
	a, b *world
	// what b asks a, before it is answered; true: it was answered here
	between func(w http.ResponseWriter, r *http.Request, n int64) bool
	asked   atomic.Int64
	files   atomic.Int64 // of a's newest offer
	tables  atomic.Int64 // how many of them are tables
}

const pairNode = 4 // of a, as b knows it

func newPair(t *testing.T) *pair {
	t.Helper()
	return newPairAt(t, 64*transfer.MinRate)
}

// newPairAt is newPair with an a that was started to send at a rate.
func newPairAt(t *testing.T, rate int64) *pair {
	t.Helper()
	p := &pair{t: t, a: newWorld(t), b: newWorld(t)}
	p.a.tweak = func(c *Config) { c.TransferRate = rate }
	p.b.tweak = func(c *Config) { c.TransferRate = 64 * transfer.MinRate }
	p.a.write(docs(0, 400, 1)...)
	p.a.serve(10)
	p.b.kv = p.a.kv
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: p.a.endpoint.Scan})
	proxy.ModifyResponse = p.offered
	proxy.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "copies:send") {
			if n := p.asked.Add(1); p.between != nil && p.between(w, r, n) {
				return
			}
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		p.b.stopIndexer() // who asks the server ends before it
		s.CloseClientConnections()
		s.Close()
	})
	p.b.others = []wire.Endpoint{{Node: pairNode, UUID: "a", Scan: strings.TrimPrefix(s.URL, "http://")}}
	p.b.place = func(c *partition.Copy) {
		if c.ID == 10 {
			c.Node = pairNode
		} else {
			c.State = partition.Placed
		}
	}
	return p
}

// offered counts the files of an offer that a makes.
func (p *pair) offered(r *http.Response) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	var o transfer.Offer
	if r.StatusCode != http.StatusOK || len(body) < 4 || cbor.Unmarshal(body[4:], &o) != nil || len(o.Files) == 0 {
		return nil // of a question that is none for an offer
	}
	tables := 0
	for _, f := range o.Files {
		if strings.HasSuffix(f.Name, ".sst") {
			tables++
		}
	}
	p.files.Store(int64(len(o.Files)))
	p.tables.Store(int64(tables))
	return nil
}

// fill places the copy on b and waits until it is exact there.
func (p *pair) fill() {
	p.t.Helper()
	if err := p.b.define(10, 11); err != nil {
		p.t.Fatal(err)
	}
	p.b.begin(nil)
	p.b.write(docs(390, 420, 7)...)
	p.outcome()
	p.whole()
}

// outcome waits until it is decided what b is filled from.
func (p *pair) outcome() (installed bool) {
	p.t.Helper()
	for deadline := time.Now().Add(testTimeout); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		// not under the lock: what is gathered asks the projector
		r := p.b.x.metrics.registry
		if counted(p.t, r, "tidemark_indexer_fills_total", "installed") > 0 {
			return true
		}
		if counted(p.t, r, "tidemark_indexer_fills_total", "failed") > 0 {
			return false
		}
	}
	p.t.Fatalf("the copy is neither filled nor left to KV within %s", testTimeout)
	return false
}

// whole waits until the copy of b is exact, and compares it with KV.
func (p *pair) whole() {
	p.t.Helper()
	p.b.promote(p.t.Context())
	p.b.held(11)
	s, _ := p.b.x.store.Slice(11)
	snap, err := s.Snapshot()
	if err != nil {
		p.t.Fatal(err)
	}
	var got []string
	if err := snap.Iterate(context.Background(), storage.Range{}, false, func(_, id []byte) error {
		got = append(got, string(id))
		return nil
	}); err != nil {
		p.t.Fatal(err)
	}
	if err := snap.Close(); err != nil {
		p.t.Fatal(err)
	}
	want := p.b.oracle()
	if len(got) != len(want) {
		p.t.Fatalf("the copy has %d rows, KV %d", len(got), len(want))
	}
	for i := range want {
		if got[i] != want[i].ID {
			p.t.Fatalf("row %d is of %s, want %s", i, got[i], want[i].ID)
		}
	}
}

// fromZero counts the vbuckets that b has asked KV for from the beginning.
func (p *pair) fromZero() (n int) {
	for _, q := range p.b.calls() {
		for _, seqno := range q.Buckets[0].Restart.Seqnos {
			if seqno == 0 {
				n++
			}
		}
	}
	return n
}

// TestFillByFiles: a new copy gets the files of another indexer's, and from KV only what has come since.
func TestFillByFiles(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.b.start()
	p.fill()
	if !p.outcome() || p.fromZero() > 0 {
		t.Errorf("%d vbuckets were streamed from 0", p.fromZero())
	}
	if n := counted(t, p.a.x.metrics.registry, "tidemark_indexer_fill_bytes_total", "sent"); n == 0 {
		t.Error("nothing was sent")
	}
	if p.b.x.fills.checked.Due().IsZero() {
		t.Error("what was received was checked without a bound")
	}
	p.b.stopIndexer() // what was installed is durable
	p.b.start()
	if err := p.b.define(10, 11); err != nil {
		t.Fatal(err)
	}
	p.b.begin(nil)
	p.b.write(docs(5, 15, 9)...)
	p.whole()
	if n := p.fromZero(); n > 0 {
		t.Errorf("after a restart %d vbuckets were streamed from 0", n)
	}
}

// TestFillFallsBack: where files cannot be had the copy is filled from KV: the source dies at the first question or in
// the middle, its answers are damaged for good, it has no such copy, it speaks another version.
func TestFillFallsBack(t *testing.T) {
	t.Parallel()
	for name, between := range map[string]func(w http.ResponseWriter, r *http.Request, n int64) bool{
		"down":   func(w http.ResponseWriter, _ *http.Request, _ int64) bool { w.WriteHeader(502); return true },
		"middle": func(w http.ResponseWriter, _ *http.Request, n int64) bool { fail(w, n > 3); return n > 3 },
		"older":  func(w http.ResponseWriter, r *http.Request, _ int64) bool { http.NotFound(w, r); return true },
		"damaged": func(w http.ResponseWriter, _ *http.Request, n int64) bool {
			if n > 1 {
				_, _ = w.Write(bytes.Repeat([]byte{1}, 100))
			}
			return n > 1
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPair(t)
			p.between = between
			p.b.start()
			p.fill()
			if p.outcome() || p.fromZero() == 0 {
				t.Error("it was filled by files")
			}
		})
	}
}

func fail(w http.ResponseWriter, yes bool) {
	if yes {
		w.WriteHeader(http.StatusBadGateway)
	}
}

// hang answers nothing until the client is gone, which is seen once the body was read.
func hang(r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

// TestFillGoesOn: a chunk that is lost or damaged now and then is asked for again.
func TestFillGoesOn(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.between = func(w http.ResponseWriter, _ *http.Request, n int64) bool {
		fail(w, n%4 == 2)
		if n%4 == 3 {
			_, _ = w.Write([]byte("cut"))
		}
		return n%4 == 2 || n%4 == 3
	}
	p.b.start()
	p.fill()
	if !p.outcome() || p.fromZero() > 0 {
		t.Error("it was filled from KV")
	}
}

// TestFillBesideARestart: a source that goes in the middle and comes back is asked again for what is not here yet.
func TestFillBesideARestart(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.between = func(w http.ResponseWriter, _ *http.Request, n int64) bool {
		away := n >= 4 && n < 4+8 // each try of a chunk, the end of the export, and twice the next one's beginning
		fail(w, away)
		return away
	}
	p.b.start()
	p.fill()
	if !p.outcome() || p.fromZero() > 0 {
		t.Error("it was filled from KV")
	}
}

// TestSendsNothing: an indexer that is to fill its copies from KV alone does not send them either.
func TestSendsNothing(t *testing.T) {
	t.Parallel()
	p := newPairAt(t, 0)
	p.b.start()
	p.fill()
	if p.outcome() || p.fromZero() == 0 {
		t.Error("it was filled by files")
	}
}

// TestFillsTakeTurns: a copy whose sources are busy keeps no other one waiting, and is tried again after it.
func TestFillsTakeTurns(t *testing.T) {
	p := newPair(t)
	p.b.start()
	if err := p.b.define(20, 21); err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1000, 0)
	x := &Indexer{now: func() time.Time { return now }}
	f := &filler{x: x, wake: make(chan struct{}, 1)}
	for _, id := range []index.CopyID{20, 21} {
		s, _ := p.b.x.store.Slice(id)
		f.add(p.b.x.bucketNamed(testBucket), s, nil)
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
	if err := f.drop(t.Context(), 20); err != nil || f.putBack(o) {
		t.Errorf("what was let go is tried again: %v", err)
	}
}

// TestFillWaits: while the source sends to another receiver the copy waits, and nothing of it is asked of KV.
func TestFillWaits(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	const busy = 3
	p.between = func(w http.ResponseWriter, _ *http.Request, n int64) bool {
		if n <= busy {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte(`{"code":"UNAVAILABLE","detail":"busy"}`))
		}
		return n <= busy
	}
	p.b.start()
	p.fill()
	if !p.outcome() || p.fromZero() > 0 || p.asked.Load() <= busy {
		t.Error("it was filled from KV")
	}
}

// TestFillAfterCrash: a process that ends in the middle of it leaves nothing behind but the copy as it was, and begins
// anew.
func TestFillAfterCrash(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	stuck := make(chan struct{})
	var gone atomic.Bool
	p.between = func(_ http.ResponseWriter, r *http.Request, n int64) bool {
		if n == 4 {
			close(stuck)
		}
		hangs := n >= 4 && !gone.Load()
		if hangs {
			hang(r)
		}
		return hangs
	}
	p.b.start()
	if err := p.b.define(10, 11); err != nil {
		t.Fatal(err)
	}
	p.b.begin(nil)
	select {
	case <-stuck:
	case <-time.After(testTimeout):
		t.Fatal("nothing was asked")
	}
	p.b.until("the leader is told how much has come", func() bool {
		r := p.b.report[11]
		return r.Expected > 0 && r.Received > 0 && r.Received < r.Expected
	})
	p.b.write(docs(400, 410, 3)...)
	p.b.stopIndexer()
	gone.Store(true)
	p.b.start()
	p.fill()
	if !p.outcome() || p.fromZero() > 0 {
		t.Error("it was filled from KV")
	}
}

// TestFillDropped: a copy that is dropped in the middle of it is gone, at once and for good.
func TestFillDropped(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	stuck := make(chan struct{})
	p.between = func(_ http.ResponseWriter, r *http.Request, n int64) bool {
		if n == 4 {
			close(stuck)
			hang(r)
		}
		return n == 4
	}
	p.b.start()
	if err := p.b.define(10, 11); err != nil {
		t.Fatal(err)
	}
	select {
	case <-stuck:
	case <-time.After(testTimeout):
		t.Fatal("nothing was asked")
	}
	if err := p.b.define(10); err != nil {
		t.Fatal(err)
	}
	p.b.until("the copy is gone", func() bool { return !p.b.there(11) })
	if err := p.b.define(10, 11); err != nil { // and comes again
		t.Fatal(err)
	}
	p.fill()
	if n := p.fromZero(); n > 0 {
		t.Errorf("%d vbuckets were streamed from 0", n)
	}
}

// TestFillRollback: files of before a rollback are not installed while it is known here; where KV left the branch
// without anybody's knowing, what left it is taken anew.
func TestFillRollback(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.b.start()
	// KV failed over at 50: what a has above it is lost, and a does not know
	p.b.locked(func() {
		p.b.log = timestamp.FailoverLog{{VBUUID: 78, Seqno: 50}, {VBUUID: 77}}
		for vb := range p.b.kv {
			p.b.kv[vb] = append([]testDoc(nil), p.b.kv[vb][:50]...)
		}
	})
	p.fill()
	if !p.outcome() {
		t.Error("it was not installed")
	}
}

// TestFillOfAnotherRollback: files of before a rollback of the bucket, or of a bucket that was made anew, are not
// installed.
func TestFillOfAnotherRollback(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	stuck, once := make(chan struct{}), sync.Once{}
	p.between = func(_ http.ResponseWriter, r *http.Request, _ int64) bool {
		once.Do(func() { close(stuck) })
		hang(r)
		return true
	}
	p.b.start()
	if err := p.b.define(10, 11); err != nil {
		t.Fatal(err)
	}
	select {
	case <-stuck:
	case <-time.After(testTimeout):
		t.Fatal("nothing was asked")
	}
	s, _ := p.b.x.store.Slice(11)
	o := &fill{s: s, k: p.b.x.bucketNamed(testBucket)}
	is := about{Generation: o.k.st.Generation(), RollbackID: o.k.st.RollbackID()}
	for _, said := range []about{{Generation: is.Generation, RollbackID: is.RollbackID + 1},
		{Generation: is.Generation + 1, RollbackID: is.RollbackID}} {
		if err := p.b.x.fills.install(t.Context(), o, nil, &said); !errors.Is(err, errAnew) {
			t.Errorf("files of %+v at %+v: %v", said, is, err)
		}
	}
}

// question is what a request asks; the request can be answered still.
func question(t *testing.T, r *http.Request) (q transfer.Question) {
	t.Helper()
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = cbor.Unmarshal(body, &q)
	}
	if err != nil {
		t.Error(err)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return q
}

// TestFillWatchesTheBranch: what is of another generation of the bucket, or of before a rollback, is not sent at all;
// where that turns out in the middle, it is not sent to its end.
func TestFillWatchesTheBranch(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	var reads, opens atomic.Int64
	p.between = func(_ http.ResponseWriter, r *http.Request, _ int64) bool {
		switch question(t, r).Op {
		case "open":
			opens.Add(1)
		case "read":
			if reads.Add(1) == 2 {
				k := p.b.x.bucketNamed(testBucket)
				k.setGeneration(2, 0)
				for k.generation.Load() != 2 {
					time.Sleep(time.Millisecond)
				}
			}
		}
		return false
	}
	p.b.start()
	if err := p.b.define(10, 11); err != nil {
		t.Fatal(err)
	}
	p.b.begin(nil)
	p.b.until("it has asked again", func() bool { return opens.Load() >= 3 })
	if n := reads.Load(); n != 2 {
		t.Errorf("%d chunks were sent, want 2", n)
	}
	p.b.x.bucketNamed(testBucket).setGeneration(1, 0)
	if !p.outcome() {
		t.Error("it was filled from KV")
	}
	p.whole()
}

// TestFillBringsTombstones: tombstones that come with files go when the copy is whole, without a restart.
func TestFillBringsTombstones(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	if err := p.a.x.marks.set(10); err != nil {
		t.Fatal(err)
	}
	p.b.start()
	if err := p.b.define(10, 11); err != nil {
		t.Fatal(err)
	}
	p.b.write(docs(600, 640, 3)...) // that the files do not have: a side stream comes
	p.b.begin(nil)
	if !p.outcome() {
		t.Fatal("it was filled from KV")
	}
	p.whole()
	p.b.until("there are no tombstones left", func() bool { return !p.b.x.marks.has(11) })
}

// TestFillGoesOnAfterACrash: tables that were received before the process ended are not sent again.
func TestFillGoesOnAfterACrash(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	s, _ := p.a.x.store.Slice(10)
	for n := range 3 {
		if err := s.Persist(t.Context()); err != nil {
			t.Fatal(err)
		}
		p.a.write(docs(1000+400*n, 1400+400*n, 1)...)
		p.a.promote(t.Context())
		p.a.held(10)
	}
	p.b.kv = p.a.kv
	var total, sent, last atomic.Int64
	var gone atomic.Bool
	stuck := make(chan struct{})
	p.between = func(_ http.ResponseWriter, r *http.Request, _ int64) bool {
		q := question(t, r)
		if q.Op == "read" {
			last.Store(max(last.Load(), int64(q.File)))
			if gone.Load() {
				sent.Add(int64(q.Bytes))
			} else if total.Add(int64(q.Bytes)); q.File == int(p.files.Load())-1 {
				close(stuck)
				hang(r)
				return true
			}
		}
		return false
	}
	p.b.start()
	if err := p.b.define(10, 11); err != nil {
		t.Fatal(err)
	}
	select {
	case <-stuck:
	case <-time.After(testTimeout):
		t.Fatal("the last file was not asked for")
	}
	p.b.stopIndexer()
	gone.Store(true)
	p.b.start()
	p.fill()
	if !p.outcome() || p.fromZero() > 0 {
		t.Error("it was filled from KV")
	}
	if p.tables.Load() > 1 && sent.Load() >= total.Load() { // a compaction may have left one, which was not whole
		t.Errorf("%d bytes were sent again of %d", sent.Load(), total.Load())
	}
}

// TestWhoIsLetGoWaitsForFiles: a copy is let go of when its files are installed, or are not, and gets none afterwards.
func TestWhoIsLetGoWaitsForFiles(t *testing.T) {
	p := newPair(t)
	p.b.start()
	if err := p.b.define(20); err != nil {
		t.Fatal(err)
	}
	s, _ := p.b.x.store.Slice(20)
	f := newFiller(p.b.x)
	f.add(p.b.x.bucketNamed(testBucket), s, nil)
	_, o, _ := f.next(t.Context())
	done, err := f.putting(o)
	if err != nil {
		t.Fatal(err)
	}
	dropped := make(chan error, 1)
	go func() { dropped <- f.drop(t.Context(), 20) }()
	for !o.gone.Load() {
		time.Sleep(time.Millisecond)
	}
	select {
	case err := <-dropped:
		t.Errorf("it is let go of while its files are installed: %v", err)
	default:
	}
	done()
	if err := <-dropped; err != nil {
		t.Error(err)
	}
	if err := f.install(t.Context(), o, nil, &about{}); !errors.Is(err, errUnwanted) {
		t.Errorf("files for a copy that is gone: %v", err)
	}
}

// TestFillPatience: a copy waits for its turn for as long as something moves, here or at a source that is busy, but not
// for ever.
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
	f := &filler{queue: []*fill{o}}
	for n := uint64(1); len(f.late(at, 0)) == 0 && at.Sub(began) <= 2*fillLongest; n++ {
		at = at.Add(fillPatience)
		o.waited += fillPatience
		o.saw(4, n, at)
	}
	if waited := at.Sub(began); waited < fillLongest || waited > fillLongest+fillPatience {
		t.Errorf("where its source moves it waits for %s, want %s", waited, fillLongest)
	}
	// While the files of others come here, ahead of it, its time does not begin.
	o = fresh()
	ahead := &fill{}
	ahead.expected.Store(1)
	f = &filler{queue: []*fill{o}, now: ahead}
	for at = began; at.Sub(began) <= 2*fillLongest; at = at.Add(time.Minute) {
		if len(f.late(at, time.Minute)) > 0 {
			t.Fatalf("it is given up after %s, and others are filled before it", at.Sub(began))
		}
	}
	f.now = nil
	for from := at; len(f.late(at, time.Minute)) == 0; at = at.Add(time.Minute) {
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

// TestFillWaitsForOneThatMoves: a source that says that it sends to others is waited for, and what it has sent counts.
func TestFillWaitsForOneThatMoves(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	const busy = 3
	p.between = func(w http.ResponseWriter, r *http.Request, n int64) bool {
		if q := question(t, r); q.Op != "open" || n > busy {
			return false
		}
		f := p.b.x.fills
		f.mu.Lock()
		if got := f.now.sent[pairNode]; got != uint64(n-1) {
			t.Errorf("it knows of %d that its source has moved, was told of %d", got, n-1)
		}
		f.mu.Unlock()
		answerFramed(t, w, &transfer.Offer{Busy: "sends to others", Moved: uint64(n)})
		return true
	}
	p.b.start()
	p.fill()
	if !p.outcome() || p.fromZero() > 0 || p.asked.Load() <= busy {
		t.Error("it was filled from KV")
	}
}

// answerFramed answers as a sender does.
func answerFramed(t *testing.T, w http.ResponseWriter, o *transfer.Offer) {
	t.Helper()
	body, err := cbor.Marshal(o)
	if err != nil {
		t.Error(err)
	}
	sum := crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli))
	_, _ = w.Write(append(binary.BigEndian.AppendUint32(nil, sum), body...))
}

// TestFillAfterADropGivenUp: a copy whose removal was given up half-way, and that is wanted again, gets its files.
func TestFillAfterADropGivenUp(t *testing.T) {
	p := newPair(t)
	stuck := make(chan struct{})
	p.between = func(_ http.ResponseWriter, r *http.Request, n int64) bool {
		if n == 2 {
			close(stuck)
			hang(r)
		}
		return n == 2
	}
	p.b.start()
	if err := p.b.define(10, 11); err != nil {
		t.Fatal(err)
	}
	select {
	case <-stuck:
	case <-time.After(testTimeout):
		t.Fatal("nothing was asked")
	}
	f := p.b.x.fills
	f.mu.Lock()
	o := f.now
	f.mu.Unlock()
	done, err := f.putting(o) // its files are being installed for longer than the leader waits
	if err != nil {
		t.Fatal(err)
	}
	p.b.locked(func() {
		p.b.copies = []partition.Copy{{ID: 10, Node: pairNode, State: partition.Allocated}}
		p.b.revision++
	})
	ctx, giveUp := context.WithCancelCause(t.Context())
	defer giveUp(nil)
	go func() {
		for !o.gone.Load() && ctx.Err() == nil { // until its removal waits for what is being installed
			time.Sleep(time.Millisecond)
		}
		giveUp(context.DeadlineExceeded) // so long the leader waits
	}()
	if _, err := p.b.x.definitions(ctx, p.b.definitionsLocked()); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("its removal was not given up: %v", err)
	}
	done()
	p.fill()
	if p.fromZero() > 0 {
		t.Error("it was filled from KV")
	}
}

// TestFillOfACopyThatLacksSomething: a copy of which something is missing at the moment is sent as it is, and KV is
// asked for what is missing; so is one beside another copy that is put back. Of one that has next to nothing the files
// are of no use.
func TestFillOfACopyThatLacksSomething(t *testing.T) {
	for name, lacks := range map[string]struct {
		empty int
		sent  bool
	}{"little": {1, true}, "most": {testVBs, false}} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			p.b.start()
			k := p.a.x.bucketNamed(testBucket)
			s, _ := p.a.x.store.Slice(10)
			if err := k.do(t.Context(), func() {
				at := s.Positions()
				for vb := range lacks.empty {
					at[vb].A, at[vb].Side = at[vb].Main, 0
				}
				k.st.Remove(10)
				if err := k.st.Add(ingest.Copy{ID: 10, Index: s.Meta().Index, Slice: s.Meta().Slice, Ready: true, Positions: at,
					Logs: s.Logs()}); err != nil {
					t.Error(err)
				}
			}); err != nil {
				t.Fatal(err)
			}
			m := s.Meta()
			e, err := p.a.x.export(t.Context(), &transfer.Want{Index: m.Index, CreatedMS: m.CreatedMS, Slice: m.Slice,
				BucketUUID: m.BucketUUID, Generation: k.generation.Load(), RollbackID: k.rollback.Load()})
			if (err == nil) != lacks.sent {
				t.Fatalf("%v", err)
			}
			if err == nil {
				err = e.Close()
			}
			if lacks.sent && err != nil {
				t.Error(err)
			}
		})
	}
}

// TestNoFilesOfACopyKnownToBeWrong: while a vbucket is to be taken anew and its rows have not gone, no files of the
// copy are sent: they say that the vbucket is whole.
func TestNoFilesOfACopyKnownToBeWrong(t *testing.T) {
	p := newPair(t)
	p.b.start()
	k := p.a.x.bucketNamed(testBucket)
	s, _ := p.a.x.store.Slice(10)
	m := s.Meta()
	export := func() error {
		e, err := p.a.x.export(t.Context(), &transfer.Want{Index: m.Index, CreatedMS: m.CreatedMS, Slice: m.Slice,
			BucketUUID: m.BucketUUID, Generation: k.generation.Load(), RollbackID: k.rollback.Load()})
		if err == nil {
			err = e.Close()
		}
		return err
	}
	inLoop := func(f func()) {
		if err := k.do(t.Context(), f); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(when string) {
		t.Helper()
		var problem *rpc.Problem
		if err := export(); !errors.As(err, &problem) || problem.Code != errcode.Unavailable {
			t.Errorf("%s: %v", when, err)
		}
	}
	if err := export(); err != nil {
		t.Fatal(err)
	}
	at := vbOfCopy{10, 3}
	inLoop(func() { k.strays[at] = nil })
	refused("not begun")
	u := &underway{batch: &ingest.Batch{Kind: ingest.DeleteRange, Copies: []ingest.CopyBatch{{ID: 10}}}}
	inLoop(func() {
		delete(k.strays, at)
		k.under = append(k.under, u)
	})
	refused("being deleted")
	inLoop(func() { k.under = slices.DeleteFunc(k.under, func(o *underway) bool { return o == u }) })
	if err := export(); err != nil {
		t.Fatal(err)
	}
}

// TestTransferRateChanges: an indexer that sends takes over the rate that the leader says, in the middle of it, and
// goes back to its own.
func TestTransferRateChanges(t *testing.T) {
	p := newPair(t)
	stuck, once, free := make(chan struct{}), sync.Once{}, make(chan struct{})
	p.between = func(_ http.ResponseWriter, r *http.Request, n int64) bool {
		if n == 3 {
			once.Do(func() { close(stuck) })
			select {
			case <-free:
			case <-r.Context().Done():
			}
		}
		return false
	}
	p.b.start()
	if err := p.b.define(10, 11); err != nil {
		t.Fatal(err)
	}
	select {
	case <-stuck:
	case <-time.After(testTimeout):
		t.Fatal("nothing was asked")
	}
	rates := func(x *Indexer) [2]int64 {
		return [2]int64{x.fills.sending.PerSecond(), x.fills.checked.PerSecond()}
	}
	for _, rate := range []int64{2 * transfer.MinRate, 0} {
		p.a.locked(func() { p.a.rate = rate })
		want := rate
		if rate == 0 {
			want = p.a.x.cfg.TransferRate
		}
		p.a.until("the rate is taken over", func() bool { return rates(p.a.x) == [2]int64{want, fillCheck * want} })
	}
	close(free)
	p.fill()
	if !p.outcome() || p.fromZero() > 0 {
		t.Error("it was filled from KV")
	}
}

// counted is what a registry's counter of a name has under a label's value.
func counted(t testing.TB, r *prometheus.Registry, name, value string) (n float64) {
	t.Helper()
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		for _, m := range f.GetMetric() {
			if l := m.GetLabel(); f.GetName() == name && len(l) == 1 && l[0].GetValue() == value {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}
