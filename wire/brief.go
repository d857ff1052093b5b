package wire

import (
	"errors"
	"fmt"
	"slices"

	"tidemark/index"
	"tidemark/timestamp"
)

// ErrChange is wrapped when the change of a bucket in a report has lengths or vectors that cannot be.
var ErrChange = errors.New("change of a bucket in a report")

// BucketChange is the level state of one bucket by what differs from the report that IndexerReport.Base names, or,
// when it is Whole, from nothing. It has the HW only of buckets of which the leader wants it (ReportReply.HW).
type BucketChange struct {
	Bucket          string `cbor:"1,keyasint" json:"bucket"`
	Whole           bool   `cbor:"2,keyasint,omitempty" json:"whole,omitempty"`
	Generation      uint64 `cbor:"3,keyasint" json:"generation"`
	RollbackID      uint64 `cbor:"4,keyasint" json:"rollback_id"`
	LastPersistence uint64 `cbor:"5,keyasint" json:"last_persistence,string"`
	LastStability   uint64 `cbor:"6,keyasint" json:"last_stability,string"`
	MutationQueue   uint64 `cbor:"7,keyasint" json:"mutation_queue"`
	QueueLimit      uint64 `cbor:"8,keyasint" json:"queue_limit"`
	VBuckets        int    `cbor:"9,keyasint" json:"vbuckets"`
	// Acks since the last report that was answered, newest last.
	Acks []Ack `cbor:"10,keyasint,omitempty" json:"acks,omitempty"`
	// IndexIDs are all, when IndexesToo.
	IndexesToo bool       `cbor:"11,keyasint,omitempty" json:"indexes_too,omitempty"`
	IndexIDs   []index.ID `cbor:"12,keyasint,omitempty" json:"index_ids,omitempty"`
	// Accepted are the differences of the accepted streams (packAccepted), HW and Backfill those of the vectors
	// (timestamp.Vector.AppendDelta; AppendVector where the one before is of another length); nothing where there is no
	// difference.
	Accepted []byte `cbor:"13,keyasint,omitempty" json:"accepted,omitempty"`
	HW       []byte `cbor:"14,keyasint,omitempty" json:"hw,omitempty"`
	Backfill []byte `cbor:"15,keyasint,omitempty" json:"backfill,omitempty"`
	// NoBackfill: nothing is built any more.
	NoBackfill bool `cbor:"16,keyasint,omitempty" json:"no_backfill,omitempty"`
	// LastNumber goes with LastStability.
	LastNumber uint64 `cbor:"17,keyasint,omitempty" json:"last_stability_number,omitempty"`
}

// ReportSender is what an indexer remembers of its reports, so that it sends only what has changed. The zero value is
// ready; what is handed to Make must not be changed afterwards. It is owned by one goroutine.
type ReportSender struct {
	acked  Acked[reported]
	hw     []string // buckets of which the leader wants the HW
	number uint64   // of the report on its way
	making reported // by it
}

// reported is what a report has told.
type reported struct {
	buckets map[string]*BucketReport
	copies  map[index.CopyID]CopyReport
}

// WantsHW reports whether the leader wants a bucket's HW.
func (t *ReportSender) WantsHW(bucket string) bool { return slices.Contains(t.hw, bucket) }

// LeaderHas reports whether the leader has been told of a copy.
func (t *ReportSender) LeaderHas(id index.CopyID) bool {
	known, _ := t.acked.Known()
	_, had := known.copies[id]
	return had
}

// Make turns a report of everything, with its sequence set, into the one to be sent: of everything when full is true,
// else of what has changed. The caller calls Answered, or Lost, before it makes the next. It reports whether a leader
// may wait for what has changed of buckets and copies: not for how much a queue holds that is less than half full.
func (t *ReportSender) Make(r *IndexerReport, full bool) (news bool) {
	if full {
		t.acked.Lost()
	}
	var known reported
	known, r.Base = t.acked.Known()
	t.number, t.making = r.Sequence, reported{make(map[string]*BucketReport, len(r.Buckets)),
		make(map[index.CopyID]CopyReport, len(r.Copies))}
	whole := r.Buckets
	r.Buckets = nil
	for i := range whole {
		b := &whole[i]
		name := b.Heartbeat.Bucket
		was := known.buckets[name]
		told := *b
		if !t.WantsHW(name) {
			told.Heartbeat.HW = timestamp.Vector{}
			if was != nil { // the leader keeps what it was told while it wanted it
				told.Heartbeat.HW = was.Heartbeat.HW
			}
		}
		t.making.buckets[name] = &told
		if c, changed := told.since(was); changed {
			r.Changes = append(r.Changes, c)
			news = news || !told.queuesMore(was)
		}
	}
	moved := r.Copies[:0:0]
	for _, c := range r.Copies {
		t.making.copies[c.Copy] = c
		if was, had := known.copies[c.Copy]; !had || was != c {
			moved = append(moved, c)
		}
	}
	r.Copies = moved
	return news || r.Whole() || len(moved) > 0
}

