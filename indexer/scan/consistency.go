package scan

import (
	"context"
	"slices"
	"time"

	"tidemark/errcode"
	"tidemark/timestamp"
	"tidemark/wire"
)

// consistency finds the timestamp that the scan must be at or above, once.
func (r *run) consistency(ctx context.Context, view *View) error {
	if err := r.session.take(&r.spec, view); err != nil { // this indexer lags itself
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

// truth asks for the timestamp that the request's consistency wants, if it wants one, or that holds what is left of
// what the session has seen.
func (r *run) truth(ctx context.Context, view *View) error {
	if r.spec.Consistency == AtPlus || r.spec.Consistency == Session {
		return r.askKV(ctx, view, r.deadline)
	}
	if r.session.lost == "" || r.spec.At != nil { // of an answer that is gone on with the timestamp is settled
		return nil
	}
	deadline := r.deadline
	if soon := time.Now().Add(lostPatience); soon.Before(deadline) {
		deadline = soon
	}
	err := r.askKV(ctx, view, deadline)
	if err != nil && ctx.Err() == nil { // what is held answers it, and the caller is told
		r.session.unasked = true
		return nil
	}
	r.session.unasked = r.session.unasked && r.session.shown != nil // pages may have been given without
	return err
}

// askKV asks for the timestamp of all that KV has, or of what tokens name, until a deadline.
func (r *run) askKV(ctx context.Context, view *View, deadline time.Time) error {
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
	// All that KV has is more than any tokens name.
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

// session returns a timestamp at or above what KV has now.
func (c *Coordinator) session(ctx context.Context, bucket string, wait time.Duration) (wire.BucketStability, error) {
	need, err := c.truth.CurrentSeqnos(ctx, bucket)
	if err != nil {
		return wire.BucketStability{}, err
	}
	if s, ok := c.catalog.Newest(bucket); ok && s.Vector.Reaches(need) {
		return s, nil
	}
	s, err := c.truth.Stabilize(ctx, bucket, need, wait)
	if err != nil && CodeOf(err) == errcode.TokenLost { // no write of the caller's: the answer was of before a failover
		return s, Errorf(errcode.Unavailable, "KV of bucket %q failed over while it was asked how far it is: %w", bucket, err)
	}
	return s, err
}

// atPlus returns a timestamp that covers the tokens. A token of a branch that is not known here is judged by a
// timestamp as new as KV.
func (c *Coordinator) atPlus(ctx context.Context, b wire.Bucket, tokens []Token,
	wait time.Duration) (wire.BucketStability, error) {
	if err := beyond(&b, tokens); err != nil {
		return wire.BucketStability{}, err
	}
	s, ok := c.catalog.Newest(b.Name)
	if !ok || !knows(&s, &b, tokens) {
		var err error
		if s, err = c.session(ctx, b.Name, wait); err != nil {
			return s, err
		}
		if len(s.Logs) != b.VBuckets || s.Vector.Len() != b.VBuckets {
			return s, Errorf(errcode.Unavailable, "timestamp %d of bucket %q comes without failover logs", s.Number, b.Name)
		}
	}
	need, err := asked(&s, tokens)
	if err != nil || s.Vector.Covers(need) {
		return s, err
	}
	return c.truth.Stabilize(ctx, b.Name, need, wait)
}

// beyond refuses tokens of vbuckets that the bucket does not have: nil, or an *Error.
func beyond(b *wire.Bucket, tokens []Token) error {
	var refused *Error
	for _, t := range tokens {
		if int(t.VBucket) < b.VBuckets {
			continue
		}
		if refused == nil {
			refused = Errorf(errcode.BadRequest, "token of vbucket %d: bucket %q has %d", t.VBucket, b.Name, b.VBuckets)
		}
		refused.lose(t)
	}
	if refused == nil {
		return nil
	}
	return refused
}

// knows reports whether a timestamp is of the bucket as it is now and has the branches of all tokens.
func knows(s *wire.BucketStability, b *wire.Bucket, tokens []Token) bool {
	if s.Generation != b.Generation || s.RollbackID != b.RollbackID || s.Vector.Len() != b.VBuckets ||
		len(s.Logs) != b.VBuckets {
		return false
	}
	return !slices.ContainsFunc(tokens, func(t Token) bool { return s.Logs[t.VBucket].ValidUpTo(t.VBUUID) == 0 })
}

// asked returns what the tokens ask for above s, of the other vbuckets nothing; an error of the code TokenLost when the
// write of one is on no branch of KV's.
func asked(s *wire.BucketStability, tokens []Token) (timestamp.Vector, error) {
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
