package router

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"tidemark/keyversion"
	"tidemark/projector/core"
)

// lane is one connection's queue to an endpoint: the frame being filled, the frames sealed and not yet acknowledged,
// and for each vbucket its stream's position at the end of the queue and at the last acknowledgement. Workers fill
// it; its own loop (sender.go) sends it.
type lane struct {
	topic *Topic
	key   laneKey
	limit int // of unacknowledged data, in bytes
	spare int // bytes on top of limit for control messages
	lossy bool
	wake  chan struct{} // capacity 1: wakes the loop
	refs  int           // vbuckets that use it; guarded by topic.mu

	mu       sync.Mutex
	link     link
	need     need
	slow     slowness
	vbuckets map[uint16]*laneVB
	out      outbox
	dropped  []*laneVB
	dirty    []*laneVB // have Syncs to be sent
	due      due
	changed  chan struct{}
	stats    Stats
}

// due is when the open frame and the Syncs are sent.
type due struct {
	lastSend time.Time
	syncAt   time.Time // zero: none due
	calm     calm
}

// calm is the state of a lane that gathers data before it sends.
type calm struct {
	on    bool
	until time.Time // latest time of the loop's next check; zero: it waits for wake
	urged bool      // what has gathered has to be sent now
}

// laneVB is a vbucket's stream on a lane.
type laneVB struct {
	vb uint16
	// State at the end of the queue: stream is nil if the vbucket is not fed.
	stream *core.Downstream
	seqno  uint64
	// State acknowledged by the endpoint: StreamBegin is repeated from here.
	ackedStream *core.Downstream
	ackedSeqno  uint64
	// While dropping is set, nothing is queued; firstDropped is 0 if no data has been lost so far.
	dropping     bool
	firstDropped uint64

	dirty      bool // a Sync is to be sent
	listed     bool // in lane.dirty
	syncVBUUID uint64
	syncSeqno  uint64
}

func newLane(t *Topic, key laneKey, addr string, revision uint64) *lane {
	cfg := &t.router.cfg
	l := &lane{
		topic: t, key: key, link: link{addr: addr, revision: revision},
		limit: max(cfg.QueueBytes/cfg.Connections, 1), spare: cfg.ReservedBytes / cfg.Connections,
		lossy: t.cfg.Class == keyversion.ClassMaintenance,
		wake:  make(chan struct{}, 1), changed: make(chan struct{}),
		vbuckets: make(map[uint16]*laneVB), out: outbox{open: new(frame)},
	}
	l.due.calm.on = l.lossy // receivers of side streams use data as soon as it arrives
	if j := t.router.judge; l.lossy && j.smart {
		l.slow = slowness{judge: j, node: key.node}
		j.join(key.node)
	}
	return l
}

// vbucket returns the state of a vbucket, and creates it if necessary.
func (l *lane) vbucket(vb uint16) *laneVB {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.vbuckets[vb]
	if s == nil {
		s = &laneVB{vb: vb}
		l.vbuckets[vb] = s
	}
	return s
}

// signal wakes the loop.
func (l *lane) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// urge makes the loop send at once what has gathered. The caller holds the lock.
func (l *lane) urge() {
	if !l.due.calm.on || l.due.calm.urged || len(l.dirty) == 0 && l.out.open.enc.Events() == 0 {
		return
	}
	l.due.calm.urged = true
	l.signal()
}

// urgeNow is urge for a caller that does not hold the lock.
func (l *lane) urgeNow() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.urge()
}

// broadcast wakes all goroutines that wait for a change of state or for room.
func (l *lane) broadcast() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// tryKey identifies attempts to connect at the present address. The caller holds the lock.
func (l *lane) tryKey() tryKey {
	return tryKey{node: l.key.node, addr: l.link.addr, bucket: l.topic.cfg.Bucket, connection: l.key.connection}
}

func (l *lane) errClosed() error {
	return fmt.Errorf("%w: %s of bucket %s, node %d", ErrClosed, l.topic.cfg.Path, l.topic.cfg.Bucket, l.key.node)
}