// queuesMore reports whether b differs from base in no more than how much its queue holds, which is less than half
// full.
func (b *BucketReport) queuesMore(base *BucketReport) bool {
	if base == nil || b.Heartbeat.MutationQueue >= b.Heartbeat.QueueLimit/2 {
		return false
	}
	same := *b
	same.Heartbeat.MutationQueue = base.Heartbeat.MutationQueue
	_, differs := same.since(base)
	return !differs
}

// Answered notes that the newest report was answered so. The next one is of everything when the answer asks for that,
// or comes from a leader that does not know us.
func (t *ReportSender) Answered(a *ReportReply) {
	t.acked.Answered(t.number, t.making, a)
	t.hw = a.HW
}

// Lost notes that nobody knows whether the newest report came: the next one is of everything.
func (t *ReportSender) Lost() { t.acked.Lost() }

// Shorten turns the buckets of a full report into changes from nothing.
func (r *IndexerReport) Shorten() {
	for i := range r.Buckets {
		c, _ := r.Buckets[i].since(nil)
		r.Changes = append(r.Changes, c)
	}
	r.Buckets = nil
}

// since returns how b differs from base, nil for nothing; false when it does not. Acknowledgements are always news.
func (b *BucketReport) since(base *BucketReport) (c BucketChange, news bool) {
	h := &b.Heartbeat
	c = BucketChange{Bucket: h.Bucket, Whole: base == nil, Generation: b.Generation, RollbackID: b.RollbackID,
		LastPersistence: h.LastPersistence,
		LastStability:   h.LastStability, LastNumber: h.LastNumber, MutationQueue: h.MutationQueue, QueueLimit: h.QueueLimit,
		Acks: b.Acks}
	if base == nil {
		base = &BucketReport{}
	}
	o := &base.Heartbeat
	news = c.Whole || b.numbersDiffer(base) || len(b.Acks) > 0
	if !slices.Equal(h.IndexIDs, o.IndexIDs) {
		c.IndexesToo, c.IndexIDs = true, h.IndexIDs
	}
	c.Accepted = packAccepted(&base.Accepted, &b.Accepted)
	c.HW = vectorChange(&o.HW, &h.HW)
	c.Backfill = vectorChange(&base.Backfill, &b.Backfill)
	c.NoBackfill = b.Backfill.Len() == 0 && base.Backfill.Len() > 0
	c.VBuckets = max(h.HW.Len(), b.Backfill.Len())
	return c, news || c.IndexesToo || c.Accepted != nil || c.HW != nil || c.Backfill != nil || c.NoBackfill
}

// numbersDiffer compares what a change states anew each time, as it is small.
func (b *BucketReport) numbersDiffer(base *BucketReport) bool {
	h, o := &b.Heartbeat, &base.Heartbeat
	return b.Generation != base.Generation || b.RollbackID != base.RollbackID || h.LastPersistence != o.LastPersistence ||
		h.LastStability != o.LastStability || h.LastNumber != o.LastNumber || h.MutationQueue != o.MutationQueue ||
		h.QueueLimit != o.QueueLimit
}

// vectorChange is the difference of two vectors, nothing when there is none. One of another length is told whole.
func vectorChange(base, now *timestamp.Vector) []byte {
	if now.Len() == 0 || now.Len() == base.Len() && (&now.Seqnos[0] == &base.Seqnos[0] || now.Equal(*base)) {
		return nil
	}
	if now.Len() != base.Len() {
		return now.AppendVector(nil)
	}
	delta, err := now.AppendDelta(nil, *base)
	if err != nil { // lengths are equal
		return nil
	}
	return delta
}

// ReportReceiver is what the receiver of an indexer's reports remembers. The zero value is ready; it is owned by one
// goroutine.
type ReportReceiver struct {
	Newest  // report that was taken
	Buckets map[string]*ReportedBucket
	taken   uint64 // reports
}

// ReportedBucket is what an indexer said of a bucket. What Report has is not to be changed; its acknowledgements are
// those of the newest report, and its accepted streams are with Accepted.
type ReportedBucket struct {
	Report   BucketReport
	accepted acceptedTable
	taken    uint64 // report that told it last
}

// Accepted returns all accepted streams.
func (b *ReportedBucket) Accepted() Accepted { return b.accepted.all() }

