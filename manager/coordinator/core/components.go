package core

import (
	"fmt"
	"slices"

	"tidemark/index"
	"tidemark/liveness"
	"tidemark/statecontext"
	"tidemark/wire"
)

// membership tracks the registered components: it sends them hellos, pushes definitions and detects silence.
type membership struct {
	*scene
	ledgers *ledgers
}

// reconcile brings the Leader's components in line with the replicated state.
func (l *membership) reconcile() {
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
				b.dropProjector(id)
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
				b.dropIndexer(id)
			}
		}
	}
}

func (l *membership) reconcileProjector(p *statecontext.Projector) {
	old := l.components.projectors[p.ID]
	if old != nil && old.boot == p.BootID && old.addr == p.Admin {
		return
	}
	open := Open{Projector: true, Name: string(p.ID), Addr: p.Admin, Boot: p.BootID}
	if old != nil {
		open.Instead = old.receiver
		if old.boot != p.BootID { // its streams ended with its process
			l.projectorGone(p.ID)
		}
	}
	l.components.projectors[p.ID] = &projector{component: l.open(open), id: p.ID,
		syncing: map[BucketRef]bool{}, probeMS: l.nowMS + l.settings.ProbeRest.Milliseconds()}
}

func (l *membership) reconcileIndexer(i *statecontext.Indexer) {
	old := l.components.indexers[i.Node]
	if old != nil && old.boot == i.BootID && old.addr == i.Admin && old.uuid == i.UUID {
		return
	}
	open := Open{Name: i.Name, Addr: i.Admin, Boot: i.BootID}
	if old != nil {
		open.Instead = old.receiver
	}
	l.components.indexers[i.Node] = &indexer{component: l.open(open), node: i.Node, uuid: i.UUID, name: i.Name,
		copies: map[index.CopyID]wire.CopyReport{}, buckets: map[string]*nodeBucket{}}
}

// open opens a receiver for a component, which counts as alive until it has been silent for OfflineAfter.
func (l *membership) open(o Open) component {
	l.displace(o.Addr)
	l.components.opened++
	o.To, o.Fence = l.components.opened, l.fence()
	// Above everything that was sent to an earlier component at this address: the state has the newer registration. The
	// process there refuses lower commands, and may have received some that were meant for the other component.
	o.Fence.Counter = firstCounter(l.now.newest)
	l.do(o)
	return component{addr: o.Addr, boot: o.Boot, receiver: o.To, contact: contact{seenMS: l.nowMS}}
}

// displace makes the leader send a hello again to the components at whose address another one has registered: from now
// on another process answers there, which refuses what is meant for them, or, if it is of an older version, accepts it.
// It may have accepted definitions already: which definitions a component has is known again only when the component
// itself has answered the hello.
func (l *membership) displace(addr string) {
	again := func(c *component) {
		if c.addr == addr && c.hello {
			c.hello, c.retry, c.pushState = false, liveness.Retry{}, pushState{}
		}
	}
	for _, p := range l.components.projectors {
		again(&p.component)
	}
	for _, n := range l.components.indexers {
		again(&n.component)
	}
}

