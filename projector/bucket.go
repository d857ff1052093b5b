package projector

import (
	"context"
	"sync"
	"sync/atomic"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/keyversion"
	"tidemark/projector/core"
	"tidemark/projector/feed"
	"tidemark/projector/router"
	"tidemark/wire"
)

// bucket is the maintenance topic of one bucket at this projector's KV node: what lasts while connections to the node
// come and go. The plan, the joins, the streams and what the watch sees have locks or types of their own.
type bucket struct {
	p       *Projector
	name    string
	uuid    string
	topic   *router.Topic
	calm    *feed.Calm      // of its connections: hurried while a scan waits
	ctx     context.Context // ends with the bucket or the projector
	cancel  context.CancelFunc
	control *control
	plan    atomic.Pointer[plan]
	gates   []gate // by vbucket: held while KV is asked to open or close its stream
	dialing gate

	emptied sync.Once // the default collection

	sight  sight                       // of the watch
	hosted atomic.Pointer[wire.Hosted] // what the watch saw last; replaced when there is news

	planning sync.Mutex
	defs     *wire.Definitions // of the plan; guarded by planning
	joins    joins

	mu      sync.Mutex
	conn    *connection   // nil when there is none
	drained chan struct{} // of the newest connection there was
	streams *core.Streams[*stream]
	changed chan struct{} // closed and replaced when a complete seqno has moved
}

// openBucket opens the topic. The plan is made of the newest definitions.
func (p *Projector) openBucket(name, uuid string, vbuckets int) (*bucket, error) {
	p.opening.Lock() // one at a time; requests that only look take p.mu alone
	defer p.opening.Unlock()
	p.mu.Lock()
	old, defs := p.buckets[name], p.defs.newest
	if old != nil && old.uuid == uuid {
		p.mu.Unlock()
		return old, nil
	}
	delete(p.buckets, name)
	full := len(p.buckets) >= core.MaxBuckets
	p.mu.Unlock()
	if old != nil {
		old.close() // re-created under the same name
	}
	if full {
		return nil, rpc.Refuse(errcode.Unavailable, "projector %s streams %d buckets, the most it can", p.cfg.ID,
			core.MaxBuckets)
	}
	if defs == nil {
		return nil, rpc.Refuse(errcode.Unavailable, "projector %s has no definitions yet; send them first", p.cfg.ID)
	}
	topic, err := p.router.Open(router.TopicConfig{Path: "/maintenance", Class: keyversion.ClassMaintenance, Bucket: name,
		BucketUUID: uuid, VBuckets: vbuckets})
	if err != nil {
		return nil, rpc.Refuse(errcode.Unavailable, "%v; try again", err)
	}
	b := &bucket{p: p, name: name, uuid: uuid, topic: topic, calm: feed.NewCalm(),
		streams: core.NewStreams[*stream](vbuckets), gates: make([]gate, vbuckets), dialing: newGate(),
		changed: make(chan struct{}), joins: joins{are: core.NewJoins(vbuckets)}}
	for v := range b.gates {
		b.gates[v] = newGate()
	}
	b.ctx, b.cancel = context.WithCancel(p.runCtx)
	b.control = p.newControl(b.ctx, name)
	if err := b.replan(defs); err != nil {
		b.close()
		return nil, err
	}
	p.mu.Lock()
	p.buckets[name] = b
	newest := p.defs.newest
	p.mu.Unlock()
	p.tasks.Go(b.watch)
	if newest != defs { // they came before it was on the list
		return b, b.replan(newest)
	}
	return b, nil
}

// vbuckets is how many the bucket has.
func (b *bucket) vbuckets() int { return b.streams.VBuckets() }

// close ends everything of the bucket; its goroutines end by themselves. Its projector's lock must not be held: the
// topic's connections may be asking for the cluster's id.
func (b *bucket) close() {
	b.cancel()
	b.topic.Close()
	b.control.close()
	b.p.purges.note(b.name, nil)
	if b.p.troubles.closed(b.name) {
		b.p.notify()
	}
}

// replan makes the plan of new definitions, unless that of newer ones is there; workers take it between two mutations.
func (b *bucket) replan(d *wire.Definitions) error {
	b.planning.Lock()
	defer b.planning.Unlock()
	if b.defs != nil && !core.Older(b.defs, d) {
		return nil
	}
	pl, bad, err := b.p.assessor.plan(b.plan.Load(), d, b.name, keyversion.ClassMaintenance, maintenanceEndpoints(d), nil)
	for _, e := range bad {
		b.p.log.Error("an index cannot be evaluated and is left out; the coordinator is told", "bucket", b.name, "error", e)
	}
	if err != nil {
		return err
	}
	pl.countFaults(&b.p.faults)
	pl.joined = b.joins.plan(pl.revision, pl.ids)
	b.defs = d
	b.plan.Store(pl)
	b.topic.Announce(pl.view)
	b.mu.Lock()
	conn := b.conn
	b.mu.Unlock()
	if conn != nil {
		conn.kick()
	}
	return nil
}

// applied is the definitions revision that all workers work with.
func (b *bucket) applied() uint64 {
	revision := b.plan.Load().revision
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn != nil {
		for _, w := range b.conn.workers {
			revision = min(revision, w.plan.Load().revision)
		}
	}
	return revision
}

// collectionEmptied says, once, that documents are gone of which KV says no deletions.
func (b *bucket) collectionEmptied(vb uint16) {
	b.emptied.Do(func() {
		b.p.log.Error("the default collection was dropped or emptied, which is not followed: its documents stay in the "+
			"bucket's indexes until these are dropped and made anew",
			"bucket", b.name, "vbucket", vb)
	})
}

// moved wakes those who wait for a complete seqno.
func (b *bucket) moved() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.changed)
	b.changed = make(chan struct{})
}

// reached reports whether every stream that runs has completed what is wanted, and returns a channel that is closed
// when that may have changed.
func (b *bucket) reached(want []uint64) (bool, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.streams.Reached(want), b.changed
}
