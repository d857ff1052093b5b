package coordinator

import (
	"context"
	"fmt"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/stability"
	"tidemark/streams"
	"tidemark/timestamp"
	"tidemark/wire"
)

// BucketView is what only the leader knows of a bucket: its streams, and what its next stability timestamp waits for.
type BucketView struct {
	Name       string
	Generation uint64
	Wanted     bool            // it has an index that needs its streams
	Entries    []streams.Entry // by vbucket
	Summary    streams.Summary
	// Current are the newest complete seqnos of the streams, 0 where none is known.
	Current timestamp.Vector
	// StableMS is when the newest stability timestamp was seen here, unix milliseconds; 0: before this leader's term.
	StableMS     int64
	Participants []stability.Participant
	Source       stability.Source
	Waiting      int    // scans that wait for a stability timestamp
	Diverged     string // why the bucket has to be rolled back, "" when it has not
}

// View returns a bucket's view. Errors wrap ErrNotLeading, ErrUnknownBucket, ErrBusy, or ctx's error.
func (c *Coordinator) View(ctx context.Context, bucket string) (BucketView, error) {
	l, err := c.leading()
	if err != nil {
		return BucketView{}, err
	}
	q := &viewQuery{bucket: bucket, reply: make(chan *BucketView, 1)}
	v, err := ask(ctx, l, "the view of the bucket", q, q.reply)
	switch {
	case err != nil:
		return BucketView{}, err
	case v == nil:
		return BucketView{}, fmt.Errorf("%w: %q", ErrUnknownBucket, bucket)
	}
	return *v, nil
}

func (q *viewQuery) apply(l *Leader) { reply(l, q.reply, l.View(q.bucket)) }

// View returns what is known of a bucket; nil where there is no such bucket.
func (l *Leader) View(bucket string) *BucketView {
	b := l.buckets.byName[bucket]
	if b == nil {
		return nil
	}
	v := &BucketView{Name: b.name, Generation: b.generation, Wanted: b.wanted,
		Entries: make([]streams.Entry, b.ledger.Len()),
		Summary: b.ledger.Summary(l.nowMS), Current: b.stab.Current(), StableMS: b.stableMS,
		Participants: b.stab.Participants(l.nowMS),
		Source:       b.stab.Source(), Waiting: len(b.waiters)}
	for i := range v.Entries {
		v.Entries[i] = b.ledger.At(i)
	}
	if d, bad := b.ledger.Diverged(); bad {
		v.Diverged = fmt.Sprintf("vbucket %d: %s", d.VBucket, d.Reason)
	}
	return v
}

// Copies returns what indexers have last reported of copies; those that none has reported are left out. Errors wrap
// ErrNotLeading, ErrBusy, or ctx's error.
func (c *Coordinator) Copies(ctx context.Context, all []partition.Copy) (map[index.CopyID]wire.CopyReport, error) {
	l, err := c.leading()
	if err != nil {
		return nil, err
	}
	q := &copiesQuery{all: all, reply: make(chan map[index.CopyID]wire.CopyReport, 1)}
	return ask(ctx, l, "what is reported of copies", q, q.reply)
}

func (q *copiesQuery) apply(l *Leader) {
	told := make(map[index.CopyID]wire.CopyReport, len(q.all))
	for i := range q.all {
		if n := l.components.indexers[q.all[i].Node]; n != nil {
			if r, ok := n.copies[q.all[i].ID]; ok {
				told[r.Copy] = r
			}
		}
	}
	reply(l, q.reply, told)
}

// Stabilize returns a committed stability timestamp of the bucket at or above need, as soon as there is one (IX-7,
// session and at_plus), at the latest when ctx ends. A vbuuid of 0 in need stands for any branch. Errors wrap
// ErrNotLeading, ErrUnknownBucket, ErrInRollback, ErrNoStreams, ErrBucketGone, ErrTokenLost, ErrBusy,
// timestamp.ErrLength, or ctx's error.
func (c *Coordinator) Stabilize(ctx context.Context, bucket string, need timestamp.Vector) (wire.Stability, error) {
	l, err := c.leading()
	if err != nil {
		return wire.Stability{}, err
	}
	s := &Stabilize{Bucket: bucket, Need: need, Reply: make(chan Stabilized, 1)}
	if err := l.post(ctx, s); err != nil {
		return wire.Stability{}, err
	}
	a, err := await(ctx, l, "waiting for a stability timestamp of bucket "+bucket, s.Reply)
	if err != nil {
		l.leave(s)
		return wire.Stability{}, err
	}
	return a.Stability, a.Err
}