// opened returns the component of an open receiver, nil if there is none.
func (l *membership) opened(r Receiver) *component {
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

// sendHello sends a hello to a component that has not answered one, if a retry is due.
func (l *membership) sendHello(c *component, hello Hello) {
	if !c.hello && c.retry.Ready(l.nowMS) {
		c.retry.Begin()
		l.send(c, Control, "hello", hello)
	}
}

// watch detects silence, and resends hellos and definitions when they are due.
func (l *membership) watch() {
	for _, p := range l.components.projectors {
		l.sendHello(&p.component, Hello{Projector: p.id})
	}
	for _, n := range l.components.indexers {
		l.sendHello(&n.component, Hello{Node: n.node})
		if l.active && n.hello && n.drops.Ready(l.nowMS) {
			l.dropOrphans(n)
		}
		if offline := l.isOffline(n); offline != n.offline {
			n.offline, l.heldDirty = offline, true
		}
	}
	l.pushDefinitions()
	if l.active {
		l.updateLedgers()
	}
}

// pause handles a gap between steps. Ticks arrive all the time, so a gap means that the leader itself stood still
// (its process was stopped, its machine frozen): components were not silent in that time. pause returns the length of
// the gap, 0 for a usual step.
func (l *membership) pause(nowMS int64) (ms int64) {
	ms = nowMS - l.nowMS
	if ms < l.settings.SuspectAfter.Milliseconds() {
		return 0
	}
	l.log.Warn("leader was paused; components are not counted as silent for that time", "ms", ms)
	l.startedMS += ms
	l.stood.add(span{l.stateMS, l.stateMS + ms})
	for _, p := range l.components.projectors {
		p.seenMS += ms
	}
	for _, n := range l.components.indexers {
		n.seenMS += ms
	}
	for _, b := range l.buckets.ordered {
		b.ledger.Pause(nowMS, ms)
		b.stab.Pause(ms)
		if b.rolling != nil {
			b.rolling.pausedMS += ms
		}
		if b.audit != nil {
			b.audit.pausedMS += ms
		}
	}
	return ms
}

// updateLedgers passes the live projectors and participants to the ledgers, and, after maxUnreported, that no
// projector's streams are unknown any more.
func (l *membership) updateLedgers() {
	l.watchProjectors()
	if !l.components.waited && l.nowMS-l.startedMS >= maxUnreported {
		l.components.waited = true
		for id := range l.components.projectors {
			l.spoke(id)
		}
	}
	for _, b := range l.buckets.ordered {
		l.ledgers.setParticipants(b)
	}
}

// watchProjectors passes changes of the live projectors to the ledgers.
func (l *membership) watchProjectors() {
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
		switch {
		case slices.Contains(alive, id):
		case l.components.projectors[id] == nil:
			l.log.Info("projector has stopped", "projector", id)
		default:
			l.log.Warn("projector is offline", "projector", id)
		}
	}
	l.components.alive = alive
	for _, b := range l.buckets.ordered {
		b.setProjectors(l.nowMS, alive)
	}
}

// projectorGone notifies the ledgers that a projector's process has ended.
func (l *membership) projectorGone(id index.ProjectorID) {
	rest := slices.DeleteFunc(slices.Clone(l.components.alive), func(o index.ProjectorID) bool { return o == id })
	for _, b := range l.buckets.ordered {
		b.setProjectors(l.nowMS, rest)
	}
	l.components.alive = rest
}

// spoke notifies the ledgers that a projector has reported all its streams, or that its process has none any more,
// because another one is at its address.
func (l *membership) spoke(id index.ProjectorID) {
	for _, b := range l.buckets.ordered {
		b.ledger.Reported(l.nowMS, id)
		b.due = true
	}
}

// registering rejects the registration of a second live process under one identity.
func (l *membership) registering(b *Registering) {
	var c *component
	what := "indexer " + b.UUID
	if b.UUID == "" {
		what = "projector " + string(b.Projector)
		if p := l.components.projectors[b.Projector]; p != nil {
			c = &p.component
		}
	} else {
		for _, n := range l.components.indexers {
			if n.uuid == b.UUID {
				c = &n.component
			}
		}
	}
	if c != nil && c.boot != b.Boot && c.addr != b.Addr && c.reported && l.life(c) == liveness.Active {
		reply(l.scene, b.Reply, fmt.Errorf("%w: %s at %s (boot %s) last reported %d ms ago; stop it, or wait until it "+
			"counts as offline",
			ErrBootConflict, what, c.addr, c.boot, l.nowMS-c.seenMS))
		return
	}
	reply(l.scene, b.Reply, nil)
}

// registered replies to a component that has registered.
func (l *membership) registered(r *Registered) {
	a := &wire.RegisterReply{ClusterID: l.now.state.ClusterID(), Node: r.Node, Leader: l.self, Fence: l.fence()}
	var c *component
	if n := l.components.indexers[r.Node]; r.IsNode && n != nil {
		c = &n.component
	} else if p := l.components.projectors[r.Projector]; !r.IsNode && p != nil {
		c = &p.component
	}
	if c != nil && c.boot == r.Boot {
		c.seenMS, c.reported = l.nowMS, true
	} else {
		c = nil
	}
	replyFenced(l.scene, r.Reply, a, &a.Fence, c)
}
