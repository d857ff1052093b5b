package projector

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/keyversion"
	"tidemark/kv/kvclient/kvclienttest"
	"tidemark/kv/mcbp"
	"tidemark/timestamp"
	"tidemark/wire"
)

// engine is a scripted KV node that behaves as real engines do where the embedded one is more lenient.
type engine struct {
	kvclienttest.Server
	mu      sync.Mutex
	active  map[uint16]bool
	streams map[uint16]opened   // open now
	closed  []opened            // whose END has not been sent yet
	holdEnd bool                // END after CLOSE is sent when the test lets it
	hangs   chan any            // it does not answer until this is closed; nil: it does not hang
	answer  map[uint16]chan any // STREAM_REQ of these vbuckets waits
	closes  int
	value   []byte      // of documents
	wide    atomic.Bool // its map has more vbuckets than can be indexed
	stats   mcbp.Status // of the answer to STAT
	lines   []string    // of it, before the last, as key=value
	stat    chan any    // STAT is answered when this is closed; nil: at once
	asks    []string    // keys of STAT, in order
	// log is every vbucket's failover log; a start above 0 on a branch that it lacks is answered with ROLLBACK to 0.
	log     timestamp.FailoverLog
	asked   []uint64 // branches of stream requests, in order
	high    uint64   // of every vbucket
	sent    func()   // called under mu when high was sent
	release chan any // high is sent when this is closed; nil: at once
}

// opened is a stream from the engine's point of view.
type opened struct {
	e      *engine
	peer   *kvclienttest.Peer
	vb     uint16
	opaque uint32
	start  uint64
}

func newEngine(t testing.TB) *engine {
	t.Helper()
	e := &engine{active: map[uint16]bool{}, streams: map[uint16]opened{}, answer: map[uint16]chan any{}, value: []byte(`{"f1":1}`), log: timestamp.FailoverLog{{VBUUID: 77}}, high: 100}
	for v := range uint16(vbuckets) {
		e.active[v] = true
	}
	e.User, e.Password, e.Bucket = "u", "secret", testBucket
	e.Config = func(*kvclienttest.Server) []byte {
		vbuckets := "[0],[0],[0],[0],[0],[0],[0],[0]"
		if e.wide.Load() {
			vbuckets = strings.TrimSuffix(strings.Repeat("[0],", 2*timestamp.MaxVBuckets), ",")
		}
		return fmt.Appendf(nil, `{"rev":1,"revEpoch":1,"uuid":%q,"nodeLocator":"vbucket","nodes":[{"hostname":"127.0.0.1:8091"}],
			"nodesExt":[{"services":{"kv":%d}}],"vBucketServerMap":{"hashAlgorithm":"CRC","vBucketMap":[%s]}}`, testUUID, e.Port(), vbuckets)
	}
	e.Handle = e.handle
	if err := e.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Stop)
	return e
}

