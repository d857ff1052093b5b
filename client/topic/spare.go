package topic

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"tidemark/wire"
)

// trim ends streams of vbuckets that another topic delivers: several projectors at one KV node may all have begun
// them.
func (s *Subscription) trim(ctx context.Context) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for n, r := range s.requests {
		if r.trims || r.stopping || now.Before(r.after) {
			continue
		}
		var spare []uint16
		for vb := range r.streams {
			if v := &s.vbuckets[vb]; v.request != n && !slices.Contains(v.candidates, n) {
				spare = append(spare, vb)
			}
		}
		if len(spare) == 0 {
			continue
		}
		slices.Sort(spare)
		r.trims = true
		s.calls.Go(func() error { s.cut(ctx, r, spare); return nil })
	}
}

// cut ends streams of a topic that are not needed.
func (s *Subscription) cut(ctx context.Context, r *request, spare []uint16) {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	err := s.client.Stop(ctx, r.addr, &wire.StreamStop{Fence: s.fence(), Topic: r.topic, Bucket: s.cfg.Bucket,
		VBuckets: spare})
	s.log.Debug("stopped streams that another projector already sends", "projector", r.addr, "topic", r.topic, "vbuckets",
		len(spare), "error", err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.trims = false; err != nil {
		r.after = time.Now().Add(maxPause)
		return
	}
	for _, vb := range spare {
		delete(r.streams, vb)
	}
}

// sweep ends topics of an earlier process with the same id: a process that was killed has not stopped them, and they
// stay open if this process listens at the same address, or if they retry forever. It queries each projector once, and
// again if data of such a topic arrives.
func (s *Subscription) sweep(ctx context.Context) {
	now := time.Now()
	s.mu.Lock()
	known, again := s.cluster != "", s.earlier && !now.Before(s.sweeps)
	if again {
		s.earlier = false
	}
	s.mu.Unlock()
	if again {
		clear(s.swept)
		s.sweeps = now.Add(maxPause)
	}
	for _, addr := range s.addrs {
		if !known || s.swept[addr] {
			continue
		}
		s.swept[addr] = true
		s.calls.Go(func() error {
			list, err := s.client.Topics(ctx, addr)
			if err == nil {
				err = s.stopEarlier(ctx, addr, list)
			}
			if err != nil && ctx.Err() == nil {
				s.log.Info("topics of an earlier process of this subscription could not be "+
					"stopped", "projector", addr, "error", err)
			}
			return nil
		})
	}
}

// stopEarlier stops those of a projector's topics that have this subscription's name and are of an earlier process.
func (s *Subscription) stopEarlier(ctx context.Context, addr string, list *wire.TopicList) error {
	var old []*request
	for i := range list.Topics {
		t := &list.Topics[i]
		if t.Bucket == s.cfg.Bucket && s.isEarlier(t) {
			old = append(old, &request{addr: addr, topic: t.Topic})
		}
	}
	if len(old) == 0 {
		return nil
	}
	s.log.Info("topics of an earlier process of this subscription were stopped", "projector", addr, "topics", len(old))
	return s.stop(ctx, old)
}

// isEarlier reports whether a topic is of an earlier process of this subscription. One with a higher counter than this
// process's requests have may be of a process that began later and still runs, unless its data comes to the port of
// this process, or its counter is well ahead of the clock.
func (s *Subscription) isEarlier(t *wire.TopicState) bool {
	n, ours := s.requestOf(t.Topic)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !ours || n > s.first && n <= s.next:
		return false
	case n <= s.first || n > uint64(time.Now().Add(clockSkew).UnixNano()):
		return true
	}
	return slices.ContainsFunc(t.Endpoints, func(e wire.EndpointState) bool { return e.Address == s.Endpoint() })
}

// requestOf returns the counter of the request for a topic; false if the topic is not of this subscription.
func (s *Subscription) requestOf(topic string) (n uint64, ours bool) {
	number, ours := strings.CutPrefix(topic, s.prefix())
	n, err := strconv.ParseUint(number, 10, 64)
	return n, ours && err == nil
}

// prefix returns the common prefix of its topics' names.
func (s *Subscription) prefix() string { return "/backfill/" + s.cfg.ID + "/" }
