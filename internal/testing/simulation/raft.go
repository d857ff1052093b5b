package simulation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/fsm"
	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/manager/coordinator"
	"tidemark/manager/coordinator/core"
	"tidemark/stability"
	"tidemark/statecontext"
	"tidemark/streams"
	"tidemark/timestamp"
	"tidemark/wire"
)

// This file models the managers: one Raft log, whose entries the real state machine applies, and the leaders over it.
// Deposed leaders may not have learned yet that they are deposed.

// leader is the leader of one term.
type leader struct {
	sim     *Sim
	term    uint64
	id      string
	step    *term
	frozen  *statecontext.State // the state that a deposed leader still sees, or a new one if caughtUp is off
	deposed bool
	endMS   int64 // when a deposed leader learns of it
	lagsMS  int64 // until when a new leader lacks earlier commits, if caughtUp is off
	stale   bool  // the state has changed since the leader last read it
}

var errNet = errors.New("no answer")

// ID implements coordinator.Consensus.
func (l *leader) ID() string { return l.id }

// State implements coordinator.Consensus.
func (l *leader) State() *statecontext.State {
	if l.deposed || l.sim.nowMS < l.lagsMS {
		return l.frozen
	}
	return l.sim.state
}

// StateTimeMS implements coordinator.Consensus.
func (l *leader) StateTimeMS() int64 { return l.sim.stampMS() }

// ReadBarrier implements coordinator.Consensus.
func (l *leader) ReadBarrier(context.Context) error {
	if l.deposed && l.sim.on(freshLead) {
		return coordinator.ErrNotLeading
	}
	return nil
}

// Propose implements coordinator.Consensus.
func (l *leader) Propose(_ context.Context, c statecontext.Command) (statecontext.Result, error) {
	s := l.sim
	if l.deposed || s.chance(lostProposals, 30) {
		return statecontext.Result{}, errNet
	}
	r := s.commit(c.Body)
	if s.chance(lostProposals, 30) {
		return statecontext.Result{}, errNet // committed, but the proposer gets no answer
	}
	return r, nil
}

// Subscribe implements coordinator.Machine. It returns nil: the simulation itself notifies a term of changes.
func (l *leader) Subscribe() *fsm.Subscription { return nil }

const (
	// lostEntries is how many commands a leader may lack while newestLog or caughtUp is switched off.
	lostEntries = 3
	// lagMS is for how long a leader that has them in its log has not applied them.
	lagMS = 500
)

// commit appends a command to the log and applies it.
func (s *Sim) commit(body statecontext.Body) statecontext.Result {
	data, err := statecontext.Encode(statecontext.Command{TimeMS: s.stampMS(), WallMS: s.wallMS(), Body: body})
	if err != nil {
		s.fail("command %T cannot be encoded: %v", body, err)
		return statecontext.Result{}
	}
	s.raftIndex++
	old := s.state
	if !s.on(newestLog) || !s.on(caughtUp) {
		s.before = append(s.before, old)[max(0, len(s.before)+1-lostEntries):]
	}
	next, results, _, err := statecontext.Apply(s.state, s.raftIndex, data)
	if err != nil {
		s.fail("command %T cannot be applied: %v", body, err)
		return statecontext.Result{}
	}
	s.state = next
	s.time.seen.Saw(next.TimeMS(), s.nowMS)
	r := results[0]
	s.checkTime()
	s.checkCommit(old, next, r, body)
	s.countMove(body, r)
	s.checkSteps(body, r)
	s.checkSlices(old, body, r)
	if s.lead != nil {
		s.lead.stale = true
	}
	if s.trace {
		s.evCommit(body, r)
	}
	return r
}

