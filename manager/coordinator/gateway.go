package coordinator

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/hashicorp/go-hclog"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/manager/coordinator/core"
	"tidemark/rollback"
	"tidemark/statecontext"
	"tidemark/streams"
	"tidemark/wire"
)

// Gateway carries out a term's effects: it sends messages to components, proposes, and delivers answers. Its caller
// decides when and in which order: goroutines (term.go), or the seed of a simulation. It is safe for concurrent use.
type Gateway struct {
	cfg    Config
	self   wire.Leader
	log    hclog.Logger
	cache  definitions
	traces traces
	shown  atomic.Pointer[core.Status]

	mu        sync.Mutex
	receivers map[core.Receiver]*receiver
}

// receiver is an open receiver and its fences.
type receiver struct {
	core.Open
	fences *fences
}

// next returns the fence of a new command, which only the receiver's process obeys.
func (r *receiver) next() wire.Fence { return r.meant(r.fences.next()) }

// present returns the fence of a request that is no command: it may share the newest one.
func (r *receiver) present() wire.Fence { return r.meant(r.fences.present()) }

func (r *receiver) meant(f wire.Fence) wire.Fence {
	f.Boot = r.Boot
	return f
}

func newGateway(cfg Config, self wire.Leader, log hclog.Logger) *Gateway {
	return &Gateway{cfg: cfg, self: self, log: log, cache: definitions{consensus: cfg.Consensus},
		receivers: map[core.Receiver]*receiver{}}
}

// Do carries out an effect that does not block. It does not handle Send and Propose, for which there are Send and
// Propose, nor those of the driver, such as Wake and Anew.
func (g *Gateway) Do(e core.Effect) {
	switch e := e.(type) {
	case core.Open:
		g.open(e)
	case core.Close:
		g.mu.Lock()
		delete(g.receivers, e.To)
		g.mu.Unlock()
	case core.Describe:
		g.cache.note(e.State)
	case core.Show:
		g.shown.Store(e.Status)
	case core.Stage:
		g.traces.enter(e.Build, e.Name)
	case core.BuildOver:
		g.traces.end(e.Build, e.Err)
	case core.Answer:
		e.Deliver(g.present)
	}
}

// open opens a receiver. Receivers at one address share their fences: one process answers there, whichever it is, and
// refuses what is older than the newest command that it has received.
func (g *Gateway) open(o core.Open) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := &receiver{Open: o, fences: &fences{}}
	if old := g.receivers[o.Instead]; old != nil {
		r.fences = old.fences
		delete(g.receivers, o.Instead)
	}
	for _, other := range g.receivers {
		if other.Addr == o.Addr {
			r.fences = other.fences
		}
	}
	r.fences.raise(o.Fence)
	g.receivers[o.To] = r
}

func (g *Gateway) receiver(id core.Receiver) *receiver {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.receivers[id]
}

func (g *Gateway) present(id core.Receiver) (f wire.Fence) {
	if r := g.receiver(id); r != nil {
		f = r.fences.present()
	}
	return f
}

// Propose proposes a command and returns the outcome.
func (g *Gateway) Propose(ctx context.Context, p core.Propose) core.Input {
	if p.Traced {
		ctx = g.traces.in(ctx, "")
	}
	if g.holds(p.Body) {
		return &core.Proposed{Key: p.Key, Err: errHeld}
	}
	res, err := g.cfg.Consensus.Propose(ctx, statecontext.Command{Body: p.Body})
	switch {
	case err == nil:
		err = res.Err()
	case errors.Is(err, context.Canceled):
		err = core.ErrTermOver
	}
	return &core.Proposed{Key: p.Key, Result: res, Err: err}
}

// errHeld is the outcome of a proposal that a test holds back.
var errHeld = errors.New("held back for a test")

// holds reports whether a test holds back the command.
func (g *Gateway) holds(body statecontext.Body) bool {
	if g.cfg.Hold == nil {
		return false
	}
	switch c := body.(type) {
	case *statecontext.StepRebalance:
		return g.cfg.Hold(c.To.String())
	case *statecontext.ForgetCopies:
		return g.cfg.Hold(HoldForget)
	}
	return false
}

