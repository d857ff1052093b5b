package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"tidemark/index"
	"tidemark/liveness"
	"tidemark/stability"
	"tidemark/statecontext"
	"tidemark/streams"
	"tidemark/timestamp"
	"tidemark/wire"
)

// reportStability tells the decider what an indexer has acknowledged and holds.
func (l *leader) reportStability(b *bucket, n *indexer, nb *nodeBucket, told *wire.BucketReport) {
	h := &told.Heartbeat
	// Also what was told to the leader before. The same vector under another number is another: a recovery has passed over
	// numbers.
	if h.LastStability == b.stable.Hash && (h.LastNumber == b.stable.Number || h.LastNumber == 0) && b.stable.Number > 0 &&
		told.RollbackID == b.stable.RollbackID {
		nb.acked = b.stable.StabilityRef
	}
	fill := 0
	if h.QueueLimit > 0 {
		fill = int(min(h.MutationQueue*1000/h.QueueLimit, 1000))
	}
	b.stab.Report(n.node, l.nowMS, stability.Report{BootID: n.boot, Active: slices.Contains(b.fed, n.node),
		RollbackID: told.RollbackID,
		Acked:      refOf(nb.acked), HW: h.HW, Absent: nb.absent.vbuckets(), Fill: fill})
}

// leaveOut tells the decider which indexers are not sent some of the streams that run: those of the projectors that
// drop what is meant for them. Only projectors that are alive count: with another one its streams, and what it dropped,
// are over.
func (l *leader) leaveOut(b *bucket) {
	if len(b.dropping) == 0 && len(b.leftOut) == 0 {
		return
	}
	marks := map[index.NodeID][]bool{}
	for id, nodes := range b.dropping {
		if !slices.Contains(l.components.alive, id) {
			continue
		}
		for v := range b.ledger.Len() {
			if e := b.ledger.At(v); e.State != streams.Begun || e.Owner != id {
				continue
			}
			for _, node := range nodes {
				if marks[node] == nil {
					marks[node] = make([]bool, b.ledger.Len())
				}
				marks[node][v] = true
			}
		}
	}
	for _, node := range b.leftOut {
		if marks[node] == nil {
			b.stab.LeftOut(node, l.nowMS, nil)
		}
	}
	b.leftOut = b.leftOut[:0]
	for node, m := range marks {
		b.leftOut = append(b.leftOut, node)
		b.stab.LeftOut(node, l.nowMS, m)
	}
}

// wantHW lists the buckets whose stability timestamps follow their indexers' HW.
func (l *leader) wantHW() {
	l.promotion.hwWanted = nil // the old one may still be on its way to somebody
	for _, b := range l.buckets.ordered {
		if b.stab.Source() == stability.Heartbeat {
			l.promotion.hwWanted = append(l.promotion.hwWanted, b.name)
		}
	}
}

// promote commits the next stability timestamps of all buckets in one command, at the pacer's rate. What is committed
// is published when the state shows it.
func (l *leader) promote() {
	if l.promotion.flying || len(l.buckets.byName) == 0 || l.promotion.pacer.Wait(l.nowMS, l.urgency()) > 0 {
		return
	}
	advances, size := l.advances()
	if len(advances) == 0 {
		return
	}
	l.promotion.flying = l.propose("stability", &statecontext.AdvanceStability{Buckets: advances},
		func(l *leader, res statecontext.Result, err error) {
			l.promotion.flying = false
			if err != nil && !errors.Is(err, context.Canceled) {
				l.log.Warn("promotion failed", "error", err)
			}
			for _, r := range res.Buckets {
				l.log.Warn("promotion left a bucket out", "bucket", r.Bucket, "reason", r.Rejection)
			}
			l.sync()
		})
	if l.promotion.flying {
		l.promotion.pacer.Sent(l.nowMS, size)
	}
}

