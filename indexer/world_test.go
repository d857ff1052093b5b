package indexer

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/collate"
	"tidemark/index"
	"tidemark/indexer/transport"
	"tidemark/indexerclient"
	"tidemark/internal/rpc"
	"tidemark/keyversion"
	"tidemark/partition"
	"tidemark/timestamp"
	"tidemark/wire"
)

const (
	testVBs     = 4
	testBucket  = "world"
	testUUID    = "b-uuid"
	testCluster = "c1"
	testTimeout = 3 * time.Minute // hang guard
)

// world is everything around one indexer: the leader, KV, and a projector. KV's content is a list of mutations per
// vbucket, and each mutation is a window of its own.
type world struct {
	state   index.State // of all indexes; unset: maintenance
	t       testing.TB
	dir     string
	manager *httptest.Server
	proj    *httptest.Server
	admin   *indexerclient.Client
	tweak   func(*Config)
	users   http.Handler          // what users ask the manager; set before start
	place   func(*partition.Copy) // nil, or changes the place and slice of a copy; set before define
	others  []wire.Endpoint       // other indexers; set before define

	mu        sync.Mutex
	kv        [testVBs][]testDoc
	purge     [testVBs]uint64
	log       timestamp.FailoverLog
	copies    []partition.Copy
	revision  uint64
	sent      *wire.Definitions // the newest
	changes   int               // lists that were sent as changes
	counter   uint64
	term      uint64
	epoch     uint64 // added to 1
	number    uint64
	last      wire.BucketStability
	endpoint  wire.Endpoint
	report    map[index.CopyID]wire.CopyReport
	buckets   map[string]wire.BucketReport
	reports   wire.ReportReceiver
	health    string
	differing []wire.CopyDifference
	orphans   []wire.Orphan
	acks      []wire.Ack
	sideCalls []wire.StreamRequest
	refuse    func(*wire.StreamRequest) wire.StartOutcome // nil: begin
	known     bool
	forgets   func(*wire.IndexerReport) bool // nil, or whether the leader has lost the reports before this one
	faults    []wire.IndexFaults
	lose      func(*keyversion.Event) bool // nil, or which events are evaluated but do not arrive; set before start
	key       func(testDoc) []byte         // nil: testKey of the value
	// nil, or delays KV's answer to a request for a stability timestamp; set before start
	slow func(context.Context)

	x      *Indexer
	stop   context.CancelFunc
	ended  chan error
	stream *maintenance
	rate   int64 // rate of files that the leader sets
}

type testDoc struct {
	seqno uint64
	id    string
	value int // 0: deleted
}

func newWorld(t testing.TB) *world {
	w := &world{t: t, dir: t.TempDir(), admin: indexerclient.New(4, nil), log: timestamp.FailoverLog{{VBUUID: 77}},
		revision: 1, term: 1,
		report: map[index.CopyID]wire.CopyReport{}, buckets: map[string]wire.BucketReport{}, known: true}
	w.manager = httptest.NewServer(http.HandlerFunc(w.serveManager))
	w.proj = httptest.NewServer(http.HandlerFunc(w.serveProjector))
	t.Cleanup(func() {
		w.stopIndexer()
		w.manager.Close()
		w.proj.Close()
		w.admin.Close()
	})
	return w
}

