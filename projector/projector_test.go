package projector

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"tidemark/collate"
	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/transport"
	"tidemark/internal/rpc"
	"tidemark/internal/testing/atonce"
	"tidemark/internal/testing/ports"
	"tidemark/keyversion"
	"tidemark/kv"
	"tidemark/kv/kvclient"
	"tidemark/partition"
	"tidemark/projectorclient"
	"tidemark/wire"
)

const (
	testBucket = "world"
	testUUID   = "0123456789abcdef0123456789abcdef"
	vbuckets   = 8
	patience   = 3 * time.Minute // hang guard
)

func TestMain(m *testing.M) {
	if conf := os.Getenv(kvChild); conf != "" {
		serveKV(conf)
	}
	atonce.Tests(6) // most of their time is waiting
	goleak.VerifyTestMain(m)
}

// manager answers a projector's requests to managers, and keeps its reports.
type manager struct {
	*httptest.Server
	mu      sync.Mutex
	reports []wire.ProjectorReport
	full    bool // requested with the next answer
	lose    int  // number of reports that are refused
	lost    []wire.ProjectorReport
}

func newManager(t testing.TB) *manager {
	t.Helper()
	m := &manager{}
	mux := http.NewServeMux()
	fence := wire.Fence{ClusterID: "c1", Epoch: 1, Term: 1}
	mux.Handle("/v1/cluster/projectors", rpc.Message(func(_ context.Context,
		_ *wire.RegisterProjector) (*wire.RegisterReply, error) {
		return &wire.RegisterReply{ClusterID: "c1", Fence: fence, Leader: wire.Leader{ID: "m1", REST: m.URL, Term: 1}}, nil
	}))
	mux.Handle("/v1/components/p1/reports", rpc.Message(func(_ context.Context,
		r *wire.ProjectorReport) (*wire.ReportReply, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.lose > 0 {
			m.lose--
			m.lost = append(m.lost, *r)
			return nil, rpc.Refuse(errcode.Internal, "lost")
		}
		for i := range r.Buckets {
			if err := r.Buckets[i].Expand(); err != nil {
				t.Error(err)
			}
		}
		m.reports = append(m.reports, *r)
		full := m.full
		m.full = false
		return &wire.ReportReply{Known: true, Fence: fence, Full: full}, nil
	}))
	m.Server = httptest.NewServer(mux)
	t.Cleanup(m.Close)
	return m
}

// endpoint is an indexer's data port that keeps everything, in order.
type endpoint struct {
	mu      sync.Mutex
	events  []keyversion.Event
	addr    string
	closed  atomic.Int64      // connections that have ended
	discard bool              // keep nothing
	hold    chan any          // nothing is taken before this is closed; nil: at once
	hellos  map[uint16]uint16 // of the connections that were there: which of how many
}

func newEndpoint(t testing.TB) *endpoint { return newEndpointAt(t, ports.Addr(t)) }

func newEndpointAt(t testing.TB, addr string) *endpoint {
	t.Helper()
	e := &endpoint{hellos: map[uint16]uint16{}}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	e.addr = l.Addr().String()
	s := transport.NewServer(transport.ServerConfig{Logger: hclog.NewNullLogger()},
		func(_ context.Context, h keyversion.Hello) (transport.Sink, error) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.hellos[h.Connection] = h.Connections
			return e, nil
		})
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
	return e
}