// Send sends a message to a receiver, waits for the answer, and returns the input for the Leader; nil if there is
// none.
func (g *Gateway) Send(ctx context.Context, t core.Send) core.Input {
	r := g.receiver(t.To)
	if r == nil {
		return nil
	}
	switch m := t.Message.(type) {
	case core.Hello:
		return g.sendHello(ctx, r, m)
	case core.Push:
		return g.push(ctx, r, m)
	case core.Probe:
		return g.probe(ctx, r, m)
	case core.FetchLogs:
		return g.fetchLogs(ctx, r, m)
	case core.StartStreams:
		return g.startStreams(ctx, r, m)
	case core.StopStreams:
		g.stopStreams(ctx, r, m)
	case core.CheckBucket:
		return g.checkBucket(ctx, r, m)
	case core.RequestSync:
		return g.sync(ctx, r, m)
	case core.Poll:
		return g.poll(ctx, r, m)
	case core.PublishStable:
		g.publish(ctx, r, m)
	case core.RollBack:
		return g.rollBack(ctx, r, m)
	case core.DropOrphans:
		return g.dropOrphans(ctx, r, m)
	}
	return nil
}

func (g *Gateway) sendHello(ctx context.Context, r *receiver, m core.Hello) core.Input {
	if r.Projector {
		a, err := fenced(ctx, r, func(f wire.Fence) (*wire.ProjectorHello, error) {
			return g.cfg.Projectors.Hello(ctx, r.Addr, g.hello(f))
		})
		return &core.ProjectorHelloAnswered{Hello: m, From: r.To, Answer: a, Err: err}
	}
	a, err := fenced(ctx, r, func(f wire.Fence) (*wire.IndexerHello, error) {
		return g.cfg.Indexers.Hello(ctx, r.Addr, g.hello(f))
	})
	return &core.IndexerHelloAnswered{Hello: m, From: r.To, Answer: a, Err: err}
}

func (g *Gateway) hello(f wire.Fence) *wire.HelloRequest {
	req := &wire.HelloRequest{Fence: f, Leader: g.self}
	for m := range g.cfg.Consensus.State().Managers() {
		req.Managers = append(req.Managers, wire.ManagerEndpoint{ID: m.ID, REST: m.REST})
	}
	return req
}

// pushes is the common part of Projectors and Indexers that sends definitions.
type pushes interface {
	Definitions(ctx context.Context, addr string, req *wire.Definitions) (*wire.DefinitionsReply, error)
	Change(ctx context.Context, addr string, req *wire.DefinitionsChange) (*wire.DefinitionsReply, error)
}

// push sends the newest definitions. A list may make its receiver drop copies, which cannot be undone: leadership is
// verified first.
func (g *Gateway) push(ctx context.Context, r *receiver, m core.Push) core.Input {
	ctx = g.traces.in(ctx, "")
	var by pushes = g.cfg.Indexers
	if r.Projector {
		by = g.cfg.Projectors
	}
	a := &core.Handed{From: r.To, Addr: r.Addr}
	if a.Err = g.cfg.Consensus.ReadBarrier(ctx); a.Err != nil {
		a.Unasked = true
	} else {
		a.Handed, a.Acked, a.Err = g.hand(ctx, r, by, m.Base)
	}
	return a
}

// hand sends the changes since base, the newest revision that the component is known to have, or the full list.
func (g *Gateway) hand(ctx context.Context, r *receiver, by pushes, base uint64) (handed, acked uint64, err error) {
	if change := g.cache.since(base); change != nil {
		reply, err := fenced(ctx, r, func(f wire.Fence) (*wire.DefinitionsReply, error) {
			d := *change
			d.Fence = f
			return by.Change(ctx, r.Addr, &d)
		})
		switch {
		case err != nil:
			return 0, 0, err
		case !reply.Missing:
			return change.Revision, reply.Revision, nil
		}
	}
	newest := g.cache.newest()
	reply, err := fenced(ctx, r, func(f wire.Fence) (*wire.DefinitionsReply, error) {
		d := *newest
		d.Fence = f
		return by.Definitions(ctx, r.Addr, &d)
	})
	if err != nil {
		return 0, 0, err
	}
	return newest.Revision, reply.Revision, nil
}

// errLost is returned for a probe that ended without an answer, but not because of a deadline.
var errLost = errors.New("no answer")

func (g *Gateway) probe(ctx context.Context, r *receiver, m core.Probe) core.Input {
	err := g.probeOnce(ctx, r, m)
	if errors.Is(err, errLost) { // the connection was an old one: a new one is conclusive
		err = g.probeOnce(ctx, r, m)
	}
	return &core.Probed{Probe: m, From: r.To, Refused: errors.Is(err, syscall.ECONNREFUSED)}
}

func (g *Gateway) probeOnce(ctx context.Context, r *receiver, m core.Probe) error {
	_, err := g.cfg.Projectors.Sync(ctx, r.Addr, &wire.SyncRequest{Fence: r.present(), Bucket: m.Bucket})
	var refusal *rpc.Problem
	switch {
	case err == nil, errors.As(err, &refusal), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled),
		errors.Is(err, syscall.ECONNREFUSED):
		return err
	}
	return errors.Join(errLost, err)
}