func (e *engine) handle(p *kvclienttest.Peer, f mcbp.Frame) bool {
	if f.Magic.IsResponse() {
		return true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if hangs := e.hangs; hangs != nil {
		e.mu.Unlock()
		<-hangs
		e.mu.Lock()
	}
	vb := f.VBucket()
	switch f.Op {
	case mcbp.OpDCPBufferAck:
	case mcbp.OpGetAllVBSeqnos:
		var value []byte
		for v := range e.active {
			value = mcbp.AppendVBSeqno(value, mcbp.VBucketSeqno{VBucket: v, Seqno: e.high})
		}
		if wait := e.release; wait != nil {
			go func() { <-wait; p.Reply(f, mcbp.StatusOK, mcbp.Frame{Value: value}) }()
			return true
		}
		p.Reply(f, mcbp.StatusOK, mcbp.Frame{Value: value})
		if e.sent != nil {
			e.sent()
		}
	case mcbp.OpDCPStreamReq:
		r, err := mcbp.DecodeStreamRequest(f.Extras)
		if err != nil {
			return false
		}
		if e.streams[vb].peer == p {
			p.Reply(f, mcbp.StatusKeyExists, mcbp.Frame{})
			return true
		}
		e.asked = append(e.asked, r.VBUUID)
		if r.Start > 0 && !slices.ContainsFunc(e.log, func(x timestamp.LogEntry) bool { return x.VBUUID == r.VBUUID }) {
			p.Reply(f, mcbp.StatusRollback, mcbp.Frame{Value: make([]byte, 8)})
			return true
		}
		e.streams[vb] = opened{e, p, vb, f.Opaque, r.Start}
		log := mcbp.AppendFailoverLog(nil, e.log)
		reply := func() { p.Reply(f, mcbp.StatusOK, mcbp.Frame{Value: log}) }
		if wait := e.answer[vb]; wait != nil {
			go func() { <-wait; reply() }()
			return true
		}
		reply()
	case mcbp.OpStat:
		e.asks = append(e.asks, string(f.Key))
		lines, status := e.lines, e.stats
		reply := func() {
			for _, line := range lines {
				key, value, _ := strings.Cut(line, "=")
				p.Reply(f, mcbp.StatusOK, mcbp.Frame{Key: []byte(key), Value: []byte(value)})
			}
			p.Reply(f, status, mcbp.Frame{})
		}
		if wait := e.stat; wait != nil {
			go func() { <-wait; reply() }()
			return true
		}
		reply()
	case mcbp.OpDCPFailoverLog:
		p.Reply(f, mcbp.StatusOK, mcbp.Frame{Value: mcbp.AppendFailoverLog(nil, e.log)})
	case mcbp.OpDCPCloseStream:
		s, ok := e.streams[vb]
		if !ok || s.peer != p {
			p.Reply(f, mcbp.StatusKeyNotFound, mcbp.Frame{})
			return true
		}
		e.closes++
		delete(e.streams, vb)
		p.Reply(f, mcbp.StatusOK, mcbp.Frame{})
		if e.holdEnd {
			e.closed = append(e.closed, s)
		} else {
			s.end(mcbp.EndClosed)
		}
	default:
		p.Reply(f, mcbp.StatusOK, mcbp.Frame{})
	}
	return true
}

func (s opened) end(r mcbp.EndReason) {
	s.peer.Send(mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPStreamEnd, s.vb, s.opaque),
		Extras: mcbp.AppendStreamEnd(nil, r)})
}

// write sends a window with one document per seqno after from, up to to.
func (s opened) write(from, to uint64) {
	s.peer.Send(mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPSnapshotMarker, s.vb, s.opaque),
		Extras: mcbp.SnapshotMarker{Start: from, End: to, Flags: mcbp.SnapshotMemory}.AppendExtras(nil)})
	for n := from + 1; n <= to; n++ {
		s.document(n, 0)
	}
}

func (s opened) document(seqno uint64, collection uint32) {
	s.peer.Send(mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPMutation, s.vb, s.opaque),
		Extras: mcbp.Mutation{Seqno: seqno}.AppendExtras(nil),
		Key:    mcbp.AppendCollectionKey(nil, collection, fmt.Appendf(nil, "k%d", seqno)), Value: s.e.value})
}

// stream returns the vbucket's open stream.
func (e *engine) stream(vb uint16) opened {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.streams[vb]
}

// requests counts the requests for streams that were not open.
func (e *engine) requests() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.asked)
}

func (e *engine) set(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f()
}

// story lists what the endpoint received of a vbucket, without SYNC and repeated BEGINs.
func (e *endpoint) story(vb uint16) (all []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ev := range e.events {
		if ev.VBucket == vb && ev.Kind != keyversion.Sync {
			all = append(all, fmt.Sprintf("%d:%s@%d", ev.Incarnation.Counter, ev.Kind, ev.Seqno))
		}
	}
	return all
}

func (w *world) expect(vb uint16, want ...string) {
	w.t.Helper()
	var got []string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if got = w.data.story(vb); fmt.Sprint(got) == fmt.Sprint(want) {
			return
		}
	}
	w.t.Fatalf("vbucket %d got %v, want %v", vb, got, want)
}

// startAt starts one vbucket's stream.
func (w *world) startAt(vb uint16, inc, seqno uint64) wire.StartResult {
	w.t.Helper()
	return w.ask(w.request(inc, wire.StreamStart{VBucket: vb, VBUUID: 77, Seqno: seqno})).Results[0]
}

