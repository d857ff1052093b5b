package scanserver

import (
	"context"
	"errors"
	"time"

	"tidemark/errcode"
	"tidemark/indexer/scan"
	"tidemark/internal/rpc"
	"tidemark/timestamp"
	"tidemark/wire"
)

// pollMost bounds one wait at the leader. If a wait is in vain, callers that arrived since get their turn within
// their own time.
const pollMost = 5 * time.Second

// poll is a request to the leader: a timestamp that meets need, until the given time. need contains the branches that
// it was derived with, so that needs from before and after a failover, or of two buckets of the same name, are never
// merged.
type poll struct {
	need  timestamp.Vector
	until time.Time
}

// both returns a poll that covers two.
func (p poll) both(o poll) (poll, bool) {
	need, ok := p.need.Both(o.need)
	if o.until.After(p.until) {
		p.until = o.until
	}
	return poll{need, p.until}, ok
}

// Stabilize implements scan.Truth. It returns as soon as this node receives a timestamp that meets need, whether or
// not that was requested of the leader.
func (t *Truth) Stabilize(ctx context.Context, bucket string, need timestamp.Vector,
	wait time.Duration) (wire.BucketStability, error) {
	p := poll{need, time.Now().Add(wait)}
	ctx, cancel := context.WithDeadline(ctx, p.until)
	defer cancel()
	for {
		if s, ok := t.Stabilities.Newest(bucket); ok && s.Vector.Meets(need) {
			return s, nil
		}
		s, err := t.stabilize(ctx, bucket, p)
		switch {
		case s != nil:
			return *s, nil
		case ctx.Err() != nil:
			return wire.BucketStability{}, overdue(context.Cause(ctx))
		case err != nil:
			return wire.BucketStability{}, refused(err)
		}
	}
}

// stabilize shares a wait at the leader with other callers. It returns nil and no error if the wait was in vain and
// there is time for another one.
func (t *Truth) stabilize(ctx context.Context, bucket string, p poll) (*wire.BucketStability, error) {
	r := t.stable.join(ctx, bucket, p)
	defer t.stable.leave(r)
	var judged timestamp.Ref
	for {
		changed := t.Stabilities.Changed(bucket)
		if s, ok := t.Stabilities.Newest(bucket); ok && s.Ref != judged {
			if judged = s.Ref; s.Vector.Meets(p.need) {
				return &s, nil
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-r.done:
			if tokenLost(r.err) && !r.request.need.Equal(p.need) { // a caller's own request shows whose need is lost
				return t.poll(ctx, bucket, p)
			}
			return r.answer, r.err
		}
	}
}

// poll waits at the leader, at most for pollMost. It returns nil and no error if the wait was in vain and there is
// time left.
func (t *Truth) poll(ctx context.Context, bucket string, p poll) (*wire.BucketStability, error) {
	began := time.Now()
	wait := min(p.until.Sub(began), pollMost)
	s, err := t.Leader.Stabilize(ctx, bucket, &wire.StabilizeRequest{Need: p.need, WaitMS: max(wait.Milliseconds(), 1)})
	if err != nil {
		var refusal *rpc.Problem
		if errors.As(err, &refusal) && refusal.Code == errcode.Timeout && wait == pollMost &&
			time.Since(began) > pollMost/2 { // the leader did wait
			return nil, nil
		}
		return nil, err
	}
	s.Bucket = bucket
	t.Stabilities.Published(s)
	return s, nil
}

// tokenLost reports whether the leader refused because the needed seqno can never be reached.
func tokenLost(err error) bool {
	var p *rpc.Problem
	return errors.As(err, &p) && p.Code == errcode.TokenLost
}

// overdue returns the error of a scan that timed out or was cancelled.
func overdue(cause error) error {
	if errors.Is(cause, context.DeadlineExceeded) {
		return scan.Errorf(errcode.Timeout, "no stability timestamp covered KV's present state in time: %w", cause)
	}
	return scan.AsError(cause)
}

// refused returns the error of a scan for which the leader refused a timestamp.
func refused(err error) error {
	var p *rpc.Problem
	if errors.As(err, &p) {
		switch code := p.Code; code {
		case errcode.Timeout:
			return scan.Errorf(code, "no stability timestamp covers KV's present state: %w", err)
		case errcode.TokenLost, errcode.IndexInRollback: // the leader's reason applies to the scan itself
			return scan.Errorf(code, "%s", p.Detail)
		}
	}
	return scan.Errorf(errcode.Unavailable, "requesting a stability timestamp from the leader failed: %w", err)
}
