package coordinator

import (
	"context"
	"sync"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/statecontext"
	"tidemark/wire"
)

// definitions makes the message that projectors and indexers work from, once per revision.
type definitions struct {
	consensus Consensus

	mu   sync.Mutex
	last *wire.Definitions
}

// newest gives the message of the newest state, without a fence. It must not be changed.
func (d *definitions) newest() *wire.Definitions {
	s := d.consensus.State()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.last == nil || d.last.Revision != s.DefinitionsRevision() {
		d.last = define(s)
	}
	return d.last
}

// define describes a state to components.
func define(s *statecontext.State) *wire.Definitions {
	d := &wire.Definitions{Revision: s.DefinitionsRevision()}
	for b := range s.Buckets() {
		if !b.Gone {
			d.Buckets = append(d.Buckets, describeBucket(b))
		}
	}
	d.Indexes = make([]index.Definition, 0, s.IndexCount())
	d.Topologies = make([]partition.Topology, 0, s.IndexCount())
	for x := range s.Indexes() {
		if x.Waits() || x.Definition.State == index.Dropping { // hosts have nothing of it, or are to have nothing of it
			continue
		}
		d.Indexes = append(d.Indexes, x.Definition)
		d.Topologies = append(d.Topologies, x.Topology)
	}
	for i := range s.Indexers() {
		d.Indexers = append(d.Indexers, wire.Endpoint{Node: i.Node, UUID: i.UUID, BootID: i.BootID, Name: i.Name, Admin: i.Admin, Scan: i.Scan,
			Maintenance: i.Data.Maintenance, Backfill: i.Data.Backfill, Catchup: i.Data.Catchup})
	}
	for p := range s.Projectors() {
		d.Projectors = append(d.Projectors, wire.ProjectorEndpoint{ID: p.ID, BootID: p.BootID, Admin: p.Admin})
	}
	for m := range s.Managers() {
		d.Managers = append(d.Managers, wire.ManagerEndpoint{ID: m.ID, REST: m.REST})
	}
	return d
}

func describeBucket(b *statecontext.Bucket) wire.Bucket {
	w := wire.Bucket{Name: b.Name, UUID: b.UUID, VBuckets: b.VBuckets, Generation: b.Generation, RollbackID: b.Stability.RollbackID}
	if b.Rollback != nil {
		w.RollbackID, w.InRollback = b.Rollback.ID, true
	}
	return w
}

// pushSpacing is the least time between two lists for one component: what many DDL requests change in a row travels
// together.
const pushSpacing = 50 // ms

// repush is how long a component may work with an older revision than it was handed before it is handed over again.
const repush = 1000 // ms

// pushDefinitions hands the newest revision to everybody who does not work with it yet.
func (l *leader) pushDefinitions() {
	for _, p := range l.projectors {
		if l.pushDue(&p.component) {
			l.pushTo(&p.component, func(ctx context.Context, d *wire.Definitions) (*wire.DefinitionsReply, error) {
				return l.cfg.Projectors.Definitions(ctx, p.addr, d)
			})
		}
	}
	for _, n := range l.indexers {
		if l.pushDue(&n.component) {
			l.pushTo(&n.component, func(ctx context.Context, d *wire.Definitions) (*wire.DefinitionsReply, error) {
				return l.cfg.Indexers.Definitions(ctx, n.addr, d)
			})
		}
	}
}

func (l *leader) pushDue(c *component) bool {
	if c.acked >= l.revision || c.push.flying || l.nowMS-c.pushMS < pushSpacing && l.nowMS >= c.pushMS {
		return false
	}
	return c.pushed < l.revision && c.push.tries == 0 || c.push.ready(l.nowMS)
}

// pushTo sends the newest definitions. A list may make its receiver drop copies, which cannot be undone: leadership is
// checked first.
func (l *leader) pushTo(c *component, send func(context.Context, *wire.Definitions) (*wire.DefinitionsReply, error)) {
	c.push.begin()
	c.pushMS = l.nowMS
	c.control.put(task{key: "definitions", do: func(ctx context.Context) {
		a := &definitionsAnswer{c: c}
		if a.err = l.cfg.Consensus.ReadBarrier(ctx); a.err == nil {
			newest := l.cache.newest()
			a.handed = newest.Revision
			var reply *wire.DefinitionsReply
			reply, a.err = fenced(ctx, c.fences, func(f wire.Fence) (*wire.DefinitionsReply, error) {
				d := *newest
				d.Fence = f
				return send(ctx, &d)
			})
			if a.err == nil {
				a.acked = reply.Revision
			}
		}
		_ = l.post(ctx, a)
	}})
}

// definitionsAnswer is a component's answer to a push.
type definitionsAnswer struct {
	c             *component
	handed, acked uint64
	err           error
}

func (a *definitionsAnswer) apply(l *leader) {
	if a.err != nil {
		a.c.push.failed(l.nowMS)
		l.log.Debug("definitions", "to", a.c.addr, "error", a.err)
		return
	}
	a.c.seenMS = l.nowMS
	a.c.pushed, a.c.acked = max(a.c.pushed, a.handed), max(a.c.acked, a.acked)
	a.c.push.succeeded(l.nowMS + repush)
	l.dutyDue = true
	l.pushDefinitions()
}