// room reports whether something may be queued. An empty queue accepts an event of any size.
func (l *lane) room(extra int) bool { return l.out.memory() < l.bound()+extra || l.out.empty() }

// bound returns the lane's part of limit, which other routers may share: at least one batch.
func (l *lane) bound() int {
	sharers := l.topic.router.cfg.Sharers
	if sharers == nil {
		return l.limit
	}
	return max(l.limit/max(sharers(), 1), min(l.limit, batchBytes))
}

// loses reports whether a full queue drops instead of waiting. If not, again is when to check again; 0 means after
// the next change.
func (l *lane) loses() (yes bool, again time.Duration) {
	if l.link.state == down && l.lossy || l.need.unwanted {
		return true, 0
	}
	yes, began, again := l.slow.drops()
	if began {
		l.stats.Slow++
	}
	return yes, again
}

// data queues one data event, waits for room, or drops the event. The caller may reuse ev and all it refers to.
func (l *lane) data(ctx context.Context, s *laneVB, ev *keyversion.Event) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		switch {
		case l.link.state == gone:
			return l.errClosed()
		case s.dropping || s.stream == nil:
			l.drop(s, ev.Seqno)
			return nil
		case l.room(0):
			l.stats.Events++
			if ev.Kind == keyversion.UpsertDeletion {
				l.stats.UpsertDeletions++
			}
			return l.putData(s, ev)
		}
		lost, again := l.loses()
		if lost {
			l.drop(s, ev.Seqno)
			return nil
		}
		if err := l.stall(ctx, again); err != nil {
			l.drop(s, ev.Seqno)
			l.signal()
			return err
		}
	}
}

// stall waits for room, which counts against the endpoint, but no longer than limit unless that is 0.
func (l *lane) stall(ctx context.Context, limit time.Duration) error {
	l.stats.Stalls++
	l.urge() // the open frame takes up room, too
	began := time.Now()
	free := l.slow.hold()
	err := l.wait(ctx, limit)
	free()
	l.stats.Held += time.Since(began).Seconds()
	return err
}

// wait releases the lock until something has changed, but for no longer than limit unless that is 0.
func (l *lane) wait(ctx context.Context, limit time.Duration) error {
	changed := l.changed
	l.mu.Unlock()
	defer l.mu.Lock()
	var late <-chan time.Time
	if limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-changed:
		return nil
	case <-late:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("queue to node %d is full: %w", l.key.node, context.Cause(ctx))
	}
}

// drop drops an event and records the first one dropped.
func (l *lane) drop(s *laneVB, seqno uint64) {
	if s.stream == nil {
		return
	}
	if !s.dropping {
		s.dropping = true
		l.dropped = append(l.dropped, s)
	}
	if s.firstDropped == 0 {
		s.firstDropped = seqno
		l.stats.Drops++
	}
	s.seqno = max(s.seqno, seqno)
	l.stats.DroppedEvents++
}

// control queues messages that change a vbucket's stream to next (nil: no longer fed), after which the end of the
// queue is at seqno. They may use the reserved room. While the vbucket is dropping, only the state changes: a later
// StreamBegin conveys it.
func (l *lane) control(ctx context.Context, s *laneVB, next *core.Downstream, seqno uint64,
	events ...keyversion.Event) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		switch {
		case l.link.state == gone:
			return l.errClosed()
		case s.dropping:
			l.turnSilently(s, next, seqno)
			return nil
		case l.room(l.spare):
			l.flushSync(s)
			l.turn(s, next, seqno)
			err := l.append(s, events...)
			if next == nil {
				l.out.markUnfed(s)
			}
			return err
		}
		lost, again := l.loses()
		if lost {
			l.turnSilently(s, next, seqno)
			return nil
		}
		if err := l.stall(ctx, again); err != nil {
			l.turnSilently(s, next, seqno)
			l.signal()
			return err
		}
	}
}

// turn makes next the stream at the end of the queue.
func (l *lane) turn(s *laneVB, next *core.Downstream, seqno uint64) {
	s.stream, s.seqno, s.dirty = next, seqno, false
}