// Engines send the END of a closed stream in its turn, which may be after the vbucket's next stream has begun.
func TestLateEndBelongsToTheOldStream(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	w := newWorldAt(t, e.Addr())
	w.define(1, 1)
	e.set(func() { e.holdEnd = true })
	w.startAt(3, 1, 0)
	old := e.stream(3)
	old.write(0, 2)
	w.expect(3, "1:STREAM_BEGIN@0", "1:INSERT@1", "1:INSERT@2")
	w.startAt(3, 2, 1)
	e.stream(3).write(1, 2)
	want := []string{"1:STREAM_BEGIN@0", "1:INSERT@1", "1:INSERT@2", "2:STREAM_BEGIN@1", "2:INSERT@2"}
	w.expect(3, want...)
	old.end(mcbp.EndClosed)
	w.define(2, 1, 2) // a switch announces the activation point of the new one only
	want = append(want, "2:ACTIVATE@2")
	w.expect(3, want...)
	e.stream(3).write(2, 3)
	w.expect(3, append(want, "2:INSERT@3")...)
}

// looksAsked is the configuration of tests that call look themselves; the bucket's watch does not look.
func looksAsked(c *Config) { c.lookEvery = time.Hour }

// After a takeover the old node may send nothing at all.
func TestMovedVBucketIsEnded(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	w := newWorldWith(t, e.Addr(), FeedNative, looksAsked)
	w.define(1, 1)
	w.startAt(3, 1, 0)
	w.startAt(4, 1, 0)
	w.expect(3, "1:STREAM_BEGIN@0")
	w.expect(4, "1:STREAM_BEGIN@0")
	b := w.p.bucket(testBucket)
	b.look(true)
	e.set(func() { delete(e.active, 3) })
	b.look(true)
	w.expect(3, "1:STREAM_BEGIN@0", "1:STREAM_END@0")
	w.eventually("the stream is closed at KV", func() bool { return e.stream(3).peer == nil })
	if r := w.startAt(3, 2, 0); r.Outcome != wire.StartNotMine {
		t.Errorf("%+v", r)
	}
	e.stream(4).write(0, 1)
	w.expect(4, "1:STREAM_BEGIN@0", "1:INSERT@1")
	report, err := w.client.Sync(context.Background(), w.url, &wire.SyncRequest{Fence: w.fence(), Bucket: testBucket})
	if err != nil {
		t.Fatal(err)
	}
	if said := report.Buckets[0].Streams; len(said) != 2 || !said[0].Ended || said[1].Ended {
		t.Errorf("%+v, want the first ended", said)
	}
}

// If a vbucket leaves and comes back between two looks, KV hosts it, but has dropped its stream without any event.
func TestReturnedVBucketIsEnded(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	w := newWorldWith(t, e.Addr(), FeedNative, looksAsked)
	w.define(1, 1)
	for _, vb := range []uint16{3, 4, 5} {
		w.startAt(vb, 1, 0)
		w.expect(vb, "1:STREAM_BEGIN@0")
	}
	e.stream(5).write(0, 100) // it has sent everything that it has
	w.eventually("all of vbucket 5", func() bool { return len(w.data.story(5)) == 101 })
	b := w.p.bucket(testBucket)
	b.look(true)
	e.set(func() { delete(e.streams, 3) })
	asked := e.requests()
	b.look(true) // 3 and 4 are silent, and KV has no stream of 3 only
	w.expect(3, "1:STREAM_BEGIN@0", "1:STREAM_END@0")
	if n := e.requests() - asked; n != 1 {
		t.Errorf("%d requests were not for a stream that is there, want that for vbucket 3 alone", n)
	}
	e.stream(4).write(0, 1)
	w.expect(4, "1:STREAM_BEGIN@0", "1:INSERT@1")
	if r := w.startAt(3, 2, 0); r.Outcome != wire.StartBegun {
		t.Errorf("%+v", r)
	}
}

// A projector that streams nothing reports what its KV node has, like the others, for the buckets that have indexes.
func TestIdleNodeIsPolled(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	w := newWorldAt(t, e.Addr())
	w.define(1)
	w.define(3, 1)
	w.eventually("it reports what its node has", func() bool {
		if w.p.bucket(testBucket) == nil {
			return false
		}
		report := w.p.currentReport(testBucket)
		h := report.Buckets[0].Hosted
		return h != nil && len(h.VBuckets) == vbuckets && len(report.Buckets[0].Streams) == 0
	})
	w.startAt(3, 1, 0) // it streams like any other then
	w.expect(3, "1:STREAM_BEGIN@0")
}