// advances returns what there is to promote, as much as one command may hold; the next call begins with the bucket
// after the last one.
func (l *leader) advances() (advances []statecontext.BucketAdvance, size int) {
	names := make([]string, 0, len(l.buckets.byName))
	for name, b := range l.buckets.byName {
		if b.wanted {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, 0
	}
	slices.Sort(names)
	taken := 0
	for i := range names {
		b := l.buckets.byName[names[(l.promotion.next+i)%len(names)]]
		taken = i + 1
		a, ok := l.nextOf(b)
		if !ok {
			continue
		}
		bytes := advanceBytes(&a)
		if size+bytes > min(l.promotion.pacer.MaxBytes, statecontext.MaxStabilityBytes) && len(advances) > 0 {
			taken = i // it begins the next command
			break
		}
		size += bytes
		advances = append(advances, a)
	}
	l.promotion.next = (l.promotion.next + taken) % len(names)
	return advances, size
}

func advanceBytes(a *statecontext.BucketAdvance) int {
	n := len(a.Stability) + len(a.Mutation) + len(a.Bucket)
	for _, g := range a.Logs {
		n += 32 + 16*len(g.Log)
	}
	return n
}

// nextOf asks the decider for a bucket's promotion.
func (l *leader) nextOf(b *bucket) (statecontext.BucketAdvance, bool) {
	s := l.now.state.Bucket(b.name)
	if s == nil || s.Generation != b.generation || s.Rollback != nil || s.Stability.Number != b.stable.Number {
		return statecontext.BucketAdvance{}, false
	}
	l.leaveOut(b)
	d := b.stab.Next(l.nowMS)
	if !d.Promote {
		return statecontext.BucketAdvance{}, false
	}
	logs := make([]statecontext.LogChange, len(d.Logs))
	for i, g := range d.Logs {
		logs[i] = statecontext.LogChange(g)
	}
	a, err := statecontext.NewBucketAdvance(s, d.Next.Vector, d.Mutation, logs)
	if err != nil {
		l.log.Error("promotion cannot be encoded", "bucket", b.name, "error", err)
		return a, false
	}
	return a, true
}

// publish puts a bucket's committed stability timestamp on its way to one indexer.
func (l *leader) publish(b *bucket, n *indexer) {
	if b.stable.Number == 0 || !slices.Contains(b.hosts, n.node) {
		return
	}
	nb := n.bucket(b.name)
	if !nb.based && b.first.Number > 0 {
		n.outbox.believe(b.first)
	}
	nb.based = true
	nb.toldMS, nb.toldRef = l.nowMS, b.stable.StabilityRef
	n.outbox.put(b.stable)
	n.publish.put(task{key: "stability", do: func(ctx context.Context) {
		ctx = l.traced(ctx, b.name)
		all, base := n.outbox.take()
		if len(all) == 0 {
			return
		}
		_, err := fenced(ctx, n.fences, func(f wire.Fence) (struct{}, error) {
			return struct{}{}, l.cfg.Indexers.Stability(ctx, n.addr, &wire.StabilityRequest{Fence: f, Stabilities: all,
				Base: base})
		})
		if err != nil {
			l.log.Debug("stability timestamp", "indexer", n.name, "error", err) // told again when it is late
		}
	}})
}

// lateEvery is how often it is looked for indexers that have not acknowledged.
const lateEvery = 100 // ms

// publishLate tells stability timestamps again that were not acknowledged for long.
func (l *leader) publishLate() {
	if l.nowMS-l.shown.lateMS < lateEvery && l.nowMS >= l.shown.lateMS {
		return
	}
	l.shown.lateMS = l.nowMS
	for _, b := range l.buckets.ordered {
		if b.stable.Number == 0 {
			continue
		}
		for _, node := range b.hosts {
			n := l.components.indexers[node]
			if n == nil || !n.hello || l.life(&n.component) == liveness.Offline { // its hello says what it holds
				continue
			}
			nb := n.bucket(b.name)
			if nb.toldRef == b.stable.StabilityRef && (nb.acked == nb.toldRef ||
				l.nowMS-nb.toldMS < l.cfg.Settings.Republish.Milliseconds()) {
				continue
			}
			l.publish(b, n)
		}
	}
}

var (
	// ErrUnknownBucket is wrapped when no such bucket is known.
	ErrUnknownBucket = errors.New("unknown bucket")
	// ErrVBuckets is wrapped when a bucket has more vbuckets than timestamp.MaxVBuckets.
	ErrVBuckets = errors.New("too many vbuckets")
	// ErrBucketGone is wrapped when the bucket was deleted or re-created meanwhile.
	ErrBucketGone = errors.New("the bucket is gone")
	// ErrNoStreams is wrapped when the bucket has no index that is kept current.
	ErrNoStreams = errors.New("no index of the bucket is being kept current")
	// ErrTokenLost is wrapped when what is asked for was lost in a failover of KV.
	ErrTokenLost = errors.New("the write was lost in a failover")
)

// waiter is a scan that waits for a stability timestamp at or above need.
type waiter struct {
	ctx    context.Context
	bucket string
	need   timestamp.Vector
	reply  chan stabilized
	judged wire.StabilityRef // for which it was looked whether something is lost
	cameMS int64
	// unknown: it needs branches that neither the newest stability timestamp nor the streams that run know.
	unknown bool
}

type stabilized struct {
	s   wire.Stability
	err error
}

// Stabilize returns a committed stability timestamp of the bucket at or above need, as soon as there is one (IX-7,
// session and at_plus), at the latest when ctx ends. A vbuuid of 0 in need stands for any branch. Errors wrap
// ErrNotLeading, ErrUnknownBucket, ErrInRollback, ErrNoStreams, ErrBucketGone, ErrTokenLost, ErrBusy,
// timestamp.ErrLength, or ctx's
// error.
func (c *Coordinator) Stabilize(ctx context.Context, bucket string, need timestamp.Vector) (wire.Stability, error) {
	l, err := c.leading()
	if err != nil {
		return wire.Stability{}, err
	}
	w := &waiter{ctx: ctx, bucket: bucket, need: need, reply: make(chan stabilized, 1)}
	if err := l.post(ctx, w); err != nil {
		return wire.Stability{}, err
	}
	select {
	case a := <-w.reply:
		return a.s, a.err
	case <-l.ended:
		return wire.Stability{}, ErrNotLeading
	case <-ctx.Done():
		return wire.Stability{}, fmt.Errorf("waiting for a stability timestamp of bucket %q: %w", bucket, ctx.Err())
	}
}

func (w *waiter) apply(l *leader) {
	b := l.buckets.byName[w.bucket]
	switch {
	case b == nil:
		w.reply <- stabilized{err: fmt.Errorf("%w: %q", ErrUnknownBucket, w.bucket)}
		return
	case w.need.Check(b.stab.Len()) != nil:
		w.reply <- stabilized{err: w.need.Check(b.stab.Len())}
		return
	case b.rolling != nil:
		w.reply <- stabilized{err: fmt.Errorf("%w: %q", ErrInRollback, w.bucket)}
		return
	case !b.wanted:
		w.reply <- stabilized{err: fmt.Errorf("%w: %q", ErrNoStreams, w.bucket)}
		return
	case len(b.waiters) >= maxWaiters:
		w.reply <- stabilized{err: fmt.Errorf("%w: %d scans wait for bucket %q", ErrBusy, len(b.waiters), w.bucket)}
		return
	}
	w.cameMS = l.nowMS
	if !w.answered(l, b) {
		b.suspect = b.suspect || w.unknown
		b.waiters = append(b.waiters, w)
		l.hurry(b)
	}
}

// answered reports whether nothing is to be waited for any more.
func (w *waiter) answered(l *leader, b *bucket) bool {
	if w.ctx.Err() != nil {
		return true
	}
	if w.judged == b.stable.StabilityRef && !b.stable.Vector.Covers(w.need) {
		return false
	}
	w.judged = b.stable.StabilityRef
	ready := true
	w.unknown = false
	for v := range w.need.Seqnos {
		has, err := w.has(l, b, v)
		if err != nil {
			w.reply <- stabilized{err: err}
			return true
		}
		ready = ready && has
	}
	if ready {
		w.reply <- stabilized{s: b.stable}
	}
	return ready
}

// has reports whether the newest stability timestamp has what is needed of a vbucket. That KV has nothing is as much
// its branch's as what it has: a vbucket that was made anew is at 0, and what a timestamp has of the one before is not
// what KV has. The error is ErrTokenLost: what is needed lies on a branch that KV has left below it, and can never
// come. A branch that the timestamp's own log does not know may be newer than it: then the log of the stream that runs
// decides. Where that does not know it either, KV may have failed over and nobody here has noticed: an audit tells
// (endLost).
func (w *waiter) has(l *leader, b *bucket, v int) (bool, error) {
	at, s := w.need.At(v), b.stable.Vector.At(v)
	nothing := at.Seqno == 0 && s.Seqno == 0
	if nothing || at.VBUUID == 0 || at.VBUUID == s.VBUUID {
		return s.Seqno >= at.Seqno, nil
	}
	var log timestamp.FailoverLog
	if v < len(b.stable.Logs) {
		log = b.stable.Logs[v]
	}
	if !knows(log, at.VBUUID) {
		e := b.ledger.At(v)
		if e.State != streams.Begun {
			return false, nil
		}
		if !knows(e.Log, at.VBUUID) {
			w.unknown = true
			return false, nil
		}
		log = e.Log
	}
	if !log.Valid(at.VBUUID, at.Seqno) {
		return false, fmt.Errorf("%w: bucket %q vbucket %d seqno %d of branch %d is not on the present branch %d; read the "+
			"document again",
			ErrTokenLost, b.name, v, at.Seqno, at.VBUUID, log.Newest())
	}
	return s.Seqno >= at.Seqno && log.Valid(s.VBUUID, s.Seqno), nil
}

func knows(log timestamp.FailoverLog, branch uint64) bool {
	return slices.ContainsFunc(log, func(e timestamp.LogEntry) bool { return e.VBUUID == branch })
}

// endLost answers the waiters who need a branch that KV does not have, as an audit shows that began after they came.
func (l *leader) endLost(b *bucket, a *audit) {
	b.suspect = false
	b.waiters = slices.DeleteFunc(b.waiters, func(w *waiter) bool {
		if !w.unknown {
			return false
		}
		for v := range w.need.Seqnos {
			at := w.need.At(v)
			if at.VBUUID == 0 || at.Seqno == 0 && b.stable.Vector.Seqnos[v] == 0 {
				continue
			}
			if w.cameMS <= a.sinceMS && a.lacks(uint16(v), at.VBUUID) {
				w.reply <- stabilized{err: fmt.Errorf("%w: bucket %q vbucket %d seqno %d: KV has no branch %d; read the document "+
					"again",
					ErrTokenLost, b.name, v, at.Seqno, at.VBUUID)}
				return true
			}
		}
		b.suspect = true
		return false
	})
}

// serve answers the waiters whom the newest stability timestamp satisfies.
func (l *leader) serve(b *bucket) {
	b.waiters = slices.DeleteFunc(b.waiters, func(w *waiter) bool { return w.answered(l, b) })
	l.hurry(b)
}

// fail answers all waiters with an error.
func (b *bucket) fail(err error) {
	for _, w := range b.waiters {
		w.reply <- stabilized{err: fmt.Errorf("%w: %q", err, b.name)}
	}
	b.waiters = nil
}

// urgency reports whether a scan waits for a promotion, or a build that has everything else, and whether the indexers
// of all buckets are ready for one.
func (l *leader) urgency() stability.Urgency {
	waits := l.duties.nearlyReady
	for _, b := range l.buckets.ordered {
		waits = waits || len(b.waiters) > 0
	}
	if !waits {
		return stability.Calm
	}
	for _, b := range l.buckets.ordered {
		if b.wanted && !b.stab.Settled(l.nowMS) {
			return stability.Hurry
		}
	}
	return stability.HurrySettled
}

// syncWait is how long a projector may hold back a fresh report until it has what is wanted. It is short, because scans
// that come meanwhile want more.
const syncWait = 40 // ms

// hurry asks the projectors for fresh complete seqnos, one request at a time to each, while scans wait.
func (l *leader) hurry(b *bucket) {
	if len(b.waiters) == 0 {
		return
	}
	want := make([]uint64, b.stab.Len())
	for _, w := range b.waiters {
		for v, s := range w.need.Seqnos {
			want[v] = max(want[v], s)
		}
	}
	ref := bucketRef{name: b.name, generation: b.generation}
	for _, id := range l.components.alive {
		p := l.components.projectors[id]
		if p == nil || p.syncing[ref] || p.syncs.full() || !l.streamsBehind(b, id, want) {
			continue
		}
		p.syncing[ref] = true
		p.syncs.put(task{do: func(ctx context.Context) {
			f := p.fences.present() // no command: it may share the newest one's fence
			r, err := l.cfg.Projectors.Sync(ctx, p.addr, &wire.SyncRequest{Fence: f, Bucket: ref.name, Want: want,
				WaitMS: syncWait})
			_ = l.post(ctx, &synced{p: p, ref: ref, r: r, err: err})
		}})
	}
}

// streamsBehind reports whether a projector owns a vbucket whose complete seqno is below what is wanted.
func (l *leader) streamsBehind(b *bucket, id index.ProjectorID, want []uint64) bool {
	for v, s := range want {
		if s > b.stable.Vector.Seqnos[v] && s > b.stab.CompleteAt(v) && b.ledger.At(v).Owner == id {
			return true
		}
	}
	return false
}

// synced is a fresh report on one bucket. Only its complete seqnos count: it stands outside the order of reports.
type synced struct {
	p   *projector
	ref bucketRef
	r   *wire.ProjectorReport
	err error
}

func (s *synced) apply(l *leader) {
	delete(s.p.syncing, s.ref)
	b := s.ref.find(l)
	if b == nil || l.components.projectors[s.p.id] != s.p {
		return
	}
	if s.err != nil {
		l.log.Debug("sync", "projector", s.p.id, "error", s.err)
		return // the tick asks again
	}
	s.p.seenMS = l.nowMS
	for i := range s.r.Buckets {
		if r := &s.r.Buckets[i]; r.Bucket == b.name && (r.BucketUUID == "" || r.BucketUUID == b.uuid) {
			l.takeCompletes(b, s.p.id, r)
		}
	}
	l.serve(b)
}