func (s *Sim) evCommit(body statecontext.Body, r statecontext.Result) {
	switch c := body.(type) {
	case *statecontext.AdvanceStability:
		for _, a := range c.Buckets {
			if b := s.state.Bucket(a.Bucket); b != nil {
				s.ev("commit cas %d: S%d of %s %v of rollback %d (%v)", r.CAS, b.Stability.Number, a.Bucket,
					b.Stability.Vector.Seqnos, b.Stability.RollbackID, r.Err())
			}
		}
	case *statecontext.SetRollbackStep:
		s.ev("commit cas %d: ROLLBACK %d of %s: %v -> %v (%v)", r.CAS, c.ID, c.Bucket, c.From, c.To, r.Err())
	case *statecontext.SetIndexState:
		s.ev("commit cas %d: index %v %v -> %v (%v)", r.CAS, c.ID, c.From, c.To, r.Err())
	case *statecontext.AllocateCopies:
		s.ev("commit cas %d: copies %v (%v)", r.CAS, c.Copies, r.Err())
	case *statecontext.CreateIndex:
		s.ev("commit cas %d: CREATE %v in %s at %v (%v)", r.CAS, r.Index, c.Definition.Bucket, c.Placement, r.Err())
	case *statecontext.StartRebalance:
		s.ev("commit cas %d: REBALANCE %d %+v (%v)", r.CAS, r.Number, c.Steps, r.Err())
	case *statecontext.StepRebalance:
		s.ev("commit cas %d: step %d of rebalance %d: %v -> %v %s (%v)", r.CAS, c.Step, c.ID, c.From, c.To, c.Reason, r.Err())
	default:
		s.ev("commit cas %d: %T (%v)", r.CAS, body, r.Err())
	}
}

// settings returns the coordinator's settings, with timeouts that fit into a short run.
func (s *Sim) settings() core.Settings {
	st := stability.DefaultConfig()
	st.SilentAfter, st.StalledAfter, st.MaxOutstanding = 800*time.Millisecond, 1500*time.Millisecond, s.outstanding
	st.LateFor = 3 * time.Second
	if s.heartbeat {
		st.Source = stability.Heartbeat
	}
	mismatch := 800 * time.Millisecond
	if s.patient {
		mismatch = time.Hour
	}
	c := core.Settings{
		Stability: st,
		Streams: streams.Config{AnswerWait: 200 * time.Millisecond, BeginWait: 300 * time.Millisecond,
			RetryWait:    50 * time.Millisecond,
			MismatchWait: mismatch, ReportGrace: 300 * time.Millisecond, DealEvery: 300 * time.Millisecond, MaxDoublings: 3,
			StuckAfter: 10 * time.Second},
		Pacer: stability.Pacer{Normal: 40 * time.Millisecond, Hurried: 20 * time.Millisecond,
			Settled: 20 * time.Millisecond, MaxBytes: 256 << 10},
		HelloWait: 400 * time.Millisecond, SuspectAfter: 500 * time.Millisecond, OfflineAfter: 1200 * time.Millisecond,
		BuildAway: 3 * time.Second,
		ProbeRest: time.Hour, // SYNC, the projectors' liveness probe, is not simulated
		Republish: 400 * time.Millisecond, Audit: time.Second,
	}
	if s.mix[sizes] {
		c.SplitAbove, c.SplitAfter = sizeBound, splitAfter
	}
	if s.opt.Patient {
		c.HelloWait, c.OfflineAfter, c.Audit = time.Hour, time.Hour, time.Hour
		c.Streams.AnswerWait, c.Streams.BeginWait, c.Streams.MismatchWait = time.Hour, time.Hour, time.Hour
	}
	return c
}

// depose ends the current leader's term; the leader may continue for a while without having learned of it.
func (s *Sim) depose() {
	if l := s.lead; l != nil {
		l.deposed, l.frozen, l.endMS = true, s.state, s.nowMS+int64(s.dice.leader.Intn(1500))
		s.old = append(s.old, l)
		s.lead = nil
	}
}