// turnSilently makes next the stream at the end of the queue without queuing anything; a later StreamBegin conveys it.
func (l *lane) turnSilently(s *laneVB, next *core.Downstream, seqno uint64) {
	l.turn(s, next, seqno)
	switch {
	case next == nil:
		l.stopDropping(s)
		l.out.markUnfed(s)
	case !s.dropping:
		s.dropping = true
		l.dropped = append(l.dropped, s)
	}
}

// stopDropping removes a vbucket that is no longer fed from the list of dropped ones.
func (l *lane) stopDropping(s *laneVB) {
	s.dropping, s.firstDropped = false, 0
	if i := slices.Index(l.dropped, s); i >= 0 {
		l.dropped = slices.Delete(l.dropped, i, i+1)
	}
}

func (l *lane) leave(s *laneVB) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turnSilently(s, nil, s.seqno)
}

// sync records a complete seqno; the loop sends it at its next tick.
func (l *lane) sync(s *laneVB, vbuuid, complete uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.stream == nil || s.stream.Ended {
		return
	}
	s.syncVBUUID, s.syncSeqno = vbuuid, complete
	if s.dirty {
		return
	}
	s.dirty = true
	if s.listed {
		return
	}
	s.listed = true
	l.dirty = append(l.dirty, s)
	if len(l.dirty) == 1 {
		l.begins()
	}
}

// flushSync queues a vbucket's Sync, if there is one; while the vbucket is dropping, it stays for resume.
func (l *lane) flushSync(s *laneVB) {
	if !s.dirty || s.dropping || s.stream == nil {
		return
	}
	s.dirty = false
	s.seqno = max(s.seqno, s.syncSeqno)
	l.stats.Syncs++
	ev := s.stream.Sync(s.syncVBUUID, s.syncSeqno)
	_ = l.put(s, &ev) // a Sync fits into any frame; put seals a full one first
}

// flushSyncs queues all pending Syncs while there is room.
func (l *lane) flushSyncs() {
	n := 0
	for n < len(l.dirty) && l.room(l.spare) {
		l.dirty[n].listed = false
		l.flushSync(l.dirty[n])
		n++
	}
	l.dirty = slices.Delete(l.dirty, 0, n)
	if l.empty() {
		l.broadcast()
	}
}

// resume ends the dropping of all vbuckets: each one gets the first lost seqno and the seqno at which its stream
// continues.
func (l *lane) resume() {
	for _, s := range l.dropped {
		events := s.stream.Resume(s.firstDropped, s.seqno)
		_ = l.append(s, events...) // they fitted into a frame before
		s.dropping, s.firstDropped = false, 0
		l.flushSync(s)
	}
	clear(l.dropped)
	l.dropped = l.dropped[:0]
}

// putData queues a data event; if it does not fit into a frame, it is sent in parts.
func (l *lane) putData(s *laneVB, ev *keyversion.Event) error {
	before := s.seqno
	s.seqno = max(s.seqno, ev.Seqno)
	err := l.put(s, ev)
	if err == nil || !errors.Is(err, keyversion.ErrTooLarge) {
		return err
	}
	return l.putParts(s, ev, before)
}

// put appends an event to the open frame, and seals the frame before or after if it is full.
func (l *lane) put(s *laneVB, ev *keyversion.Event) error {
	err := l.out.open.enc.Append(ev)
	if err != nil && l.out.open.enc.Events() > 0 {
		l.seal()
		err = l.out.open.enc.Append(ev)
	}
	if err != nil {
		return fmt.Errorf("bucket %s, node %d: %w", l.topic.cfg.Bucket, l.key.node, err)
	}
	l.out.open.partial = ev.More
	l.out.mark(s)
	l.closeFull()
	return nil
}