// locked runs f under the lock of what the test's servers change or read.
func (w *world) locked(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// calls returns the requests for side streams so far.
func (w *world) calls() (all []wire.StreamRequest) {
	w.locked(func() { all = slices.Clone(w.sideCalls) })
	return all
}

// copyReport returns the indexer's newest report of a copy.
func (w *world) copyReport(id index.CopyID) (r wire.CopyReport) {
	w.locked(func() { r = w.report[id] })
	return r
}

func (w *world) fence() wire.Fence {
	w.counter++
	return wire.Fence{ClusterID: testCluster, Epoch: 1 + w.epoch, Term: w.term, Counter: w.counter,
		Boot: w.endpoint.BootID}
}

func (w *world) serveManager(rw http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/v1/cluster/indexers":
		rpc.Message(func(_ context.Context, q *wire.RegisterIndexer) (*wire.RegisterReply, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.endpoint, w.known = q.Endpoint, true
			return &wire.RegisterReply{ClusterID: testCluster, Node: 3, Fence: wire.Fence{ClusterID: testCluster, Epoch: 1,
				Term: w.term}, Leader: wire.Leader{ID: "m1", REST: w.manager.URL, Term: w.term}}, nil
		}).ServeHTTP(rw, r)
	case strings.HasPrefix(r.URL.Path, "/v1/components/"):
		rpc.Message(func(_ context.Context, q *wire.IndexerReport) (*wire.ReportReply, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			for _, c := range q.Copies {
				w.report[c.Copy] = c
			}
			if w.forgets != nil && w.forgets(q) {
				w.reports.Forget()
			}
			all, err := w.reports.Take(q)
			for _, b := range all {
				got := b.Bucket.Report
				got.Accepted = b.Bucket.Accepted()
				w.buckets[got.Heartbeat.Bucket] = got
				w.acks = append(w.acks, got.Acks...)
			}
			w.health, w.orphans, w.faults = q.Health, q.Orphans, q.Faults
			w.differing = q.Differing
			reply := &wire.ReportReply{Known: w.known, Revision: w.revision, Leader: wire.Leader{ID: "m1", REST: w.manager.URL,
				Term: w.term}, TransferRate: w.rate, Full: err != nil, HW: []string{testBucket}}
			return reply, nil
		}).ServeHTTP(rw, r)
	case strings.HasSuffix(r.URL.Path, ":stabilize"):
		rpc.Message(func(ctx context.Context, _ *wire.StabilizeRequest) (*wire.BucketStability, error) {
			if w.slow != nil {
				w.slow(ctx)
			}
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			s := w.promote(ctx)
			return &s, nil
		}).ServeHTTP(rw, r)
	case w.users != nil:
		w.users.ServeHTTP(rw, r)
	default:
		http.NotFound(rw, r)
	}
}

func (w *world) serveProjector(rw http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/v1/streams":
		rpc.Message(w.side).ServeHTTP(rw, r)
	case "/v1/streams:stop":
		rpc.Message(func(context.Context, *wire.StreamStop) (*wire.OK, error) {
			return &wire.OK{},
				nil
		}).ServeHTTP(rw, r)
	case "/v1/seqnos":
		rpc.Message(func(context.Context, *wire.SeqnosRequest) (*wire.SeqnosReply, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			reply := &wire.SeqnosReply{}
			for vb := range testVBs {
				reply.VBuckets = append(reply.VBuckets, uint16(vb))
				reply.VBUUIDs = append(reply.VBUUIDs, w.log.Newest())
				reply.Seqnos = append(reply.Seqnos, w.high(vb))
			}
			return reply, nil
		}).ServeHTTP(rw, r)
	default:
		http.NotFound(rw, r)
	}
}

func (w *world) high(vb int) uint64 {
	if n := len(w.kv[vb]); n > 0 {
		return w.kv[vb][n-1].seqno
	}
	return 0
}