// A KV node that did not answer a look is only queried by further looks: other queries fail at once, without being
// sent.
func TestSilentNodeIsNotQueried(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	w := newWorldAt(t, e.Addr())
	w.define(1, 1)
	w.startAt(3, 1, 0)
	w.expect(3, "1:STREAM_BEGIN@0")
	b := w.p.bucket(testBucket)
	w.eventually("it was looked at", func() bool { return b.hosted.Load() != nil })
	report := w.p.currentReport(testBucket)
	if h := report.Buckets[0].Hosted; h == nil || len(h.VBuckets) != vbuckets ||
		h.Revision != (timestamp.MapRevision{Epoch: 1, Rev: 1}) || h.Node != e.Addr() {
		t.Errorf("it reports that its node has %+v", h)
	}
	ask := map[string]func() error{
		"failover logs": func() error {
			_, err := w.client.FailoverLogs(t.Context(), w.url, &wire.FailoverLogsRequest{Fence: w.fence(), Bucket: testBucket})
			return err
		},
		"seqnos": func() error {
			_, err := w.client.Seqnos(t.Context(), w.url, &wire.SeqnosRequest{Bucket: testBucket, Map: true})
			return err
		},
		"the bucket": func() error {
			_, err := w.client.Bucket(t.Context(), w.url, &wire.BucketRequest{Bucket: testBucket})
			return err
		},
		"a start": func() error {
			r, err := w.client.Streams(t.Context(), w.url, w.request(9, wire.StreamStart{VBucket: 4, VBUUID: 77}))
			if err == nil && r.Buckets[0].Code != "" {
				err = errors.New(string(r.Buckets[0].Code))
			}
			return err
		},
	}
	for what, query := range ask {
		w.eventually(what+" are reported", func() bool { return query() == nil })
	}
	hangs := make(chan any)
	e.set(func() { e.hangs = hangs })
	w.eventually("it is found silent", b.control.silent.Load)
	for what, query := range ask {
		if err := query(); err == nil || !strings.Contains(err.Error(), errKVSilent.Error()) {
			t.Errorf("%s of a node that is silent: %v", what, err)
		}
	}
	e.set(func() { e.hangs = nil })
	close(hangs)
	w.eventually("it answers again", func() bool { return !b.control.silent.Load() })
	for what, query := range ask {
		w.eventually(what+" are reported again", func() bool { return query() == nil })
	}
}

// A stop that overtakes KV's answer is effective.
func TestStopDuringStart(t *testing.T) {
	e := newEngine(t)
	w := newWorldAt(t, e.Addr())
	w.define(1, 1)
	wait := make(chan any)
	e.set(func() { e.answer[3] = wait })
	got := make(chan wire.StartResult, 1)
	go func() { got <- w.startAt(3, 5, 0) }()
	w.eventually("KV is queried", func() bool { return e.stream(3).peer != nil })
	stop := &wire.StreamStop{Fence: wire.Fence{ClusterID: "c1", Epoch: 1, Term: 1, Counter: 1000},
		Topic: wire.MaintenanceTopic, Bucket: testBucket, Incarnation: incarnation(5)}
	if err := w.client.Stop(context.Background(), w.url, stop); err != nil {
		t.Fatal(err)
	}
	close(wait)
	if r := <-got; r.Outcome != wire.StartStale {
		t.Errorf("%+v", r)
	}
	w.counter = 1000
	w.eventually("the stream is closed at KV", func() bool { return e.stream(3).peer == nil })
	w.expect(3, "5:STREAM_BEGIN@0", "5:STREAM_END@0")
	if r := w.startAt(3, 6, 0); r.Outcome != wire.StartBegun {
		t.Errorf("%+v", r)
	}
	e.stream(3).write(0, 1)
	w.expect(3, "5:STREAM_BEGIN@0", "5:STREAM_END@0", "6:STREAM_BEGIN@0", "6:INSERT@1")
}

// A stream with contradictory events ends here and at KV; the next one can be requested at once.
func TestBrokenStreamIsRequestedAgain(t *testing.T) {
	e := newEngine(t)
	w := newWorldAt(t, e.Addr())
	w.define(1, 1)
	w.startAt(3, 1, 0)
	e.stream(3).write(0, 2)
	e.stream(3).write(0, 1) // a seqno goes backwards
	w.expect(3, "1:STREAM_BEGIN@0", "1:INSERT@1", "1:INSERT@2", "1:STREAM_END@2")
	if r := w.startAt(3, 1, 0); r.Outcome != wire.StartFailed {
		t.Errorf("the incarnation that has ended gives %+v", r)
	}
	if r := w.startAt(3, 2, 2); r.Outcome != wire.StartBegun {
		t.Fatalf("%+v", r)
	}
	s := e.stream(3)
	s.write(2, 3)
	w.expect(3, "1:STREAM_BEGIN@0", "1:INSERT@1", "1:INSERT@2", "1:STREAM_END@2", "2:STREAM_BEGIN@2", "2:INSERT@3")
	if e.stream(3) != s {
		t.Error("the new stream was closed at KV")
	}
}

