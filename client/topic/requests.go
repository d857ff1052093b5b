package topic

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"tidemark/wire"
)

// loop is the state that only the request loop uses.
type loop struct {
	first        uint64            // its requests have higher counters
	next         uint64            // counter of the newest request; set under the lock
	logged       map[string]string // last log line about each projector
	addrs        []string          // of projectors, as last known
	start        pace              // of requests before the first answer
	lookingSince time.Time         // since when Config.Projectors is running; zero: it is not
	swept        map[string]bool   // projectors whose topics of an earlier process were requested
	sweeps       time.Time         // not before: the next sweep of all projectors
	// Since when each projector has refused for a final reason, while no other one accepts the subscription.
	missing map[string]time.Time
	pending map[string]uint64 // unanswered request of each projector, by address
}

// projectors is the interface to the projectors' admin servers.
type projectors interface {
	Subscribe(ctx context.Context, addr string, req *wire.Subscribe) (*wire.Subscription, error)
	Stop(ctx context.Context, addr string, req *wire.StreamStop) error
	Topics(ctx context.Context, addr string) (*wire.TopicList, error)
	Close()
}

// projectorList is a result of Config.Projectors.
type projectorList struct {
	addrs []string
	err   error
}

// pace schedules retries with pauses that double. The zero value is due at once.
type pace struct {
	pause time.Duration
	after time.Time
}

// due reports whether the pause is over.
func (p *pace) due(now time.Time) bool { return !now.Before(p.after) }

// later begins the next pause.
func (p *pace) later(now time.Time) {
	p.pause = min(max(2*p.pause, requestInterval), maxPause)
	p.after = now.Add(p.pause)
}

// requestLoop requests vbuckets without a stream from the projectors.
func (s *Subscription) requestLoop(ctx context.Context) error {
	tick := time.NewTicker(requestInterval)
	defer tick.Stop()
	for s.lookUp(ctx); ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-s.failed:
			return err
		case a := <-s.answers:
			delete(s.pending, a.addr)
			if err := s.answered(ctx, a.addr, a.req, a.reply, a.err); err != nil {
				return err
			}
			s.forget(ctx)
		case <-tick.C:
			if s.anyNeedsRequest() {
				s.lookUp(ctx)
			}
		case p := <-s.lists:
			s.lookingSince = time.Time{}
			s.found(p)
			s.requestAll(ctx)
		}
		s.trim(ctx)
		s.sweep(ctx)
	}
}

// anyNeedsRequest reports whether there is something to request.
func (s *Subscription) anyNeedsRequest() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.vbuckets == nil {
		return s.start.due(now)
	}
	for vb := range s.vbuckets {
		if s.needsRequest(uint16(vb), now) {
			return true
		}
	}
	return false
}

// logOnce logs what is wrong with a projector ("" for the look-up of projectors), unless it was logged last.
func (s *Subscription) logOnce(addr, what string, args ...any) {
	if now := what + fmt.Sprint(args...); s.logged[addr] != now {
		s.logged[addr] = now
		s.log.Info(what, args...)
	}
}

// lookUp starts a look-up of the projectors; when it returns, requests are sent to them. If it takes long, requests are
// sent to those known last meanwhile.
func (s *Subscription) lookUp(ctx context.Context) {
	if !s.lookingSince.IsZero() {
		if time.Since(s.lookingSince) >= lookupDelay {
			s.logOnce("", "looking up projectors takes long; using the last known addresses", "projectors", len(s.addrs))
			s.requestAll(ctx)
		}
		return
	}
	s.lookingSince = time.Now()
	s.calls.Go(func() error {
		call, cancel := context.WithTimeout(ctx, lookupTimeout)
		defer cancel()
		addrs, err := s.cfg.Projectors(call)
		select {
		case s.lists <- projectorList{addrs, err}:
		case <-ctx.Done():
		}
		return nil
	})
}

// found records the projectors' addresses.
func (s *Subscription) found(p projectorList) {
	if p.err != nil || len(p.addrs) > maxProjectors {
		s.logOnce("", "cannot look up projectors; trying again, and using the last known addresses",
			"projectors", len(p.addrs),
			"most", maxProjectors, "error", p.err)
		return
	}
	delete(s.logged, "")
	s.addrs = p.addrs
	// The topics that are open and, beside them, those that are being stopped.
	s.allow(max(minConnections, len(p.addrs)*topicConnections*2*maxTopics))
	maps.DeleteFunc(s.missing, func(addr string, _ time.Time) bool { return !slices.Contains(s.addrs, addr) })
}

