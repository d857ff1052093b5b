package router

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/projector/core"
	"tidemark/timestamp"
)

// Topic delivers one stream request's events: a bucket, a class, and per endpoint a queue and connections (RT-1,
// RT-4). Methods that name a vbucket must not be called concurrently for the same vbucket; different vbuckets are
// independent. The other methods are safe for concurrent use.
type Topic struct {
	cfg      TopicConfig
	router   *Router
	ctx      context.Context
	cancel   context.CancelFunc
	group    errgroup.Group
	vbuckets []vbucket
	scratch  sync.Pool // of *scratch

	mu     sync.Mutex
	lanes  map[laneKey]*lane
	closed bool
}

type laneKey struct {
	node       index.NodeID
	connection int
}

// vbucket is a vbucket's stream, as its worker uses it.
type vbucket struct {
	view    *View           // nil: not begun
	down    core.Downstream // without copies
	targets []target        // one per endpoint of view
}

// target is one endpoint's lane for one vbucket.
type target struct {
	lane *lane
	vb   *laneVB
}

// Doc is one mutation or deletion of a document. The topic keeps no reference to it.
type Doc struct {
	VBUUID uint64
	Seqno  uint64
	Window timestamp.Window
	DocID  []byte
	// Collection is the document's collection. If it has no index, the document is not routed.
	Collection uint32
	// Keys holds the complete set of collated keys for each source of the vbucket's view on the collection, empty if the
	// index has no entry for the document. Delete ignores it.
	Keys [][][]byte
}

func newTopic(r *Router, cfg TopicConfig) *Topic {
	t := &Topic{cfg: cfg, router: r, vbuckets: make([]vbucket, cfg.VBuckets), lanes: make(map[laneKey]*lane)}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.scratch.New = func() any { return new(scratch) }
	return t
}

// Begin starts a vbucket's stream, possibly anew: every endpoint of the view gets StreamBegin with its own copies;
// those that d names are ignored. Copies that an earlier incarnation fed at an endpoint that is no longer in the view
// get Deactivate. It waits only if an endpoint's queue has no room even for such messages, until ctx ends.
func (t *Topic) Begin(ctx context.Context, v *View, d core.Downstream) error {
	vb, start := d.VBucket, d.Opening.Start
	if int(vb) >= len(t.vbuckets) {
		return fmt.Errorf("%w: vbucket %d, the bucket has %d", ErrNotBegun, vb, len(t.vbuckets))
	}
	if v == nil {
		return fmt.Errorf("%w: none for vbucket %d", ErrView, vb)
	}
	s := &t.vbuckets[vb]
	old := *s
	d.Copies, d.Opening.Log = nil, d.Opening.Log.Clone()
	*s = vbucket{view: v, down: d}
	var first error
	for i := range v.endpoints {
		e := &v.endpoints[i]
		to, err := t.acquire(e, v.revision, vb)
		if err != nil {
			s.view = nil
			return err
		}
		s.targets = append(s.targets, to)
		next := s.stream(e.copies)
		if err := to.lane.control(ctx, to.vb, next, start, next.Begin(start)); err != nil && first == nil {
			first = err
		}
	}
	if err := t.leave(ctx, &old, s, start); err != nil && first == nil {
		first = err
	}
	return first
}

// leave deactivates the copies of old at endpoints that the new state no longer contains, and releases all old
// targets.
func (t *Topic) leave(ctx context.Context, old, now *vbucket, seqno uint64) (first error) {
	if old.view == nil {
		return nil
	}
	for i := range old.view.endpoints {
		e, to := &old.view.endpoints[i], old.targets[i]
		dropped := now.view.find(e.node) == nil
		if dropped {
			was := old.stream(e.copies)
			if err := to.lane.control(ctx, to.vb, nil, seqno, was.Leave(seqno)); err != nil && first == nil {
				first = err
			}
		}
		t.release(to.lane, dropped)
	}
	return first
}

