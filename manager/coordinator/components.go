package coordinator

import (
	"context"
	"slices"
	"sync"

	"tidemark/index"
	"tidemark/liveness"
	"tidemark/statecontext"
	"tidemark/streams"
	"tidemark/wire"
)

// component is what projectors and indexers have in common.
type component struct {
	addr, boot string
	cancel     context.CancelFunc
	fences     *fences
	control    *lane // hello and definitions
	commands   *lane

	seenMS   int64
	refused  bool // nobody listened at its address, and nothing was heard of it since
	heard    bool // in this term, under this boot id
	hello    bool // has answered the hello under this boot id
	full     bool // a full report was seen under this boot id
	sequence uint64
	retry    liveness.Retry // of the hello

	acked  uint64 // definitions revision that it works with
	pushed uint64 // newest revision that it was handed
	push   liveness.Retry
	pushMS int64 // when the newest push began
}

type projector struct {
	component
	id    index.ProjectorID
	syncs *lane // fresh reports for scans that wait
	// syncing are the buckets of which one is on its way. Its answer is lost with the process that was asked, and so is
	// this.
	syncing map[bucketRef]bool
	// questions are about what its KV node says. None waits for another, nor for what it is to do: the node may hang.
	questions *lane
	checks    *lane // of what its KV node says of buckets: as many as there are
	// probeMS is before when it is not asked whether it lives.
	probeMS int64
	// running is what its hello told, until the streams were adopted.
	running  map[string]wire.StreamStates
	counters wire.ProjectorCounters
	faults   map[index.ID]wire.IndexFaults // as it told last
	// evaluation is what it can evaluate, as it told last; nil: it has not, or does not know how to.
	evaluation *wire.Evaluation
	kv         []wire.KVTrouble // buckets about which it cannot ask its KV node
}

type indexer struct {
	component
	node    index.NodeID
	uuid    string
	name    string
	publish *lane
	outbox  *outbox
	health  string
	offline bool          // as the newest list of held timestamps says
	reports wire.Reported // what it said of buckets
	copies  map[index.CopyID]wire.CopyReport
	buckets map[string]*nodeBucket
	minimum map[string][]index.Incarnation // of its hello

	orphans     []wire.Orphan // as last reported
	orphanCount int
	faults      []wire.IndexFaults
	differing   differing
	drops       liveness.Retry // of orphans
}

// nodeBucket is how an indexer stands to a bucket; what it said of it is in indexer.reports.
type nodeBucket struct {
	acked   wire.StabilityRef
	toldMS  int64 // when a stability timestamp was last sent
	toldRef wire.StabilityRef
	based   bool // the first one that is told is told as a change

	judgedBy *streams.Ledger // that was told all streams which it accepts
	judgedAt uint64          // Ledger.Changes at that time
	judgedMS int64
	settled  bool // nothing that the ledger waits for

	absent absences
}

// outbox holds the newest stability timestamp of each bucket that waits to be sent to one indexer, and of buckets of
// which this leader has told it none what the leader before has probably told it.
type outbox struct {
	mu      sync.Mutex
	pending map[string]wire.Stability
	base    []wire.Stability
}

func (o *outbox) put(s wire.Stability) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pending[s.Bucket] = s
}

func (o *outbox) believe(s wire.Stability) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.base = append(o.base, s)
}

func (o *outbox) take() (all, base []wire.Stability) {
	o.mu.Lock()
	defer o.mu.Unlock()
	base, o.base = o.base, nil
	all = make([]wire.Stability, 0, len(o.pending))
	for name, s := range o.pending {
		all = append(all, s)
		delete(o.pending, name)
	}
	slices.SortFunc(all, func(a, b wire.Stability) int {
		if a.Bucket < b.Bucket {
			return -1
		}
		return 1
	})
	return all, base
}

// life judges by the age of the last sign of life; of one that has not been heard in this term, by the age of the term.
func (l *leader) life(c *component) liveness.Life {
	limits := liveness.Limits{SuspectMS: l.cfg.Settings.SuspectAfter.Milliseconds(),
		OfflineMS: l.cfg.Settings.OfflineAfter.Milliseconds()}
	return limits.Judge(liveness.Signs{AgeMS: l.nowMS - c.seenMS, Spoken: c.heard || c.hello || c.retry.Tries > 0,
		Refused: c.refused})
}