// side runs a side stream to its end.
func (w *world) side(ctx context.Context, q *wire.StreamRequest) (*wire.StreamReply, error) {
	w.mu.Lock()
	w.sideCalls = append(w.sideCalls, *q)
	refuse := w.refuse
	w.mu.Unlock()
	out := wire.StreamOutcome{Bucket: q.Buckets[0].Bucket}
	outcome := wire.StartBegun
	if refuse != nil {
		outcome = refuse(q)
	}
	restart := &q.Buckets[0].Restart
	w.locked(func() {
		for _, vb := range restart.VBuckets {
			out.Results = append(out.Results, wire.StartResult{Outcome: outcome, VBucketHistory: wire.VBucketHistory{VBucket: vb,
				Purge: w.purge[vb]}})
		}
	})
	reply := &wire.StreamReply{Buckets: []wire.StreamOutcome{out}}
	if outcome != wire.StartBegun {
		return reply, nil
	}
	conn, err := w.dial(ctx, q.Side.Endpoint, q.Topic)
	if err != nil {
		return nil, err
	}
	var events []keyversion.Event
	w.mu.Lock()
	// Like a projector, the stream carries only copies that the newest definitions still have, and its BEGIN names them.
	carried := slices.DeleteFunc(slices.Clone(q.Side.Copies), func(id index.CopyID) bool {
		return !slices.ContainsFunc(w.copies, func(c partition.Copy) bool { return c.ID == id })
	})
	for i := range restart.Len() {
		s, inc := restart.At(i), q.Incarnation
		events = append(events, keyversion.Event{Kind: keyversion.StreamBegin, VBucket: s.VBucket, Incarnation: inc,
			VBUUID: w.log.Newest(),
			Begin:  &keyversion.Begin{Start: s.Seqno, Log: w.log, Purge: w.purge[s.VBucket], Copies: carried}})
		newest := w.newest(int(s.VBucket))
		var sums keyversion.Sums
		for _, d := range w.kv[s.VBucket] {
			if d.seqno > s.Seqno && d.seqno <= s.End && d.seqno == newest[d.id] {
				e := w.event(int(s.VBucket), d, inc)
				if q.Side.Sums {
					sums.AddEvent(&e)
				}
				events = append(events, e)
			}
		}
		events = append(events, keyversion.Event{Kind: keyversion.StreamEnd, VBucket: s.VBucket, Incarnation: inc,
			VBUUID: w.log.Newest(), Seqno: s.End,
			Window: timestamp.Window{End: max(s.End, w.high(int(s.VBucket)))}, Sums: sums})
	}
	w.mu.Unlock()
	go func() {
		defer conn.Close()
		w.send(conn, events)
		conn.awaitAcks()
	}()
	return reply, nil
}

// newest returns each document's newest version, the only one that KV still has.
func (w *world) newest(vb int) map[string]uint64 {
	seqnos := map[string]uint64{}
	for _, d := range w.kv[vb] {
		seqnos[d.id] = d.seqno
	}
	return seqnos
}

func (w *world) event(vb int, d testDoc, inc index.Incarnation) keyversion.Event {
	e := keyversion.Event{Kind: keyversion.Insert, VBucket: uint16(vb), Incarnation: inc, VBUUID: w.log.Newest(),
		Seqno:  d.seqno,
		Window: timestamp.Window{Start: d.seqno - 1, End: d.seqno}, DocID: []byte(d.id)}
	if d.value == 0 {
		e.Kind = keyversion.Delete
	}
	for _, id := range w.indexes() {
		s := keyversion.Statement{Index: id, Slice: 0}
		if d.value != 0 {
			s.Keys = [][]byte{testKey(d.value)}
			if w.key != nil {
				s.Keys = [][]byte{w.key(d)}
			}
		}
		e.Statements = append(e.Statements, s)
	}
	return e
}

func testKey(value int) []byte {
	k, err := collate.AppendComposite(nil, [][]byte{fmt.Appendf(nil, "%d", value)}, []bool{false})
	if err != nil {
		panic(err)
	}
	return k
}

func (w *world) indexes() []index.ID {
	seen := map[index.ID]bool{}
	for _, c := range w.copies {
		seen[index.ID(c.ID)/10] = true
	}
	return slices.Sorted(maps.Keys(seen))
}

// testConn counts acknowledgements.
type testConn struct {
	*transport.Conn
	number uint64
	acked  chan uint64
}

func (c *testConn) awaitAcks() {
	for {
		select {
		case n := <-c.acked:
			if n >= c.number {
				return
			}
		case <-c.Done():
			return
		}
	}
}

func (w *world) dial(ctx context.Context, addr, topic string) (*testConn, error) {
	c := &testConn{acked: make(chan uint64, 1024)}
	conn, err := transport.Dial(ctx, addr, keyversion.Hello{ClusterID: testCluster, Projector: "p1", BootID: "boot",
		Topic: topic, Bucket: testBucket,
		BucketUUID: testUUID, Node: 3, Connections: 1}, transport.Options{OnAck: func(n uint64) {
		select {
		case c.acked <- n:
		default:
		}
	}})
	c.Conn = conn
	return c, err
}