// elect begins a new term.
func (s *Sim) elect() {
	s.depose()
	behind := s.state
	if len(s.before) > 0 {
		behind = s.before[0]
	}
	if !s.on(newestLog) {
		s.state = behind
	}
	s.term++
	s.time.terms++
	s.time.term = s.time.seen.Begin(s.state.TimeMS(), s.nowMS)
	l := &leader{sim: s, term: s.term, id: fmt.Sprintf("m%d", s.term%3)}
	s.commit(&statecontext.LeaderStarted{Term: s.term, Manager: statecontext.Manager{ID: l.id, Name: l.id,
		REST: "http://" + l.id, Raft: l.id, FormatLevel: 1}})
	if s.state.ClusterID() == "" {
		s.commit(&statecontext.BootstrapCluster{ClusterID: "c", Epoch: 1})
	}
	if !s.on(caughtUp) {
		l.frozen, l.lagsMS = behind, s.nowMS+lagMS
	}
	s.lead = l
	n := network{l}
	c, err := coordinator.New(coordinator.Config{Consensus: l, Machine: l, Projectors: toProjectors{n},
		Indexers: toIndexers{n},
		REST:     "http://" + l.id, Now: s.now, Settings: s.settings(), Logger: s.logger(l)})
	if err != nil {
		s.fail("leader: %v", err)
		return
	}
	l.step = newTerm(c, l, s.term)
	s.ev("LEADER of term %d: %s", s.term, l.id)
}

// legendLog writes a leader's log lines into the legend.
type legendLog struct {
	s *Sim
	l *leader
}

func (w legendLog) Write(b []byte) (int, error) {
	w.s.ev("%s: %s", w.l.id, bytes.TrimSpace(b))
	return len(b), nil
}

func (s *Sim) logger(l *leader) hclog.Logger {
	if !s.trace {
		return nil
	}
	return hclog.New(&hclog.LoggerOptions{Output: legendLog{s, l}, Level: hclog.Debug, DisableTime: true})
}

func (s *Sim) now() time.Time { return time.UnixMilli(s.nowMS) }

// leaderStep does up to three of a leader's possible actions, in random order.
func (s *Sim) leaderStep(l *leader) {
	for range 3 {
		switch s.dice.leader.Intn(4) {
		case 0:
			if n := len(l.step.proposals) + len(l.step.splits); n > 0 {
				l.step.propose(s.dice.leader.Intn(n))
			}
		case 1:
			if n := len(l.step.arrived); n > 0 {
				l.step.take(s.dice.leader.Intn(n))
				s.observe(l)
			}
		default:
			s.laneStep(l)
		}
		if l.stale && !l.deposed {
			l.stale = false
			l.step.step(core.Changed{})
		}
	}
}

func (s *Sim) laneStep(l *leader) {
	if waiting := l.step.waiting(); len(waiting) > 0 {
		l.step.say(waiting[s.dice.leader.Intn(len(waiting))])
	}
}

// tick sends the leaders a tick.
func (s *Sim) tick() {
	if s.lead != nil {
		s.lead.step.step(core.Tick{})
		s.observe(s.lead)
	}
	for _, l := range s.old {
		l.step.step(core.Tick{})
	}
	s.old = slices.DeleteFunc(s.old, func(l *leader) bool {
		if s.nowMS >= l.endMS {
			l.step.end()
			return true
		}
		return false
	})
}

// network carries a leader's requests. The leader's own queue of answers delays the answers.
type network struct{ l *leader }

// call sends a request. The request or its answer may be lost, or the request may arrive long after its sender has
// given up.
func call[T any](n network, what string, do func() (T, error)) (T, error) {
	var none T
	s := n.l.sim
	switch {
	case s.chance(lostRequests, 10):
		s.ev("term %d: %s is lost", n.l.term, what)
		return none, errNet
	case s.chance(lateRequests, 8):
		s.ev("term %d: %s is delayed", n.l.term, what)
		s.delay(func() {
			_, err := do()
			s.ev("late: %s of term %d: %v", what, n.l.term, err)
		})
		return none, errNet
	}
	v, err := do()
	if err != nil && !errors.Is(err, errNet) {
		err = rpc.AsProblem(err)
	}
	if s.trace && (n.l.deposed || err != nil) {
		s.ev("term %d: %s: %v", n.l.term, what, err)
	}
	if s.chance(lostRequests, 10) {
		return none, errNet
	}
	return v, err
}

type toProjectors struct{ network }

func toProjector[T any](t toProjectors, addr, what string, do func(p int) (T, error)) (T, error) {
	return call(t.network, what+" to "+addr, func() (T, error) {
		var none T
		p := int(addr[1] - '0')
		if !t.l.sim.proj[p].up {
			return none, errNet
		}
		return do(p)
	})
}

