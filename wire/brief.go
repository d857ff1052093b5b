package wire

import (
	"errors"
	"fmt"
	"slices"

	"tidemark/index"
	"tidemark/timestamp"
)

// ErrChange is wrapped if the change of a bucket in a report has impossible lengths or vectors.
var ErrChange = errors.New("change of a bucket in a report")

// BucketChange is the level state of one bucket, encoded as the difference from the report that IndexerReport.Base
// names, or, if Whole is set, from the empty state. It has the HW only if the leader wants it for this bucket
// (ReportReply.HW).
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
	// Acks are the acknowledgements since the last report that was answered, newest last.
	Acks []Ack `cbor:"10,keyasint,omitempty" json:"acks,omitempty"`
	// IndexIDs is the complete list. It is valid only if IndexesToo is set.
	IndexesToo bool       `cbor:"11,keyasint,omitempty" json:"indexes_too,omitempty"`
	IndexIDs   []index.ID `cbor:"12,keyasint,omitempty" json:"index_ids,omitempty"`
	// Accepted is the difference of the accepted streams (packAccepted). HW and Backfill are the differences of the
	// vectors (timestamp.Vector.AppendDelta, or AppendVector if the length has changed). Each is empty if there is no
	// difference.
	Accepted []byte `cbor:"13,keyasint,omitempty" json:"accepted,omitempty"`
	HW       []byte `cbor:"14,keyasint,omitempty" json:"hw,omitempty"`
	Backfill []byte `cbor:"15,keyasint,omitempty" json:"backfill,omitempty"`
	// NoBackfill is set if no index is being built any more.
	NoBackfill bool `cbor:"16,keyasint,omitempty" json:"no_backfill,omitempty"`
	// LastNumber is the number of LastStability.
	LastNumber uint64 `cbor:"17,keyasint,omitempty" json:"last_stability_number,omitempty"`
}

// ReportSender tracks what an indexer has reported, so that it sends only what has changed. The zero value is ready
// for use. The caller must not modify a report after it has passed it to Make. One goroutine owns a ReportSender.
type ReportSender struct {
	acked  Acked[reported]
	hw     []string // buckets for which the leader wants the HW
	number uint64   // sequence of the report in flight
	making reported // state that the report in flight carries
}

// reported is the state that a report carries.
type reported struct {
	buckets map[string]*BucketReport
	copies  map[index.CopyID]CopyReport
}

// WantsHW reports whether the leader wants the HW of a bucket.
func (t *ReportSender) WantsHW(bucket string) bool { return slices.Contains(t.hw, bucket) }

// LeaderHas reports whether the leader has acknowledged a report of the copy.
func (t *ReportSender) LeaderHas(id index.CopyID) bool {
	known, _ := t.acked.Known()
	_, had := known.copies[id]
	return had
}

