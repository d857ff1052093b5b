package core

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"tidemark/index"
	"tidemark/stability"
	"tidemark/statecontext"
	"tidemark/streams"
	"tidemark/timestamp"
	"tidemark/wire"
)

// promotion makes stability timestamps, publishes them, and answers the scans that wait for one.
type promotion struct {
	*scene
	pacer    stability.Pacer
	flying   bool
	next     int      // index of the bucket that the next command begins with, so that large buckets take turns
	hwWanted []string // buckets for which indexers must report HW
	lateMS   int64    // when publishLate last ran
}

// reportStability passes to the decider what an indexer has acknowledged and holds.
func (l *promotion) reportStability(b *bucket, n *indexer, nb *nodeBucket, r *wire.BucketReport) {
	h := &r.Heartbeat
	// This also covers timestamps that were sent by the previous leader. The same vector under another number is another
	// timestamp: a recovery skips numbers.
	if h.LastStability == b.stable.Hash && (h.LastNumber == b.stable.Number || h.LastNumber == 0) && b.stable.Number > 0 &&
		r.RollbackID == b.stable.RollbackID {
		nb.acked, nb.written = b.stable.Ref, b.stable.Ref
	}
	fill := 0
	if h.QueueLimit > 0 {
		fill = int(min(h.MutationQueue*1000/h.QueueLimit, 1000))
	}
	b.stab.Report(n.node, l.nowMS, stability.Report{BootID: n.boot, Active: slices.Contains(b.fed, n.node),
		RollbackID: r.RollbackID,
		Acked:      nb.acked, HW: h.HW, Absent: nb.absent.vbuckets(), Fill: fill})
}

// leaveOut passes to the decider the indexers that are left out of some of the running streams: those for which a
// stream's projector drops data. Only live projectors count: when a projector ends, so do its streams and its drops.
// It is called after every input, so it does nothing while its own inputs are unchanged.
func (l *promotion) leaveOut(b *bucket) {
	if b.droppedAt == b.ledger.Changes() && !b.dropsDue {
		return
	}
	b.droppedAt, b.dropsDue = b.ledger.Changes(), false
	if len(b.dropping) == 0 && len(b.leftOut) == 0 {
		return
	}
	was := b.leftOut
	b.leftOut = b.dropped(l.components.alive)
	for node := range was {
		if b.leftOut[node] == nil {
			b.stab.LeftOut(node, l.nowMS, nil)
		}
	}
	for node, marks := range b.leftOut {
		b.stab.LeftOut(node, l.nowMS, marks)
	}
}

// wantHW lists the buckets whose stability timestamps follow their indexers' HW.
func (l *promotion) wantHW() {
	l.hwWanted = nil // replies still in flight may refer to the old slice
	for _, b := range l.buckets.ordered {
		if b.stab.Source() == stability.Heartbeat {
			l.hwWanted = append(l.hwWanted, b.name)
		}
	}
}

// promote commits the next stability timestamps of all buckets in one command, at the pacer's rate. They are
// published when the state shows them.
func (l *promotion) promote() {
	if l.flying || len(l.buckets.byName) == 0 || l.pacer.Wait(l.nowMS, l.urgency()) > 0 {
		return
	}
	advances, size := l.advances()
	if len(advances) == 0 {
		return
	}
	l.flying = l.propose(stabilityKey, &statecontext.AdvanceStability{Buckets: advances},
		func(res statecontext.Result, err error) {
			l.flying = false
			if err != nil && !errors.Is(err, ErrTermOver) {
				l.log.Warn("promotion failed", "error", err)
			}
			for _, r := range res.Buckets {
				l.log.Warn("promotion skipped a bucket", "bucket", r.Bucket, "reason", r.Rejection)
			}
			l.now.atOnce = true
		})
	if l.flying {
		l.pacer.Sent(l.nowMS, size)
		for i := range advances {
			l.buckets.byName[advances[i].Bucket].sentMS = l.nowMS
		}
	}
}

