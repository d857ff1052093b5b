package indexer

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/crc32"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"
	"github.com/prometheus/client_golang/prometheus"

	"tidemark/indexer/core"
	"tidemark/indexer/fill"
	"tidemark/indexer/storage"
	"tidemark/indexer/transfer"
	"tidemark/ingest"
	"tidemark/partition"
	"tidemark/timestamp"
	"tidemark/wire"
)

// pair is two indexers of one KV: a has copy 10 of a slice, and b is given copy 11 of it.
type pair struct {
	t    *testing.T
	a, b *world
	// called with each request of b to a; true: it has answered the request itself
	between func(w http.ResponseWriter, r *http.Request, n int64) bool
	asked   atomic.Int64
	files   atomic.Int64 // of a's newest offer
	tables  atomic.Int64 // how many of the files are tables
}

const pairNode = 4 // a's number, as b knows it

func newPair(t *testing.T) *pair {
	t.Helper()
	return newPairAt(t, 64*transfer.MinRate)
}

// newPairAt is newPair with a transfer rate for a.
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
		p.b.stopIndexer() // a client of the server ends before the server
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

// offered counts the files of an offer of a.
func (p *pair) offered(r *http.Response) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	var o transfer.Offer
	if r.StatusCode != http.StatusOK || len(body) < 4 || cbor.Unmarshal(body[4:], &o) != nil || len(o.Files) == 0 {
		return nil // the request was not for an offer
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
		// not under the lock, since gathering metrics asks the projector
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

// whole waits until b's copy is exact, and compares it with KV.
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

// fromZero counts the vbuckets that b has requested from KV from the beginning.
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

// TestFillByFiles checks that a new copy gets the files of another indexer's copy, and only the changes since from
// KV.
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
	if p.b.x.fills.Checked.Due().IsZero() {
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

// TestFillFallsBack checks that a copy is filled from KV if it cannot get files: the source dies at the first request
// or in the middle, its answers are permanently damaged, it has no such copy, or it speaks another version.
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

// hang answers nothing until the client is gone, which is noticed only after the body was read.
func hang(r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

// TestLostChunkIsRequestedAgain checks that a chunk that is sometimes lost or damaged is requested again.
func TestLostChunkIsRequestedAgain(t *testing.T) {
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

// TestFillBesideARestart checks that a source that stops in the middle and comes back is asked again for what is
// still missing.
func TestFillBesideARestart(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.between = func(w http.ResponseWriter, _ *http.Request, n int64) bool {
		// all tries of one chunk, the end of the export, and two tries of the next export's beginning
		away := n >= 4 && n < 4+8
		fail(w, away)
		return away
	}
	p.b.start()
	p.fill()
	if !p.outcome() || p.fromZero() > 0 {
		t.Error("it was filled from KV")
	}
}

// TestNoFilesAreSentWhenDisabled checks that an indexer that may fill its copies only from KV does not send its own
// either.
func TestNoFilesAreSentWhenDisabled(t *testing.T) {
	t.Parallel()
	p := newPairAt(t, 0)
	p.b.start()
	p.fill()
	if p.outcome() || p.fromZero() == 0 {
		t.Error("it was filled by files")
	}
}

// TestFillWaits checks that while the source sends to another receiver the copy waits, and requests nothing from KV.
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

// TestFillAfterCrash checks that a crash during a fill leaves nothing but the copy as it was, and that the fill
// starts again.
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
	p.b.until("the leader gets the progress", func() bool {
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

// TestFillDropped checks that a copy that is dropped during its fill is gone at once and does not come back.
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
	if err := p.b.define(10, 11); err != nil { // the copy is wanted again
		t.Fatal(err)
	}
	p.fill()
	if n := p.fromZero(); n > 0 {
		t.Errorf("%d vbuckets were streamed from 0", n)
	}
}

// TestFillRollback checks that files from before a rollback are not installed if the rollback is known here. If KV
// left the branch and no component has noticed it yet, what is not on the branch is taken again.
func TestFillRollback(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.b.start()
	// KV failed over at 50: what a has above is lost, and a does not know it
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

// question returns the question of a request. The request can still be answered.
func requestOf(t *testing.T, r *http.Request) (q transfer.Request) {
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

// TestFillWatchesTheBranch checks that files of another generation of the bucket, or from before a rollback, are not
// sent at all, and that sending stops if this turns out in the middle.
func TestFillWatchesTheBranch(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	var reads, opens atomic.Int64
	p.between = func(_ http.ResponseWriter, r *http.Request, _ int64) bool {
		switch requestOf(t, r).Op {
		case "open":
			opens.Add(1)
		case "read":
			if reads.Add(1) == 2 {
				k := p.b.x.bucketNamed(testBucket)
				k.SetGeneration(2, 0)
				for k.Generation() != 2 {
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
	p.b.x.bucketNamed(testBucket).SetGeneration(1, 0)
	if !p.outcome() {
		t.Error("it was filled from KV")
	}
	p.whole()
}

// TestFillBringsTombstones checks that tombstones that come with files are removed when the copy is complete, without
// a restart.
func TestFillBringsTombstones(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	if err := p.a.x.node.Marks.Set(10); err != nil {
		t.Fatal(err)
	}
	p.b.start()
	if err := p.b.define(10, 11); err != nil {
		t.Fatal(err)
	}
	p.b.write(docs(600, 640, 3)...) // not in the files, so that there is a side stream
	p.b.begin(nil)
	if !p.outcome() {
		t.Fatal("it was filled from KV")
	}
	p.whole()
	p.b.until("there are no tombstones left", func() bool { return !p.b.x.node.Marks.Has(11) })
}

// TestFillResumesAfterACrash checks that tables that were received before a crash are not sent again.
func TestFillResumesAfterACrash(t *testing.T) {
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
		q := requestOf(t, r)
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
	if p.tables.Load() > 1 && sent.Load() >= total.Load() { // a compaction may have left one, which was not complete
		t.Errorf("%d bytes were sent again of %d", sent.Load(), total.Load())
	}
}

// TestFillWaitsForABusySource checks that a copy waits for a source that reports that it is sending to others.
func TestFillWaitsForABusySource(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	const busy = 3
	p.between = func(w http.ResponseWriter, r *http.Request, n int64) bool {
		if q := requestOf(t, r); q.Op != "open" || n > busy {
			return false
		}
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

// TestFillFromAnIncompleteCopy checks that a copy that currently lacks something is sent as it is, and KV is
// asked for the rest. The same holds for a copy in a bucket in which another one is restored. The files of a copy
// that has next to nothing are not used.
func TestFillFromAnIncompleteCopy(t *testing.T) {
	for name, lacks := range map[string]struct {
		empty int
		sent  bool
	}{"little": {1, true}, "most": {testVBs, false}} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			p.b.start()
			k := p.a.x.bucketNamed(testBucket)
			s, _ := p.a.x.store.Slice(10)
			if err := k.Do(t.Context(), func(st *core.Bucket) {
				at := s.Positions()
				for vb := range lacks.empty {
					at[vb].A, at[vb].Side = at[vb].Main, 0
				}
				st.Remove(10)
				if err := st.Add(ingest.Copy{ID: 10, Index: s.Meta().Index, Slice: s.Meta().Slice, Ready: true, Positions: at,
					Logs: s.Logs()}); err != nil {
					t.Error(err)
				}
			}); err != nil {
				t.Fatal(err)
			}
			m := s.Meta()
			e, err := p.a.x.fills.Sender().Open(t.Context(), &transfer.Want{Index: m.Index, CreatedMS: m.CreatedMS,
				Slice: m.Slice, BucketUUID: m.BucketUUID, Generation: k.Generation(), RollbackID: k.Rollback()}, func() {})
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

// TestTransferRateChanges checks that a sending indexer applies the leader's rate during a transfer, and then returns
// to its own.
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
		return [2]int64{x.fills.Sending.PerSecond(), x.fills.Checked.PerSecond()}
	}
	for _, rate := range []int64{2 * transfer.MinRate, 0} {
		p.a.locked(func() { p.a.rate = rate })
		want := rate
		if rate == 0 {
			want = p.a.x.cfg.TransferRate
		}
		p.a.until("the rate is taken over", func() bool { return rates(p.a.x) == [2]int64{want, fill.CheckFactor * want} })
	}
	close(free)
	p.fill()
	if !p.outcome() || p.fromZero() > 0 {
		t.Error("it was filled from KV")
	}
}

// counted returns the value of a registry's counter for one value of its label.
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