// Taken is a bucket of which a report told something.
type Taken struct {
	Bucket *ReportedBucket
	// Accepted are the accepted streams that have changed; of one that is accepted no more nothing is said.
	Accepted Accepted
	Whole    bool // everything was told
}

// MaxReportedBuckets bounds the buckets of one report, which is more than a cluster may have.
const MaxReportedBuckets = 10_000

// Take takes a report. With an error nothing of what had to be compared was taken, as the report that it is based on is
// not the newest one that was taken, or something in it cannot be: a report of everything should follow. Errors wrap
// ErrBase, ErrChange or ErrRows.
func (t *ReportReceiver) Take(r *IndexerReport) (all []Taken, err error) {
	err = t.Newest.Take(r.Base, r.Sequence)
	if n := len(r.Changes); n > MaxReportedBuckets {
		t.Forget()
		return nil, fmt.Errorf("%w: %d buckets, want at most %d", ErrChange, n, MaxReportedBuckets)
	}
	if t.Buckets == nil {
		t.Buckets = map[string]*ReportedBucket{}
	}
	if r.Whole() {
		clear(t.Buckets)
	}
	t.taken++
	refused := err != nil
	for i := range r.Changes {
		c := &r.Changes[i]
		if !c.Whole && refused {
			continue
		}
		taken, bad := t.change(c)
		if bad == nil {
			all = append(all, taken)
			continue
		}
		if refused = true; err == nil {
			err = bad
		}
	}
	if err != nil {
		t.Forget()
	}
	return all, err
}

// change takes what has changed of one bucket, unless it is compared with what is not known, or cannot be.
func (t *ReportReceiver) change(c *BucketChange) (taken Taken, err error) {
	b := t.Buckets[c.Bucket]
	switch {
	case b != nil && b.taken == t.taken:
		return taken, fmt.Errorf("%w: bucket %q is told twice", ErrChange, c.Bucket)
	case c.Whole:
		b = &ReportedBucket{}
	case b == nil:
		return taken, fmt.Errorf("%w: bucket %q", ErrBase, c.Bucket)
	}
	taken = Taken{Bucket: b, Whole: c.Whole}
	if err := taken.take(c); err != nil { // nobody who keeps to the protocol sends this: what is known stays
		return taken, fmt.Errorf("bucket %q: %w", c.Bucket, err)
	}
	b.taken, t.Buckets[c.Bucket] = t.taken, b
	return taken, nil
}

// take makes a change.
func (t *Taken) take(c *BucketChange) error {
	if c.VBuckets < 0 || c.VBuckets > timestamp.MaxVBuckets {
		return fmt.Errorf("%w: %d vbuckets, want at most %d", ErrChange, c.VBuckets, timestamp.MaxVBuckets)
	}
	told := &t.Bucket.Report
	hw, err := changed(c.HW, told.Heartbeat.HW, c.VBuckets)
	if err != nil {
		return err
	}
	backfill, err := changed(c.Backfill, told.Backfill, c.VBuckets)
	if err != nil {
		return err
	}
	if c.NoBackfill {
		backfill = timestamp.Vector{}
	}
	if len(c.Accepted) > 0 {
		if err := unpackAccepted(c.Accepted, func(uint16, acceptedStream) {}); err != nil {
			return err
		}
		_ = unpackAccepted(c.Accepted, func(v uint16, s acceptedStream) { // looked through before
			t.Bucket.accepted.set(v, s)
			if s != (acceptedStream{}) {
				t.Accepted.add(v, s)
			}
		})
	}
	if c.IndexesToo {
		told.Heartbeat.IndexIDs = c.IndexIDs
	}
	told.Generation, told.RollbackID, told.Acks, told.Backfill = c.Generation, c.RollbackID, c.Acks, backfill
	h := &told.Heartbeat
	h.Bucket, h.HW, h.LastPersistence, h.LastStability = c.Bucket, hw, c.LastPersistence, c.LastStability
	h.LastNumber, h.MutationQueue, h.QueueLimit = c.LastNumber, c.MutationQueue, c.QueueLimit
	return nil
}

// changed applies what vectorChange has made.
func changed(delta []byte, base timestamp.Vector, vbuckets int) (timestamp.Vector, error) {
	if len(delta) == 0 {
		return base, nil
	}
	var v timestamp.Vector
	var rest []byte
	var err error
	if base.Len() == vbuckets {
		v, rest, err = timestamp.ApplyDeltaShared(delta, base)
	} else if v, rest, err = timestamp.DecodeVector(delta); err == nil {
		err = v.Check(vbuckets)
	}
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("%d bytes too many", len(rest))
	}
	if err != nil {
		return base, fmt.Errorf("%w: %w", ErrChange, err)
	}
	return v, nil
}
