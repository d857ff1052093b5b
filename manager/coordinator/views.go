package coordinator

import (
	"context"
	"fmt"

	"tidemark/index"
	"tidemark/manager/coordinator/core"
	"tidemark/partition"
	"tidemark/timestamp"
	"tidemark/wire"
)

// View returns a bucket's view. Errors wrap ErrNotLeading, ErrUnknownBucket, ErrBusy, or ctx's error.
func (c *Coordinator) View(ctx context.Context, bucket string) (core.BucketView, error) {
	l, err := c.leading()
	if err != nil {
		return core.BucketView{}, err
	}
	q := &core.ViewQuery{Bucket: bucket, Reply: make(chan *core.BucketView, 1)}
	v, err := query(ctx, l, "view of the bucket", q, q.Reply)
	switch {
	case err != nil:
		return core.BucketView{}, err
	case v == nil:
		return core.BucketView{}, fmt.Errorf("%w: %q", core.ErrUnknownBucket, bucket)
	}
	return *v, nil
}

// Copies returns the newest reports of copies; copies without a report are left out. Errors wrap ErrNotLeading,
// ErrBusy, or ctx's error.
func (c *Coordinator) Copies(ctx context.Context, all []partition.Copy) (map[index.CopyID]wire.CopyReport, error) {
	l, err := c.leading()
	if err != nil {
		return nil, err
	}
	q := &core.CopiesQuery{All: all, Reply: make(chan map[index.CopyID]wire.CopyReport, 1)}
	return query(ctx, l, "reports of copies", q, q.Reply)
}

// Stabilize returns a committed stability timestamp of the bucket at or above need, as soon as there is one (IX-7,
// session and at_plus), and fails when ctx ends. A vbuuid of 0 in need stands for any branch. A timestamp stays valid
// when the leader changes; a refusal is returned only by a leader that has verified its leadership. Errors wrap
// ErrNotLeading, ErrUnknownBucket, ErrInRollback, ErrNoStreams, ErrBucketGone, ErrTokenLost, ErrBusy,
// timestamp.ErrLength, or ctx's error.
func (c *Coordinator) Stabilize(ctx context.Context, bucket string,
	need timestamp.Vector) (wire.BucketStability, error) {
	l, err := c.leading()
	if err != nil {
		return wire.BucketStability{}, err
	}
	s := &core.Stabilize{Bucket: bucket, Need: need, Reply: make(chan core.Stabilized, 1)}
	if err := l.post(ctx, s); err != nil {
		return wire.BucketStability{}, err
	}
	a, err := await(ctx, l, "waiting for a stability timestamp of bucket "+bucket, s.Reply)
	if err != nil {
		l.leave(s)
		return wire.BucketStability{}, err
	}
	if a.Err != nil { // another manager may lead by now, with newer knowledge
		if err := c.cfg.Consensus.ReadBarrier(ctx); err != nil {
			return wire.BucketStability{}, err
		}
	}
	return a.Stability, a.Err
}

// Progress returns the progress of each index; it is empty while this manager does not lead.
func (c *Coordinator) Progress() map[index.ID]core.Progress {
	s, ok := c.Status()
	if !ok {
		return nil
	}
	return s.Progress
}

// Status returns the newest picture, and false while this manager does not lead.
func (c *Coordinator) Status() (core.Status, bool) {
	l, err := c.leading()
	if err != nil {
		return core.Status{}, false
	}
	if s := l.gate.shown.Load(); s != nil {
		return *s, true
	}
	return core.Status{Step: "hello", Term: l.number}, true
}