// advances returns the promotions that are due, as many as one command may hold; the next call begins with the bucket
// after the last one.
func (l *promotion) advances() (advances []statecontext.BucketAdvance, size int) {
	names := make([]string, 0, len(l.buckets.byName))
	for name, b := range l.buckets.byName {
		if b.wanted && l.rest(b) == 0 {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, 0
	}
	slices.Sort(names)
	taken := 0
	for i := range names {
		b := l.buckets.byName[names[(l.next+i)%len(names)]]
		taken = i + 1
		a, ok := l.nextOf(b)
		if !ok {
			continue
		}
		bytes := advanceBytes(&a)
		if size+bytes > min(l.pacer.MaxBytes, statecontext.MaxStabilityBytes) && len(advances) > 0 {
			taken = i // it begins the next command
			break
		}
		size += bytes
		advances = append(advances, a)
	}
	l.next = (l.next + taken) % len(names)
	return advances, size
}

func advanceBytes(a *statecontext.BucketAdvance) int {
	n := len(a.Stability) + len(a.Mutation) + len(a.Bucket)
	for _, g := range a.Logs {
		n += 32 + 16*len(g.Log)
	}
	return n
}

// nextOf returns the decider's next step of a bucket's promotion.
func (l *promotion) nextOf(b *bucket) (statecontext.BucketAdvance, bool) {
	s := l.stateOf(b)
	if s == nil || s.Rollback != nil || s.Stability.Number != b.stable.Number {
		return statecontext.BucketAdvance{}, false
	}
	l.leaveOut(b)
	d := b.stab.Next(l.nowMS)
	if !d.Promote {
		return statecontext.BucketAdvance{}, false
	}
	a, err := statecontext.NewBucketAdvance(s, d.Next.Vector, d.Mutation, d.Logs)
	if err != nil {
		l.log.Error("promotion cannot be encoded", "bucket", b.name, "error", err)
		return a, false
	}
	return a, true
}

// publish sends a bucket's committed stability timestamp to one indexer.
func (l *promotion) publish(b *bucket, n *indexer) {
	if b.stable.Number == 0 || !slices.Contains(b.hosts, n.node) {
		return
	}
	nb := n.bucket(b.name)
	say := PublishStable{Newest: []wire.BucketStability{b.stable}}
	if !nb.based && b.first.Number > 0 {
		say.Base = []wire.BucketStability{b.first}
	}
	nb.based = true
	nb.publishedMS, nb.publishedRef = l.nowMS, b.stable.Ref
	l.send(&n.component, Publish, "stability", say)
}

// lateEvery is the interval at which publishLate looks for indexers that have not acknowledged.
const lateEvery = 100 // ms

// publishLate sends stability timestamps again that were not acknowledged within Republish.
func (l *promotion) publishLate() {
	if l.rests(l.lateMS, lateEvery) {
		return
	}
	l.lateMS = l.nowMS
	for _, b := range l.buckets.ordered {
		if b.stable.Number == 0 {
			continue
		}
		for _, node := range b.hosts {
			n := l.components.indexers[node]
			if l.isReachable(n) && n.hello && l.isLate(b, n) { // its hello reports what it holds
				l.publish(b, n)
			}
		}
	}
}

// isLate reports whether an indexer was not sent the newest stability timestamp, or has not acknowledged it within
// Republish.
func (l *promotion) isLate(b *bucket, n *indexer) bool {
	nb := n.bucket(b.name)
	return nb.publishedRef != b.stable.Ref ||
		nb.acked != nb.publishedRef && l.nowMS-nb.publishedMS >= l.settings.Republish.Milliseconds()
}

// maxWaiters bounds scans that wait for a stability timestamp.
const maxWaiters = 4096

// prune removes scans whose callers no longer wait.
func (l *promotion) prune(left []*Stabilize) {
	for _, s := range left {
		s.left = true // its input may arrive after this
		if b := l.buckets.byName[s.Bucket]; b != nil {
			b.endWaits(func(o *Stabilize) bool { return o.left })
		}
	}
}

// stabilize answers a scan at once or adds it to the waiting ones.
func (l *promotion) stabilize(w *Stabilize) {
	b := l.buckets.byName[w.Bucket]
	switch {
	case w.left:
		return
	case b == nil:
		w.refuse(l.scene, fmt.Errorf("%w: %q", ErrUnknownBucket, w.Bucket))
		return
	case w.Need.Check(b.stab.Len()) != nil:
		w.refuse(l.scene, w.Need.Check(b.stab.Len()))
		return
	case b.rolling != nil:
		w.refuse(l.scene, fmt.Errorf("%w: %q", ErrInRollback, w.Bucket))
		return
	case !b.wanted:
		w.refuse(l.scene, fmt.Errorf("%w: %q", ErrNoStreams, w.Bucket))
		return
	case len(b.waiters) >= maxWaiters:
		w.refuse(l.scene, fmt.Errorf("%w: %d scans are waiting for bucket %q", ErrBusy, len(b.waiters), w.Bucket))
		return
	}
	w.cameMS = l.nowMS
	if !w.answered(l.scene, b) {
		b.suspect = b.suspect || w.unknown
		b.wait(w)
		l.hurry(b)
	}
}

// refuse answers the scan with an error.
func (w *Stabilize) refuse(l *scene, err error) { reply(l, w.Reply, Stabilized{Err: err}) }

// answered answers the scan if it need not wait any more, and reports whether it did.
func (w *Stabilize) answered(l *scene, b *bucket) bool {
	if w.judged == b.stable.Ref && !b.stable.Vector.Covers(w.Need) {
		return false
	}
	w.judged = b.stable.Ref
	ready := true
	w.unknown = false
	for v := range w.Need.Seqnos {
		has, err := w.has(b, v)
		if err != nil {
			w.refuse(l, err)
			return true
		}
		ready = ready && has
	}
	if ready {
		reply(l, w.Reply, Stabilized{Stability: b.stable})
	}
	return ready
}

// logWithBranch returns the failover log that contains a branch: that of the newest stability timestamp, else that of
// the running stream; nil if neither does. streamed reports whether a stream is running.
func (b *bucket) logWithBranch(v int, vbuuid uint64) (log timestamp.FailoverLog, streamed bool) {
	e := b.ledger.At(v)
	streamed = e.State == streams.Begun
	if v < len(b.stable.Logs) && hasBranch(b.stable.Logs[v], vbuuid) {
		return b.stable.Logs[v], streamed
	}
	if streamed && hasBranch(e.Log, vbuuid) {
		return e.Log, true
	}
	return nil, streamed
}

// has reports whether the newest stability timestamp covers what is needed of a vbucket. Seqno 0 belongs to a branch,
// too: a vbucket that was created anew is at 0, and a timestamp of the old one does not cover it. The error is
// ErrTokenLost if the needed seqno lies on a branch that KV left below it: it can never arrive. A branch missing from
// the timestamp's own log may be newer than the timestamp; then the log of the running stream decides. If that lacks
// it, too, KV may have failed over without anything here noticing it: an audit finds out (endLost).
func (w *Stabilize) has(b *bucket, v int) (bool, error) {
	at, s := w.Need.At(v), b.stable.Vector.At(v)
	nothing := at.Seqno == 0 && s.Seqno == 0
	if nothing || at.VBUUID == 0 || at.VBUUID == s.VBUUID {
		return s.Seqno >= at.Seqno, nil
	}
	log, streamed := b.logWithBranch(v, at.VBUUID)
	if log == nil {
		w.unknown = w.unknown || streamed
		return false, nil
	}
	if !log.Valid(at.VBUUID, at.Seqno) {
		return false, fmt.Errorf("%w: bucket %q vbucket %d seqno %d of branch %d is not on the present branch %d; read the "+
			"document again",
			ErrTokenLost, b.name, v, at.Seqno, at.VBUUID, log.Newest())
	}
	return s.Seqno >= at.Seqno && log.Valid(s.VBUUID, s.Seqno), nil
}

// endLost refuses the waiters that need a branch which KV does not have, as shown by an audit that began after they
// came.
func (l *promotion) endLost(b *bucket, a *audit) {
	b.suspect = false
	var logs shown // collected for the first waiter that needs them
	b.endWaits(func(w *Stabilize) bool {
		if !w.unknown {
			return false
		}
		if logs == nil {
			logs = a.shown(b.stab.Len())
		}
		for v := range w.Need.Seqnos {
			at := w.Need.At(v)
			if at.VBUUID == 0 || at.Seqno == 0 && b.stable.Vector.Seqnos[v] == 0 {
				continue
			}
			if w.cameMS <= a.sinceMS && logs.lacks(v, at.VBUUID) {
				w.refuse(l.scene, fmt.Errorf("%w: bucket %q vbucket %d seqno %d: KV has no branch %d; read the document again",
					ErrTokenLost, b.name, v, at.Seqno, at.VBUUID))
				return true
			}
		}
		b.suspect = true
		return false
	})
}

// serve answers the waiters that the newest stability timestamp satisfies.
func (l *promotion) serve(b *bucket) {
	b.endWaits(func(w *Stabilize) bool { return w.answered(l.scene, b) })
	l.hurry(b)
}

// fail answers all waiters with an error.
func (l *promotion) fail(b *bucket, err error) {
	for _, w := range b.waiters {
		w.refuse(l.scene, fmt.Errorf("%w: %q", err, b.name))
	}
	b.waiters, b.want = nil, nil
}

// urgency returns the urgency of the most urgent bucket.
func (l *promotion) urgency() stability.Urgency {
	most := stability.Calm
	for _, b := range l.buckets.ordered {
		most = max(most, l.urgencyOf(b))
	}
	return most
}

// urgencyOf reports whether a promotion of the bucket is awaited, by a scan or by a build that has everything else,
// and whether the bucket's indexers are ready for it: for a scan, when the copies that serve scans have applied the
// last timestamp; for a build, when copies that are being built have, too. The work of other buckets' indexers does
// not matter.
func (l *promotion) urgencyOf(b *bucket) stability.Urgency {
	switch {
	case len(b.waiters) == 0 && !b.nearly:
		return stability.Calm
	case !b.stab.Settled(l.nowMS), len(b.waiters) == 0 && !l.written(b):
		return stability.Hurry
	}
	return stability.HurrySettled
}

// written reports whether all copies that can take the newest stability timestamp have written it, on every node.
func (l *promotion) written(b *bucket) bool {
	return !slices.ContainsFunc(b.members, func(node index.NodeID) bool {
		n := l.components.indexers[node]
		return n == nil || n.bucket(b.name).written != b.stable.Ref
	})
}

// rest returns how long a bucket's next promotion must wait, whatever is due for other buckets: a bucket for which
// nothing waits is not promoted at the rate of another bucket's scans.
func (l *promotion) rest(b *bucket) time.Duration {
	if b.sentMS == 0 || l.nowMS < b.sentMS { // the clock went back: do not stall
		return 0
	}
	return max(0, l.pacer.Gap(l.urgencyOf(b))-time.Duration(l.nowMS-b.sentMS)*time.Millisecond)
}

// wake returns the time until the next awaited promotion, 0 if none is awaited.
func (l *promotion) wake() time.Duration {
	soonest := time.Duration(-1)
	for _, b := range l.buckets.ordered {
		if l.urgencyOf(b) == stability.Calm {
			continue
		}
		if rest := l.rest(b); soonest < 0 || rest < soonest {
			soonest = rest
		}
	}
	if soonest < 0 {
		return 0
	}
	return max(soonest, l.pacer.Wait(l.nowMS, l.urgency()))
}

// SyncWait is how long a projector may delay a fresh report until it has the requested seqnos. It is short, because
// scans that arrive meanwhile need higher ones.
const SyncWait = 40 // ms

// hurry requests fresh complete seqnos from the projectors while scans wait, one request at a time per projector and
// bucket.
func (l *promotion) hurry(b *bucket) {
	if len(b.waiters) == 0 {
		return
	}
	want := b.wants()
	for _, id := range l.components.alive {
		p := l.components.projectors[id]
		if p == nil || p.syncing[b.ref()] || len(p.syncing) >= LaneLength || !l.streamsBehind(b, id, want) {
			continue
		}
		p.syncing[b.ref()] = true
		l.send(&p.component, Syncs, "", RequestSync{Projector: id, Bucket: b.ref(), Want: slices.Clone(want)})
	}
}

// streamsBehind reports whether a projector owns a vbucket whose complete seqno is below the wanted one.
func (l *promotion) streamsBehind(b *bucket, id index.ProjectorID, want []uint64) bool {
	for v, s := range want {
		if s > b.stable.Vector.Seqnos[v] && s > b.stab.CompleteAt(v) && b.ledger.At(v).Owner == id {
			return true
		}
	}
	return false
}

// synced takes a fresh report.
func (l *promotion) synced(s *Synced) {
	p, b := l.components.projectors[s.Projector], l.find(s.Bucket)
	if p == nil || p.receiver != s.From {
		return // the projector has registered again meanwhile
	}
	if delete(p.syncing, s.Bucket); b == nil {
		return
	}
	if s.Err != nil {
		l.log.Debug("sync", "projector", p.id, "error", s.Err)
		return // the next tick retries
	}
	if s.Report.BootID != p.boot {
		return // another process has its address
	}
	p.seenMS = l.nowMS
	for i := range s.Report.Buckets {
		if r := &s.Report.Buckets[i]; r.Bucket == b.name && b.isOf(r) {
			b.takeCompletes(p.id, r)
		}
	}
	l.serve(b)
}