// reconcileComponents makes the components known here those of the state.
func (l *leader) reconcileComponents() {
	known := map[index.ProjectorID]bool{}
	for p := range l.now.state.Projectors() {
		known[p.ID] = true
		l.reconcileProjector(p)
	}
	for id, p := range l.components.projectors {
		if !known[id] {
			p.cancel()
			delete(l.components.projectors, id)
			for _, b := range l.buckets.ordered {
				b.ledger.Forget(id)
			}
		}
	}
	nodes := map[index.NodeID]bool{}
	for n := range l.now.state.Indexers() {
		nodes[n.Node] = true
		l.reconcileIndexer(n)
	}
	for id, n := range l.components.indexers {
		if !nodes[id] {
			n.cancel()
			delete(l.components.indexers, id)
			for _, b := range l.buckets.ordered {
				b.stab.Forget(id)
			}
		}
	}
}

func (l *leader) reconcileProjector(p *statecontext.Projector) {
	old := l.components.projectors[p.ID]
	if old != nil && old.boot == p.BootID && old.addr == p.Admin {
		return
	}
	if old != nil {
		old.cancel()
		if old.boot != p.BootID { // its streams have gone with its process
			l.projectorGone(p.ID)
		}
	}
	n := &projector{component: l.newComponent(p.Admin, p.BootID, fencesOf(old)), id: p.ID, syncs: newLane(),
		syncing:   map[bucketRef]bool{},
		questions: newLane(), checks: newLane(), probeMS: l.nowMS + l.cfg.Settings.ProbeRest.Milliseconds()}
	n.questions.workers = questionsAtOnce
	l.components.projectors[p.ID] = n
	l.open(&n.component, n.control, n.commands, n.syncs, n.questions, n.checks)
}

func fencesOf(p *projector) *fences {
	if p == nil {
		return nil
	}
	return p.fences
}

func (l *leader) reconcileIndexer(i *statecontext.Indexer) {
	old := l.components.indexers[i.Node]
	if old != nil && old.boot == i.BootID && old.addr == i.Admin && old.uuid == i.UUID {
		return
	}
	var f *fences
	if old != nil {
		old.cancel()
		f = old.fences
	}
	n := &indexer{component: l.newComponent(i.Admin, i.BootID, f), node: i.Node, uuid: i.UUID, name: i.Name,
		publish: newLane(),
		outbox:  &outbox{pending: map[string]wire.Stability{}}, copies: map[index.CopyID]wire.CopyReport{},
		buckets: map[string]*nodeBucket{}}
	l.components.indexers[i.Node] = n
	l.open(&n.component, n.control, n.commands, n.publish)
}

// newComponent is one that counts as alive until its patience is over. Fences go on where the receiver stays the same.
func (l *leader) newComponent(addr, boot string, f *fences) component {
	if f == nil {
		f = &fences{last: l.fence()}
	}
	return component{addr: addr, boot: boot, fences: f, control: newLane(), commands: newLane(), seenMS: l.nowMS}
}

// open starts the component's lanes; they end with it or with the term.
func (l *leader) open(c *component, lanes ...*lane) {
	ctx, cancel := context.WithCancel(l.ctx)
	c.cancel = cancel
	for _, q := range lanes {
		l.crew.open(ctx, c.addr, q)
	}
}

// watch notices silence, and says hello and definitions again where they are due.
func (l *leader) watch() {
	for _, p := range l.components.projectors {
		if !p.hello && p.retry.Ready(l.nowMS) {
			l.helloProjector(p)
		}
	}
	for _, n := range l.components.indexers {
		if !n.hello && n.retry.Ready(l.nowMS) {
			l.helloIndexer(n)
		}
		if l.active && n.hello && n.drops.Ready(l.nowMS) {
			l.dropOrphans(n)
		}
		if offline := l.life(&n.component) == liveness.Offline; offline != n.offline {
			n.offline, l.held.dirty = offline, true
		}
	}
	l.pushDefinitions()
	if l.active {
		l.watchProjectors()
		if !l.components.waited && l.nowMS-l.startedMS >= unheardMost {
			l.components.waited = true
			for id := range l.components.projectors {
				l.spoke(id)
			}
		}
		for _, b := range l.buckets.ordered {
			l.setParticipants(b)
		}
	}
}

// watchProjectors tells the ledgers which projectors live.
func (l *leader) watchProjectors() {
	var alive []index.ProjectorID
	for id, p := range l.components.projectors {
		if l.life(&p.component) != liveness.Offline {
			alive = append(alive, id)
		}
	}
	slices.Sort(alive)
	if slices.Equal(alive, l.components.alive) {
		return
	}
	for _, id := range l.components.alive {
		if !slices.Contains(alive, id) {
			l.log.Warn("projector is offline", "projector", id)
		}
	}
	l.components.alive = alive
	for _, b := range l.buckets.ordered {
		b.ledger.SetProjectors(l.nowMS, alive)
		b.due = true
	}
}