// append puts a vbucket's control messages into one frame, so that they are acknowledged together.
func (l *lane) append(s *laneVB, events ...keyversion.Event) error {
	for again := range 2 {
		fits := true
		for i := 0; i < len(events) && fits; i++ {
			err := l.out.open.enc.Append(&events[i])
			if err != nil && (again > 0 || l.out.open.enc.Events() == 0) {
				return fmt.Errorf("bucket %s, node %d: %w", l.topic.cfg.Bucket, l.key.node, err)
			}
			fits = err == nil
		}
		if fits {
			break
		}
		l.seal() // repeating a vbucket's messages is harmless
	}
	l.out.mark(s)
	l.closeFull()
	if len(events) > 1 { // an empty frame may have got several: closeFull wakes the loop for the first alone
		l.signal()
	}
	l.urge() // the coordinator waits for copies that join or leave a stream
	return nil
}

func (l *lane) closeFull() {
	if l.out.full() {
		l.seal()
	} else if l.out.open.enc.Events() == 1 {
		l.begins()
	}
}

// begins wakes the loop when something begins to gather, unless the loop is due to check anyway.
func (l *lane) begins() {
	if l.due.calm.until.IsZero() {
		l.signal()
	}
}

// seal seals the open frame.
func (l *lane) seal() {
	f := l.out.seal()
	l.stats.Batches++
	l.stats.Bytes += uint64(len(f.bytes))
	l.signal()
}

// acknowledged removes what the endpoint has acknowledged from the queue.
func (l *lane) acknowledged(epoch, number uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if epoch != l.link.epoch {
		return // of an earlier connection
	}
	if l.out.acknowledged(number) == 0 {
		return
	}
	if l.link.progress != epoch {
		l.link.progress = epoch
		l.topic.router.tries.drop(l.tryKey())
	}
	l.broadcast()
	if len(l.dropped) > 0 || l.need.idle || l.slow.slow {
		l.signal()
	}
}

// use records that a vbucket uses the lane, under a view of this revision and address.
func (l *lane) use(addr string, revision uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.need.idle, l.need.expired = false, false
	l.need.stop()
	l.moveTo(addr, revision)
}

// address applies the endpoint's address of a newer view.
func (l *lane) address(addr string, revision uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.moveTo(addr, revision)
}

// moveTo applies the endpoint's address of a view, unless it is an older one.
func (l *lane) moveTo(addr string, revision uint64) {
	if revision < l.link.revision {
		return
	}
	l.link.revision, l.need.unwanted = revision, false
	before := l.tryKey()
	if l.link.moveTo(addr) {
		l.topic.router.tries.drop(before)
		l.signal()
	}
}

// leaving records that a newer view has no copies at the endpoint: nothing waits for it any more.
func (l *lane) leaving(revision uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if revision < l.link.revision {
		return
	}
	l.link.revision, l.need.unwanted = revision, true
	l.topic.router.tries.drop(l.tryKey())
	l.broadcast()
	l.signal()
}

// unused records that no vbucket uses the lane. The lane ends when its queue is empty, or cannot be delivered to a
// node that the view no longer contains.
func (l *lane) unused(dropped bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.need.idle = true
	if dropped && !l.need.unwanted {
		l.need.unwanted = true
		l.topic.router.tries.drop(l.tryKey())
	}
	if l.need.unwanted && l.need.leave == nil && l.link.state != gone {
		l.need.leave = time.AfterFunc(leaveTimeout, l.expire)
	}
	l.urge()
	l.signal()
}

// expire discards the rest of the queue for an endpoint that the view no longer contains and that has not
// acknowledged in time.
func (l *lane) expire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.need.leave = nil
	if l.need.idle && l.need.unwanted {
		l.need.expired = true
		l.link.cut()
		l.signal()
	}
}

// empty reports whether everything has been delivered.
func (l *lane) empty() bool {
	return l.out.empty() && len(l.dropped) == 0 && len(l.dirty) == 0
}

// drained waits until everything has been delivered.
func (l *lane) drained(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.empty() {
		l.urge()
		switch {
		case l.link.state == gone && l.topic.ctx.Err() != nil:
			return l.errClosed()
		case l.link.state == gone: // its queue was discarded
			return nil
		}
		if err := l.wait(ctx, 0); err != nil {
			return err
		}
	}
	return nil
}
