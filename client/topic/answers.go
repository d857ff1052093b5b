package topic

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/timestamp"
	"tidemark/wire"
)

// answered processes a projector's answer.
func (s *Subscription) answered(ctx context.Context, addr string, req *wire.Subscribe, reply *wire.Subscription,
	err error) error {
	if err == nil && (reply.VBuckets < 1 || reply.VBuckets > timestamp.MaxVBuckets) {
		err = fmt.Errorf("an answer with %d vbuckets for bucket %s", reply.VBuckets, s.cfg.Bucket)
	}
	back, err := s.note(addr, req, reply, err)
	if err != nil {
		return s.refused(addr, err)
	}
	for _, r := range back {
		if err := s.rollBack(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// note records which vbuckets an answer has begun: none if err is set, or if note returns an error. back holds the
// vbuckets that have to be rolled back first.
func (s *Subscription) note(addr string, req *wire.Subscribe, reply *wire.Subscription, err error) (
	back []*wire.StartResult, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	outcomes := map[uint16]*wire.StartResult{}
	if err == nil {
		err = s.checkAnswer(reply)
	}
	if err == nil {
		clear(s.missing)
		delete(s.logged, addr)
		outcomes = outcomesOf(reply)
	}
	request := s.requests[req.Counter]
	request.answered(err)
	now := time.Now()
	for vb := range s.vbuckets {
		v, r := &s.vbuckets[vb], outcomes[uint16(vb)]
		switch {
		case r == nil:
			v.refuse(req.Counter)
		case r.Outcome != wire.StartBegun:
			if r.Outcome == wire.StartRollback && v.begins(req.Counter) {
				back = append(back, r)
			} else {
				s.log.Debug("stream of a vbucket cannot be "+
					"started", "projector", addr, "vbucket", vb, "outcome", r.Outcome, "detail", r.Detail)
			}
			v.refuse(req.Counter)
		default:
			request.streaming(uint16(vb))
			if v.begins(req.Counter) {
				v.idle = now
			} // otherwise another request delivers it: events of this one are dropped, and it is stopped (trim, forget)
		}
	}
	return back, err
}

// outcomesOf returns the results of an answer by vbucket.
func outcomesOf(reply *wire.Subscription) map[uint16]*wire.StartResult {
	outcomes := make(map[uint16]*wire.StartResult, len(reply.Results))
	for i := range reply.Results {
		outcomes[reply.Results[i].VBucket] = &reply.Results[i]
	}
	return outcomes
}

// answered records the outcome of a request; r is nil if it was removed meanwhile.
func (r *request) answered(err error) {
	if r == nil {
		return
	}
	r.failed = err != nil
	if r.known != nil {
		close(r.known)
	}
}

// streaming records that a request has begun a vbucket; r is nil if it was removed meanwhile.
func (r *request) streaming(vb uint16) {
	if r != nil {
		r.streams[vb] = true
	}
}

// checkAnswer returns an error if an answer is not about the subscription's bucket and indexes, which the first answer
// determines. The caller holds the lock.
func (s *Subscription) checkAnswer(reply *wire.Subscription) error {
	if s.vbuckets == nil {
		s.begin(reply)
	}
	s.cluster = reply.ClusterID
	if s.uuid != reply.BucketUUID {
		return rpc.Refuse(errcode.BucketGone, "bucket %s has uuid %s at this projector, %s at "+
			"others", s.cfg.Bucket, reply.BucketUUID,
			s.uuid)
	}
	if !slices.Equal(slices.Sorted(slices.Values(reply.Indexes)), slices.Sorted(slices.Values(s.indexes))) {
		return fmt.Errorf("its streams are for indexes %v, the subscription is for %v: the streams are ignored, and new "+
			"ones are requested", reply.Indexes, s.indexes)
	}
	return nil
}

// begin creates the vbuckets. The caller holds the lock.
func (s *Subscription) begin(reply *wire.Subscription) {
	s.vbuckets, s.uuid, s.indexes = make([]vbucket, reply.VBuckets), reply.BucketUUID, reply.Indexes
	close(s.known)
	for vb := range s.vbuckets { // a stream that any of the pending requests begins from now on counts
		s.vbuckets[vb].candidates = slices.Sorted(maps.Keys(s.requests))
	}
	for vb, at := range s.cfg.From {
		if int(vb) < len(s.vbuckets) {
			s.vbuckets[vb].at = at
		}
	}
}

// final lists the codes of refusals that are not only temporary.
var final = []errcode.Code{errcode.NotFound, errcode.Forbidden, errcode.Unauthenticated, errcode.BucketGone,
	errcode.BucketNotInKV, errcode.BadRequest, errcode.TooManyVBuckets}

// refused handles a projector's refusal, which is final if the projector has lacked or denied something for
// missingTimeout, unless every vbucket has a stream or another projector accepts the subscription meanwhile.
func (s *Subscription) refused(addr string, err error) error {
	s.logOnce(addr, "projector refuses the subscription; trying again", "projector", addr, "error", err)
	var problem *rpc.Problem
	if s.allBegun() || !errors.As(err, &problem) || !slices.Contains(final, problem.Code) {
		delete(s.missing, addr)
		return nil
	}
	if s.missing[addr].IsZero() {
		s.missing[addr] = time.Now()
	}
	if time.Since(s.missing[addr]) < missingTimeout {
		return nil
	}
	if problem.Code == errcode.BucketGone {
		err = fmt.Errorf("%w: %w", ErrRecreated, err)
	}
	return fmt.Errorf("subscription %s: %w", s.cfg.ID, err)
}

// rollBack moves a vbucket back to the seqno that KV still has.
func (s *Subscription) rollBack(ctx context.Context, r *wire.StartResult) error {
	if err := s.user.lock(ctx); err != nil {
		return err
	}
	defer s.user.unlock()
	to := Position{Seqno: r.Rollback, Window: timestamp.Window{Start: r.Rollback, End: r.Rollback}}
	for _, e := range r.Log { // newest first
		if e.Seqno <= to.Seqno {
			to.VBUUID = e.VBUUID
			break
		}
	}
	if to.Seqno == 0 {
		to = Position{}
	}
	if s.cfg.Rollback != nil {
		if err := s.cfg.Rollback(ctx, r.VBucket, to.Seqno); err != nil {
			s.user.over = fmt.Errorf("subscription %s: rollback of vbucket %d: %w", s.cfg.ID, r.VBucket, err)
			return s.user.over
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if int(r.VBucket) < len(s.vbuckets) {
		s.vbuckets[r.VBucket].at = to
		s.vbuckets[r.VBucket].reset()
	}
	return nil
}