func (w *world) send(c *testConn, events []keyversion.Event) {
	for len(events) > 0 {
		n := min(len(events), 50)
		var enc keyversion.Encoder
		for i := range events[:n] {
			if w.lose != nil && w.lose(&events[i]) {
				continue
			}
			if err := enc.Append(&events[i]); err != nil {
				w.t.Errorf("encode: %v", err)
				return
			}
		}
		events = events[n:]
		c.number++
		if c.Send(enc.Finish(c.number)) != nil {
			return
		}
	}
}

// maintenance is the only maintenance stream.
type maintenance struct {
	conn *testConn
	inc  index.Incarnation
	sent [testVBs]uint64
}

// begin starts the maintenance stream of every vbucket at `from` (nil: at what KV has now).
func (w *world) begin(from func(vb int) uint64) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	w.mu.Lock()
	defer w.mu.Unlock()
	conn, err := w.dial(ctx, w.endpoint.Maintenance, "/maintenance")
	if err != nil {
		w.t.Fatal(err)
	}
	if w.stream != nil {
		w.stream.conn.Close()
	}
	w.counter++
	m := &maintenance{conn: conn, inc: index.Incarnation{Epoch: 1, Term: w.term, Counter: w.counter}}
	var events []keyversion.Event
	for vb := range testVBs {
		m.sent[vb] = w.high(vb)
		if from != nil {
			m.sent[vb] = from(vb)
		}
		b := &keyversion.Begin{Start: m.sent[vb], Log: w.log, Purge: w.purge[vb], Revision: timestamp.MapRevision{Epoch: 1,
			Rev: 1}}
		for _, c := range w.copies {
			b.Copies = append(b.Copies, c.ID)
		}
		events = append(events, keyversion.Event{Kind: keyversion.StreamBegin, VBucket: uint16(vb), Incarnation: m.inc,
			VBUUID: w.log.Newest(), Seqno: m.sent[vb], Begin: b})
	}
	w.stream = m
	w.send(conn, events)
	w.pumpLocked()
}

// pumpLocked sends what the stream has not sent yet, and a SYNC for every vbucket.
func (w *world) pumpLocked() {
	m := w.stream
	if m == nil {
		return
	}
	var events []keyversion.Event
	for vb := range testVBs {
		for _, d := range w.kv[vb][min(m.sent[vb], w.high(vb)):] { // seqnos count from 1, without a gap
			events = append(events, w.event(vb, d, m.inc))
		}
		m.sent[vb] = max(m.sent[vb], w.high(vb))
		events = append(events, keyversion.Event{Kind: keyversion.Sync, VBucket: uint16(vb), Incarnation: m.inc,
			VBUUID: w.log.Newest(), Seqno: m.sent[vb]})
	}
	w.send(m.conn, events)
}

// write stores documents, and the stream sends them.
func (w *world) write(docs ...testDoc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range docs {
		vb := 0
		for _, c := range d.id {
			vb += int(c)
		}
		vb %= testVBs
		d.seqno = w.high(vb) + 1
		w.kv[vb] = append(w.kv[vb], d)
	}
	w.pumpLocked()
}

// define places copies on the indexer. The tens of a copy's id are its index. Like a router, the stream announces
// which copies it has from then on, and which no more.
func (w *world) define(ids ...index.CopyID) error {
	w.mu.Lock()
	before := w.copies
	w.copies = nil
	for _, id := range ids {
		c := partition.Copy{ID: id, Node: 3, State: partition.Allocated}
		if w.place != nil {
			w.place(&c)
		}
		w.copies = append(w.copies, c)
	}
	w.streamLocked(keyversion.Deactivate, before, w.copies)
	w.streamLocked(keyversion.Activate, w.copies, before)
	w.revision++
	d := w.definitionsLocked()
	w.mu.Unlock()
	was := w.sent
	w.sent = d
	if was != nil && d.Revision%2 == 0 { // every second list is sent as a change
		reply, err := w.admin.Change(context.Background(), w.endpoint.Admin, changeOf(was, d))
		if err != nil || !reply.Missing {
			w.changes++
			return err
		}
		w.mu.Lock()
		d.Fence = w.fence()
		w.mu.Unlock()
	}
	_, err := w.admin.Definitions(context.Background(), w.endpoint.Admin, d)
	return err
}

