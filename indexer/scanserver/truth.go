package scanserver

import (
	"context"
	"errors"
	"slices"
	"time"

	"tidemark/errcode"
	"tidemark/indexer/scan"
	"tidemark/timestamp"
	"tidemark/wire"
)

const (
	// retryPause is the pause before projectors are queried again for vbuckets without an owner.
	retryPause = 50 * time.Millisecond
	// restWait is how long further projectors may take once every vbucket has an owner: the KV node of one may hang
	// because it was failed over.
	restWait = 250 * time.Millisecond
)

// Projectors reports KV's current seqnos.
type Projectors interface {
	Seqnos(ctx context.Context, base string, req *wire.SeqnosRequest) (*wire.SeqnosReply, error)
}

// Leader makes stability timestamps.
type Leader interface {
	Stabilize(ctx context.Context, bucket string, req *wire.StabilizeRequest) (*wire.BucketStability, error)
}

// Stabilities holds the stability timestamps of the leader that this node has received.
type Stabilities interface {
	// Newest returns the newest one of a bucket.
	Newest(bucket string) (wire.BucketStability, bool)
	// Changed returns a channel that is closed when the result of Newest may have changed for a bucket.
	Changed(bucket string) <-chan struct{}
	// Published records a timestamp.
	Published(s *wire.BucketStability)
}

// Sources holds what Truth obtains its answers from.
type Sources struct {
	Definitions func() wire.Definitions // in force
	Projectors  Projectors
	Leader      Leader
	Stabilities Stabilities
}

// Truth queries projectors and the leader, once for all callers that need the same at the same time.
type Truth struct {
	Sources
	seqnos *rounds[bool, *claims] // the request: whether vbucket maps are needed
	stable *rounds[poll, *wire.BucketStability]
}

// NewTruth returns a Truth for all scans and verifications of a node.
func NewTruth(s Sources) *Truth {
	t := &Truth{Sources: s}
	t.seqnos = newRounds(t.queryAll, func(a, b bool) (bool, bool) { return a || b, true })
	t.stable = newRounds(t.poll, poll.both)
	return t
}

// CurrentSeqnos implements scan.Truth. Each projector reports the vbuckets that its KV nodes host. The caller must
// not modify the vector.
func (t *Truth) CurrentSeqnos(ctx context.Context, bucket string) (timestamp.Vector, error) {
	var known *claims
	var why error // why the others are missing
	for disputed := false; ; {
		reported, err := t.seqnos.share(ctx, bucket, disputed)
		if reported != nil { // otherwise ctx has ended, and known is from the previous round
			if known, why = reported, err; len(reported.missing()) == 0 {
				return reported.at, nil
			}
			disputed = reported.disputes > 0
		} else if ctx.Err() == nil {
			return timestamp.Vector{}, err
		}
		pause := time.NewTimer(retryPause)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return timestamp.Vector{}, unowned(bucket, known, why)
		}
	}
}

// unowned returns the error for vbuckets whose seqnos no projector reported in time; known is nil if none answered.
func unowned(bucket string, known *claims, why error) error {
	if known == nil {
		return scan.Errorf(errcode.VBucketsUnavailable, "no projector reported KV's present seqnos of bucket %q in "+
			"time", bucket)
	}
	missing := known.missing()
	e := scan.Errorf(errcode.VBucketsUnavailable, "the owners of %d of %d vbuckets of bucket %q did not answer (%v)",
		len(missing), known.at.Len(), bucket, why)
	e.VBuckets = missing
	return e
}

// queryAll returns what the projectors report for all vbuckets of a bucket. If this node does not know the bucket, it
// returns nil and an error.
func (t *Truth) queryAll(ctx context.Context, bucket string, maps bool) (*claims, error) {
	d := t.Definitions()
	i := slices.IndexFunc(d.Buckets, func(b wire.Bucket) bool { return b.Name == bucket })
	if i < 0 {
		return nil, scan.Errorf(errcode.IndexNotHosted, "this indexer does not have bucket %q", bucket)
	}
	return t.query(ctx, d.Projectors, wire.SeqnosRequest{Bucket: bucket, Map: maps}, d.Buckets[i].VBuckets)
}

// Ask returns what the projectors report now for the n vbuckets of a bucket, and the vbuckets that none of them
// reported. err is a possible reason for the missing ones.
func (t *Truth) Ask(ctx context.Context, bucket string, n int) (at timestamp.Vector, missing []uint16, err error) {
	reported, err := t.query(ctx, t.Definitions().Projectors, wire.SeqnosRequest{Bucket: bucket}, n)
	return reported.at, reported.missing(), err
}

// query returns what the projectors report now. Once every vbucket has an owner, it waits for the remaining projectors
// at most for restWait.
func (t *Truth) query(ctx context.Context, projectors []wire.ProjectorEndpoint, req wire.SeqnosRequest, n int) (*claims,
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
	reported := newClaims(n)
	var errs []error
	var rest <-chan time.Time
	for range projectors {
		select {
		case a := <-answers:
			if errs = append(errs, a.err); a.err == nil {
				reported.add(a.reply)
			}
		case <-rest:
			return reported, errors.Join(errs...)
		}
		if rest == nil && reported.owned == n {
			rest = time.After(restWait)
		}
	}
	return reported, errors.Join(errs...)
}
