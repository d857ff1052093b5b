package core

import (
	"slices"

	"tidemark/index"
	"tidemark/liveness"
	"tidemark/statecontext"
	"tidemark/streams"
	"tidemark/wire"
)

// component is what projectors and indexers have in common.
type component struct {
	addr, boot string
	receiver   Receiver

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
	id index.ProjectorID
	// syncing are the buckets of which a fresh report is on its way. Its answer is lost with the process that was asked,
	// and so is this.
	syncing map[BucketRef]bool
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

// life judges by the age of the last sign of life; of one that has not been heard in this term, by the age of the term.
func (l *Leader) life(c *component) liveness.Life {
	limits := liveness.Limits{SuspectMS: l.settings.SuspectAfter.Milliseconds(),
		OfflineMS: l.settings.OfflineAfter.Milliseconds()}
	return limits.Judge(liveness.Signs{AgeMS: l.nowMS - c.seenMS, Spoken: c.heard || c.hello || c.retry.Tries > 0,
		Refused: c.refused})
}

// reconcileComponents makes the components known here those of the state.
func (l *Leader) reconcileComponents() {
	known := map[index.ProjectorID]bool{}
	for p := range l.now.state.Projectors() {
		known[p.ID] = true
		l.reconcileProjector(p)
	}
	for id, p := range l.components.projectors {
		if !known[id] {
			l.do(Close{To: p.receiver})
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
			l.do(Close{To: n.receiver})
			delete(l.components.indexers, id)
			for _, b := range l.buckets.ordered {
				b.stab.Forget(id)
			}
		}
	}
}

func (l *Leader) reconcileProjector(p *statecontext.Projector) {
	old := l.components.projectors[p.ID]
	if old != nil && old.boot == p.BootID && old.addr == p.Admin {
		return
	}
	open := Open{Projector: true, Name: string(p.ID), Addr: p.Admin}
	if old != nil {
		open.Instead = old.receiver
		if old.boot != p.BootID { // its streams have gone with its process
			l.projectorGone(p.ID)
		}
	}
	l.components.projectors[p.ID] = &projector{component: l.open(open, p.BootID), id: p.ID,
		syncing: map[BucketRef]bool{}, probeMS: l.nowMS + l.settings.ProbeRest.Milliseconds()}
}

func (l *Leader) reconcileIndexer(i *statecontext.Indexer) {
	old := l.components.indexers[i.Node]
	if old != nil && old.boot == i.BootID && old.addr == i.Admin && old.uuid == i.UUID {
		return
	}
	open := Open{Name: i.Name, Addr: i.Admin}
	if old != nil {
		open.Instead = old.receiver
	}
	l.components.indexers[i.Node] = &indexer{component: l.open(open, i.BootID), node: i.Node, uuid: i.UUID, name: i.Name,
		copies: map[index.CopyID]wire.CopyReport{}, buckets: map[string]*nodeBucket{}}
}

// open makes a component that counts as alive until its patience is over.
func (l *Leader) open(o Open, boot string) component {
	l.components.opened++
	o.To, o.Fence = l.components.opened, l.fence()
	l.do(o)
	return component{addr: o.Addr, boot: boot, receiver: o.To, seenMS: l.nowMS}
}

// tell has something said to a component.
func (l *Leader) tell(c *component, by Lane, key string, say Message) {
	l.do(Tell{To: c.receiver, Lane: by, Key: key, Say: say})
}

// opened returns the component of a receiver that is open.
func (l *Leader) opened(r Receiver) *component {
	for _, p := range l.components.projectors {
		if p.receiver == r {
			return &p.component
		}
	}
	for _, n := range l.components.indexers {
		if n.receiver == r {
			return &n.component
		}
	}
	return nil
}

// watch notices silence, and says hello and definitions again where they are due.
func (l *Leader) watch() {
	for _, p := range l.components.projectors {
		if !p.hello && p.retry.Ready(l.nowMS) {
			p.retry.Begin()
			l.tell(&p.component, Control, "hello", Greet{Projector: p.id})
		}
	}
	for _, n := range l.components.indexers {
		if !n.hello && n.retry.Ready(l.nowMS) {
			n.retry.Begin()
			l.tell(&n.component, Control, "hello", Greet{Node: n.node})
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
func (l *Leader) watchProjectors() {
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
func (l *Leader) projectorGone(id index.ProjectorID) {
	rest := slices.DeleteFunc(slices.Clone(l.components.alive), func(o index.ProjectorID) bool { return o == id })
	for _, b := range l.buckets.ordered {
		b.ledger.SetProjectors(l.nowMS, rest)
		b.due = true
	}
	l.components.alive = rest
}

func (h *ProjectorGreeted) apply(l *Leader) {
	p := l.components.projectors[h.Projector]
	if p == nil || p.receiver != h.From {
		return // it has registered anew meanwhile
	}
	if h.Err != nil {
		p.retry.Failed(l.nowMS)
		l.log.Debug("hello", "projector", p.id, "error", h.Err)
		return
	}
	p.retry.Succeeded(0)
	p.hello = true
	defer l.spoke(p.id)
	r := &h.Answer.Report
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
func (l *Leader) spoke(id index.ProjectorID) {
	for _, b := range l.buckets.ordered {
		b.ledger.Heard(l.nowMS, id)
		b.due = true
	}
}

func (h *IndexerGreeted) apply(l *Leader) {
	n := l.components.indexers[h.Node]
	if n == nil || n.receiver != h.From {
		return
	}
	if h.Err != nil {
		n.retry.Failed(l.nowMS)
		l.log.Debug("hello", "indexer", n.name, "error", h.Err)
		return
	}
	n.retry.Succeeded(0)
	n.hello = true
	r := &h.Answer.Report
	if r.BootID != n.boot {
		l.log.Warn("another process answers for an indexer; waiting for it to register", "indexer", n.name, "boot", r.BootID)
		return
	}
	n.minimum = map[string][]index.Incarnation{}
	for _, m := range h.Answer.Minimum {
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
