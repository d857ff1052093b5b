package projector

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"tidemark/index"
	"tidemark/indexer/transport"
	"tidemark/internal/rpc"
	"tidemark/internal/testing/ports"
	"tidemark/kv"
	"tidemark/kv/kvclient"
	"tidemark/kv/mcbp"
	"tidemark/kv/server"
	"tidemark/partition"
	"tidemark/projector/feed"
	"tidemark/projectorclient"
	"tidemark/streams"
	"tidemark/wire"
)

// observeFor is how long TestObserver injects faults.
var observeFor = flag.Duration("observe", 4*time.Second, "how long each part of TestObserver lets things go wrong")

// moodSeed is the seed of the drawn moods.
var moodSeed = flag.Uint64("moods.seed", 1, "of the moods that are drawn")

// kvChild is the environment variable that makes the test binary a KV node.
const kvChild = "TIDEMARK_TEST_KV"

// serveKV runs a KV node as a separate process, so that it can be killed.
func serveKV(text string) {
	var conf kv.Config
	if err := json.Unmarshal([]byte(text), &conf); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	conf.Logger = hclog.NewNullLogger()
	node, err := kv.Open(conf)
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		err = node.Run(ctx)
		stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// kvProcess is a KV node's process. It can be started, killed, and stopped in order, again and again, at the same
// addresses.
type kvProcess struct {
	t    *testing.T
	conf kv.Config
	cmd  *exec.Cmd
}

// start runs it; only the fields of kv.Config listed here are passed on.
func (k *kvProcess) start() {
	k.t.Helper()
	c := k.conf
	text, err := json.Marshal(map[string]any{"NodeID": c.NodeID, "Dir": c.Dir, "Listen": c.Listen, "Admin": c.Admin,
		"Nodes": c.Nodes, "Buckets": c.Buckets,
		"User": c.User, "Password": c.Password, "Heartbeat": 20 * time.Millisecond, "Nasty": c.Nasty})
	if err != nil {
		k.t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		k.t.Fatal(err)
	}
	k.cmd = exec.Command(self, "-test.run=^$")
	k.cmd.Env = append(os.Environ(), kvChild+"="+string(text))
	k.cmd.Stderr = os.Stderr
	if err := k.cmd.Start(); err != nil {
		k.t.Fatal(err)
	}
}

// end sends a signal and waits for the process.
func (k *kvProcess) end(s os.Signal) {
	if k.cmd != nil {
		_ = k.cmd.Process.Signal(s)
		_ = k.cmd.Wait() // killed on purpose
		k.cmd = nil
	}
}

// observedWorld is a KV cluster, a projector for each of its nodes behind a proxy that can cut connections, the
// observer as their only endpoint, and the coordinator's ledger.
type observedWorld struct {
	t       *testing.T
	nodes   []*kvProcess
	cuts    []*proxy
	roles   []*Projector
	o       *observer
	data    string // the observer's data port
	client  *projectorclient.Client
	manager *httptest.Server
	ledger  *streams.Ledger
	begun   time.Time
	counter uint64

	mu      sync.Mutex
	reports []wire.ProjectorReport
	full    map[index.ProjectorID]bool

	history   []written
	rollbacks int
	requests  int
}

func newObservedWorld(t *testing.T, nodes int, moods server.Moods) *observedWorld {
	t.Helper()
	w := &observedWorld{t: t, o: newObserver(vbuckets), client: projectorclient.New(8, nil),
		full: map[index.ProjectorID]bool{}, begun: time.Now()}
	t.Cleanup(w.client.Close)
	addrs := ports.Addrs(t, 2*nodes)
	var peers []kv.Peer
	for i := range nodes {
		peers = append(peers, kv.Peer{ID: fmt.Sprint("kv", i+1), Memcached: addrs[2*i], Admin: addrs[2*i+1]})
	}
	for i, p := range peers {
		k := &kvProcess{t: t, conf: kv.Config{NodeID: p.ID, Dir: filepath.Join(t.TempDir(), p.ID), Listen: p.Memcached,
			Admin: p.Admin, User: "u", Password: "secret", Nasty: moods,
			Nodes: peers, Buckets: []kv.BucketConfig{{Name: testBucket, UUID: testUUID, VBuckets: vbuckets,
				Replicas: min(1, nodes-1)}}}}
		k.start()
		t.Cleanup(func() { k.end(os.Kill) })
		w.nodes, w.cuts = append(w.nodes, k), append(w.cuts, newProxy(t, addrs[2*i]))
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.data = l.Addr().String()
	s := transport.NewServer(transport.ServerConfig{Logger: hclog.NewNullLogger()}, w.o.accept)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
	w.serveManager()
	for i := range w.nodes {
		p, err := Open(Config{ID: index.ProjectorID(fmt.Sprint("p", i+1)), Managers: []string{w.manager.URL},
			Admin: "127.0.0.1:0", KV: w.cuts[i].l.Addr().String(),
			User: "u", Password: "secret", Workers: 2})
		if err != nil {
			t.Fatal(err)
		}
		running(t, func(ctx context.Context) {
			if err := p.Run(ctx); err != nil {
				t.Errorf("projector: %v", err)
			}
		})
		w.roles = append(w.roles, p)
	}
	conf := streams.DefaultConfig()
	conf.BeginWait, conf.StuckAfter = 500*time.Millisecond, time.Minute
	if w.ledger, err = streams.New(conf, vbuckets, 1, 1); err != nil {
		t.Fatal(err)
	}
	return w
}

// serveManager answers the projectors' requests to managers.
func (w *observedWorld) serveManager() {
	fence := wire.Fence{ClusterID: "c1", Epoch: 1, Term: 1}
	mux := http.NewServeMux()
	mux.Handle("/v1/cluster/projectors", rpc.Message(func(context.Context,
		*wire.RegisterProjector) (*wire.RegisterReply, error) {
		return &wire.RegisterReply{ClusterID: "c1", Fence: fence, Leader: wire.Leader{ID: "m1", REST: w.manager.URL,
			Term: 1}}, nil
	}))
	mux.Handle("/v1/components/{id}/reports", rpc.Message(func(_ context.Context,
		r *wire.ProjectorReport) (*wire.ReportReply, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for i := range r.Buckets {
			if err := r.Buckets[i].Expand(); err != nil {
				w.t.Error(err)
			}
		}
		w.reports = append(w.reports, *r)
		full := w.full[r.ID]
		w.full[r.ID] = false
		return &wire.ReportReply{Known: true, Fence: fence, Full: full}, nil
	}))
	w.manager = httptest.NewServer(mux)
	w.t.Cleanup(w.manager.Close)
}

func (w *observedWorld) nowMS() int64 { return time.Since(w.begun).Milliseconds() + 1 }

func (w *observedWorld) fence() wire.Fence {
	w.counter++
	return wire.Fence{ClusterID: "c1", Epoch: 1, Term: 1, Counter: w.counter}
}

func (w *observedWorld) url(p index.ProjectorID) string {
	for _, r := range w.roles {
		if r.cfg.ID == p {
			return "http://" + r.AdminAddr()
		}
	}
	return ""
}

// define sends every projector definitions of one index on f1, whole at the observer.
func (w *observedWorld) define(ctx context.Context) {
	d := &wire.Definitions{Revision: 1, Buckets: []wire.Bucket{{Name: testBucket, UUID: testUUID, VBuckets: vbuckets,
		Generation: 1}},
		Indexers: []wire.Endpoint{{Node: 1, Maintenance: w.data}},
		Indexes: []index.Definition{{ID: 1, Bucket: testBucket, State: index.Maintenance,
			Keys: []index.KeyExpr{{Expr: "`f1`"}}}},
		Topologies: []partition.Topology{{Index: 1, Layout: partition.Layout{Scheme: partition.HashDocID, Partitions: 1},
			Copies: []partition.Copy{{ID: 10, Node: 1, State: partition.Allocated}}}}}
	var ids []index.ProjectorID
	for _, r := range w.roles {
		for {
			d.Fence = w.fence()
			if _, err := w.client.Definitions(ctx, w.url(r.cfg.ID), d); err == nil {
				break
			} else if ctx.Err() != nil {
				w.t.Fatal(err)
			}
		}
		ids = append(ids, r.cfg.ID)
	}
	w.ledger.SetProjectors(w.nowMS(), ids)
	w.ledger.SetIndexers([]index.NodeID{1})
	w.ledger.Adopt(w.nowMS(), nil, nil, nil)
	w.ledger.SetWanted(w.nowMS(), true)
}

// coordinate is one turn of the coordinator: reports go into the ledger, and its actions are carried out.
func (w *observedWorld) coordinate(ctx context.Context) {
	w.mu.Lock()
	reports := w.reports
	w.reports = nil
	w.mu.Unlock()
	for _, r := range reports {
		for _, b := range r.Buckets {
			report := streams.Report{Full: b.Full}
			for i := range b.Streams {
				st := &b.Streams[i]
				report.Streams = append(report.Streams, streams.Running{VBucket: st.VBucket, Incarnation: st.Incarnation,
					Log: st.Log, Purge: st.Purge, Revision: st.Revision, Ended: st.Ended})
			}
			if !w.ledger.Projector(w.nowMS(), r.ID, report) {
				w.mu.Lock()
				w.full[r.ID] = true
				w.mu.Unlock()
			}
		}
	}
	w.ledger.Indexer(w.nowMS(), 1, w.acceptances())
	for _, a := range w.ledger.Step(w.nowMS()) {
		w.execute(ctx, a)
	}
	if d, bad := w.ledger.Diverged(); bad {
		w.rollBack(ctx, d)
	}
}

func (w *observedWorld) acceptances() (all []streams.Acceptance) {
	w.o.mu.Lock()
	defer w.o.mu.Unlock()
	for v, s := range w.o.accepted {
		if s != nil {
			all = append(all, streams.Acceptance{VBucket: uint16(v), Incarnation: s.inc, Projector: s.projector, Open: !s.ended})
		}
	}
	return all
}

func (w *observedWorld) execute(ctx context.Context, a streams.Action) {
	if a.Kind == streams.PollPositions {
		w.o.mu.Lock()
		positions := make([]streams.Position, 0, len(a.VBuckets))
		for _, v := range a.VBuckets {
			h := w.o.at[v]
			positions = append(positions, streams.Position{VBucket: v, Participant: true, HW: h.hw, Reach: max(h.hw, h.reach),
				Log: h.log, Revision: h.revision})
		}
		w.o.mu.Unlock()
		w.ledger.Positions(1, a.Incarnation, positions)
		return
	}
	var g errgroup.Group
	answers := make([]func(), len(a.Projectors))
	for i, p := range a.Projectors {
		f := w.fence()
		g.Go(func() error { answers[i] = w.ask(ctx, p, f, a); return nil })
	}
	_ = g.Wait() // answers carry the errors
	for _, answer := range answers {
		if answer != nil {
			answer()
		}
	}
}

// ask sends an action to a projector and passes the answer to the ledger.
func (w *observedWorld) ask(ctx context.Context, p index.ProjectorID, f wire.Fence, a streams.Action) func() {
	switch a.Kind {
	case streams.FetchLogs:
		reply, err := w.client.FailoverLogs(ctx, w.url(p), &wire.FailoverLogsRequest{Fence: f, Bucket: testBucket,
			VBuckets: a.VBuckets})
		if err != nil {
			reply = &wire.FailoverLogsReply{}
		}
		logs := make([]streams.Log, 0, len(reply.Logs))
		for _, l := range reply.Logs {
			logs = append(logs, streams.Log{VBucket: l.VBucket, Log: l.Log, High: l.High, Purge: l.Purge, Revision: l.Revision})
		}
		return func() { w.ledger.Logs(p, a.Incarnation, logs) }
	case streams.StartStreams:
		req := &wire.StreamRequest{Fence: f, Topic: wire.MaintenanceTopic, Incarnation: a.Incarnation,
			Buckets: []wire.StreamBucket{{Bucket: testBucket, BucketUUID: testUUID}}}
		for _, s := range a.Starts {
			req.Buckets[0].Restart.Add(wire.StreamStart{VBucket: s.VBucket, VBUUID: s.VBUUID, Seqno: s.Seqno, Window: s.Window,
				Branch: s.Branch, Previous: s.Previous})
		}
		reply, err := w.client.Streams(ctx, w.url(p), req)
		if err != nil {
			return nil
		}
		outcomes := map[wire.StartOutcome]streams.Outcome{wire.StartBegun: streams.Streams,
			wire.StartNotMine: streams.NotMine, wire.StartRollback: streams.RolledKV, wire.StartStale: streams.Stale}
		var results []streams.Started
		for _, r := range reply.Buckets[0].Results {
			results = append(results, streams.Started{VBucket: r.VBucket, Outcome: outcomes[r.Outcome], Log: r.Log,
				Purge: r.Purge, Revision: r.Revision, Detail: r.Detail})
		}
		return func() { w.requests++; w.ledger.Started(w.nowMS(), p, a.Incarnation, results) }
	case streams.StopStreams:
		_ = w.client.Stop(ctx, w.url(p), &wire.StreamStop{Fence: f, Topic: wire.MaintenanceTopic, Bucket: testBucket,
			VBuckets: a.VBuckets, Incarnation: a.Incarnation})
	}
	return nil
}

// rollBack performs the rollback of a bucket: streams stop, positions that are not on KV's branch are reset, streams
// start again.
func (w *observedWorld) rollBack(ctx context.Context, d streams.Divergence) {
	w.rollbacks++
	w.t.Logf("rollback: vbucket %d: %s", d.VBucket, d.Reason)
	w.ledger.SetRollback(w.nowMS(), true)
	for _, a := range w.ledger.Step(w.nowMS()) {
		w.execute(ctx, a)
	}
	for _, r := range w.roles {
		reply, err := w.client.FailoverLogs(ctx, w.url(r.cfg.ID), &wire.FailoverLogsRequest{Fence: w.fence(),
			Bucket: testBucket})
		if err != nil {
			continue // its vbuckets are found to have diverged again
		}
		for _, l := range reply.Logs {
			w.o.mu.Lock()
			h := w.o.at[l.VBucket]
			w.o.mu.Unlock()
			if h.log != nil && l.Revision.Compare(h.revision) >= 0 && max(h.hw, h.reach) > h.log.Common(l.Log) {
				w.o.rollBack(l.VBucket)
			}
		}
	}
	w.ledger.SetRollback(w.nowMS(), false)
}

// writer changes documents of its own until ctx ends, and keeps what was acknowledged.
func (w *observedWorld) writer(ctx context.Context, name string, seed uint64) (history []written) {
	r := rand.New(rand.NewPCG(seed, 7))
	var c *kvclient.Client
	defer func() {
		if c != nil {
			_ = c.Close()
		}
	}()
	var seeds []string
	for _, k := range w.nodes {
		seeds = append(seeds, k.conf.Listen)
	}
	for n := 1; ctx.Err() == nil; n++ {
		var err error
		if c == nil {
			if c, err = kvclient.Connect(ctx, seeds, kvclient.Options{User: "u", Password: "secret",
				Bucket: testBucket}); err != nil {
				pause(ctx, 20*time.Millisecond)
				continue
			}
		}
		key := fmt.Sprintf("%s-%d", name, r.IntN(60))
		try, cancel := context.WithTimeout(ctx, time.Second)
		var m kvclient.Mutation
		value := ""
		if r.IntN(5) == 0 {
			m, err = c.Delete(try, key, 0)
		} else {
			value = fmt.Sprintf("[%d]", n)
			m, err = c.Set(try, key, fmt.Appendf(nil, `{"f1":%d}`, n), kvclient.StoreOptions{})
		}
		cancel()
		if err == nil {
			history = append(history, written{vb: m.VBucket, vbuuid: m.VBUUID, seqno: m.Seqno, key: key, value: value})
		}
		if r.IntN(10) == 0 {
			pause(ctx, time.Duration(r.IntN(5))*time.Millisecond)
		}
	}
	return history
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// read is the plain reader: it reads one vbucket's whole history from its owner over a DCP connection of its own.
// Each node gets limited time: a stream of a vbucket that was silently taken over never ends.
func (w *observedWorld) read(ctx context.Context, each time.Duration) (all []map[string]row, err error) {
	all = make([]map[string]row, vbuckets)
	for _, k := range w.nodes {
		if failed := readNode(ctx, each, k.conf.Listen, all); failed != nil {
			err = failed // a node that is no member reports nothing
		}
	}
	for v := range all {
		if all[v] == nil {
			return nil, fmt.Errorf("no node has vbucket %d: %w", v, err)
		}
	}
	return all, nil
}

// whileTemporary retries what a node refuses temporarily.
func whileTemporary(ctx context.Context, try func() error) error {
	for {
		err := try()
		if !errors.Is(err, feed.ErrTemporary) || ctx.Err() != nil {
			return err
		}
		pause(ctx, time.Millisecond)
	}
}

func readNode(ctx context.Context, patience time.Duration, addr string, all []map[string]row) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var c *feed.Conn
	err := whileTemporary(ctx, func() (err error) {
		c, err = feed.Dial(ctx, feed.Config{Addr: addr, Bucket: testBucket, User: "u", Password: "secret",
			Name: fmt.Sprint("reader-", time.Now().UnixNano())})
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	var highs []mcbp.VBucketSeqno
	if err := whileTemporary(ctx, func() (err error) {
		highs, err = c.HighSeqnos(ctx)
		return err
	}); err != nil {
		return err
	}
	open := map[feed.StreamID]uint16{}
	for _, h := range highs {
		if all[h.VBucket] != nil {
			return fmt.Errorf("two nodes have vbucket %d", h.VBucket)
		}
		all[h.VBucket] = map[string]row{}
		if h.Seqno == 0 {
			continue
		}
		id := c.NewStreamID()
		if err := whileTemporary(ctx, func() error {
			_, err := c.OpenStream(ctx, feed.StreamRequest{VBucket: h.VBucket, ID: id, End: h.Seqno})
			return err
		}); err != nil {
			return err
		}
		open[id] = h.VBucket
	}
	for len(open) > 0 {
		block, err := c.Next(ctx)
		if err != nil {
			return err
		}
		for i := range block.Events {
			e := &block.Events[i]
			switch {
			case e.Kind == feed.StreamEnd:
				delete(open, e.Stream)
			case e.Kind == feed.Mutation:
				all[e.VBucket][string(e.Key)] = row{e.Seqno, strings.Replace(strings.TrimSuffix(string(e.Value), "}"), `{"f1":`, "[", 1) + "]"}
			case e.Kind.IsDocument():
				all[e.VBucket][string(e.Key)] = row{seqno: e.Seqno}
			}
		}
		block.Release()
	}
	return nil
}

// settled waits until the replica equals what the plain reader finds.
func (w *observedWorld) settled(ctx context.Context) error {
	what := errors.New("nothing was read")
	each := time.Second
	for ctx.Err() == nil {
		w.coordinate(ctx)
		began := time.Now()
		kv, err := w.read(ctx, each)
		if time.Since(began) >= each {
			each *= 2 // it may as well be slow
		}
		for v := 0; err == nil && v < vbuckets; v++ {
			if text := w.o.compare(uint16(v), kv[v]); text != "" {
				err = errors.New(text)
			}
		}
		if err == nil {
			return nil
		}
		what = err
		pause(ctx, 20*time.Millisecond)
	}
	return what
}

// dump prints which component has which vbucket: the nodes, the projectors, the observer.
func (w *observedWorld) dump() string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var out strings.Builder
	m, rest := w.view(ctx)
	fmt.Fprintf(&out, "map %d.%d, at rest %v, leader %s\n", m.RevEpoch, m.Rev, rest, m.Leader)
	for i := range m.Buckets {
		fmt.Fprintf(&out, "  chains %v\n", m.Buckets[i].Chains)
	}
	for _, k := range w.nodes {
		var v kv.ClusterView
		err := kvRemote().Call(ctx, k.conf.Admin, http.MethodGet, kvCluster, nil, &v)
		fmt.Fprintf(&out, "%s: %v, ready %v, member %v, map %d.%d, progress %+v, copies %+v\n", k.conf.NodeID, err, v.Ready,
			v.Member, v.Map.RevEpoch, v.Map.Rev, v.Progress, v.Copies)
	}
	for _, r := range w.roles {
		for _, b := range r.state().Buckets {
			fmt.Fprintf(&out, "%s: connected %v, held %d, vbuckets %v ended %v seqnos %v complete %v incarnations %v vbuuids "+
				"%v\n", r.cfg.ID, b.Connected, b.HeldBytes, b.VBuckets, b.Ended,
				b.Seqnos, b.Complete, b.Incarnations, b.VBUUIDs)
		}
	}
	w.o.mu.Lock()
	defer w.o.mu.Unlock()
	for v, s := range w.o.accepted {
		if s != nil {
			fmt.Fprintf(&out, "observer, vbucket %d: %s, %v, from %d, complete %d, last %d, ended %v; holds %+v\n", v,
				s.projector, s.inc, s.begin.Start, s.complete, s.last, s.ended, w.o.at[v])
		}
	}
	return out.String()
}