func (g *Gateway) fetchLogs(ctx context.Context, r *receiver, m core.FetchLogs) core.Input {
	if m.For.Kind == core.ForStreams {
		ctx = g.traces.in(ctx, m.Bucket.Name)
	}
	reply, err := fenced(ctx, r, func(f wire.Fence) (*wire.FailoverLogsReply, error) {
		return g.cfg.Projectors.FailoverLogs(ctx, r.Addr, &wire.FailoverLogsRequest{Fence: f, Bucket: m.Bucket.Name,
			VBuckets: m.VBuckets})
	})
	a := &core.LogsFetched{FetchLogs: m, Err: err}
	if err != nil {
		g.log.Debug(m.For.Kind.String(), "projector", r.Name, "error", err)
		return a
	}
	a.Logs = make([]streams.Log, len(reply.Logs))
	for i, x := range reply.Logs {
		a.Logs[i] = streams.Log{VBucket: x.VBucket, Log: x.Log, High: x.High, Purge: x.Purge, Revision: x.Revision}
	}
	return a
}

func (g *Gateway) startStreams(ctx context.Context, r *receiver, m core.StartStreams) core.Input {
	ctx = g.traces.in(ctx, m.Bucket.Name)
	want := wire.StreamBucket{Bucket: m.Bucket.Name, BucketUUID: m.UUID}
	for _, s := range m.Starts {
		want.Restart.Add(wire.StreamStart{VBucket: s.VBucket, VBUUID: s.VBUUID, Seqno: s.Seqno, Window: s.Window,
			Branch: s.Branch, Previous: s.Previous})
	}
	reply, err := fenced(ctx, r, func(f wire.Fence) (*wire.StreamReply, error) {
		return g.cfg.Projectors.Streams(ctx, r.Addr, &wire.StreamRequest{Fence: f, Topic: wire.MaintenanceTopic,
			Incarnation: m.Incarnation, Buckets: []wire.StreamBucket{want}})
	})
	if err != nil || len(reply.Buckets) != 1 {
		g.log.Debug("start of streams", "projector", r.Name, "error", err)
		return notStarted(m, err)
	}
	a := &core.StreamsStarted{StartStreams: m, Results: make([]streams.Started, len(reply.Buckets[0].Results))}
	for i, x := range reply.Buckets[0].Results {
		a.Results[i] = streams.Started{VBucket: x.VBucket, Outcome: outcome(x.Outcome), Log: x.Log, Purge: x.Purge,
			Revision: x.Revision, Detail: x.Detail}
	}
	return a
}

// notStarted returns the answer of a projector that refuses to start any stream, so that it is sent the request again
// after a pause and the reason is shown; nil for any other error: the outcome is then unknown until a report or a
// timeout.
func notStarted(m core.StartStreams, err error) core.Input {
	var refusal *rpc.Problem
	if !errors.As(err, &refusal) {
		return nil
	}
	a := &core.StreamsStarted{StartStreams: m, Results: make([]streams.Started, len(m.Starts))}
	for i, s := range m.Starts {
		a.Results[i] = streams.Started{VBucket: s.VBucket, Outcome: streams.Failed, Detail: refusal.Error()}
	}
	return a
}

func outcome(o wire.StartOutcome) streams.Outcome {
	switch o {
	case wire.StartBegun:
		return streams.Streams
	case wire.StartNotMine:
		return streams.NotMine
	case wire.StartRollback:
		return streams.RolledKV
	case wire.StartStale:
		return streams.Stale
	}
	return streams.Failed
}

func (g *Gateway) stopStreams(ctx context.Context, r *receiver, m core.StopStreams) {
	_, err := fenced(ctx, r, func(f wire.Fence) (struct{}, error) {
		return struct{}{}, g.cfg.Projectors.Stop(ctx, r.Addr, &wire.StreamStop{Fence: f, Topic: wire.MaintenanceTopic,
			Bucket: m.Bucket.Name, VBuckets: m.VBuckets, Incarnation: m.Incarnation})
	})
	if err != nil {
		g.log.Debug("stop of streams", "projector", r.Name, "error", err) // its next report causes a retry
	}
}

func (g *Gateway) checkBucket(ctx context.Context, r *receiver, m core.CheckBucket) core.Input {
	reply, err := g.cfg.Projectors.Bucket(ctx, r.Addr, &wire.BucketRequest{Bucket: m.Bucket, Boot: r.Boot,
		Collections: m.Collections})
	if err != nil {
		reply = nil
	}
	var p *rpc.Problem
	return &core.BucketChecked{CheckBucket: m, Found: reply, Err: err,
		Unknown: errors.As(err, &p) && p.Status == http.StatusNotFound && p.Code == errcode.BucketNotInKV}
}