// Make turns a report of everything, with its sequence set, into the report to send: the full state if full is set,
// else only what has changed. The caller must call Answered or Lost before the next Make. news reports whether
// anything of buckets and copies has changed that the leader may be waiting for; the fill of a queue that is less
// than half full is no such news.
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
		sent := *b
		if !t.WantsHW(name) {
			sent.Heartbeat.HW = timestamp.Vector{}
			if was != nil { // the leader keeps the HW that it received while it wanted it
				sent.Heartbeat.HW = was.Heartbeat.HW
			}
		}
		t.making.buckets[name] = &sent
		if c, changed := sent.since(was); changed {
			r.Changes = append(r.Changes, c)
			news = news || !sent.queuesMore(was)
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

// queuesMore reports whether b differs from base at most in the fill of its queue, and that queue is less than half
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

// Answered records the answer to the newest report. The next report is a full one if the answer asks for it, or comes
// from a leader that does not know this indexer.
func (t *ReportSender) Answered(a *ReportReply) {
	t.acked.Answered(t.number, t.making, a)
	t.hw = a.HW
}

// Lost records that it is unknown whether the newest report arrived. The next one is a full report.
func (t *ReportSender) Lost() { t.acked.Lost() }

// Shorten turns the buckets of a full report into changes from the empty state.
func (r *IndexerReport) Shorten() {
	for i := range r.Buckets {
		c, _ := r.Buckets[i].since(nil)
		r.Changes = append(r.Changes, c)
	}
	r.Buckets = nil
}

// since returns the difference of b from base; base is nil for the empty state. news is false if there is none.
// Acknowledgements always count as a difference.
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

// numbersDiffer compares the fields that every change carries in full because they are small.
func (b *BucketReport) numbersDiffer(base *BucketReport) bool {
	h, o := &b.Heartbeat, &base.Heartbeat
	return b.Generation != base.Generation || b.RollbackID != base.RollbackID || h.LastPersistence != o.LastPersistence ||
		h.LastStability != o.LastStability || h.LastNumber != o.LastNumber || h.MutationQueue != o.MutationQueue ||
		h.QueueLimit != o.QueueLimit
}

// vectorChange returns the difference of two vectors, or nil if they are equal. A vector of another length is encoded
// in full.
func vectorChange(base, now *timestamp.Vector) []byte {
	if now.Len() == 0 || now.Len() == base.Len() && (&now.Seqnos[0] == &base.Seqnos[0] || now.Equal(*base)) {
		return nil
	}
	if now.Len() != base.Len() {
		return now.AppendVector(nil)
	}
	delta, err := now.AppendDelta(nil, *base)
	if err != nil { // cannot happen: the lengths are equal
		return nil
	}
	return delta
}

// ReportReceiver tracks what the receiver has of an indexer's reports. The zero value is ready for use. One goroutine
// owns a ReportReceiver.
type ReportReceiver struct {
	Newest  // order of the reports
	Buckets map[string]*ReportedBucket
	taken   uint64 // number of reports taken
}

// ReportedBucket is the newest state of a bucket that an indexer has reported. The caller must not modify Report. Its
// acknowledgements are those of the newest report; its accepted streams are returned by Accepted instead.
type ReportedBucket struct {
	Report   BucketReport
	accepted acceptedTable
	taken    uint64 // number of the report that changed it last
}

// Accepted returns all accepted streams.
func (b *ReportedBucket) Accepted() Accepted { return b.accepted.all() }

// Taken is the change of one bucket by a report.
type Taken struct {
	Bucket *ReportedBucket
	// Accepted has the accepted streams that have changed. It omits streams that are not accepted any more.
	Accepted Accepted
	Whole    bool // the report carried the full state of the bucket
}

// MaxReportedBuckets bounds the buckets in one report. It exceeds the bucket limit of a cluster.
const MaxReportedBuckets = 10_000

// Take applies a report. It returns an error if the report is based on another one than the newest that was taken, or
// if its contents are invalid. Then no change that depends on a base was applied, and the sender should send a full
// report. Errors wrap ErrBase, ErrChange or ErrRows.
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

// change applies the change of one bucket. It fails if its base is missing or its contents are invalid.
func (t *ReportReceiver) change(c *BucketChange) (taken Taken, err error) {
	b := t.Buckets[c.Bucket]
	switch {
	case b != nil && b.taken == t.taken:
		return taken, fmt.Errorf("%w: bucket %q is reported twice", ErrChange, c.Bucket)
	case c.Whole:
		b = &ReportedBucket{}
	case b == nil:
		return taken, fmt.Errorf("%w: bucket %q", ErrBase, c.Bucket)
	}
	taken = Taken{Bucket: b, Whole: c.Whole}
	if err := taken.take(c); err != nil { // a protocol violation: the state is left as it is
		return taken, fmt.Errorf("bucket %q: %w", c.Bucket, err)
	}
	b.taken, t.Buckets[c.Bucket] = t.taken, b
	return taken, nil
}

// take applies a change.
func (t *Taken) take(c *BucketChange) error {
	if c.VBuckets < 0 || c.VBuckets > timestamp.MaxVBuckets {
		return fmt.Errorf("%w: %d vbuckets, want at most %d", ErrChange, c.VBuckets, timestamp.MaxVBuckets)
	}
	report := &t.Bucket.Report
	hw, err := changed(c.HW, report.Heartbeat.HW, c.VBuckets)
	if err != nil {
		return err
	}
	backfill, err := changed(c.Backfill, report.Backfill, c.VBuckets)
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
		_ = unpackAccepted(c.Accepted, func(v uint16, s acceptedStream) { // validated above
			t.Bucket.accepted.set(v, s)
			if s != (acceptedStream{}) {
				t.Accepted.add(v, s)
			}
		})
	}
	if c.IndexesToo {
		report.Heartbeat.IndexIDs = c.IndexIDs
	}
	report.Generation, report.RollbackID, report.Acks, report.Backfill = c.Generation, c.RollbackID, c.Acks, backfill
	h := &report.Heartbeat
	h.Bucket, h.HW, h.LastPersistence, h.LastStability = c.Bucket, hw, c.LastPersistence, c.LastStability
	h.LastNumber, h.MutationQueue, h.QueueLimit = c.LastNumber, c.MutationQueue, c.QueueLimit
	return nil
}

// changed applies a difference that vectorChange returned.
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