// Switch changes a vbucket's view between two mutations; last is the seqno of the last one processed (see
// core.Downstream.Switch).
func (t *Topic) Switch(ctx context.Context, vb uint16, v *View, last uint64) error {
	s, err := t.begun(vb)
	if err != nil {
		return err
	}
	if v == nil {
		return fmt.Errorf("%w: none for vbucket %d", ErrView, vb)
	}
	old := *s
	s.view, s.targets = v, nil
	var first error
	for i := range v.endpoints {
		e := &v.endpoints[i]
		to, err := t.acquire(e, v.revision, vb)
		if err != nil {
			*s = vbucket{}
			return err
		}
		s.targets = append(s.targets, to)
		next := s.stream(e.copies)
		var had []index.CopyID
		was := old.view.find(e.node)
		if was != nil {
			had = was.copies
		}
		events := next.Switch(had, was != nil, last)
		if len(events) == 0 {
			continue
		}
		if err := to.lane.control(ctx, to.vb, next, last, events...); err != nil && first == nil {
			first = err
		}
	}
	if err := t.leave(ctx, &old, s, last); err != nil && first == nil {
		first = err
	}
	return first
}

// Mutation routes a document's new version: each endpoint with a slice of it gets one event that states all of them.
// Of an index that is partitioned by key, every endpoint gets a statement, even if the document has no keys there
// (RT-10). It waits while a reachable endpoint has no room (RT-6). If ctx ends first, the endpoints that did not get
// the event will get the gap announced, and ctx's error is returned.
func (t *Topic) Mutation(ctx context.Context, vb uint16, d *Doc) error {
	s, err := t.begun(vb)
	if err != nil {
		return err
	}
	v := s.view.of(d.Collection)
	switch {
	case v == nil:
		return nil
	case len(d.Keys) != len(v.sources):
		return fmt.Errorf("%w: keys of %d indexes, the view of vbucket %d has %d", ErrView, len(d.Keys), vb,
			len(v.sources))
	}
	return t.data(ctx, keyversion.Insert, s, vb, d, d.Keys)
}

// Delete routes a deletion or expiration in the same way as Mutation.
func (t *Topic) Delete(ctx context.Context, vb uint16, d *Doc) error {
	s, err := t.begun(vb)
	if err != nil {
		return err
	}
	return t.data(ctx, keyversion.Delete, s, vb, d, nil)
}

func (t *Topic) data(ctx context.Context, kind keyversion.Kind, s *vbucket, vb uint16, d *Doc,
	keys [][][]byte) (first error) {
	v := s.view.of(d.Collection)
	if v == nil {
		return nil
	}
	w := t.scratch.Get().(*scratch)
	w.route(v, d.DocID, keys)
	ev := &w.event
	ev.VBucket, ev.Incarnation, ev.VBUUID = vb, s.down.Incarnation, d.VBUUID
	ev.Seqno, ev.Window, ev.DocID = d.Seqno, d.Window, d.DocID
	for _, e := range w.touched {
		ev.Statements, ev.Rest = w.statements[e], w.rest(e)
		ev.Kind = kind
		if kind == keyversion.Insert && w.elsewhere(e) {
			ev.Kind = keyversion.UpsertDeletion
		}
		to := &s.targets[e]
		if err := to.lane.data(ctx, to.vb, ev); err != nil && first == nil {
			first = err
		}
	}
	ev.DocID, ev.Statements, ev.Rest = nil, nil, nil
	t.scratch.Put(w)
	return first
}

// Sync records that everything up to complete, the end of a DCP snapshot, was passed to the router. Each endpoint
// gets the newest such seqno at the next tick (PR-18). It never waits.
func (t *Topic) Sync(vb uint16, vbuuid, complete uint64) error {
	s, err := t.begun(vb)
	if err != nil {
		return err
	}
	for i := range s.targets {
		s.targets[i].lane.sync(s.targets[i].vb, vbuuid, complete)
	}
	return nil
}

// Urge makes a maintenance topic send at once what has gathered. It is called with each report of stream positions to
// the leader, because the next stability timestamp may cover everything reported. It never waits.
func (t *Topic) Urge() {
	for _, l := range t.allLanes() {
		l.urgeNow()
	}
}

// End ends a vbucket's stream in order: last is the seqno of the last event, reach the highest window end that was
// read (0 on a maintenance stream), sums the checksums of what was sent, if any. What is queued is still delivered.
func (t *Topic) End(ctx context.Context, vb uint16, last, reach uint64, sums keyversion.Sums) error {
	return t.finish(ctx, vb, last, func(d *core.Downstream) { d.Reach, d.Sums = reach, sums })
}

