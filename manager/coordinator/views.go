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
	if err := l.post(ctx, q); err != nil {
		return BucketView{}, err
	}
	select {
	case v := <-q.reply:
		if v == nil {
			return BucketView{}, fmt.Errorf("%w: %q", ErrUnknownBucket, bucket)
		}
		return *v, nil
	case <-l.ended:
		return BucketView{}, ErrNotLeading
	case <-ctx.Done():
		return BucketView{}, fmt.Errorf("the view of bucket %q: %w", bucket, ctx.Err())
	}
}

type viewQuery struct {
	bucket string
	reply  chan *BucketView
}

func (q *viewQuery) apply(l *leader) {
	b := l.buckets.byName[q.bucket]
	if b == nil {
		q.reply <- nil
		return
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
	q.reply <- v
}

// Copies returns what indexers have last reported of copies; those that none has reported are left out. Errors wrap
// ErrNotLeading, ErrBusy, or ctx's error.
func (c *Coordinator) Copies(ctx context.Context, all []partition.Copy) (map[index.CopyID]wire.CopyReport, error) {
	l, err := c.leading()
	if err != nil {
		return nil, err
	}
	q := &copiesQuery{all: all, reply: make(chan map[index.CopyID]wire.CopyReport, 1)}
	if err := l.post(ctx, q); err != nil {
		return nil, err
	}
	select {
	case told := <-q.reply:
		return told, nil
	case <-l.ended:
		return nil, ErrNotLeading
	case <-ctx.Done():
		return nil, fmt.Errorf("what is reported of copies: %w", ctx.Err())
	}
}

type copiesQuery struct {
	all   []partition.Copy
	reply chan map[index.CopyID]wire.CopyReport
}

func (q *copiesQuery) apply(l *leader) {
	told := make(map[index.CopyID]wire.CopyReport, len(q.all))
	for i := range q.all {
		if n := l.components.indexers[q.all[i].Node]; n != nil {
			if r, ok := n.copies[q.all[i].ID]; ok {
				told[r.Copy] = r
			}
		}
	}
	q.reply <- told
}