// answer is a projector's answer to a request.
type answer struct {
	addr  string
	req   *wire.Subscribe
	reply *wire.Subscription
	err   error
}

// requestAll sends requests for the vbuckets without a stream to the projectors concurrently. A projector that has not
// answered yet gets no other request, and does not delay the others: the first one that begins a vbucket delivers it.
func (s *Subscription) requestAll(ctx context.Context) {
	defer s.startPauses(time.Now())
	for _, addr := range s.addrs {
		if s.pending[addr] != 0 {
			continue
		}
		req, any := s.nextRequest(addr)
		if !any {
			continue
		}
		s.pending[addr] = req.Counter
		s.calls.Go(func() error {
			reply, err := s.client.Subscribe(ctx, addr, req)
			select {
			case s.answers <- answer{addr, req, reply, err}:
			case <-ctx.Done():
				if err == nil { // streams that it began may have missed the stop of all
					_ = s.stopOf(ctx, reply.ClusterID, []*request{{addr: addr, topic: reply.Topic}})
				}
			}
			return nil
		})
	}
}

// startPauses starts the pause before the vbuckets requested now are requested again: possibly no projector hosts them,
// as while a KV node is down. The pause ends when a vbucket is begun.
func (s *Subscription) startPauses(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.vbuckets == nil && len(s.addrs) > 0 {
		s.start.later(now)
	}
	for vb := range s.vbuckets {
		if v := &s.vbuckets[vb]; v.request == 0 && v.due(now) {
			v.later(now)
		}
	}
}

// fillFirst makes req a request for all vbuckets: the answer will contain their number.
func (s *Subscription) fillFirst(addr string, req *wire.Subscribe) {
	restart := &wire.RestartTimestamp{}
	for vb, at := range s.cfg.From {
		restart.Add(at.start(vb))
	}
	if restart.Len() > 0 {
		req.Restart = restart
	}
	r := newRequest(addr, req)
	r.known = make(chan struct{})
	s.requests[req.Counter] = r
}

// nextRequest returns the request for the vbuckets without a stream; any is false if there are none.
func (s *Subscription) nextRequest(addr string) (req *wire.Subscribe, any bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	req = &wire.Subscribe{ID: fmt.Sprintf("%s/%d", s.cfg.ID, s.next), Bucket: s.cfg.Bucket, BucketUUID: s.uuid,
		Indexes: s.cfg.Indexes, Endpoint: s.Endpoint(), Counter: s.next, RetryForever: s.cfg.RetryForever}
	restart := &wire.RestartTimestamp{}
	if s.vbuckets == nil {
		s.fillFirst(addr, req)
		return req, true
	}
	if len(s.indexes) > 0 {
		req.Indexes = nil
		for _, id := range s.indexes {
			req.Indexes = append(req.Indexes, id.String())
		}
	}
	now := time.Now()
	joined := s.joined(addr)
	for vb := range s.vbuckets {
		if v := &s.vbuckets[vb]; s.needsRequest(uint16(vb), now) || joined[v.request] {
			restart.Add(v.at.start(uint16(vb)))
			if v.moved { // the previous stream has delivered something
				v.pace = pace{}
			}
			v.request, v.owner, v.idle, v.moved = 0, nil, now, false
			v.candidates = append(v.candidates, req.Counter)
		}
	}
	if restart.Len() == 0 {
		return nil, false
	}
	req.Restart = restart
	s.requests[req.Counter] = newRequest(addr, req)
	return req, true
}

// joined returns the requests at a projector whose vbuckets are to be requested again as one; none while they are few.
// The caller holds the lock.
func (s *Subscription) joined(addr string) map[uint64]bool {
	at := map[uint64]bool{}
	for vb := range s.vbuckets {
		n := s.vbuckets[vb].request
		if r := s.requests[n]; r != nil && r.addr == addr {
			at[n] = true
		}
	}
	if len(at) < maxTopics {
		return nil
	}
	return at
}