// A user who may stream but not read statistics is sufficient, and so is an engine that lacks these statistics or
// some of their lines: then purge seqnos are unknown. A stream from 0, which KV always grants, may lack any past
// deletion, and states that: slices with data begin anew.
func TestAUserWithoutStatistics(t *testing.T) {
	t.Parallel()
	for status, lines := range map[mcbp.Status][]string{mcbp.StatusNoAccess: nil, mcbp.StatusKeyNotFound: nil,
		mcbp.StatusInvalid: nil,
		mcbp.StatusOK:      {"vb_3=active", "vb_3:high_seqno=100"}} {
		e := newEngine(t)
		e.set(func() { e.stats, e.lines = status, lines })
		w := newWorldAt(t, e.Addr())
		w.define(1, 1)
		if r := w.startAt(3, 1, 0); r.Outcome != wire.StartBegun || r.High != 100 || r.Purge != 100 {
			t.Fatalf("%v: %+v", status, r)
		}
		s := e.stream(3)
		s.peer.Send(mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPSnapshotMarker, 3, s.opaque),
			Extras: mcbp.SnapshotMarker{End: 1}.AppendExtras(nil)})
		s.document(1, 0)
		w.expect(3, "1:STREAM_BEGIN@0", "1:INSERT@1")
		if begun := w.data.kinds(keyversion.StreamBegin); len(begun) != 1 || begun[0].Begin.Purge != 100 {
			t.Errorf("%v: BEGIN states %+v", status, begun)
		}
		w.startAt(5, 1, 0)
		e.stream(5).write(0, 120) // written since, and possibly purged
		w.eventually("BEGIN shows it", func() bool { return slices.Equal(w.data.purges(5), []uint64{100, 120}) })
		if s := w.p.state(); s.Buckets[0].PurgesUnknown == "" {
			t.Errorf("%v: the state does not show it", status)
		}
		if r := w.startAt(4, 1, 7); r.Outcome != wire.StartBegun || r.Purge != 0 {
			t.Errorf("%v: KV has granted it from 7, so that nothing was purged above: %+v", status, r)
		}
	}
}

// Only the default collection has documents here; events of others move the seqno, and may complete a window.
func TestOtherCollectionsCountAsSeqnos(t *testing.T) {
	e := newEngine(t)
	w := newWorldAt(t, e.Addr())
	w.define(1, 1)
	w.startAt(3, 1, 0)
	s := e.stream(3)
	s.peer.Send(mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPSnapshotMarker, 3, s.opaque),
		Extras: mcbp.SnapshotMarker{End: 4}.AppendExtras(nil)})
	s.document(1, 0)
	s.document(2, 9)
	s.peer.Send(mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPDeletion, 3, s.opaque),
		Extras: mcbp.Deletion{Seqno: 3}.AppendExtras(nil), Key: mcbp.AppendCollectionKey(nil, 9, []byte("k1"))})
	s.document(4, 9)
	w.expect(3, "1:STREAM_BEGIN@0", "1:INSERT@1")
	w.eventually("SYNC at 4", func() bool {
		all := w.data.kinds(keyversion.Sync)
		return len(all) > 0 && all[len(all)-1].Seqno == 4
	})
	w.define(2, 1, 2)
	w.expect(3, "1:STREAM_BEGIN@0", "1:INSERT@1", "1:ACTIVATE@4")
}