// streamLocked sends an event about the copies of all that are not among but, if there are any and a stream runs.
func (w *world) streamLocked(kind keyversion.Kind, all, but []partition.Copy) {
	var ids []index.CopyID
	for _, c := range all {
		if !slices.ContainsFunc(but, func(o partition.Copy) bool { return o.ID == c.ID }) {
			ids = append(ids, c.ID)
		}
	}
	m := w.stream
	if m == nil || len(ids) == 0 {
		return
	}
	var events []keyversion.Event
	for vb := range testVBs {
		events = append(events, keyversion.Event{Kind: kind, VBucket: uint16(vb), Incarnation: m.inc,
			VBUUID: w.log.Newest(), Seqno: m.sent[vb], Copies: ids})
	}
	w.send(m.conn, events)
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

func (w *world) definitionsLocked() *wire.Definitions {
	d := &wire.Definitions{Fence: w.fence(), Revision: w.revision,
		Buckets:  []wire.Bucket{{Name: testBucket, UUID: testUUID, VBuckets: testVBs, Generation: 1}},
		Indexers: []wire.Endpoint{w.endpoint}, Projectors: []wire.ProjectorEndpoint{{ID: "p1", Admin: w.proj.URL},
			{ID: "p2", Admin: w.proj.URL}},
		Managers: []wire.ManagerEndpoint{{ID: "m1", REST: w.manager.URL}}}
	d.Indexers[0].Node = 3
	d.Indexers = append(d.Indexers, w.others...)
	for _, id := range w.indexes() {
		top := partition.Topology{Index: id, Layout: partition.Layout{Scheme: partition.HashDocID, Partitions: 1}}
		for _, c := range w.copies {
			if index.ID(c.ID)/10 == id {
				top.Copies = append(top.Copies, c)
				top.Layout.Partitions = max(top.Layout.Partitions, uint16(c.Slice)+1)
			}
		}
		d.Indexes = append(d.Indexes, index.Definition{ID: id, Name: "i" + id.String(), Bucket: testBucket,
			BucketUUID: testUUID, State: cmp.Or(w.state, index.Maintenance),
			Keys: []index.KeyExpr{{Expr: "v"}}, Partitions: top.Layout.Partitions})
		d.Topologies = append(d.Topologies, top)
	}
	return d
}

// promote publishes what KV has now as a stability timestamp. If it does not arrive this is an error, unless ctx has
// ended: then the requester is gone and asks again.
func (w *world) promote(ctx context.Context) wire.BucketStability {
	w.mu.Lock()
	w.number++
	s := wire.BucketStability{Bucket: testBucket, Stability: timestamp.Stability{
		Ref: timestamp.Ref{Generation: 1, Number: w.number}, Vector: timestamp.New(testVBs)}}
	for vb := range testVBs {
		s.Logs = append(s.Logs, w.log)
		if h := w.high(vb); h > 0 {
			s.Vector.Set(vb, timestamp.Position{VBUUID: w.log.Newest(), Seqno: h})
		}
	}
	s.Hash = s.Vector.Hash()
	w.last = s
	f := w.fence()
	addr := w.endpoint.Admin
	w.mu.Unlock()
	if err := w.admin.Stability(ctx, addr, &wire.StabilityRequest{Fence: f,
		Stabilities: []wire.BucketStability{s}}); err != nil && ctx.Err() == nil {
		w.t.Errorf("stability: %v", err)
	}
	return s
}

// start runs the indexer and waits until it is registered.
func (w *world) start() {
	w.t.Helper()
	cfg := Config{Name: "i1", Dir: w.dir, Managers: []string{w.manager.URL}, PersistEvery: 50 * time.Millisecond,
		Checkpoint: 200 * time.Millisecond,
		CacheBytes: 8 << 20, MemTableBytes: 8 << 20, Logger: hclog.NewNullLogger(), stopMost: time.Hour}
	if testing.Verbose() {
		cfg.Logger = hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: testWriter{w.t}})
	}
	if w.tweak != nil {
		w.tweak(&cfg)
	}
	x, err := Open(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	w.x, w.stop, w.ended = x, stop, make(chan error, 1)
	w.mu.Lock()
	w.endpoint = wire.Endpoint{}
	w.mu.Unlock()
	go func() { w.ended <- x.Run(ctx) }()
	w.until("registration", func() bool { return w.endpoint.Admin != "" && x.identity.get().ClusterID != "" })
}