func (g *Gateway) sync(ctx context.Context, r *receiver, m core.RequestSync) core.Input {
	report, err := g.cfg.Projectors.Sync(ctx, r.Addr, &wire.SyncRequest{Fence: r.present(), Bucket: m.Bucket.Name,
		Want: m.Want, WaitMS: core.SyncWait})
	return &core.Synced{RequestSync: m, From: r.To, Report: report, Err: err}
}

func (g *Gateway) poll(ctx context.Context, r *receiver, m core.Poll) core.Input {
	ctx = g.traces.in(ctx, m.Bucket.Name)
	all, err := fenced(ctx, r, func(f wire.Fence) ([]wire.PollPosition, error) {
		reply, err := g.cfg.Indexers.Poll(ctx, r.Addr, &wire.PollRequest{Fence: f, Bucket: m.Bucket.Name,
			VBuckets: m.VBuckets, Incarnation: m.Incarnation})
		if err != nil {
			return nil, err
		}
		return reply.Positions()
	})
	if err != nil {
		g.log.Debug("poll", "indexer", r.Name, "error", err)
		return nil
	}
	a := &core.Polled{Poll: m, Positions: make([]streams.Position, len(all))}
	for i, p := range all {
		a.Positions[i] = streams.Position(p)
	}
	return a
}

func (g *Gateway) publish(ctx context.Context, r *receiver, m core.PublishStable) {
	ctx = g.traces.in(ctx, m.Newest[len(m.Newest)-1].Bucket)
	_, err := fenced(ctx, r, func(f wire.Fence) (struct{}, error) {
		return struct{}{}, g.cfg.Indexers.Stability(ctx, r.Addr, &wire.StabilityRequest{Fence: f, Stabilities: m.Sorted(),
			Base: m.Base})
	})
	if err != nil {
		g.log.Debug("stability timestamp", "indexer", r.Name, "error", err) // sent again when it is late
	}
}

// rollBack takes an indexer through a step of a rollback. What it restores cannot be undone: leadership is verified
// first.
func (g *Gateway) rollBack(ctx context.Context, r *receiver, m core.RollBack) core.Input {
	if err := g.cfg.Consensus.ReadBarrier(ctx); err != nil {
		return nil
	}
	reply, err := fenced(ctx, r, func(f wire.Fence) (*wire.RollbackReply, error) {
		return g.cfg.Indexers.Rollback(ctx, r.Addr, &wire.RollbackRequest{Fence: f, Bucket: m.Bucket.Name,
			Generation: m.Bucket.Generation, RollbackID: m.ID, Step: m.Step, Logs: m.Logs, Incarnation: m.Incarnation})
	})
	if err != nil {
		g.log.Debug("rollback step", "indexer", r.Name, "step", m.Step, "error", err)
		return nil
	}
	return &core.RolledBack{RollBack: m, Reply: rollback.Reply{Stale: reply.Stale, Restart: reply.Restart}}
}

// dropOrphans sends an indexer those of its orphans that the StateContext does not place on it (IM-8). That cannot be
// undone: leadership is verified first, and nothing is dropped during a restore.
func (g *Gateway) dropOrphans(ctx context.Context, r *receiver, m core.DropOrphans) core.Input {
	a := &core.OrphansDropped{From: r.To, Name: r.Name}
	if a.Err = g.cfg.Consensus.ReadBarrier(ctx); a.Err != nil {
		return a
	}
	orphans := unknown(g.cfg.Consensus.State(), m.Node, m.Copies)
	if len(orphans) == 0 {
		return a
	}
	reply, err := fenced(ctx, r, func(f wire.Fence) (*wire.DropOrphansReply, error) {
		return g.cfg.Indexers.DropOrphans(ctx, r.Addr, &wire.DropOrphans{Fence: f, Copies: orphans})
	})
	if a.Err = err; err == nil {
		a.Dropped = reply.Dropped
	}
	return a
}

// unknown returns the copies that a state does not place on a node, in any state of their index.
func unknown(s *statecontext.State, node index.NodeID, copies []wire.OrphanRef) (none []wire.OrphanRef) {
	if s.Staging() != nil {
		return nil
	}
	known := map[index.CopyID]bool{}
	for x := range s.Indexes() {
		for _, c := range x.Topology.Copies {
			if c.Node == node {
				known[c.ID] = true
			}
		}
	}
	for _, r := range copies {
		if !known[r.Copy] {
			none = append(none, r)
		}
	}
	return none
}
