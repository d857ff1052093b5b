package topic

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"tidemark/wire"
)

// loop is what the asking loop alone keeps.
type loop struct {
	first  uint64            // counters of its requests are above
	next   uint64            // counter of the newest request
	told   map[string]string // what the log was told last of each projector
	addrs  []string          // of projectors, as they were known last
	start  pace              // of asking before the first answer
	looks  time.Time         // since when Config.Projectors is asked for them; zero: it is not
	swept  map[string]bool   // those that were asked for topics of an earlier process
	sweeps time.Time         // before it nobody is asked for these again
	// since when each projector says, and nothing else, what is final, while no other one takes the subscription
	missing map[string]time.Time
	waits   map[string]uint64 // the request that a projector has not answered yet, by address
}

// projectors is what is asked of projectors.
type projectors interface {
	Subscribe(ctx context.Context, addr string, req *wire.Subscribe) (*wire.Subscription, error)
	Stop(ctx context.Context, addr string, req *wire.StreamStop) error
	Topics(ctx context.Context, addr string) (*wire.TopicList, error)
	Close()
}

// places is what Config.Projectors returns.
type places struct {
	addrs []string
	err   error
}

// pace says when something is tried again: after pauses that double. The zero value is at once.
type pace struct {
	pause time.Duration
	after time.Time
}

// due reports whether the pause is over.
func (p *pace) due(now time.Time) bool { return !now.Before(p.after) }

// later begins the next pause.
func (p *pace) later(now time.Time) {
	p.pause = min(max(2*p.pause, askInterval), maxPause)
	p.after = now.Add(p.pause)
}

// ask looks for vbuckets without a stream, and asks the projectors for them.
func (s *Subscription) ask(ctx context.Context) error {
	tick := time.NewTicker(askInterval)
	defer tick.Stop()
	for s.look(ctx); ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-s.failed:
			return err
		case a := <-s.answers:
			delete(s.waits, a.addr)
			if err := s.answered(ctx, a.addr, a.req, a.reply, a.err); err != nil {
				return err
			}
			s.forget(ctx)
		case <-tick.C:
			if s.unfed() {
				s.look(ctx)
			}
		case p := <-s.places:
			s.looks = time.Time{}
			s.found(p)
			s.askAll(ctx)
		}
		s.trim(ctx)
		s.sweep(ctx)
	}
}

// unfed reports whether there is something to ask for.
func (s *Subscription) unfed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.vbuckets == nil {
		return s.start.due(now)
	}
	for vb := range s.vbuckets {
		if s.isUnfed(uint16(vb), now) {
			return true
		}
	}
	return false
}

// tell notes in the log what is wrong with a projector ("": with asking for them), once until something else is.
func (s *Subscription) tell(addr, what string, args ...any) {
	if now := what + fmt.Sprint(args...); s.told[addr] != now {
		s.told[addr] = now
		s.log.Info(what, args...)
	}
}

// look learns, beside the loop, where projectors are now: then they are asked. When that takes long those that were
// known last are.
func (s *Subscription) look(ctx context.Context) {
	if !s.looks.IsZero() {
		if time.Since(s.looks) >= lookPatience {
			s.tell("", "it takes long to learn where projectors are; those known last are asked", "projectors", len(s.addrs))
			s.askAll(ctx)
		}
		return
	}
	s.looks = time.Now()
	s.calls.Go(func() error {
		call, cancel := context.WithTimeout(ctx, lookTimeout)
		defer cancel()
		addrs, err := s.cfg.Projectors(call)
		select {
		case s.places <- places{addrs, err}:
		case <-ctx.Done():
		}
		return nil
	})
}

// found takes over where projectors are.
func (s *Subscription) found(p places) {
	if p.err != nil || len(p.addrs) > maxProjectors {
		s.tell("", "cannot learn where projectors are; trying again, and asking those known last", "projectors", len(p.addrs),
			"most", maxProjectors, "error", p.err)
		return
	}
	delete(s.told, "")
	s.addrs = p.addrs
	// the topics that are open and, beside them, those that are being stopped
	s.allow(max(minConnections, len(p.addrs)*topicConnections*2*maxTopics))
	maps.DeleteFunc(s.missing, func(addr string, _ time.Time) bool { return !slices.Contains(s.addrs, addr) })
}

// answer is what a projector says to a request.
type answer struct {
	addr  string
	req   *wire.Subscribe
	reply *wire.Subscription
	err   error
}

// askAll asks the projectors, side by side, for what is not fed. Who has not answered yet is not asked again, and
// nobody waits for it: whoever begins a vbucket first brings it.
func (s *Subscription) askAll(ctx context.Context) {
	defer s.rest(time.Now())
	for _, addr := range s.addrs {
		if s.waits[addr] != 0 {
			continue
		}
		req, any := s.wanted(addr)
		if !any {
			continue
		}
		s.waits[addr] = req.Counter
		s.calls.Go(func() error {
			reply, err := s.client.Subscribe(ctx, addr, req)
			select {
			case s.answers <- answer{addr, req, reply, err}:
			case <-ctx.Done():
				if err == nil { // what it has begun may be later than the word that all is over
					_ = s.stopOf(ctx, reply.ClusterID, []*request{{addr: addr, topic: reply.Topic}})
				}
			}
			return nil
		})
	}
}

// rest lets what is asked for now wait before it is asked for again: nobody may host it, as while its KV node is away.
// A vbucket that is begun waits no more.
func (s *Subscription) rest(now time.Time) {
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

// askFirst makes it a request for all vbuckets: the answer will say how many there are.
func (s *Subscription) askFirst(addr string, req *wire.Subscribe) {
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

// wanted makes the request for what is not fed; any is false when all is.
func (s *Subscription) wanted(addr string) (req *wire.Subscribe, any bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	req = &wire.Subscribe{ID: fmt.Sprintf("%s/%d", s.cfg.ID, s.next), Bucket: s.cfg.Bucket, BucketUUID: s.uuid,
		Indexes: s.cfg.Indexes, Endpoint: s.Endpoint(), Counter: s.next, RetryForever: s.cfg.RetryForever}
	restart := &wire.RestartTimestamp{}
	if s.vbuckets == nil {
		s.askFirst(addr, req)
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
		if v := &s.vbuckets[vb]; s.isUnfed(uint16(vb), now) || joined[v.request] {
			restart.Add(v.at.start(uint16(vb)))
			if v.moved { // it is no stream that brings nothing
				v.pace = pace{}
			}
			v.request, v.owner, v.idle, v.moved = 0, nil, now, false
			v.asked = append(v.asked, req.Counter)
		}
	}
	if restart.Len() == 0 {
		return nil, false
	}
	req.Restart = restart
	s.requests[req.Counter] = newRequest(addr, req)
	return req, true
}

// joined are the requests at a projector whose vbuckets are to be asked for as one, none while there are few; the lock
// is held.
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
