package topic

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/wire"
)

// TestPermanentRefusalsEndSubscription: a subscription ends if projectors permanently lack, or deny, what it
// requests; anything else is retried forever.
func TestPermanentRefusalsEndSubscription(t *testing.T) {
	for _, tc := range []struct {
		err   error
		final bool
	}{
		{rpc.Refuse(errcode.NotFound, "no bucket b"), true},
		{rpc.Refuse(errcode.Forbidden, "want a certificate of role indexer"), true},
		{rpc.Refuse(errcode.Unauthenticated, "a certificate is required"), true},
		{rpc.Refuse(errcode.BucketNotInKV, "no bucket b"), true},
		{rpc.Refuse(errcode.BucketGone, "bucket b has uuid v here"), true},
		{rpc.Refuse(errcode.BadRequest, "vbucket 3 is named twice"), true},
		{rpc.Refuse(errcode.TooManyVBuckets, "2048 vbuckets"), true},
		{rpc.Refuse(errcode.Unavailable, "starting"), false},
		{rpc.Refuse(errcode.KVUnavailable, "KV is down"), false},
		{errors.New("connection refused"), false},
	} {
		synctest.Test(t, func(t *testing.T) {
			var log strings.Builder
			s := &Subscription{log: hclog.New(&hclog.LoggerOptions{Output: &log}), loop: loop{logged: map[string]string{},
				missing: map[string]time.Time{}}}
			for range 2 {
				if err := s.refused("p1", tc.err); err != nil {
					t.Errorf("%v is final at once: %v", tc.err, err)
				}
				time.Sleep(missingTimeout - time.Nanosecond)
			}
			time.Sleep(time.Nanosecond)
			if err := s.refused("p1", tc.err); (err != nil) != tc.final || tc.final && !errors.Is(err, tc.err) {
				t.Errorf("%v for more than %v: %v, want final %v", tc.err, missingTimeout, err, tc.final)
			}
			if lines := strings.Count(log.String(), "trying again"); lines != 1 {
				t.Errorf("the log has %v %d times, want once until something else is wrong:\n%s", tc.err, lines, &log)
			}
			_ = s.refused("p1", errors.New("something else"))
			_ = s.refused("p2", errors.New("something else"))
			if lines := strings.Count(log.String(), "something else"); lines != 2 {
				t.Errorf("the log has %d lines about two projectors, want one of each:\n%s", lines, &log)
			}
		})
	}
}

// TestTemporaryRefusalsAreRetried: temporary refusals end nothing, however far apart they are: while another
// projector accepts the subscription, when everything is begun, or with other errors in between.
func TestTemporaryRefusalsAreRetried(t *testing.T) {
	notYet := rpc.Refuse(errcode.NotFound, "definitions revision 7")
	round := func(t *testing.T, s *Subscription, reply *wire.Subscription, by ...string) {
		t.Helper()
		reqs := map[string]*wire.Subscribe{}
		for _, addr := range []string{"a", "b"} {
			if reqs[addr], _ = s.nextRequest(addr); reqs[addr] == nil {
				t.Fatalf("nothing is requested from %s", addr)
			}
		}
		for _, addr := range by {
			var err error
			if addr == "b" || reply == nil {
				err = s.answered(t.Context(), addr, reqs[addr], nil, notYet)
			} else {
				err = s.answered(t.Context(), addr, reqs[addr], reply, nil)
			}
			if err != nil {
				t.Fatalf("a temporary refusal ends the subscription: %v", err)
			}
		}
	}
	all := &wire.Subscription{ClusterID: "c", BucketUUID: "u", VBuckets: 2, Results: make([]wire.StartResult, 2)}
	for vb := range all.Results {
		all.Results[vb].VBucket, all.Results[vb].Outcome = uint16(vb), wire.StartBegun
	}
	some := &wire.Subscription{ClusterID: "c", BucketUUID: "u", VBuckets: 2, Results: all.Results[:1]}
	synctest.Test(t, func(t *testing.T) {
		s := requesting(t, &hosts{}, at("a", "b"))
		for range 3 {
			for _, by := range [][]string{{"a", "b"}, {"b", "a"}} {
				round(t, s, all, by...) // b does not have the index yet; a delivers the vbuckets
				time.Sleep(time.Hour)
				s.vbuckets[0].ended(time.Now())
				time.Sleep(maxPause)
			}
		}
		for range 10 { // no projector hosts the other vbucket, and b lags for long
			s.vbuckets[1].ended(time.Now())
			time.Sleep(maxPause)
			round(t, s, some, "a", "b")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := requesting(t, &hosts{}, at("a", "b"))
		for range 3 {
			round(t, s, nil, "a", "b")
			_ = s.refused("a", errors.New("connection refused"))
			s.found(projectorList{addrs: []string{"a"}})
			time.Sleep(missingTimeout)
		}
		round(t, s, nil, "a")
		time.Sleep(missingTimeout)
		if err := s.refused("a", notYet); !errors.Is(err, notYet) {
			t.Errorf("after %v: %v", missingTimeout, err)
		}
	})
}

// recreated are projectors of a bucket that was created again after the first request.
type recreated struct{ hosts }

func (r *recreated) Subscribe(ctx context.Context, addr string, req *wire.Subscribe) (*wire.Subscription, error) {
	if req.BucketUUID != "" {
		return nil, rpc.Refuse(errcode.BucketGone, "bucket b has uuid v here, the request means %s", req.BucketUUID)
	}
	reply, err := r.hosts.Subscribe(ctx, addr, req)
	if addr == "b" && err == nil {
		time.Sleep(time.Millisecond) // a answers first
		reply.BucketUUID = "v"
	}
	return reply, err
}

// TestRecreatedBucketEndsSubscription: the subscription ends with ErrRecreated, whether projectors refuse it or their
// answers show it; nothing of the other bucket counts.
func TestRecreatedBucketEndsSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recreated{hosts{begin: map[string][]uint16{"a": {0}, "b": {1}}, vbuckets: 2, requests: map[string]int{}}}
		s := requesting(t, r, at("a", "b"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		err := s.requestLoop(ctx)
		if !errors.Is(err, ErrRecreated) {
			t.Errorf("after an hour, and %v requests: %v, want %v", r.requests, err, ErrRecreated)
		}
		if s.vbuckets[1].request != 0 {
			t.Error("a stream of the other bucket counts")
		}
		cancel()
		_ = s.calls.Wait()
	})
}