func (w *world) stopIndexer() {
	if w.stop == nil {
		return
	}
	if w.stream != nil {
		w.stream.conn.Close()
		w.stream = nil
	}
	w.stop()
	select {
	case err := <-w.ended:
		if err != nil {
			w.t.Errorf("Run: %v", err)
		}
	case <-time.After(testTimeout):
		w.t.Error("Run did not end within 5 s")
	}
	w.stop = nil
}

// until waits for a condition that reads w under its lock.
func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(testTimeout); ; {
		w.mu.Lock()
		done := ok()
		w.mu.Unlock()
		if done {
			return
		}
		if time.Now().After(deadline) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.t.Fatalf("not within %s: %s\nhealth %q\nreport %+v\nbucket %+v", testTimeout, what, w.health, w.report,
				w.buckets[testBucket])
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// serve starts the indexer with one copy, streams what was written, and waits until the copy holds it at a timestamp.
func (w *world) serve(copy index.CopyID) {
	w.t.Helper()
	w.start()
	if err := w.define(copy); err != nil {
		w.t.Fatal(err)
	}
	w.begin(nil)
	w.promote(w.t.Context())
	w.held(copy)
}

// held waits until the copies hold the newest promoted timestamp.
func (w *world) held(ids ...index.CopyID) {
	w.t.Helper()
	for _, id := range ids { // the newest one may change meanwhile, since the indexer requests timestamps
		w.until(fmt.Sprintf("copy %d holds the newest", id),
			func() bool { return w.report[id].Held.Compare(w.last.Ref) == 0 })
	}
}

type testRow struct {
	Key []int  `json:"key"`
	ID  string `json:"id"`
}

// scan reads an index over HTTP.
func (w *world) scan(id index.ID, body string) ([]testRow, error) {
	resp, err := http.Post("http://"+w.endpoint.Scan+"/v1/indexes/"+id.String()+":scan", "application/json",
		strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, rpc.ReadProblem(resp)
	}
	var rows []testRow
	for r := bufio.NewReader(resp.Body); ; {
		line, err := r.ReadBytes('\n')
		if err == io.EOF {
			return nil, fmt.Errorf("the answer was cut after %d rows", len(rows))
		}
		if bytes.HasPrefix(line, []byte(`{"end":true`)) {
			return rows, nil
		}
		if bytes.HasPrefix(line, []byte(`{"error"`)) {
			return nil, fmt.Errorf("%s", line)
		}
		var row testRow
		if err := json.Unmarshal(line, &row); err != nil {
			return nil, fmt.Errorf("%s: %w", line, err)
		}
		rows = append(rows, row)
	}
}

// check compares a session scan with what KV has.
func (w *world) check(id index.ID) {
	w.t.Helper()
	rows, err := w.scan(id, `{"consistency":"session"}`)
	if err != nil {
		w.t.Fatal(err)
	}
	want := w.oracle()
	if !slices.EqualFunc(rows, want, func(a, b testRow) bool { return a.ID == b.ID && slices.Equal(a.Key, b.Key) }) {
		w.t.Fatalf("index %v has %d rows, KV %d\n got %v\nwant %v", id, len(rows), len(want), rows, want)
	}
}

func (w *world) oracle() []testRow {
	w.mu.Lock()
	defer w.mu.Unlock()
	docs := map[string]int{}
	for vb := range testVBs {
		for _, d := range w.kv[vb] {
			docs[d.id] = d.value
		}
	}
	var rows []testRow
	for id, v := range docs {
		if v != 0 {
			rows = append(rows, testRow{Key: []int{v}, ID: id})
		}
	}
	slices.SortFunc(rows, func(a, b testRow) int {
		if a.Key[0] != b.Key[0] {
			return a.Key[0] - b.Key[0]
		}
		return strings.Compare(a.ID, b.ID)
	})
	return rows
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", bytes.TrimSpace(p))
	return len(p), nil
}