// Receive implements transport.Sink.
func (e *endpoint) Receive(_ context.Context, b *keyversion.Batch, release func()) error {
	defer release()
	if e.hold != nil {
		<-e.hold
	}
	if e.discard {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ev := range b.Events {
		ev.DocID = bytes.Clone(ev.DocID)
		var statements []keyversion.Statement
		for _, s := range ev.Explicit(nil) {
			c := keyversion.Statement{Index: s.Index, Slice: s.Slice}
			for _, k := range s.Keys {
				c.Keys = append(c.Keys, bytes.Clone(k))
			}
			statements = append(statements, c)
		}
		ev.Statements, ev.Rest = statements, nil
		ev.Copies = append([]index.CopyID(nil), ev.Copies...)
		if ev.Begin != nil {
			begin := *ev.Begin
			ev.Begin = &begin
		}
		e.events = append(e.events, ev)
	}
	return nil
}

// Closed implements transport.Sink.
func (e *endpoint) Closed(error) { e.closed.Add(1) }

// rows replays the events: per index the newest statement of each document, by seqno.
func (e *endpoint) rows(id index.ID) map[string]string {
	e.mu.Lock()
	defer e.mu.Unlock()
	seqnos, rows := map[string]uint64{}, map[string]string{}
	for _, ev := range e.events {
		if !ev.Kind.Data() {
			continue
		}
		for _, s := range ev.Statements {
			if s.Index != id || seqnos[string(ev.DocID)] > ev.Seqno {
				continue
			}
			seqnos[string(ev.DocID)] = ev.Seqno
			delete(rows, string(ev.DocID))
			if len(s.Keys) > 0 {
				text, err := collate.DecodeComposite(nil, s.Keys[0], []bool{false})
				if err != nil {
					text = []byte(err.Error())
				}
				rows[string(ev.DocID)] = string(text)
			}
		}
	}
	return rows
}

func (e *endpoint) kinds(k keyversion.Kind) (all []keyversion.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ev := range e.events {
		if ev.Kind == k {
			all = append(all, ev)
		}
	}
	return all
}

// world is a KV node, a projector, its manager and an indexer's ports.
type world struct {
	sent    *wire.Definitions // last
	changes int               // lists that were sent as changes

	t       testing.TB
	p       *Projector
	kv      *kvclient.Client
	manager *manager
	data    *endpoint
	side    *endpoint
	url     string
	client  *projectorclient.Client
	counter uint64
}

// newWorld uses the embedded KV node.
func newWorld(t testing.TB) *world {
	t.Helper()
	addr, _ := startKV(t, t.TempDir(), "127.0.0.1:0")
	w := newWorldAt(t, addr)
	w.connect(addr)
	return w
}

// startKV runs an embedded KV node; the function stops it.
func startKV(t testing.TB, dir, listen string) (addr string, stop func()) {
	t.Helper()
	node, err := kv.Open(kv.Config{NodeID: "kv1", Dir: dir, Listen: listen, Admin: "127.0.0.1:0", User: "u",
		Password: "secret",
		Nodes:    []kv.Peer{{ID: "kv1", Memcached: "127.0.0.1:0", Admin: "127.0.0.1:0"}},
		Buckets:  []kv.BucketConfig{{Name: testBucket, UUID: testUUID, VBuckets: vbuckets}}, Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	stop = running(t, func(ctx context.Context) { _ = node.Run(ctx) })
	<-node.Ready()
	return node.MemcachedAddr(), stop
}

// connect returns a client of the KV node.
func (w *world) connect(addr string) {
	w.t.Helper()
	c, err := kvclient.Connect(context.Background(), []string{addr}, kvclient.Options{User: "u", Password: "secret",
		Bucket: testBucket})
	if err != nil {
		w.t.Fatal(err)
	}
	w.kv = c
	w.t.Cleanup(func() { _ = c.Close() })
}

// testConnections is how many data connections projectors have to an endpoint in these tests: not the default.
const testConnections = 3

// newWorldAt uses the caller's KV node.
func newWorldAt(t testing.TB, kvAddr string) *world {
	t.Helper()
	return newWorldWith(t, kvAddr, FeedNative)
}

// newWorldWith uses a projector with the given feed.
func newWorldWith(t testing.TB, kvAddr string, kind FeedKind, edits ...func(*Config)) *world {
	t.Helper()
	w := &world{t: t, manager: newManager(t), data: newEndpoint(t), side: newEndpoint(t),
		client: projectorclient.New(4, nil)}
	t.Cleanup(w.client.Close)
	cfg := Config{ID: "p1", Managers: []string{w.manager.URL}, Admin: "127.0.0.1:0", KV: kvAddr, User: "u",
		Password: "secret", Workers: 2, Feed: kind,
		Connections: testConnections}
	for _, edit := range edits {
		edit(&cfg)
	}
	var err error
	w.p, err = Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	running(t, func(ctx context.Context) {
		if err := w.p.Run(ctx); err != nil {
			t.Errorf("projector: %v", err)
		}
	})
	w.url = "http://" + w.p.AdminAddr()
	w.eventually("registered", func() bool {
		w.manager.mu.Lock()
		defer w.manager.mu.Unlock()
		return len(w.manager.reports) > 0
	})
	return w
}

// running runs f until the test ends or the returned function is called.
func running(t testing.TB, f func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); f(ctx) }()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// metrics returns the projector's page of metrics.
func (w *world) metrics() string {
	w.t.Helper()
	answer, err := http.Get(w.url + "/metrics")
	if err != nil {
		w.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return string(text)
}

func (w *world) fence() wire.Fence {
	w.counter++
	return wire.Fence{ClusterID: "c1", Epoch: 1, Term: 1, Counter: w.counter}
}

// define sends definitions: index n has field "f<n>" as its key and one slice on node 1; its copy is 10*n.
func (w *world) define(revision uint64, ids ...index.ID) {
	w.t.Helper()
	d, was := w.definitions(revision, ids...), w.sent
	w.sent = d
	if was != nil && d.Revision%2 == 0 { // every other list travels as a change
		if reply, err := w.client.Change(context.Background(), w.url, changeOf(was, d)); err != nil {
			w.t.Fatal(err)
		} else if !reply.Missing {
			w.changes++
			return
		}
		d.Fence = w.fence()
	}
	if _, err := w.client.Definitions(context.Background(), w.url, d); err != nil {
		w.t.Fatal(err)
	}
}

// changeOf returns a list as a change of another one.
func changeOf(was, is *wire.Definitions) *wire.DefinitionsChange {
	c := &wire.DefinitionsChange{Fence: is.Fence, Base: was.Revision, Revision: is.Revision, Indexes: is.Indexes,
		Topologies: is.Topologies, Indexers: is.Indexers,
		Rest: &wire.DefinitionsRest{Buckets: is.Buckets, Projectors: is.Projectors, Managers: is.Managers}}
	for _, x := range was.Indexes {
		if !slices.ContainsFunc(is.Indexes, func(y index.Definition) bool { return y.ID == x.ID }) {
			c.GoneIndexes = append(c.GoneIndexes, x.ID)
		}
	}
	return c
}

// defineBeside is define without waiting for the answer; a later command may overtake it.
func (w *world) defineBeside(wg *sync.WaitGroup, revision uint64, ids ...index.ID) {
	d := w.definitions(revision, ids...)
	wg.Go(func() { _, _ = w.client.Definitions(context.Background(), w.url, d) })
}

func (w *world) definitions(revision uint64, ids ...index.ID) *wire.Definitions {
	d := &wire.Definitions{Fence: w.fence(), Revision: revision,
		Buckets:  []wire.Bucket{{Name: testBucket, UUID: testUUID, VBuckets: vbuckets, Generation: 1}},
		Indexers: []wire.Endpoint{{Node: 1, Maintenance: w.data.addr, Catchup: w.side.addr, Backfill: w.side.addr}}}
	for _, id := range ids {
		d.Indexes = append(d.Indexes, index.Definition{ID: id, Bucket: testBucket, State: index.Backfill,
			Keys: []index.KeyExpr{{Expr: fmt.Sprintf("`f%d`", id)}}})
		d.Topologies = append(d.Topologies, partition.Topology{Index: id,
			Layout: partition.Layout{Scheme: partition.HashDocID, Partitions: 1},
			Copies: []partition.Copy{{ID: index.CopyID(10 * id), Node: 1, State: partition.Allocated}}})
	}
	return d
}

// incarnation is one of the test's only leader.
func incarnation(counter uint64) index.Incarnation {
	return index.Incarnation{Epoch: 1, Term: 1, Counter: counter}
}

// request returns a request for maintenance streams under an incarnation.
func (w *world) request(inc uint64, starts ...wire.StreamStart) *wire.StreamRequest {
	req := &wire.StreamRequest{Fence: w.fence(), Topic: wire.MaintenanceTopic, Incarnation: incarnation(inc),
		Buckets: []wire.StreamBucket{{Bucket: testBucket, BucketUUID: testUUID}}}
	for _, s := range starts {
		req.Buckets[0].Restart.Add(s)
	}
	return req
}

// start starts all vbuckets at 0 under an incarnation.
func (w *world) start(inc uint64) wire.StreamOutcome {
	w.t.Helper()
	all := make([]wire.StreamStart, vbuckets)
	for v := range all {
		all[v].VBucket = uint16(v)
	}
	return w.ask(w.request(inc, all...))
}

// ask returns the outcome of a request for one bucket's streams.
func (w *world) ask(req *wire.StreamRequest) wire.StreamOutcome {
	w.t.Helper()
	reply, err := w.client.Streams(context.Background(), w.url, req)
	if err != nil {
		w.t.Fatal(err)
	}
	return reply.Buckets[0]
}

// sideRequest returns a request for copies of node 1 on a backfill topic.
func (w *world) sideRequest(id uint64, boot string, revision uint64, copies []index.CopyID,
	starts ...wire.StreamStart) *wire.StreamRequest {
	req := &wire.StreamRequest{Fence: wire.Fence{ClusterID: "c1"}, Topic: "/backfill/1/7",
		Incarnation: index.Incarnation{Counter: id},
		Buckets:     []wire.StreamBucket{{Bucket: testBucket, BucketUUID: testUUID}},
		Side:        &wire.SideTarget{Copies: copies, Revision: revision, Node: 1, BootID: boot, Endpoint: w.side.addr}}
	for _, s := range starts {
		req.Buckets[0].Restart.Add(s)
	}
	return req
}

func (w *world) set(key string, doc map[string]any) kvclient.Mutation {
	w.t.Helper()
	b, err := json.Marshal(doc)
	if err != nil {
		w.t.Fatal(err)
	}
	m, err := w.kv.Set(context.Background(), key, b, kvclient.StoreOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return m
}

func TestMutationsBecomeStatements(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set("a", map[string]any{"f1": "x"})
	w.define(1, 1)
	for _, r := range w.start(1).Results {
		if r.Outcome != wire.StartBegun || len(r.Log) == 0 {
			t.Fatalf("%+v", r)
		}
	}
	w.set("b", map[string]any{"f1": 2})
	w.set("c", map[string]any{"f2": 2})
	w.set("a", map[string]any{"f1": "y"})
	if _, err := w.kv.Delete(context.Background(), "b", 0); err != nil {
		t.Fatal(err)
	}
	want := `map[a:["y"]]`
	w.eventually(want, func() bool { return fmt.Sprint(w.data.rows(1)) == want })
	w.eventually("BEGIN of every vbucket", func() bool { return len(w.data.kinds(keyversion.StreamBegin)) == vbuckets })
	w.eventually("SYNC of every vbucket, empty ones included", func() bool {
		seen := map[uint16]bool{}
		for _, e := range w.data.kinds(keyversion.Sync) {
			seen[e.VBucket] = true
		}
		return len(seen) == vbuckets
	})
}

func TestAnIndexJoinsBetweenTwoMutations(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.define(1, 1)
	w.start(1)
	const n = 200
	for i := range n / 2 {
		w.set(fmt.Sprint("k", i), map[string]any{"f1": i, "f2": -i})
	}
	w.eventually("a mutation below A", func() bool { return len(w.data.rows(1)) > 0 })
	w.define(2, 1, 2)
	for i := range n / 2 {
		w.set(fmt.Sprint("k", n/2+i), map[string]any{"f1": i, "f2": -i})
	}
	w.eventually("all of index 1", func() bool { return len(w.data.rows(1)) == n })
	w.eventually("ACTIVATE in every vbucket", func() bool { return len(w.data.kinds(keyversion.Activate)) == vbuckets })
	a := map[uint16]uint64{}
	for _, e := range w.data.kinds(keyversion.Activate) {
		if len(e.Copies) != 1 || e.Copies[0] != 20 {
			t.Errorf("%+v", e)
		}
		a[e.VBucket] = e.Seqno
	}
	for _, e := range w.data.kinds(keyversion.Insert) {
		names2 := len(e.Statements) == 2
		if names2 != (e.Seqno > a[e.VBucket]) {
			t.Errorf("vbucket %d seqno %d names %d indexes, A is %d", e.VBucket, e.Seqno, len(e.Statements), a[e.VBucket])
		}
	}
	// The side stream fills what lies at or below A, and nothing is missing then.
	var starts []wire.StreamStart
	for v, to := range a {
		if to > 0 {
			starts = append(starts, wire.StreamStart{VBucket: v, End: to})
		}
	}
	for _, r := range w.ask(w.sideRequest(7, "boot", 2, []index.CopyID{20}, starts...)).Results {
		if r.Outcome != wire.StartBegun {
			t.Fatalf("%+v", r)
		}
	}
	w.eventually("END of every side stream", func() bool { return len(w.side.kinds(keyversion.StreamEnd)) == len(starts) })
	for _, e := range w.side.kinds(keyversion.StreamEnd) {
		if e.Window.End < a[e.VBucket] || e.Incarnation.Counter != 7 {
			t.Errorf("END states %+v, A is %d", e, a[e.VBucket])
		}
	}
	both := w.side.rows(2)
	for k, v := range w.data.rows(2) {
		both[k] = v
	}
	if len(both) != n {
		t.Errorf("index 2 has %d documents, want %d", len(both), n)
	}
}

// A bucket is closed while its router is connecting; the admin server must not be blocked by that.
func TestBucketsComeAndGo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for i := range uint64(10) {
		w.define(2*i+1, 1)
		w.start(i + 1)
		if _, err := w.client.Definitions(ctx, w.url, &wire.Definitions{Fence: w.fence(), Revision: 2*i + 2}); err != nil {
			t.Fatal(err)
		}
		if r, err := w.client.Sync(ctx, w.url, &wire.SyncRequest{Fence: w.fence(), Bucket: testBucket}); err != nil ||
			len(r.Buckets) != 0 {
			t.Fatalf("%+v, %v", r, err)
		}
	}
}

// An indexer that restarts gets BEGIN from its router, and must then get the complete seqnos of idle vbuckets.
func TestIdleVBucketsReportToAReturningIndexer(t *testing.T) {
	w := newWorld(t)
	m := w.set("a", map[string]any{"f1": 1})
	w.define(1, 1)
	w.start(1)
	complete := func(e *endpoint) int {
		seen := map[uint16]bool{}
		for _, s := range e.kinds(keyversion.Sync) {
			seen[s.VBucket] = s.VBucket != m.VBucket || s.Seqno == m.Seqno
		}
		return len(seen)
	}
	w.eventually("SYNC of every vbucket", func() bool { return complete(w.data) == vbuckets })
	w.data = newEndpoint(t)
	w.define(2, 1)
	w.eventually("SYNC of every vbucket at the new address", func() bool { return complete(w.data) == vbuckets })
}

// A KV node that dies ends its streams; when it is back they can be requested from where they stood.
func TestKVNodeRestarts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	addr, stop := startKV(t, dir, "127.0.0.1:0")
	w := newWorldAt(t, addr)
	w.connect(addr)
	w.define(1, 1)
	w.start(1)
	m := w.set("a", map[string]any{"f1": 1})
	w.expect(m.VBucket, "1:STREAM_BEGIN@0", "1:INSERT@1")
	stop()
	w.eventually("END of every vbucket", func() bool { return len(w.data.kinds(keyversion.StreamEnd)) == vbuckets })
	w.expect(m.VBucket, "1:STREAM_BEGIN@0", "1:INSERT@1", "1:STREAM_END@1")
	if _, err := w.client.Streams(context.Background(), w.url, w.request(2,
		wire.StreamStart{VBucket: m.VBucket})); rpc.AsProblem(err).Code != errcode.KVUnavailable {
		t.Errorf("without KV a start gives %v", err)
	}
	startKV(t, dir, addr)
	w.connect(addr)
	for _, r := range w.start(3).Results {
		if r.Outcome != wire.StartBegun {
			t.Errorf("%+v", r)
		}
	}
	w.expect(m.VBucket, "1:STREAM_BEGIN@0", "1:INSERT@1", "1:STREAM_END@1", "3:STREAM_BEGIN@0", "3:INSERT@1")
	w.set("a", map[string]any{"f1": 2})
	w.expect(m.VBucket, "1:STREAM_BEGIN@0", "1:INSERT@1", "1:STREAM_END@1", "3:STREAM_BEGIN@0", "3:INSERT@1", "3:INSERT@2")
}

// The newest version at or below A may be gone when the side stream reads: then no event of KV shows that A was
// reached.
func TestSideStreamReachesAnActivationPointThatWasOverwritten(t *testing.T) {
	w := newWorld(t)
	w.define(1, 1)
	w.start(1)
	w.set("a", map[string]any{"f2": 0})
	m := w.set("k", map[string]any{"f2": 1})
	w.set("k", map[string]any{"f2": 2})
	w.define(2, 1, 2)
	req := w.sideRequest(7, "boot", 2, []index.CopyID{20}, wire.StreamStart{VBucket: m.VBucket, End: m.Seqno})
	if out := w.ask(req); out.Results[0].Outcome != wire.StartBegun {
		t.Fatalf("%+v", out)
	}
	w.eventually("END of the side stream", func() bool { return len(w.side.kinds(keyversion.StreamEnd)) == 1 })
	if e := w.side.kinds(keyversion.StreamEnd)[0]; e.Seqno != m.Seqno || e.Window.End != m.Seqno+1 {
		t.Errorf("END at %d, reach %d; requested up to %d, KV stands at %d", e.Seqno, e.Window.End, m.Seqno, m.Seqno+1)
	}
}

// refusesForAnother checks that the projector refuses everything that is meant for another process, even from a newer
// leader.
func (w *world) refusesForAnother(inc index.Incarnation) {
	w.t.Helper()
	f := wire.Fence{ClusterID: "c1", Epoch: 1, Term: 2, Counter: 1, Boot: "of another process"}
	ctx := w.t.Context()
	_, hello := w.client.Hello(ctx, w.url, &wire.HelloRequest{Fence: f})
	_, definitions := w.client.Definitions(ctx, w.url, &wire.Definitions{Fence: f, Revision: 99})
	_, change := w.client.Change(ctx, w.url, &wire.DefinitionsChange{Fence: f, Revision: 99})
	_, bucket := w.client.Bucket(ctx, w.url, &wire.BucketRequest{Bucket: testBucket, Boot: f.Boot})
	_, logs := w.client.FailoverLogs(ctx, w.url, &wire.FailoverLogsRequest{Fence: f, Bucket: testBucket})
	want := wire.StreamBucket{Bucket: testBucket}
	want.Restart.Add(wire.StreamStart{VBucket: 0})
	_, start := w.client.Streams(ctx, w.url, &wire.StreamRequest{Fence: f, Topic: wire.MaintenanceTopic, Incarnation: inc,
		Buckets: []wire.StreamBucket{want}})
	stop := w.client.Stop(ctx, w.url, &wire.StreamStop{Fence: f, Topic: wire.MaintenanceTopic, Bucket: testBucket,
		Incarnation: inc})
	_, sync := w.client.Sync(ctx, w.url, &wire.SyncRequest{Fence: f, Bucket: testBucket})
	for i, err := range []error{hello, definitions, change, bucket, logs, start, stop, sync} {
		if p := rpc.AsProblem(err); err == nil || p.Code != errcode.AnotherProcess {
			w.t.Errorf("command %d for another process gives %v", i, err)
		}
	}
}

func TestOldCommandsAreRefused(t *testing.T) {
	w := newWorld(t)
	w.define(1, 1)
	w.start(5)
	for _, r := range w.start(4).Results {
		if r.Outcome != wire.StartStale {
			t.Errorf("an older incarnation gives %s", r.Outcome)
		}
	}
	w.eventually("BEGIN of every vbucket", func() bool { return len(w.data.kinds(keyversion.StreamBegin)) == vbuckets })
	for _, r := range w.start(5).Results {
		if r.Outcome != wire.StartBegun {
			t.Errorf("a retry gives %s", r.Outcome)
		}
	}
	old := w.fence()
	w.define(2, 1)
	_, err := w.client.Definitions(context.Background(), w.url, &wire.Definitions{Fence: old, Revision: 3})
	if p := rpc.AsProblem(err); p.Code != errcode.Fenced {
		t.Errorf("an overtaken command gives %v", err)
	}
	_, err = w.client.Definitions(context.Background(), w.url, &wire.Definitions{Fence: wire.Fence{ClusterID: "c1",
		Epoch: 1, Term: 0, Counter: 99}, Revision: 3})
	if p := rpc.AsProblem(err); p.Code != errcode.Fenced {
		t.Errorf("a deposed leader gives %v", err)
	}
	w.refusesForAnother(incarnation(6))
	stop := &wire.StreamStop{Fence: w.fence(), Topic: wire.MaintenanceTopic, Bucket: testBucket,
		Incarnation: incarnation(6)}
	if err := w.client.Stop(context.Background(), w.url, stop); err != nil {
		t.Fatal(err)
	}
	w.eventually("END of every vbucket", func() bool { return len(w.data.kinds(keyversion.StreamEnd)) == vbuckets })
	for _, r := range w.start(6).Results {
		if r.Outcome != wire.StartStale {
			t.Errorf("a stopped incarnation gives %s", r.Outcome)
		}
	}
	for _, r := range w.start(7).Results {
		if r.Outcome != wire.StartBegun {
			t.Errorf("the next one gives %+v", r)
		}
	}
	w.eventually("BEGIN again", func() bool { return len(w.data.kinds(keyversion.StreamBegin)) == 2*vbuckets })
}

// Reports contain changes; the first one, and those on request, are full.
func TestReportsContainChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.define(1, 1)
	w.start(1)
	from := 0
	// after returns the first matching report since the last one.
	after := func(what string, wanted func(*wire.StreamStates) bool) *wire.StreamStates {
		t.Helper()
		var found *wire.StreamStates
		w.eventually(what, func() bool {
			w.manager.mu.Lock()
			defer w.manager.mu.Unlock()
			for ; from < len(w.manager.reports) && found == nil; from++ {
				if r := w.manager.reports[from]; len(r.Buckets) == 1 && wanted(&r.Buckets[0]) {
					found = &r.Buckets[0]
				}
			}
			return found != nil
		})
		return found
	}
	all := after("a full report", func(s *wire.StreamStates) bool { return s.Full && len(s.Streams) == vbuckets })
	for i := range all.Streams {
		if st := &all.Streams[i]; len(st.Log) == 0 {
			t.Errorf("vbucket %d without its log", st.VBucket)
		}
	}
	after("a report without news", func(s *wire.StreamStates) bool { return !s.Full && len(s.Streams) == 0 })
	m := w.set("a", map[string]any{"f1": 1})
	news := after("a report of one vbucket", func(s *wire.StreamStates) bool { return !s.Full && len(s.Streams) > 0 })
	want := []wire.StreamState{{VBucket: m.VBucket, Incarnation: incarnation(1), Complete: m.Seqno}}
	if !reflect.DeepEqual(news.Streams, want) {
		t.Errorf("%+v, token %+v", news, m)
	}
	w.manager.mu.Lock()
	w.manager.full = true
	w.manager.mu.Unlock()
	after("the full report that was requested", func(s *wire.StreamStates) bool {
		return s.Full && len(s.Streams) == vbuckets
	})
}

func TestQueriesAboutKV(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	info, err := w.client.Bucket(ctx, w.url, &wire.BucketRequest{Bucket: testBucket})
	if err != nil || info.UUID != testUUID || info.VBuckets != vbuckets {
		t.Errorf("%+v, %v", info, err)
	}
	_, err = w.client.Bucket(ctx, w.url, &wire.BucketRequest{Bucket: "nowhere"})
	if p := rpc.AsProblem(err); p.Code != errcode.BucketNotInKV || p.Status != http.StatusNotFound {
		t.Errorf("an unknown bucket gives %v", err)
	}
	m := w.set("k", map[string]any{"f1": 1})
	w.define(1, 1)
	// The branch is reported even without a stream: a client that has another one has missed a failover.
	seqnos, err := w.client.Seqnos(ctx, w.url, &wire.SeqnosRequest{Bucket: testBucket, Map: true})
	if i := slices.Index(seqnos.VBuckets, m.VBucket); err != nil || i < 0 || seqnos.VBUUIDs[i] != m.VBUUID ||
		seqnos.Seqnos[i] != m.Seqno || seqnos.Revision.Rev == 0 {
		t.Errorf("%+v, %v; written on branch %d", seqnos, err, m.VBUUID)
	}
	w.start(1)
	seqnos, err = w.client.Seqnos(ctx, w.url, &wire.SeqnosRequest{Bucket: testBucket})
	if err != nil || len(seqnos.VBuckets) != vbuckets {
		t.Fatalf("%+v, %v", seqnos, err)
	}
	want := make([]uint64, vbuckets)
	for i, v := range seqnos.VBuckets {
		want[v] = seqnos.Seqnos[i]
	}
	if want[m.VBucket] != m.Seqno {
		t.Errorf("seqno %d of vbucket %d, want %d", want[m.VBucket], m.VBucket, m.Seqno)
	}
	if i := slices.Index(seqnos.VBuckets, m.VBucket); seqnos.VBUUIDs[i] != m.VBUUID || seqnos.Revision.Rev != 0 {
		t.Errorf("%+v, written on branch %d", seqnos, m.VBUUID)
	}
	report, err := w.client.Sync(ctx, w.url, &wire.SyncRequest{Fence: w.fence(), Bucket: testBucket, Want: want,
		WaitMS: 5000})
	if err != nil || len(report.Buckets) != 1 || len(report.Buckets[0].Streams) != vbuckets {
		t.Fatalf("%+v, %v", report, err)
	}
	for i := range report.Buckets[0].Streams {
		if st := &report.Buckets[0].Streams[i]; st.Complete < want[st.VBucket] {
			t.Errorf("vbucket %d is complete up to %d, wanted %d", st.VBucket, st.Complete, want[st.VBucket])
		}
	}
	for _, line := range []string{"tidemark_projector_buckets 1", "tidemark_projector_side_streams 0",
		"tidemark_projector_streams_begun_total 8", "tidemark_projector_mutations_total 1"} {
		// a stream that KV has consented to is counted when its worker has begun it, which the answers do not wait for
		w.eventually(line+" in the metrics", func() bool { return strings.Contains(w.metrics(), line+"\n") })
	}
	logs, err := w.client.FailoverLogs(ctx, w.url, &wire.FailoverLogsRequest{Fence: w.fence(), Bucket: testBucket,
		VBuckets: []uint16{m.VBucket}})
	if err != nil || len(logs.Logs) != 1 || logs.Logs[0].High != m.Seqno || logs.Logs[0].Log.Newest() != m.VBUUID {
		t.Errorf("%+v, %v; token %+v", logs, err, m)
	}
}
