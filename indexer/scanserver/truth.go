package scanserver

import (
	"context"
	"errors"
	"slices"
	"time"

	"tidemark/errcode"
	"tidemark/indexer/scan"
	"tidemark/internal/rpc"
	"tidemark/timestamp"
	"tidemark/wire"
)

const (
	// askAgain is the pause before projectors are asked again for vbuckets that nobody owned.
	askAgain = 50 * time.Millisecond
	// askRest is how long the others may take when every vbucket has an owner: the KV node of one that was failed over may
	// hang.
	askRest = 250 * time.Millisecond
)

// Projectors tell where KV is now.
type Projectors interface {
	Seqnos(ctx context.Context, base string, req *wire.SeqnosRequest) (*wire.SeqnosReply, error)
}

// Leader makes stability timestamps.
type Leader interface {
	Stabilize(ctx context.Context, bucket string, req *wire.StabilizeRequest) (*wire.BucketStability, error)
}

// Truth asks projectors and managers.
type Truth struct {
	Definitions func() wire.Definitions // in force
	Projectors  Projectors
	Leader      Leader
	// Published is told of each timestamp that the leader has made.
	Published func(*wire.BucketStability)
}

// CurrentSeqnos implements scan.Truth: each projector tells what its KV nodes host.
func (t *Truth) CurrentSeqnos(ctx context.Context, bucket string) (timestamp.Vector, error) {
	d := t.Definitions()
	i := slices.IndexFunc(d.Buckets, func(b wire.Bucket) bool { return b.Name == bucket })
	if i < 0 {
		return timestamp.Vector{}, scan.Errorf(errcode.IndexNotHosted, "bucket %q is not known here", bucket)
	}
	n := d.Buckets[i].VBuckets
	var unowned []uint16
	var why error
	for disputed := false; ; {
		said, err := t.ask(ctx, d.Projectors, wire.SeqnosRequest{Bucket: bucket, Map: disputed}, n)
		missing := said.missing()
		if len(missing) == 0 {
			return said.at, nil
		}
		disputed = said.disputes > 0
		if ctx.Err() == nil || unowned == nil { // the last round, cut short, knows less than the one before
			unowned, why = missing, err
		}
		pause := time.NewTimer(askAgain)
		select {
		case <-pause.C:
			d = t.Definitions()
		case <-ctx.Done():
			pause.Stop()
			e := scan.Errorf(errcode.VBucketsUnavailable, "%d of %d vbuckets of bucket %q have no owner that could "+
				"be asked (%v)", len(unowned), n, bucket, why)
			e.VBuckets = unowned
			return said.at, e
		}
	}
}

// Ask returns what the projectors say now of the n vbuckets of a bucket, and of which of these nobody said anything; an
// error says why that may be.
func (t *Truth) Ask(ctx context.Context, bucket string, n int) (at timestamp.Vector, missing []uint16, err error) {
	said, err := t.ask(ctx, t.Definitions().Projectors, wire.SeqnosRequest{Bucket: bucket}, n)
	return said.at, said.missing(), err
}

// ask returns what the projectors say now. When every vbucket has an owner, who has not answered is waited for no
// longer than askRest.
func (t *Truth) ask(ctx context.Context, projectors []wire.ProjectorEndpoint, req wire.SeqnosRequest, n int) (*claims,
	error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		reply *wire.SeqnosReply
		err   error
	}
	answers := make(chan answer, len(projectors))
	for _, p := range projectors {
		go func() {
			reply, err := t.Projectors.Seqnos(ctx, p.Admin, &req)
			answers <- answer{reply, err}
		}()
	}
	said := newClaims(n)
	var errs []error
	var rest <-chan time.Time
	for range projectors {
		select {
		case a := <-answers:
			if errs = append(errs, a.err); a.err == nil {
				said.add(a.reply)
			}
		case <-rest:
			return said, errors.Join(errs...)
		}
		if rest == nil && said.owned == n {
			rest = time.After(askRest)
		}
	}
	return said, errors.Join(errs...)
}

// Stabilize implements scan.Truth.
func (t *Truth) Stabilize(ctx context.Context, bucket string, need timestamp.Vector,
	wait time.Duration) (wire.BucketStability, error) {
	s, err := t.Leader.Stabilize(ctx, bucket, &wire.StabilizeRequest{Need: need, WaitMS: max(wait.Milliseconds(), 1)})
	if err != nil {
		var p *rpc.Problem
		if errors.As(err, &p) {
			switch code := p.Code; code {
			case errcode.Timeout:
				return wire.BucketStability{}, scan.Errorf(code, "no stability timestamp covers KV's present: %w", err)
			case errcode.TokenLost, errcode.IndexInRollback: // the reason is the scan's own
				return wire.BucketStability{}, scan.Errorf(code, "%s", p.Detail)
			}
		}
		return wire.BucketStability{}, scan.Errorf(errcode.Unavailable, "the leader could not be asked for a stability "+
			"timestamp: %w", err)
	}
	s.Bucket = bucket
	t.Published(s)
	return *s, nil
}