func (t toProjectors) Hello(_ context.Context, addr string, r *wire.HelloRequest) (*wire.ProjectorHello, error) {
	return toProjector(t, addr, "hello", func(p int) (*wire.ProjectorHello, error) { return t.l.sim.projHello(p, r) })
}

func (t toProjectors) Definitions(_ context.Context, addr string, d *wire.Definitions) (*wire.DefinitionsReply, error) {
	return toProjector(t, addr, "definitions", func(p int) (*wire.DefinitionsReply, error) {
		return t.l.sim.projDefinitions(p, d)
	})
}

func (t toProjectors) Change(_ context.Context, addr string, c *wire.DefinitionsChange) (*wire.DefinitionsReply,
	error) {
	return toProjector(t, addr, "change", func(p int) (*wire.DefinitionsReply, error) {
		return changed(c, t.l.sim.proj[p].defs, func(d *wire.Definitions) (*wire.DefinitionsReply, error) {
			return t.l.sim.projDefinitions(p, d)
		})
	})
}

// changed applies a change to the list base and passes the resulting list to take.
func changed(c *wire.DefinitionsChange, base *wire.Definitions, take func(*wire.Definitions) (*wire.DefinitionsReply,
	error)) (*wire.DefinitionsReply, error) {
	d, err := c.Apply(base)
	if err != nil {
		return &wire.DefinitionsReply{Missing: true}, nil //nolint:nilerr // the answer says it
	}
	return take(d)
}

func (t toProjectors) Bucket(_ context.Context, addr string, r *wire.BucketRequest) (*wire.BucketReply, error) {
	return toProjector(t, addr, "bucket", func(int) (*wire.BucketReply, error) {
		if b := t.l.sim.bucket(r.Bucket); b != nil {
			return &wire.BucketReply{Name: b.name, UUID: b.uuid, VBuckets: vbuckets}, nil
		}
		return nil, errNet
	})
}

func (t toProjectors) FailoverLogs(_ context.Context, addr string,
	r *wire.FailoverLogsRequest) (*wire.FailoverLogsReply, error) {
	return toProjector(t, addr, "logs", func(p int) (*wire.FailoverLogsReply, error) { return t.l.sim.projLogs(p, r) })
}

func (t toProjectors) Streams(_ context.Context, addr string, r *wire.StreamRequest) (*wire.StreamReply, error) {
	return toProjector(t, addr, "streams", func(p int) (*wire.StreamReply, error) { return t.l.sim.projStart(p, r) })
}

func (t toProjectors) Stop(_ context.Context, addr string, r *wire.StreamStop) error {
	_, err := toProjector(t, addr, "stop", func(p int) (struct{}, error) { return struct{}{}, t.l.sim.projStop(p, r) })
	return err
}

func (t toProjectors) Sync(_ context.Context, _ string, _ *wire.SyncRequest) (*wire.ProjectorReport, error) {
	return nil, errNet // only waiting scans send it
}

type toIndexers struct{ network }

func toIndexer[T any](t toIndexers, addr, what string, do func(n *node) (T, error)) (T, error) {
	return call(t.network, what+" to "+addr, func() (T, error) {
		var none T
		n := t.l.sim.nodes[int(addr[1]-'0')]
		if !n.up {
			return none, errNet
		}
		v, err := do(n)
		return v, err
	})
}

func (t toIndexers) Hello(_ context.Context, addr string, r *wire.HelloRequest) (*wire.IndexerHello, error) {
	return toIndexer(t, addr, "hello", func(n *node) (*wire.IndexerHello, error) { return t.l.sim.nodeHello(n, r) })
}

func (t toIndexers) Definitions(_ context.Context, addr string, d *wire.Definitions) (*wire.DefinitionsReply, error) {
	return toIndexer(t, addr, "definitions", func(n *node) (*wire.DefinitionsReply, error) {
		return t.l.sim.nodeDefinitions(n, d)
	})
}

func (t toIndexers) Change(_ context.Context, addr string, c *wire.DefinitionsChange) (*wire.DefinitionsReply, error) {
	return toIndexer(t, addr, "change", func(n *node) (*wire.DefinitionsReply, error) {
		return changed(c, &n.lists.InForce, func(d *wire.Definitions) (*wire.DefinitionsReply, error) {
			return t.l.sim.nodeDefinitions(n, d)
		})
	})
}

