package scan

import (
	"context"
	"slices"
	"time"

	"tidemark/errcode"
	"tidemark/timestamp"
	"tidemark/wire"
)

// consistency sets, once per scan, the oldest timestamp that the scan may use.
func (r *run) consistency(ctx context.Context, view *View) error {
	if err := r.session.take(&r.spec, view); err != nil { // this indexer itself lags behind
		r.lag.begin(r.out.given)
		return err
	}
	if r.least == nil || r.least.Generation != view.Bucket.Generation || r.least.RollbackID != view.Bucket.RollbackID {
		r.least, r.floored = nil, false
		if err := r.truth(ctx, view); err != nil {
			return err
		}
	}
	if r.spec.At == nil && r.session.floor != nil && (r.least == nil || r.least.Compare(r.session.floor.Ref) < 0) {
		r.least, r.floored = r.session.floor, true
	}
	return nil
}

// truth requests the timestamp that the request's consistency needs, if any, or one that covers what remains of what
// the session has seen.
func (r *run) truth(ctx context.Context, view *View) error {
	if r.spec.Consistency == AtPlus || r.spec.Consistency == Session {
		return r.coverKV(ctx, view, r.deadline)
	}
	if r.session.lost == "" || r.spec.At != nil { // a continued answer has its timestamp already
		return nil
	}
	deadline := r.deadline
	if soon := time.Now().Add(lostWait); soon.Before(deadline) {
		deadline = soon
	}
	err := r.coverKV(ctx, view, deadline)
	if err != nil && ctx.Err() == nil { // the scan uses the state held here, and the answer reports that
		r.session.unasked = true
		return nil
	}
	r.session.unasked = r.session.unasked && r.session.shown != nil // earlier pages may have been returned without it
	return err
}

// coverKV obtains, until a deadline, a timestamp that covers everything KV has, or the given tokens.
func (r *run) coverKV(ctx context.Context, view *View, deadline time.Time) error {
	wait, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	r.spec.Progress.Enter(Waiting)
	defer r.spec.Progress.Enter(Opening)
	began := time.Now()
	defer func() { r.result.Waited += time.Since(began) }()
	var s wire.BucketStability
	var err error
	if r.spec.Consistency == AtPlus {
		s, err = r.c.atPlus(wait, view.Bucket, r.spec.Tokens, time.Until(deadline))
	}
	// Everything that KV has covers any tokens.
	if err == nil && (r.spec.Consistency != AtPlus || r.session.lost != "") {
		s, err = r.c.session(wait, view.Bucket.Name, time.Until(deadline))
	}
	if err != nil {
		if wait.Err() != nil && ctx.Err() == nil {
			e := *AsError(err)
			if e.Code == errcode.Cancelled || e.Code == errcode.Internal {
				e.Code = errcode.Timeout
			}
			return &e
		}
		return AsError(err)
	}
	least := s.Named()
	r.least = &least
	return nil
}

// session returns a timestamp at or above KV's current seqnos.
func (c *Coordinator) session(ctx context.Context, bucket string, wait time.Duration) (wire.BucketStability, error) {
	need, err := c.truth.CurrentSeqnos(ctx, bucket)
	if err != nil {
		return wire.BucketStability{}, err
	}
	if s, ok := c.catalog.Newest(bucket); ok && s.Vector.Reaches(need) {
		return s, nil
	}
	s, err := c.truth.Stabilize(ctx, bucket, need, wait)
	// not a write of the caller: KV failed over after it had been queried
	if err != nil && CodeOf(err) == errcode.TokenLost {
		return s, Errorf(errcode.Unavailable, "KV of bucket %q failed over while it was queried for its present seqnos: "+
			"%w", bucket, err)
	}
	return s, err
}

// atPlus returns a timestamp that covers the tokens. If a token's branch is unknown here, it is checked against a
// timestamp at or above KV's current seqnos.
func (c *Coordinator) atPlus(ctx context.Context, b wire.Bucket, tokens []Token,
	wait time.Duration) (wire.BucketStability, error) {
	if err := beyond(&b, tokens); err != nil {
		return wire.BucketStability{}, err
	}
	s, ok := c.catalog.Newest(b.Name)
	if !ok || !hasBranches(&s, &b, tokens) {
		var err error
		if s, err = c.session(ctx, b.Name, wait); err != nil {
			return s, err
		}
		if len(s.Logs) != b.VBuckets || s.Vector.Len() != b.VBuckets {
			return s, Errorf(errcode.Unavailable, "timestamp %d of bucket %q has no failover logs", s.Number, b.Name)
		}
	}
	need, err := above(&s, tokens)
	if err != nil || s.Vector.Covers(need) {
		return s, err
	}
	return c.truth.Stabilize(ctx, b.Name, need, wait)
}

// beyond returns an error for tokens of vbuckets that the bucket does not have: nil, or an *Error.
func beyond(b *wire.Bucket, tokens []Token) error {
	var refused *Error
	for _, t := range tokens {
		if int(t.VBucket) < b.VBuckets {
			continue
		}
		if refused == nil {
			refused = Errorf(errcode.BadRequest, "token of vbucket %d: bucket %q has only %d "+
				"vbuckets", t.VBucket, b.Name, b.VBuckets)
		}
		refused.lose(t)
	}
	if refused == nil {
		return nil
	}
	return refused
}

// hasBranches reports whether a timestamp belongs to the bucket in its present state and has the branches of all
// tokens.
func hasBranches(s *wire.BucketStability, b *wire.Bucket, tokens []Token) bool {
	if s.Generation != b.Generation || s.RollbackID != b.RollbackID || s.Vector.Len() != b.VBuckets ||
		len(s.Logs) != b.VBuckets {
		return false
	}
	return !slices.ContainsFunc(tokens, func(t Token) bool { return s.Logs[t.VBucket].ValidUpTo(t.VBUUID) == 0 })
}

// above returns the positions of those tokens that are above s, and nothing for other vbuckets. It returns an error
// with code TokenLost if the write of a token is on no branch of KV.
func above(s *wire.BucketStability, tokens []Token) (timestamp.Vector, error) {
	need := timestamp.New(s.Vector.Len())
	var lost *Error
	for _, t := range tokens {
		log := s.Logs[t.VBucket]
		if !log.Valid(t.VBUUID, t.Seqno) {
			if lost == nil {
				lost = Errorf(errcode.TokenLost, "vbucket %d: the write at seqno %d of branch %d was lost in a "+
					"failover; the bucket is on branch %d", t.VBucket, t.Seqno, t.VBUUID, log.Newest())
			}
			lost.lose(t)
			continue
		}
		if t.Seqno > max(s.Vector.Seqnos[t.VBucket], need.Seqnos[t.VBucket]) {
			need.Set(int(t.VBucket), timestamp.Position{VBUUID: log.Newest(), Seqno: t.Seqno})
		}
	}
	if lost != nil {
		return need, lost
	}
	return need, nil
}
