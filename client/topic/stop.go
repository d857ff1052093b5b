package topic

import (
	"context"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"tidemark/wire"
)

// request is a topic at a projector.
type request struct {
	addr, topic string
	failed      bool // the projector has not answered what it has begun: it may still begin it
	stopping    bool // a stop is being sent
	// known is closed when the projector has answered, if only that answer identifies the indexes of its streams; if
	// nil, they are those of the subscription.
	known chan struct{}
	// streams are the vbuckets that it has begun and not ended, whether or not they count.
	streams map[uint16]bool
	trims   bool      // a request to end spare streams is being sent
	after   time.Time // not before: the last attempt failed
}

func newRequest(addr string, req *wire.Subscribe) *request {
	return &request{addr: addr, topic: "/backfill/" + req.ID, streams: map[uint16]bool{}}
}

// forget stops those of the answered topics that no vbucket uses any more. A topic without streams has
// ended.
func (s *Subscription) forget(ctx context.Context) {
	waits := map[uint64]bool{}
	for _, n := range s.pending {
		waits[n] = true
	}
	s.mu.Lock()
	for vb := range s.vbuckets {
		waits[s.vbuckets[vb].request] = true
	}
	var old []uint64
	for n, r := range s.requests {
		if waits[n] {
			continue
		}
		delete(s.requests, n)
		if r.failed || len(r.streams) > 0 {
			old = append(old, n)
			s.givenUp[n], r.stopping = r, true
		}
	}
	for len(s.givenUp) > maxGivenUp {
		delete(s.givenUp, slices.Min(slices.Collect(maps.Keys(s.givenUp))))
	}
	s.mu.Unlock()
	if len(old) > 0 {
		s.calls.Go(func() error { s.giveUp(ctx, old); return nil })
	}
}

// giveUp stops topics that were given up, as far as that is possible within stopTimeout.
func (s *Subscription) giveUp(ctx context.Context, old []uint64) {
	var g errgroup.Group
	for _, n := range old {
		s.mu.Lock()
		r := s.givenUp[n]
		s.mu.Unlock()
		if r == nil {
			continue
		}
		g.Go(func() error {
			err := s.stop(ctx, []*request{r})
			s.mu.Lock()
			defer s.mu.Unlock()
			if r.stopping = false; err == nil && !r.failed { // otherwise it may be opened only now
				delete(s.givenUp, n)
			}
			return nil
		})
	}
	_ = g.Wait()
}

// stopStray stops the topic of a request that was given up when an event of it arrives. The caller holds the lock.
func (s *Subscription) stopStray(ctx context.Context, request uint64) {
	r := s.givenUp[request]
	if r == nil || r.stopping {
		return
	}
	r.stopping = true
	s.log.Info("topic that is no longer needed was opened late; stopping it", "projector", r.addr, "topic", r.topic)
	s.calls.Go(func() error { s.giveUp(ctx, []uint64{request}); return nil })
}

// stopAll ends all topics, as far as that is possible within stopTimeout.
func (s *Subscription) stopAll(ctx context.Context) {
	s.mu.Lock()
	var all []*request
	for _, r := range s.requests {
		all = append(all, r)
	}
	for _, r := range s.givenUp {
		all = append(all, r)
	}
	s.mu.Unlock()
	_ = s.stop(ctx, all)
}

// stop stops topics, and returns the first failure.
func (s *Subscription) stop(ctx context.Context, all []*request) error {
	return s.stopOf(ctx, s.fence().ClusterID, all)
}

func (s *Subscription) stopOf(ctx context.Context, cluster string, all []*request) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	var g errgroup.Group
	for _, r := range all {
		g.Go(func() error {
			err := s.client.Stop(ctx, r.addr, &wire.StreamStop{Fence: wire.Fence{ClusterID: cluster},
				Topic: r.topic})
			s.log.Debug("topic stopped", "topic", r.topic, "error", err) // topics also end by themselves
			return err
		})
	}
	return g.Wait()
}

// fence returns the fence of a stop.
func (s *Subscription) fence() wire.Fence {
	s.mu.Lock()
	defer s.mu.Unlock()
	return wire.Fence{ClusterID: s.cluster}
}
