package coordinator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"tidemark/fsm"
	"tidemark/index"
	"tidemark/internal/testing/garbage"
	"tidemark/manager/coordinator/core"
	"tidemark/partition"
	"tidemark/rebalance"
	"tidemark/statecontext"
	"tidemark/timestamp"
)

// The tests run coordinators over a real state machine, in virtual time, against projectors and indexers that
// implement the protocol and nothing else. KV is a table of high seqnos.

const vbuckets = 8

func TestMain(m *testing.M) {
	garbage.Rarely()
	os.Exit(m.Run())
}

// log replaces Raft: every proposal of the leader is committed.
type log struct {
	t       *testing.T
	machine *fsm.FSM
	mu      sync.Mutex
	index   uint64
	id      string
	lost    bool // leadership is lost: nothing can be proposed
	count   map[string]int
	bytes   int                              // of all commands committed
	refuse  func(statecontext.Command) error // nil: none is refused
}

func (g *log) ID() string                 { return g.id }
func (g *log) State() *statecontext.State { return g.machine.State() }

// StateTimeMS returns the time with which Propose stamps commands.
func (g *log) StateTimeMS() int64 { return time.Now().UnixMilli() }

func (g *log) Subscribe() *fsm.Subscription { return g.machine.Subscribe() }

func (g *log) ReadBarrier(context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lost {
		return ErrNotLeading
	}
	return nil
}

// counted returns how many commands of a type were committed.
func (g *log) counted(kind string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.count[kind]
}

func (g *log) Propose(ctx context.Context, c statecontext.Command) (statecontext.Result, error) {
	select {
	case <-time.After(time.Millisecond):
	case <-ctx.Done():
		return statecontext.Result{}, ctx.Err()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lost {
		return statecontext.Result{}, ErrNotLeading
	}
	if g.refuse != nil {
		if err := g.refuse(c); err != nil {
			return statecontext.Result{}, err
		}
	}
	c.TimeMS = max(c.TimeMS, g.StateTimeMS())
	data, err := statecontext.Encode(c)
	if err != nil {
		g.t.Error(err)
		return statecontext.Result{}, err
	}
	g.index++
	g.bytes += len(data)
	g.count[fmt.Sprintf("%T", c.Body)]++
	switch r := g.machine.Apply(&raft.Log{Index: g.index, Term: 1, Data: data}).(type) {
	case []statecontext.Result:
		return r[0], nil
	case error:
		g.t.Error(r)
		return statecontext.Result{}, r
	}
	return statecontext.Result{}, errors.New("no result")
}

// world is the environment of the coordinator.
type world struct {
	t     *testing.T
	log   *log
	ctx   context.Context
	mu    sync.Mutex
	coord *Coordinator
	stop  context.CancelFunc
	ended chan error
	term  uint64

	kv         map[string]*kvBucket
	projectors map[string]*fakeProjector // by address
	indexers   map[string]*fakeIndexer
	running    sync.WaitGroup
	says       hclog.Logger                        // of the leaders from now on; nil: none
	looks      bool                                // projectors report what their KV nodes have
	settings   core.Settings                       // of the leaders from now on
	quantiles  func(n int) (partition.Cuts, error) // of every index, for the leaders from now on; nil: not supported
	loads      func([]rebalance.Hot) ([]partition.Cuts, error)
	slow       func(req any) // blocks a component's request until it may proceed; nil: none
}

// slowly makes components wait before they carry out a request.
func (w *world) slowly(slow func(req any)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.slow = slow
}

// goOn returns when a component may proceed with a request.
func (w *world) goOn(req any) {
	w.mu.Lock()
	slow := w.slow
	w.mu.Unlock()
	if slow != nil {
		slow(req)
	}
}

type kvBucket struct {
	uuid  string
	high  [vbuckets]uint64
	logs  [vbuckets]timestamp.FailoverLog
	owner [vbuckets]index.ProjectorID
	rev   uint64
	one   bool // it is on one node, which all projectors use
}

// hosts reports whether a projector's node has a vbucket.
func (b *kvBucket) hosts(v uint16, p index.ProjectorID) bool { return b.one || b.owner[v] == p }

// node names the node of a projector.
func (b *kvBucket) node(p index.ProjectorID) string {
	if b.one {
		return "the only one"
	}
	return string(p)
}

func inWorld(t *testing.T, test func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		machine := fsm.New(hclog.NewNullLogger(), func(err error) { t.Error(err) })
		ctx, cancel := context.WithCancel(context.Background())
		w := &world{t: t, ctx: ctx, log: &log{t: t, machine: machine, id: "m1", count: map[string]int{}},
			kv:         map[string]*kvBucket{},
			projectors: map[string]*fakeProjector{}, indexers: map[string]*fakeIndexer{}}
		w.bucket("world", "uuid-1")
		defer func() { // also after t.Fatal: no goroutine may be left in the bubble
			cancel()
			w.depose()
			w.running.Wait()
		}()
		w.lead()
		test(w)
	})
}