// projectorGone tells the ledgers that a projector's process has ended.
func (l *leader) projectorGone(id index.ProjectorID) {
	rest := slices.DeleteFunc(slices.Clone(l.components.alive), func(o index.ProjectorID) bool { return o == id })
	for _, b := range l.buckets.ordered {
		b.ledger.SetProjectors(l.nowMS, rest)
		b.due = true
	}
	l.components.alive = rest
}

func (l *leader) hello(f wire.Fence) *wire.HelloRequest {
	req := &wire.HelloRequest{Fence: f, Leader: l.self, Brief: true}
	for m := range l.cfg.Consensus.State().Managers() {
		req.Managers = append(req.Managers, wire.ManagerEndpoint{ID: m.ID, REST: m.REST})
	}
	return req
}

func (l *leader) helloProjector(p *projector) {
	p.retry.Begin()
	p.control.put(task{key: "hello", do: func(ctx context.Context) {
		a, err := fenced(ctx, p.fences, func(f wire.Fence) (*wire.ProjectorHello, error) {
			return l.cfg.Projectors.Hello(ctx, p.addr, l.hello(f))
		})
		_ = l.post(ctx, &projectorHello{p: p, answer: a, err: err})
	}})
}

func (l *leader) helloIndexer(n *indexer) {
	n.retry.Begin()
	n.control.put(task{key: "hello", do: func(ctx context.Context) {
		a, err := fenced(ctx, n.fences, func(f wire.Fence) (*wire.IndexerHello, error) {
			return l.cfg.Indexers.Hello(ctx, n.addr, l.hello(f))
		})
		_ = l.post(ctx, &indexerHello{n: n, answer: a, err: err})
	}})
}

type projectorHello struct {
	p      *projector
	answer *wire.ProjectorHello
	err    error
}

func (h *projectorHello) apply(l *leader) {
	p := h.p
	if l.components.projectors[p.id] != p {
		return // it has registered anew meanwhile
	}
	if h.err != nil {
		p.retry.Failed(l.nowMS)
		l.log.Debug("hello", "projector", p.id, "error", h.err)
		return
	}
	p.retry.Succeeded(0)
	p.hello = true
	defer l.spoke(p.id)
	r := &h.answer.Report
	if r.BootID != p.boot {
		l.log.Warn("another process answers for a projector; waiting for it to register", "projector", p.id, "boot", r.BootID)
		return
	}
	p.running = map[string]wire.StreamStates{}
	for _, s := range r.Buckets {
		p.running[s.Bucket] = s
	}
	l.takeProjectorReport(p, r, true)
}

// spoke tells the ledgers that a projector has said all that it streams.
func (l *leader) spoke(id index.ProjectorID) {
	for _, b := range l.buckets.ordered {
		b.ledger.Heard(l.nowMS, id)
		b.due = true
	}
}

type indexerHello struct {
	n      *indexer
	answer *wire.IndexerHello
	err    error
}

func (h *indexerHello) apply(l *leader) {
	n := h.n
	if l.components.indexers[n.node] != n {
		return
	}
	if h.err != nil {
		n.retry.Failed(l.nowMS)
		l.log.Debug("hello", "indexer", n.name, "error", h.err)
		return
	}
	n.retry.Succeeded(0)
	n.hello = true
	r := &h.answer.Report
	if r.BootID != n.boot {
		l.log.Warn("another process answers for an indexer; waiting for it to register", "indexer", n.name, "boot", r.BootID)
		return
	}
	n.minimum = map[string][]index.Incarnation{}
	for _, m := range h.answer.Minimum {
		n.minimum[m.Bucket] = m.Incarnations
		if b := l.buckets.byName[m.Bucket]; b != nil {
			b.ledger.Minimum(l.nowMS, m.Incarnations)
		}
	}
	r.Full = true
	l.takeIndexerReport(n, r)
	n.reports.Forget()                    // it stands outside the order of reports
	for _, b := range l.buckets.ordered { // the present S is told at every handshake, unless it is held
		if nb := n.bucket(b.name); nb.acked == b.stable.StabilityRef {
			nb.toldRef, nb.toldMS = nb.acked, l.nowMS
		} else {
			l.publish(b, n)
		}
	}
}
