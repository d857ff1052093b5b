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

// pollMost bounds one wait at the leader: where one is in vain, who has come since has his turn within his own time.
const pollMost = 5 * time.Second

// poll is what the leader is asked for: a timestamp that meets need, until then. A need has the branches by which it
// was judged, so that those of before and after a failover, or of two buckets of one name, never go together.
type poll struct {
	need  timestamp.Vector
	until time.Time
}

// both asks for what two ask for.
func (p poll) both(o poll) (poll, bool) {
	need, ok := p.need.Both(o.need)
	if o.until.After(p.until) {
		p.until = o.until
	}
	return poll{need, p.until}, ok
}

// Stabilize implements scan.Truth. It ends when a timestamp is heard of that meets need, whether or not the leader has
// been asked for that one.
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

// stabilize shares a wait at the leader. It returns nil and no error when that was in vain and there is time for
// another one.
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
			if tokenLost(r.err) && !r.question.need.Equal(p.need) { // whose it is has to be asked apart
				return t.poll(ctx, bucket, p)
			}
			return r.answer, r.err
		}
	}
}

// poll waits at the leader, for pollMost at most. It returns nil and no error when that was in vain and there is time
// left.
func (t *Truth) poll(ctx context.Context, bucket string, p poll) (*wire.BucketStability, error) {
	began := time.Now()
	wait := min(p.until.Sub(began), pollMost)
	s, err := t.Leader.Stabilize(ctx, bucket, &wire.StabilizeRequest{Need: p.need, WaitMS: max(wait.Milliseconds(), 1)})
	if err != nil {
		var refusal *rpc.Problem
		if errors.As(err, &refusal) && refusal.Code == errcode.Timeout && wait == pollMost &&
			time.Since(began) > pollMost/2 { // it has been waited for
			return nil, nil
		}
		return nil, err
	}
	s.Bucket = bucket
	t.Stabilities.Published(s)
	return s, nil
}

// tokenLost reports whether the leader says that what was asked for can never come.
func tokenLost(err error) bool {
	var p *rpc.Problem
	return errors.As(err, &p) && p.Code == errcode.TokenLost
}

// overdue is the error of a scan whose time is over, or which was given up.
func overdue(cause error) error {
	if errors.Is(cause, context.DeadlineExceeded) {
		return scan.Errorf(errcode.Timeout, "no stability timestamp covers KV's present in time: %w", cause)
	}
	return scan.AsError(cause)
}

// refused is the error of a scan that the leader has refused a timestamp.
func refused(err error) error {
	var p *rpc.Problem
	if errors.As(err, &p) {
		switch code := p.Code; code {
		case errcode.Timeout:
			return scan.Errorf(code, "no stability timestamp covers KV's present: %w", err)
		case errcode.TokenLost, errcode.IndexInRollback: // the reason is the scan's own
			return scan.Errorf(code, "%s", p.Detail)
		}
	}
	return scan.Errorf(errcode.Unavailable, "the leader could not be asked for a stability timestamp: %w", err)
}