func (w *world) bucket(name, uuid string) *kvBucket {
	b := &kvBucket{uuid: uuid, rev: 1}
	for v := range b.logs {
		b.logs[v] = timestamp.FailoverLog{{VBUUID: uint64(1000 + v)}}
		b.owner[v] = index.ProjectorID([]string{"p1", "p2"}[v%2])
		b.high[v] = 10
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kv[name] = b
	return b
}

// deleted deletes a bucket in KV.
func (w *world) deleted(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.kv, name)
}

// lead starts the next term.
func (w *world) lead() {
	w.term++
	cfg := Config{Consensus: w.log, Machine: w.log, Projectors: projectorsOf{w}, Indexers: indexersOf{w},
		REST: "http://m1", Logger: w.says, Settings: w.settings}
	if cut := w.quantiles; cut != nil {
		cfg.Quantiles = func(_ context.Context, _ *statecontext.Index, n int, _ time.Duration) (partition.Cuts, error) {
			return cut(n)
		}
	}
	if cut := w.loads; cut != nil {
		cfg.Loads = func(_ context.Context, _ *statecontext.Index, hot []rebalance.Hot, _ time.Duration) ([]partition.Cuts,
			error) {
			return cut(hot)
		}
	}
	c, err := New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	res, err := w.log.Propose(w.ctx, statecontext.Command{TimeMS: time.Now().UnixMilli(),
		Body: &statecontext.LeaderStarted{Term: w.term,
			Manager: statecontext.Manager{ID: "m1", Name: "m1", REST: "http://m1", FormatLevel: statecontext.FormatLevel}}})
	if err != nil || res.Err() != nil {
		w.t.Fatal(err, res.Err())
	}
	if w.log.State().ClusterID() == "" { // as package consensus does in the first term
		res, err := w.log.Propose(w.ctx, statecontext.Command{TimeMS: time.Now().UnixMilli(),
			Body: &statecontext.BootstrapCluster{ClusterID: "c1", Epoch: 1}})
		if err != nil || res.Err() != nil {
			w.t.Fatal(err, res.Err())
		}
	}
	ctx, cancel := context.WithCancel(w.ctx)
	w.mu.Lock()
	w.coord, w.stop, w.ended = c, cancel, make(chan error, 1)
	w.mu.Unlock()
	term := w.term
	go func() { w.ended <- c.Run(ctx, term) }()
	w.until("leading", time.Second, func() bool { _, ok := c.Status(); return ok })
}

// depose ends the term.
func (w *world) depose() {
	w.stop()
	if err, more := <-w.ended; !more {
		return
	} else if close(w.ended); err != nil && !errors.Is(err, context.Canceled) {
		w.t.Errorf("Run gave %v", err)
	}
}

func (w *world) leader() *Coordinator {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.coord
}

// until waits in virtual time. It polls less often the longer it has waited.
func (w *world) until(what string, limit time.Duration, ok func() bool) time.Duration {
	w.t.Helper()
	began := time.Now()
	for !ok() {
		if time.Since(began) > limit {
			s, _ := w.leader().Status()
			w.t.Fatalf("%s: not within %v; status %+v", what, limit, s)
		}
		time.Sleep(min(max(5*time.Millisecond, time.Since(began)/200), 100*time.Millisecond))
	}
	return time.Since(began)
}

func (w *world) state(id index.ID) index.State {
	if d := w.log.State().Definition(id); d != nil {
		return d.State
	}
	return 0
}

func (w *world) create(name, where string, partitions uint16, replicas uint8) Outcome {
	w.t.Helper()
	o, err := w.leader().CreateIndex(w.ctx, CreateRequest{Definition: index.Definition{Name: name, Bucket: "world",
		Where: where,
		Keys:  []index.KeyExpr{{Expr: "name"}}, Partitions: partitions, Replicas: replicas}})
	if err != nil {
		w.t.Fatal(err)
	}
	return o
}

// components starts p1, p2 and n indexers.
func (w *world) components(n int) {
	for _, id := range []index.ProjectorID{"p1", "p2"} {
		w.projector(id)
	}
	for i := range n {
		w.indexer(fmt.Sprintf("i%d", i+1))
	}
	w.until("registration", 5*time.Second, func() bool {
		s, _ := w.leader().Status()
		return len(s.Projectors) == 2 && len(s.Indexers) == n && s.Step == "active"
	})
}
