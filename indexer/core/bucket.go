package core

import (
	"slices"

	"tidemark/index"
	"tidemark/ingest"
	"tidemark/keyversion"
	"tidemark/timestamp"
	"tidemark/wire"
)

// MaxAcks bounds the acknowledgements that are kept until the leader has confirmed a report of them. Beyond that the
// oldest are dropped: newer ones imply them.
const MaxAcks = 64

// Bucket is a bucket on a node: its ingest state, the replies to the leader about it, and the acknowledgements that
// have not been delivered yet.
type Bucket struct {
	*ingest.Bucket
	name     string
	vbuckets int
	acks     []wire.Ack
}

// NewBucket returns a bucket without copies. pack encodes events for keeping, see ingest.Options.
func NewBucket(b *wire.Bucket, vbuckets int, pack func(*keyversion.Event) []byte) (*Bucket, error) {
	st, err := ingest.New(ingest.Options{VBuckets: vbuckets, Generation: b.Generation, RollbackID: b.RollbackID,
		Pack: pack})
	if err != nil {
		return nil, err
	}
	return &Bucket{Bucket: st, name: b.Name, vbuckets: vbuckets}, nil
}

// Ref returns the reference of a stability timestamp of this bucket.
func (b *Bucket) Ref(r timestamp.Ref) wire.StabilityRef {
	return wire.StabilityRef{Bucket: b.name, Ref: r}
}

// Acknowledge queues the outcome of a stability timestamp for the next reports to the leader.
func (b *Bucket) Acknowledge(a ingest.Ack) {
	b.acks = append(b.acks, wire.Ack{StabilityRef: b.Ref(a.Ref), Made: a.Made, Exceptions: a.Exceptions})
	if len(b.acks) > MaxAcks {
		b.acks = b.acks[len(b.acks)-MaxAcks:]
	}
}

// Acks returns the acknowledgements that the leader may not have received yet.
func (b *Bucket) Acks() []wire.Ack { return append([]wire.Ack(nil), b.acks...) }

// DropAcks drops the acknowledgements up to and including last, which the leader has received. If last is no longer in
// the list, MaxAcks pushed it out together with everything before it, and nothing is dropped.
func (b *Bucket) DropAcks(last wire.StabilityRef) {
	i := slices.IndexFunc(b.acks, func(a wire.Ack) bool { return a.StabilityRef == last })
	b.acks = append(b.acks[:0], b.acks[i+1:]...)
}

// Poll replies how far the node has received each vbucket, and from now on refuses older incarnations. If the bucket
// is not on this node, b is nil and the node does not participate.
func Poll(b *Bucket, req *wire.PollRequest) *wire.PollReply {
	if b == nil {
		return wire.AnswerPoll(nil)
	}
	all := b.Bucket.Poll(req.VBuckets, req.Incarnation)
	out := make([]wire.PollPosition, len(all))
	for i, p := range all {
		out[i] = wire.PollPosition{VBucket: uint16(p.VBucket), Participant: p.Participant, HW: p.HW, Reach: p.Reach,
			Log: p.Log, Revision: p.Revision}
	}
	return wire.AnswerPoll(out)
}

// Prepare replies to the first step of a rollback with what the copies hold. states lists the states that a copy
// could be restored to in a vbucket.
func (b *Bucket) Prepare(req *wire.RollbackRequest, states func(index.CopyID, int) []ingest.Held) *wire.RollbackReply {
	restart, outcome := b.RollbackAsk(req.RollbackID, req.Logs, req.Incarnation, states)
	return &wire.RollbackReply{RollbackID: req.RollbackID, Stale: outcome == ingest.RollbackStale, Restart: restart}
}

// Back is the progress of a rollback on this node.
type Back uint8

// Results of CarryOut.
const (
	BackDone  Back = iota // an earlier call has finished it, or a newer stream has begun
	BackNow               // this call has finished it
	BackWaits             // some vbuckets are still being restored: the caller retries
	BackStale             // this node has seen a newer failover log
	BackOlder             // a newer rollback has already been carried out
)

// CarryOut starts the second step of a rollback, or reports its progress.
func (b *Bucket) CarryOut(req *wire.RollbackRequest) Back {
	switch outcome := b.Rollback(req.RollbackID, req.Logs, req.Incarnation); {
	case outcome == ingest.RollbackStale:
		return BackStale
	case outcome == ingest.RollbackIgnored:
		return BackOlder
	case outcome == ingest.RollbackDone:
		return BackDone
	case b.Restoring() > 0:
		return BackWaits
	case outcome == ingest.RollbackStarted:
		return BackNow
	}
	return BackDone
}

// Asked selects and supplies what the report of a bucket contains.
type Asked struct {
	HW         bool
	Building   func(index.ID) bool // whether an index is being built
	QueueLimit uint64
	Durable    timestamp.Vector // what would survive a crash; empty if unknown
}

// Report returns the report on the bucket and on its copies. The caller adds what only the copies' store knows, such
// as their size.
func (b *Bucket) Report(a Asked) (wire.BucketReport, []wire.CopyReport) {
	r := wire.BucketReport{Generation: b.Generation(), RollbackID: b.RollbackID(), Acks: b.Acks(),
		Backfill: b.Backfill(a.Building), Persistent: a.Durable}
	r.Heartbeat = wire.HWHeartbeat{Bucket: b.name, MutationQueue: uint64(b.QueueBytes()), QueueLimit: a.QueueLimit}
	if a.HW {
		r.Heartbeat.HW = b.HW()
	}
	// LastAck rather than the newest batch: no copy may have made what is still in flight
	if last, ok := b.LastAck(); ok {
		r.Heartbeat.LastStability, r.Heartbeat.LastNumber = last.Ref.Hash, last.Ref.Number
	}
	if a.Durable.Len() > 0 {
		r.Heartbeat.LastPersistence = a.Durable.Hash()
	} else {
		r.Persistent = timestamp.New(b.vbuckets)
	}
	accepted, w := b.Accepted(), &r.Accepted
	w.VBuckets, w.Incarnations = slices.Grow(w.VBuckets, len(accepted)), slices.Grow(w.Incarnations, len(accepted))
	w.Projectors, w.Open = slices.Grow(w.Projectors, len(accepted)), slices.Grow(w.Open, len(accepted))
	for _, at := range accepted {
		w.VBuckets, w.Incarnations = append(w.VBuckets, uint16(at.VBucket)), append(w.Incarnations, at.Incarnation)
		w.Projectors, w.Open = append(w.Projectors, at.Projector), append(w.Open, at.Open)
	}
	seen, states := map[index.ID]bool{}, b.States()
	copies := make([]wire.CopyReport, len(states))
	for i := range states {
		s := &states[i]
		if !seen[s.Index] {
			seen[s.Index] = true
			r.Heartbeat.IndexIDs = append(r.Heartbeat.IndexIDs, s.Index)
		}
		copies[i] = wire.CopyReport{Copy: s.ID, Index: s.Index, Ready: s.Ready, Done: s.Done, Total: s.Total}
		if s.Held.Number > 0 {
			copies[i].Held = b.Ref(s.Held)
		}
	}
	return r, copies
}
