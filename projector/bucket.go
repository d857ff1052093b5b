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

// bucket is the maintenance topic of one bucket at this projector's KV node: the state that outlives connections to
// the node. The plan, the joins, the streams and the watch's sight have locks or types of their own.
type bucket struct {
	p       *Projector
	name    string
	uuid    string
	topic   *router.Topic
	calm    *feed.Calm      // of its DCP connections; hurried while a scan waits
	ctx     context.Context // ends when the bucket is closed or the projector stops
	cancel  context.CancelFunc
	control *control
	plan    atomic.Pointer[plan]
	gates   []gate // by vbucket: held while KV opens or closes its stream on request
	dialing gate

	emptied sync.Once // logs once that the default collection was emptied

	sight  sight                       // used by the watch
	hosted atomic.Pointer[wire.Hosted] // what the watch saw last; replaced when it changes

	planning sync.Mutex
	defs     *wire.Definitions // of the plan; guarded by planning
	joins    joins

	mu      sync.Mutex
	conn    *connection   // nil if there is none
	drained chan struct{} // of the newest connection so far
	streams *core.Streams[*stream]
	changed chan struct{} // closed and replaced when a complete seqno has moved
}

// openBucket returns the bucket of that name and uuid, and opens its topic if necessary, with a plan for the newest
// definitions.
func (p *Projector) openBucket(name, uuid string, vbuckets int) (*bucket, error) {
	p.opening.Lock() // one at a time; requests that only read take p.mu alone
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
		return nil, rpc.Refuse(errcode.Unavailable, "projector %s streams %d buckets, which is its limit", p.cfg.ID,
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
	if newest != defs { // newer definitions came before the bucket was in p.buckets
		return b, b.replan(newest)
	}
	return b, nil
}

// vbuckets returns the bucket's number of vbuckets.
func (b *bucket) vbuckets() int { return b.streams.VBuckets() }

// close stops everything of the bucket without waiting for its goroutines. The caller must not hold the projector's
// lock: the topic's connections may be reading the cluster's id.
func (b *bucket) close() {
	b.cancel()
	b.topic.Close()
	b.control.close()
	b.p.purges.note(b.name, nil)
	if b.p.troubles.closed(b.name) {
		b.p.notify()
	}
}

// replan makes a plan for definitions d, unless the present plan is for newer ones; workers switch to it between two
// mutations.
func (b *bucket) replan(d *wire.Definitions) error {
	b.planning.Lock()
	defer b.planning.Unlock()
	if b.defs != nil && !core.Older(b.defs, d) {
		return nil
	}
	pl, bad, err := b.p.assessor.plan(b.plan.Load(), d, b.name, keyversion.ClassMaintenance, maintenanceEndpoints(d), nil)
	for _, e := range bad {
		b.p.log.Error("index cannot be evaluated and is left out; reporting it to the "+
			"coordinator", "bucket", b.name, "error", e)
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

// applied returns the oldest definitions revision that a worker still uses.
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

// collectionEmptied logs, once, that documents are gone for which KV sends no deletions.
func (b *bucket) collectionEmptied(vb uint16) {
	b.emptied.Do(func() {
		b.p.log.Error("default collection was dropped or emptied, which indexes do not follow: its documents stay in the "+
			"bucket's indexes until these are dropped and created again",
			"bucket", b.name, "vbucket", vb)
	})
}

// moved wakes the callers that wait for complete seqnos.
func (b *bucket) moved() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.changed)
	b.changed = make(chan struct{})
}

// reached reports whether every running stream has completed its wanted seqno, and returns a channel that is closed
// when that may have changed.
func (b *bucket) reached(want []uint64) (bool, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.streams.Reached(want), b.changed
}