// KV has recreated its vbuckets, and the END of their streams is still to come: positions are reported on KV's
// present branch, with a seqno of that branch, even if the change happens between the two queries.
func TestPositionsOfAFlushWithoutStreams(t *testing.T) {
	e := newEngine(t)
	w := newWorldAt(t, e.Addr())
	w.define(1, 1)
	w.startAt(3, 1, 0)
	w.expect(3, "1:STREAM_BEGIN@0")
	ask := func(branch, seqno uint64) {
		t.Helper()
		r, err := w.client.Seqnos(context.Background(), w.url, &wire.SeqnosRequest{Bucket: testBucket})
		if err != nil || len(r.VBuckets) != len(e.active) {
			t.Fatalf("%+v, %v", r, err)
		}
		for i := range r.VBuckets {
			if r.VBUUIDs[i] != branch || r.Seqnos[i] != seqno {
				t.Errorf("vbucket %d: %d of branch %d, want %d of %d", r.VBuckets[i], r.Seqnos[i], r.VBUUIDs[i], seqno, branch)
			}
		}
	}
	flush := func(branch, high uint64) { e.log, e.high = timestamp.FailoverLog{{VBUUID: branch}}, high }
	ask(77, 100)
	e.set(func() { flush(88, 100) }) // and written as often as before
	ask(88, 100)
	e.set(func() { e.sent = func() { e.sent = nil; flush(99, 0) } })
	ask(99, 0)
	branch := uint64(1000)
	e.set(func() { e.sent = func() { branch++; flush(branch, 0) } })
	if r, err := w.client.Seqnos(context.Background(), w.url,
		&wire.SeqnosRequest{Bucket: testBucket}); rpc.AsProblem(err).Code != errcode.KVUnavailable {
		t.Errorf("KV was never found at rest, and this was reported: %+v, %v", r, err)
	}
}

// An index joins at the stream's last seqno, not at its complete seqno.
func TestAnIndexJoinsInTheMiddleOfAWindow(t *testing.T) {
	e := newEngine(t)
	w := newWorldAt(t, e.Addr())
	w.define(1, 1)
	w.startAt(3, 1, 0)
	s := e.stream(3)
	s.peer.Send(mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPSnapshotMarker, 3, s.opaque),
		Extras: mcbp.SnapshotMarker{End: 4}.AppendExtras(nil)})
	s.document(1, 0)
	s.document(2, 0)
	w.expect(3, "1:STREAM_BEGIN@0", "1:INSERT@1", "1:INSERT@2")
	w.define(2, 1, 2)
	w.expect(3, "1:STREAM_BEGIN@0", "1:INSERT@1", "1:INSERT@2", "1:ACTIVATE@2")
	s.document(4, 0)
	w.expect(3, "1:STREAM_BEGIN@0", "1:INSERT@1", "1:INSERT@2", "1:ACTIVATE@2", "1:INSERT@4")
	all := w.data.kinds(keyversion.Insert)
	if last := all[len(all)-1]; len(last.Statements) != 2 || last.Window.Start != 0 || last.Window.End != 4 {
		t.Errorf("%+v", last)
	}
}

// Downstream a window starts where the stream was last complete: below KV's marker if something was de-duplicated,
// below that of a window that was cut short, above the marker of a backfill that repeats what was sent.
func TestWindowsStartWhereTheStreamWasComplete(t *testing.T) {
	e := newEngine(t)
	w := newWorldAt(t, e.Addr())
	w.define(1, 1)
	w.startAt(3, 1, 10)
	s := e.stream(3)
	for _, step := range []struct{ start, end, seqno uint64 }{
		{12, 20, 13}, {16, 30, 17}, {0, 0, 30}, {0, 40, 40}, {41, 42, 42},
	} {
		if step.end > 0 {
			s.peer.Send(mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPSnapshotMarker, 3, s.opaque),
				Extras: mcbp.SnapshotMarker{Start: step.start, End: step.end}.AppendExtras(nil)})
		}
		s.document(step.seqno, 0)
	}
	w.expect(3, "1:STREAM_BEGIN@10", "1:INSERT@13", "1:INSERT@17", "1:INSERT@30", "1:INSERT@40", "1:INSERT@42")
	var got []timestamp.Window
	for _, ev := range w.data.kinds(keyversion.Insert) {
		got = append(got, ev.Window)
	}
	if want := "[{10 20} {10 30} {10 30} {30 40} {40 42}]"; fmt.Sprint(got) != want {
		t.Errorf("windows %v, want %s", got, want)
	}
}