// Break ends a side stream's vbucket in order before its end: DropData states that nothing comes after last.
func (t *Topic) Break(ctx context.Context, vb uint16, last uint64) error {
	return t.finish(ctx, vb, last, func(d *core.Downstream) { d.Broken = true })
}

// finish ends a vbucket's stream; how sets the details of the end.
func (t *Topic) finish(ctx context.Context, vb uint16, last uint64, how func(*core.Downstream)) error {
	s, err := t.begun(vb)
	if err != nil {
		return err
	}
	var first error
	for i := range s.targets {
		to := &s.targets[i]
		next := s.stream(s.view.endpoints[i].copies)
		next.Ended = true
		how(next)
		if err := to.lane.control(ctx, to.vb, next, last, next.End(last)); err != nil && first == nil {
			first = err
		}
		t.release(to.lane, false)
	}
	*s = vbucket{}
	return first
}

// Drop drops a vbucket whose stream was lost: nothing is sent, and its StreamBegin is no longer repeated. It does
// nothing for a vbucket that has not begun.
func (t *Topic) Drop(vb uint16) {
	s, err := t.begun(vb)
	if err != nil {
		return
	}
	for i := range s.targets {
		s.targets[i].lane.leave(s.targets[i].vb)
		t.release(s.targets[i].lane, false)
	}
	*s = vbucket{}
}

func (t *Topic) begun(vb uint16) (*vbucket, error) {
	if int(vb) >= len(t.vbuckets) || t.vbuckets[vb].view == nil {
		return nil, fmt.Errorf("%w: vbucket %d of %s %s", ErrNotBegun, vb, t.cfg.Bucket, t.cfg.Path)
	}
	return &t.vbuckets[vb], nil
}

// stream returns the vbucket's stream as an endpoint with these copies sees it.
func (s *vbucket) stream(copies []index.CopyID) *core.Downstream {
	down := s.down
	down.Copies = copies
	return &down
}

// Announce applies a newer view before the workers switch to it one by one: addresses change at once, and an endpoint
// that is no longer in it stops holding others back.
func (t *Topic) Announce(v *View) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, l := range t.lanes {
		if e := v.find(key.node); e != nil {
			l.address(e.addr, v.revision)
		} else {
			l.leaving(v.revision)
		}
	}
}

// acquire returns the lane of an endpoint for a vbucket, and starts it if necessary.
func (t *Topic) acquire(e *endpoint, revision uint64, vb uint16) (target, error) {
	key := laneKey{e.node, int(vb) % t.router.cfg.Connections}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return target{}, fmt.Errorf("%w: %s of bucket %s", ErrClosed, t.cfg.Path, t.cfg.Bucket)
	}
	l := t.lanes[key]
	if l == nil {
		l = newLane(t, key, e.addr, revision)
		t.lanes[key] = l
		t.group.Go(func() error { return l.run(t.ctx) })
	} else {
		l.use(e.addr, revision)
	}
	l.refs++
	return target{lane: l, vb: l.vbucket(vb)}, nil
}

// release gives up a reference to a lane; dropped: the view no longer has copies at its endpoint.
func (t *Topic) release(l *lane, dropped bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l.refs--
	if l.refs == 0 {
		l.unused(dropped)
	}
}

// retire removes an unused lane from the topic; it returns false if the lane is in use again.
func (t *Topic) retire(l *lane) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l.refs > 0 {
		return false
	}
	if t.lanes[l.key] == l {
		delete(t.lanes, l.key)
	}
	return true
}

func (t *Topic) allLanes() []*lane {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]*lane, 0, len(t.lanes))
	for _, l := range t.lanes {
		all = append(all, l)
	}
	return all
}

// Drain waits until every queue is empty and acknowledged, or ctx ends.
func (t *Topic) Drain(ctx context.Context) error {
	for _, l := range t.allLanes() {
		if err := l.drained(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Close ends all connections at once and waits for them; what is queued is lost (see Drain). Calls that wait return
// an error that wraps ErrClosed. It may be called more than once.
func (t *Topic) Close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.cancel()
	_ = t.group.Wait() // run never returns an error
	t.router.closed(t)
}