func (t toIndexers) Poll(_ context.Context, addr string, r *wire.PollRequest) (*wire.PollReply, error) {
	return toIndexer(t, addr, "poll", func(n *node) (*wire.PollReply, error) { return t.l.sim.nodePoll(n, r) })
}

func (t toIndexers) Stability(_ context.Context, addr string, r *wire.StabilityRequest) error {
	_, err := toIndexer(t, addr, "stability", func(n *node) (struct{}, error) {
		return struct{}{}, t.l.sim.nodeStability(n, r)
	})
	return err
}

func (t toIndexers) Rollback(_ context.Context, addr string, r *wire.RollbackRequest) (*wire.RollbackReply, error) {
	return toIndexer(t, addr, "rollback "+r.Step, func(n *node) (*wire.RollbackReply, error) {
		return t.l.sim.nodeRollback(n, r)
	})
}

func (t toIndexers) DropOrphans(context.Context, string, *wire.DropOrphans) (*wire.DropOrphansReply, error) {
	return &wire.DropOrphansReply{}, nil
}

// careless is the number of indexes of which one is proposed with all its copies on one node; the state refuses this
// if it has replicas.
const careless = 5

// createIndex creates an index on random nodes.
func (s *Sim) createIndex(b *kvBucket) {
	live := 0
	for range s.state.IndexesOf(b.name) {
		live++
	}
	k := s.state.Bucket(b.name)
	if live >= 3 || k == nil || k.Gone || s.state.ClusterID() == "" {
		return
	}
	s.names++
	replicas := s.dice.load.Intn(min(2, len(s.nodes)))
	off := s.dice.load.Intn(len(s.nodes))
	placement := s.places(partitions, replicas, off)
	if placement == nil {
		return
	}
	for i := range placement {
		if replicas > 0 && s.names%careless == 0 {
			placement[i].Node = placement[0].Node
		}
	}
	d := index.Definition{Bucket: b.name, BucketUUID: b.uuid, Name: fmt.Sprintf("i%d", s.names), Partitions: partitions,
		Replicas: uint8(replicas),
		Keys:     keyed(int(s.newest+1) % indexKinds), Using: index.UsingOrdered, ExprType: index.ExprN1QL}
	if s.ddl(&statecontext.CreateIndex{Definition: d, Layout: layout(partitions), Placement: placement}) {
		s.acked[ddlName(b.name, d.Name)] = created
	}
}

// places puts the copies of an index on consecutive nodes from the off-th on. It returns nil if one of them is not
// registered.
func (s *Sim) places(slices, replicas, off int) (placement []statecontext.Placement) {
	for no := range slices {
		for r := range replicas + 1 {
			n := s.nodes[(off+no+r)%len(s.nodes)]
			if n.id < 0 {
				return nil
			}
			placement = append(placement, statecontext.Placement{Slice: index.SliceID(no), Replica: partitionReplica(r),
				Node: index.NodeID(n.id)})
		}
	}
	return placement
}

// ddl commits a user's command. It may be lost, or be carried out without an answer; an acknowledged command was
// carried out.
func (s *Sim) ddl(body statecontext.Body) (acknowledged bool) {
	if s.chance(lostProposals, 4) {
		return !s.on(committed)
	}
	r := s.commit(body)
	return r.Err() == nil && !s.chance(lostProposals, 8)
}

func (s *Sim) dropIndex(b *kvBucket) {
	for x := range s.state.IndexesOf(b.name) {
		if x.Definition.Replaces == 0 && s.dice.load.Intn(2) == 0 {
			name := ddlName(b.name, x.Definition.Name)
			s.acked[name] = open // until DROP is acknowledged the index may exist or not
			if s.ddl(&statecontext.DropIndex{ID: x.Definition.ID}) {
				s.acked[name] = dropped
			}
			return
		}
	}
}

// present returns what KV holds now.
func (b *kvBucket) present() timestamp.Vector {
	t := timestamp.New(vbuckets)
	for v := range b.vb {
		k := b.vb[v].cur
		t.Set(v, timestamp.Position{VBUUID: k.fl.Newest(), Seqno: k.high()})
	}
	return t
}