// What a lost connection has delivered goes downstream before anything of the next connection.
func TestALostConnectionIsDrainedBeforeTheNextBegins(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	w := newWorldAt(t, e.Addr())
	stalls := func() (n uint64) {
		for _, s := range w.p.router.Stats() {
			n += s.Stalls
		}
		return n
	}
	w.define(1, 1)
	w.startAt(3, 1, 0)
	w.expect(3, "1:STREAM_BEGIN@0")
	w.data.mu.Lock() // the indexer takes nothing more: the router's queue fills
	goesOn := sync.OnceFunc(w.data.mu.Unlock)
	t.Cleanup(goesOn) // a test that fails ends
	e.set(func() { e.value = fmt.Appendf(nil, `{"f1":%q}`, strings.Repeat("x", 3000)) })
	const n = 3000
	e.stream(3).write(0, n)
	w.eventually("the worker waits", func() bool { return stalls() > 0 })
	b := w.p.bucket(testBucket)
	dropped := e.DropAll()
	w.eventually("the loss is seen", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.conn == nil ||
			!b.conn.alive()
	})
	w.eventually("the engine has dropped them", func() bool { return !slices.ContainsFunc(dropped, e.Connected) })
	e.set(func() { clear(e.streams) })
	var reply *wire.StreamReply
	w.eventually("an answer: the loss of the control connection may be seen only by a request that fails", func() bool {
		var err error
		reply, err = w.client.Streams(t.Context(), w.url, w.request(2, wire.StreamStart{VBucket: 3, VBUUID: 77, Seqno: 5}))
		return err == nil
	})
	if r := reply.Buckets[0].Results[0]; r.Outcome != wire.StartBegun {
		t.Fatalf("%+v", r)
	}
	e.stream(3).write(5, 6)
	goesOn()
	w.eventually("the new stream's document", func() bool {
		story := w.data.story(3)
		return story[len(story)-1] == "2:INSERT@6"
	})
	w.data.mu.Lock()
	defer w.data.mu.Unlock()
	var inc, last uint64
	for _, ev := range w.data.events {
		if ev.Kind == keyversion.Sync && ev.Seqno < last {
			continue // of earlier seqnos, and true
		}
		if ev.Incarnation.Counter < inc || ev.Incarnation.Counter == inc && ev.Seqno < last &&
			ev.Kind != keyversion.StreamBegin {
			t.Fatalf("%d:%s@%d after %d:@%d", ev.Incarnation.Counter, ev.Kind, ev.Seqno, inc, last)
		}
		inc, last = ev.Incarnation.Counter, ev.Seqno
	}
}

// TestTooManyVBucketsAreRefused: a bucket with too many vbuckets is refused with a code of its own.
func TestTooManyVBucketsAreRefused(t *testing.T) {
	e := newEngine(t)
	e.wide.Store(true)
	w := newWorldAt(t, e.Addr())
	_, err := w.client.Bucket(t.Context(), w.url, &wire.BucketRequest{Bucket: testBucket})
	if p := rpc.AsProblem(err); p.Code != errcode.TooManyVBuckets || p.Status != http.StatusBadRequest ||
		!strings.Contains(p.Detail, "8192") {
		t.Errorf("%v", err)
	}
}

// TestDataConnections: an endpoint has as many connections as are configured, each with its own vbuckets.
func TestDataConnections(t *testing.T) {
	w := newWorldAt(t, newEngine(t).Addr())
	w.define(1, 1)
	for vb := range uint16(vbuckets) {
		w.startAt(vb, 1, 0)
	}
	w.eventually("all connections", func() bool {
		w.data.mu.Lock()
		defer w.data.mu.Unlock()
		for n := range uint16(testConnections) {
			if w.data.hellos[n] != testConnections {
				return false
			}
		}
		return len(w.data.hellos) == testConnections
	})
}

// KV purges deletions between the reading of its purge seqno, which BEGIN states, and the first snapshot of a stream
// from 0: BEGIN is repeated with the new value before anything else. A stream from above 0 continues, because KV
// checks by itself.
func TestAPurgeBeforeTheFirstSnapshot(t *testing.T) {
	e := newEngine(t)
	e.purged(5, 3)
	w := newWorldAt(t, e.Addr())
	w.define(1, 1)
	if r := w.startAt(3, 1, 0); r.Outcome != wire.StartBegun || r.Purge != 5 {
		t.Fatalf("%+v", r)
	}
	e.purged(9, 3)
	e.stream(3).write(0, 2)
	want := []string{"1:STREAM_BEGIN@0", "1:STREAM_BEGIN@0", "1:INSERT@1", "1:INSERT@2"}
	w.expect(3, want...)
	if got := w.data.purges(3); !slices.Equal(got, []uint64{5, 9}) {
		t.Errorf("BEGIN has purge seqnos %d", got)
	}
	if said := w.p.currentReport(testBucket).Buckets[0].Streams; len(said) != 1 || said[0].Purge != 9 {
		t.Errorf("the leader gets %+v, want purge seqno 9", said)
	}
	e.purged(10, 3)
	e.stream(3).write(2, 3)
	want = append(want, "1:INSERT@3")
	w.expect(3, want...)
	if r := w.startAt(3, 3, 20); r.Outcome != wire.StartBegun {
		t.Fatalf("%+v", r)
	}
	e.purged(30, 3)
	e.stream(3).write(20, 21)
	w.expect(3, append(want, "1:STREAM_END@3", "3:STREAM_BEGIN@20", "3:INSERT@21")...)
}

