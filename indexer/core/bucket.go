package core

import (
	"slices"

	"tidemark/index"
	"tidemark/ingest"
	"tidemark/keyversion"
	"tidemark/timestamp"
	"tidemark/wire"
)

// MaxAcks is how many acknowledgements are kept until a report was answered. Older ones are implied by newer.
const MaxAcks = 64

// Bucket is a bucket on a node: its ingest state, what the leader is answered about it, and what it is told of it.
type Bucket struct {
	*ingest.Bucket
	name     string
	vbuckets int
	acks     []wire.Ack
}

// NewBucket returns one without copies. pack keeps events, see ingest.Options.
func NewBucket(b *wire.Bucket, vbuckets int, pack func(*keyversion.Event) []byte) (*Bucket, error) {
	st, err := ingest.New(ingest.Options{VBuckets: vbuckets, Generation: b.Generation, RollbackID: b.RollbackID,
		Pack: pack})
	if err != nil {
		return nil, err
	}
	return &Bucket{Bucket: st, name: b.Name, vbuckets: vbuckets}, nil
}

// Ref names a stability timestamp of the bucket.
func (b *Bucket) Ref(r timestamp.Ref) wire.StabilityRef {
	return wire.StabilityRef{Bucket: b.name, Ref: r}
}

// Acknowledge has the leader told, with the next reports, what became of a stability timestamp.
func (b *Bucket) Acknowledge(a ingest.Ack) {
	b.acks = append(b.acks, wire.Ack{StabilityRef: b.Ref(a.Ref), Made: a.Made, Exceptions: a.Exceptions})
	if len(b.acks) > MaxAcks {
		b.acks = b.acks[len(b.acks)-MaxAcks:]
	}
}

// Acks are those that the leader has perhaps not been told yet.
func (b *Bucket) Acks() []wire.Ack { return append([]wire.Ack(nil), b.acks...) }

// Told drops the acknowledgements up to one that the leader has taken. Where that has gone, as too many came after it,
// all before it have gone with it.
func (b *Bucket) Told(last wire.StabilityRef) {
	i := slices.IndexFunc(b.acks, func(a wire.Ack) bool { return a.StabilityRef == last })
	b.acks = append(b.acks[:0], b.acks[i+1:]...)
}

// Poll answers how far the node is, and refuses older incarnations from now on. Of a bucket that is not here, b is nil:
// the node takes no part.
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

// Prepare answers the first step of a rollback: what the copies hold. states lists what a copy could go back to in a
// vbucket.
func (b *Bucket) Prepare(req *wire.RollbackRequest, states func(index.CopyID, int) []ingest.Held) *wire.RollbackReply {
	restart, outcome := b.RollbackAsk(req.RollbackID, req.Logs, req.Incarnation, states)
	return &wire.RollbackReply{RollbackID: req.RollbackID, Stale: outcome == ingest.RollbackStale, Restart: restart}
}

// Back is how far a rollback is.
type Back uint8

// What CarryOut says of a rollback.
const (
	BackDone  Back = iota // everything is back since an earlier call, or a newer stream has begun
	BackNow               // everything is back by this call
	BackWaits             // some vbuckets are not back: it is to be asked again
	BackStale             // a newer failover log is known here
	BackOlder             // it is older than one that was carried out
)

// CarryOut does the second step of a rollback, or says how far it is.
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

// Asked is what a report of a bucket has to have.
type Asked struct {
	HW         bool
	Building   func(index.ID) bool // whether an index is being built
	QueueLimit uint64
	Durable    timestamp.Vector // what would survive a crash; without vbuckets it is not known
}

// Report is what the leader is told of the bucket and of its copies; what the copies take and have is their store's to
// add.
func (b *Bucket) Report(a Asked) (wire.BucketReport, []wire.CopyReport) {
	r := wire.BucketReport{Generation: b.Generation(), RollbackID: b.RollbackID(), Acks: b.Acks(),
		Backfill: b.Backfill(a.Building), Persistent: a.Durable}
	r.Heartbeat = wire.HWHeartbeat{Bucket: b.name, MutationQueue: uint64(b.QueueBytes()), QueueLimit: a.QueueLimit}
	if a.HW {
		r.Heartbeat.HW = b.HW()
	}
	if last, ok := b.LastAck(); ok { // what is under way may be made by no copy yet
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
