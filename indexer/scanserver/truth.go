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

// Stabilities is what is known here of the stability timestamps that the leader has made.
type Stabilities interface {
	// Newest returns the newest one of a bucket.
	Newest(bucket string) (wire.BucketStability, bool)
	// Changed is closed when Newest may have another answer for a bucket.
	Changed(bucket string) <-chan struct{}
	// Published is told of one.
	Published(s *wire.BucketStability)
}

// Sources are whom Truth asks, and what is known here.
type Sources struct {
	Definitions func() wire.Definitions // in force
	Projectors  Projectors
	Leader      Leader
	Stabilities Stabilities
}

// Truth asks projectors and managers, once for all who want to know the same at the same time.
type Truth struct {
	Sources
	seqnos *rounds[bool, *claims] // whether maps are wanted
	stable *rounds[poll, *wire.BucketStability]
}

// NewTruth returns one for all scans and verifications of a node.
func NewTruth(s Sources) *Truth {
	t := &Truth{Sources: s}
	t.seqnos = newRounds(t.askAll, func(a, b bool) (bool, bool) { return a || b, true })
	t.stable = newRounds(t.poll, poll.both)
	return t
}

// CurrentSeqnos implements scan.Truth: each projector tells what its KV nodes host. Nobody may change the vector.
func (t *Truth) CurrentSeqnos(ctx context.Context, bucket string) (timestamp.Vector, error) {
	var known *claims
	var why error // of what is not
	for disputed := false; ; {
		said, err := t.seqnos.share(ctx, bucket, disputed)
		if said != nil { // else patience is over: what is known is of the round before
			if known, why = said, err; len(said.missing()) == 0 {
				return said.at, nil
			}
			disputed = said.disputes > 0
		} else if ctx.Err() == nil {
			return timestamp.Vector{}, err
		}
		pause := time.NewTimer(askAgain)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return timestamp.Vector{}, unowned(bucket, known, why)
		}
	}
}

// unowned is the error of vbuckets of which nobody has said in time where KV is; known is nil where nobody has said
// anything.
func unowned(bucket string, known *claims, why error) error {
	if known == nil {
		return scan.Errorf(errcode.VBucketsUnavailable, "no projector has said in time where KV is with bucket %q", bucket)
	}
	missing := known.missing()
	e := scan.Errorf(errcode.VBucketsUnavailable, "%d of %d vbuckets of bucket %q have no owner that could be asked (%v)",
		len(missing), known.at.Len(), bucket, why)
	e.VBuckets = missing
	return e
}

// askAll returns what the projectors say of all vbuckets of a bucket; nil and why not, where it is not known here.
func (t *Truth) askAll(ctx context.Context, bucket string, maps bool) (*claims, error) {
	d := t.Definitions()
	i := slices.IndexFunc(d.Buckets, func(b wire.Bucket) bool { return b.Name == bucket })
	if i < 0 {
		return nil, scan.Errorf(errcode.IndexNotHosted, "bucket %q is not known here", bucket)
	}
	return t.ask(ctx, d.Projectors, wire.SeqnosRequest{Bucket: bucket, Map: maps}, d.Buckets[i].VBuckets)
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