// purged sets the purge seqno of vbuckets.
func (e *engine) purged(seqno int, vbuckets ...uint16) {
	e.set(func() {
		e.lines = nil
		for _, vb := range vbuckets {
			e.lines = append(e.lines, fmt.Sprintf("vb_%d=active", vb), fmt.Sprintf("vb_%d:purge_seqno=%d", vb, seqno))
		}
	})
}

// purges lists the purge seqnos in the BEGINs of a vbucket.
func (e *endpoint) purges(vb uint16) (all []uint64) {
	for _, b := range e.kinds(keyversion.StreamBegin) {
		if b.VBucket == vb {
			all = append(all, b.Begin.Purge)
		}
	}
	return all
}

// While KV is queried for purge seqnos, the other vbuckets of a worker continue; those that begin meanwhile share the
// next query.
func TestPurgeSeqnosDelayNoOtherRequests(t *testing.T) {
	e := newEngine(t)
	all := []uint16{0, 1, 2, 3, 4, 5, 6, 7}
	e.purged(5, all...)
	w := newWorldWith(t, e.Addr(), FeedNative, func(c *Config) { c.purgeTime = time.Hour })
	w.define(1, 1)
	for _, vb := range all[1:] {
		w.startAt(vb, 1, 0)
	}
	w.startAt(0, 1, 20)
	wait := make(chan any)
	asked := 0
	e.set(func() { e.stat, asked = wait, len(e.asks) })
	e.purged(7, all...)
	e.stream(1).write(0, 2)
	w.eventually("KV is queried", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return len(e.asks) > asked
	})
	for _, vb := range all[2:] {
		e.stream(vb).write(0, 2)
	}
	e.stream(0).write(20, 21) // after all of them on the connection
	w.expect(0, "1:STREAM_BEGIN@20", "1:INSERT@21")
	for _, vb := range all[1:] {
		w.expect(vb, "1:STREAM_BEGIN@0")
	}
	e.set(func() { e.stat = nil })
	close(wait)
	for _, vb := range all[1:] {
		w.expect(vb, "1:STREAM_BEGIN@0", "1:STREAM_BEGIN@0", "1:INSERT@1", "1:INSERT@2")
	}
	e.set(func() { asked = len(e.asks) - asked })
	if asked > len(all)/2 {
		t.Errorf("%d queries for %d vbuckets", asked, len(all)-1)
	}
}

// If KV does not report purge seqnos, because it refuses, fails or does not answer, a stream from 0 may lack any
// deletion of its first snapshot, states that before anything else, and continues.
func TestUnavailablePurgeSeqnos(t *testing.T) {
	never := make(chan any)
	t.Cleanup(func() { close(never) })
	for name, fails := range map[string]func(e *engine){
		"refused":    func(e *engine) { e.stats, e.lines = mcbp.StatusNoAccess, nil },
		"busy":       func(e *engine) { e.stats, e.lines = mcbp.StatusBusy, nil },
		"left out":   func(e *engine) { e.lines = nil },
		"unanswered": func(e *engine) { e.stat = never },
		"malformed":  func(e *engine) { e.lines = []string{"vb_3:purge_seqno=many"} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEngine(t)
			e.purged(5, 3)
			w := newWorldWith(t, e.Addr(), FeedNative, func(c *Config) { c.purgeTime = 100 * time.Millisecond })
			w.define(1, 1)
			w.startAt(3, 1, 0)
			w.expect(3, "1:STREAM_BEGIN@0")
			e.set(func() { fails(e) })
			e.stream(3).write(0, 7)
			w.eventually("the stream goes on", func() bool { return len(w.data.story(3)) == 9 })
			if got := w.data.purges(3); !slices.Equal(got, []uint64{5, 7}) {
				t.Errorf("BEGIN has purge seqnos %d", got)
			}
		})
	}
}
