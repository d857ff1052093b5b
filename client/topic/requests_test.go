package topic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/keyversion"
	"tidemark/projector/router"
	"tidemark/projectorclient"
	"tidemark/wire"
)

// TestTopicsOfVBucketsThatMoveAreJoined: if KV ends vbuckets one by one, each is requested again, but projectors do
// not get a topic, and a connection to KV, for each.
func TestTopicsOfVBucketsThatMoveAreJoined(t *testing.T) {
	const vbuckets, one, two = 64, "http://1", "http://2"
	s := &Subscription{vbuckets: make([]vbucket, vbuckets), requests: map[uint64]*request{}, listener: addressed{}}
	request := func(addr string) (*wire.Subscribe, bool) {
		req, any := s.nextRequest(addr)
		for vb := range s.vbuckets {
			s.vbuckets[vb].begins(s.next)
		}
		return req, any
	}
	if _, any := request(one); !any {
		t.Fatal("nothing is requested")
	}
	for vb := range s.vbuckets {
		s.vbuckets[vb].owner = &sink{}
		s.vbuckets[vb].moved = true
		at, addr := []string{one, two}[vb%2], ""
		s.vbuckets[vb].ended(time.Now())
		if req, any := request(at); !any {
			t.Fatalf("vbucket %d is not requested", vb)
		} else if r := s.requests[req.Counter]; r != nil {
			addr = r.addr
		}
		topics, streamed := map[uint64]bool{}, 0
		for i := range s.vbuckets {
			s.vbuckets[i].owner = &sink{}
			if n := s.vbuckets[i].request; s.requests[n].addr == at {
				topics[n] = true
				streamed++
			}
		}
		if addr != at || len(topics) > maxTopics || streamed < vb/2 {
			t.Fatalf("after the end of vbucket %d there are %d topics at %s with %d vbuckets", vb, len(topics), at, streamed)
		}
	}
}

// addressed is a listener of which only the address is used.
type addressed struct{ net.Listener }

func (addressed) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

// TestIdleVBucketIsRequestedWithPauses: a vbucket that delivered nothing is requested again after growing, bounded
// pauses; one that delivered something, at once.
func TestIdleVBucketIsRequestedWithPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Subscription{vbuckets: make([]vbucket, 1), requests: map[uint64]*request{}, listener: addressed{}}
		k, v := &sink{s: s}, &s.vbuckets[0]
		end := func(kind keyversion.Kind) {
			t.Helper()
			if _, any := s.nextRequest("http://1"); !any {
				t.Fatal("it is not requested")
			}
			v.begins(s.next)
			v.owner = k
			ev := &keyversion.Event{Kind: kind}
			ev.Incarnation.Counter = v.request
			if _, err := k.admit(t.Context(), ev); err != nil || v.request != 0 {
				t.Fatal(err)
			}
		}
		var pauses []time.Duration
		for range 7 {
			end(keyversion.DropData)
			began := time.Now()
			for !s.anyNeedsRequest() {
				time.Sleep(requestInterval)
			}
			pauses = append(pauses, time.Since(began))
		}
		if want := "[250ms 500ms 1s 2s 4s 5s 5s]"; fmt.Sprint(pauses) != want {
			t.Errorf("pauses %v, want %v", pauses, want)
		}
		if _, any := s.nextRequest("http://1"); !any {
			t.Fatal("it is not requested")
		}
		v.begins(s.next)
		s.handled(&keyversion.Event{Kind: keyversion.Insert, Seqno: 1})
		v.owner = k
		ev := &keyversion.Event{Kind: keyversion.StreamEnd}
		ev.Incarnation.Counter = v.request
		if _, err := k.admit(t.Context(), ev); err != nil || !s.anyNeedsRequest() {
			t.Errorf("one that has delivered something is not requested at once: %v", err)
		}
	})
}

// TestVBucketWithoutHost: a vbucket that no projector hosts, as while its KV node is down, and one that all projectors
// refuse, is requested after growing, bounded pauses, in which Config.Projectors is called as often; a topic without
// streams needs no stop. When a projector hosts the vbucket it begins, and one that has delivered something is
// requested again at once.
func TestVBucketWithoutHost(t *testing.T) {
	const outage = 10 * time.Minute
	most := int(outage/maxPause) + 10 // a few more, while pauses grow
	synctest.Test(t, func(t *testing.T) {
		h := &hosts{begin: map[string][]uint16{"a": {0}}, vbuckets: 2, requests: map[string]int{}}
		lookups := 0
		s := requesting(t, h, func(context.Context) ([]string, error) {
			h.mu.Lock()
			defer h.mu.Unlock()
			lookups++
			return []string{"a", "b", "c"}, nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		go s.markBegun(ctx)
		ended := make(chan error, 1)
		go func() { ended <- s.requestLoop(ctx) }()
		time.Sleep(outage)
		h.mu.Lock()
		for addr, n := range h.requests {
			if n < int(outage/maxPause/2) || n > most {
				t.Errorf("%d requests to %s in %v, want at most %d, and more than half as many", n, addr, outage, most)
			}
		}
		if lookups > most || len(h.stopped) > 0 {
			t.Errorf("%d look-ups of the projectors, want at most %d; %d stops", lookups, most, len(h.stopped))
		}
		h.begin["b"] = []uint16{1}
		h.mu.Unlock()
		request := func() uint64 {
			synctest.Wait()
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.vbuckets[1].request
		}
		time.Sleep(maxPause + requestInterval)
		old := request()
		if old == 0 {
			t.Error("it is not begun where it is hosted now")
		}
		s.mu.Lock()
		s.vbuckets[1].moved = true
		s.vbuckets[1].ended(time.Now())
		s.mu.Unlock()
		time.Sleep(requestInterval)
		if now := request(); now == 0 || now == old {
			t.Error("after it has delivered something and ended, it is not requested at once")
		}
		cancel()
		<-ended
		_ = s.calls.Wait()
	})
	synctest.Test(t, func(t *testing.T) {
		h := &refusing{hosts: hosts{requests: map[string]int{}}, err: rpc.Refuse(errcode.KVUnavailable, "KV is down")}
		s := requesting(t, h, at("a"))
		ctx, cancel := context.WithTimeout(t.Context(), outage)
		defer cancel()
		_ = s.requestLoop(ctx)
		_ = s.calls.Wait()
		if n := h.requests["a"]; n < int(outage/maxPause/2) || n > most {
			t.Errorf("%d requests to a projector that refuses the subscription in %v, want at most %d", n, outage, most)
		}
	})
}

// refusing are projectors that refuse.
type refusing struct {
	hosts
	err error
}

func (r *refusing) Subscribe(_ context.Context, addr string, _ *wire.Subscribe) (*wire.Subscription, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests[addr]++
	return nil, r.err
}

// hosts are projectors, by address, with the vbuckets that they begin on request; those that hang answer nothing
// until proceed is closed, or the call's deadline is over.
type hosts struct {
	begin    map[string][]uint16
	vbuckets int
	hang     map[string]bool
	proceed  chan struct{}

	mu       sync.Mutex
	requests map[string]int
	stopped  []string // address and vbuckets
}

func (h *hosts) Subscribe(ctx context.Context, addr string, req *wire.Subscribe) (*wire.Subscription, error) {
	h.mu.Lock()
	h.requests[addr]++
	h.mu.Unlock()
	if h.hang[addr] {
		select {
		case <-h.proceed:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(projectorclient.StreamTimeout):
			return nil, context.DeadlineExceeded
		}
	}
	r := &wire.Subscription{ClusterID: "c", BucketUUID: "u", VBuckets: h.vbuckets, Topic: "/backfill/" + req.ID}
	for vb := range uint16(h.vbuckets) {
		if req.Restart != nil && !slices.ContainsFunc(req.Restart.VBuckets, func(v uint16) bool { return v == vb }) {
			continue
		}
		outcome := wire.StartNotMine
		h.mu.Lock()
		if slices.Contains(h.begin[addr], vb) {
			outcome = wire.StartBegun
		}
		h.mu.Unlock()
		r.Results = append(r.Results, wire.StartResult{VBucketHistory: wire.VBucketHistory{VBucket: vb}, Outcome: outcome})
	}
	return r, nil
}

func (h *hosts) Stop(_ context.Context, addr string, req *wire.StreamStop) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopped = append(h.stopped, fmt.Sprint(addr, req.VBuckets))
	if h.hang[addr] {
		return context.DeadlineExceeded
	}
	return nil
}

func (h *hosts) Topics(context.Context, string) (*wire.TopicList, error) {
	return &wire.TopicList{}, nil
}

func (h *hosts) Close() {}

// TestProjectorsThatHang: projectors that answer get requests besides those that hang, and their streams begin at once.
// A stream that a hanging one begins after all counts if no other has begun it; of a topic that is needed, only the
// streams that another projector delivers are stopped.
func TestProjectorsThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hosts{begin: map[string][]uint16{"a": {0, 1, 2}, "b": {0, 1, 2}, "c": {2, 3}, "d": {4}}, vbuckets: 6,
			hang: map[string]bool{"a": true, "b": true}, proceed: make(chan struct{}), requests: map[string]int{}}
		s, err := Open(Config{ID: "x", Bucket: "b", Handle: func(context.Context, *keyversion.Event) error { return nil },
			Projectors: func(context.Context) ([]string, error) { return []string{"a", "b", "c", "d"}, nil }})
		if err != nil {
			t.Fatal(err)
		}
		defer s.listener.Close()
		s.client, s.log = h, hclog.NewNullLogger()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.requestLoop(ctx) }()
		begun := func() (all []uint16) {
			s.mu.Lock()
			defer s.mu.Unlock()
			for vb := range s.vbuckets {
				if s.vbuckets[vb].request != 0 {
					all = append(all, uint16(vb))
					s.vbuckets[vb].owner = &sink{} // its stream has begun
				}
			}
			return all
		}
		synctest.Wait()
		if got := begun(); !slices.Equal(got, []uint16{2, 3, 4}) {
			t.Errorf("at once, while two hang: %v are begun, want those of the two that answer", got)
		}
		time.Sleep(projectorclient.StreamTimeout / 2)
		synctest.Wait()
		h.mu.Lock()
		if h.requests["a"] != 1 || h.requests["b"] != 1 || h.requests["c"] < 2 {
			t.Errorf("requests %v: want one to each that hangs, and more to the others for what no projector begins", h.requests)
		}
		h.mu.Unlock()
		close(h.proceed)
		synctest.Wait()
		if got := begun(); !slices.Equal(got, []uint16{0, 1, 2, 3, 4}) {
			t.Errorf("when they go on: %v are begun, want those that only they have, too", got)
		}
		h.mu.Lock()
		parts := slices.DeleteFunc(slices.Clone(h.stopped), func(what string) bool { return strings.HasSuffix(what, "[]") })
		if len(parts) != 1 || parts[0] != "a[2]" && parts[0] != "b[2]" {
			t.Errorf("stopped: %v, want topics that are not needed, and of the other one what c delivers", h.stopped)
		}
		h.mu.Unlock()
		cancel()
		<-ended
		_ = s.calls.Wait()
	})
}

// TestUnavailableProjectorList: while Config.Projectors hangs or fails, a vbucket that has ended is requested from
// the known projectors, and the function's error ends the subscription.
func TestUnavailableProjectorList(t *testing.T) {
	for _, hangs := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			h := &hosts{begin: map[string][]uint16{"a": {0, 1}}, vbuckets: 2, requests: map[string]int{}}
			away := errors.New("managers are away")
			var calls atomic.Int64
			s := requesting(t, h, func(ctx context.Context) ([]string, error) {
				if calls.Add(1) == 1 {
					return []string{"a"}, nil
				}
				if hangs {
					<-ctx.Done()
				}
				return nil, away
			})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- s.requestLoop(ctx) }()
			begun := func() (n int) {
				synctest.Wait()
				s.mu.Lock()
				defer s.mu.Unlock()
				for vb := range s.vbuckets {
					if v := &s.vbuckets[vb]; v.request != 0 {
						v.owner = &sink{s: s}
						n++
					}
				}
				return n
			}
			if n := begun(); n != 2 {
				t.Fatalf("%d vbuckets are begun, want 2", n)
			}
			time.Sleep(time.Hour)
			for range 3 {
				s.mu.Lock()
				s.vbuckets[0].moved = true
				s.vbuckets[0].ended(time.Now())
				s.mu.Unlock()
				time.Sleep(2 * lookupDelay)
				if n := begun(); n != 2 {
					t.Errorf("hangs %v: after %v %d vbuckets are begun, want 2", hangs, 2*lookupDelay, n)
				}
			}
			if n := calls.Load(); n < 2 {
				t.Errorf("%d look-ups of the projectors", n)
			}
			s.mu.Lock()
			s.vbuckets[0].ended(time.Now())
			s.mu.Unlock()
			time.Sleep(requestInterval)
			bad := errors.New("bad")
			s.failed <- bad
			synctest.Wait()
			select {
			case err := <-ended:
				if !errors.Is(err, bad) {
					t.Error(err)
				}
			default:
				t.Errorf("hangs %v: the function's error does not end it", hangs)
			}
			cancel()
			_ = s.calls.Wait()
		})
	}
}

// TestTopicOpenedLateIsStopped: a projector that hung opens a topic when its answer is no longer awaited, or continues
// one that it was to stop. When data of it arrives it is stopped again, by one request at a time.
func TestTopicOpenedLateIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hosts{begin: map[string][]uint16{"a": {0, 1}, "b": {0, 1}}, vbuckets: 2, hang: map[string]bool{"a": true},
			proceed: make(chan struct{}), requests: map[string]int{}}
		s, err := Open(Config{ID: "x", Bucket: "b", Handle: func(context.Context, *keyversion.Event) error { return nil },
			Projectors: func(context.Context) ([]string, error) { return []string{"a", "b"}, nil }})
		if err != nil {
			t.Fatal(err)
		}
		defer s.listener.Close()
		s.client = h
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.requestLoop(ctx) }()
		synctest.Wait()
		s.mu.Lock()
		var late uint64
		for n, r := range s.requests {
			if r.addr == "a" {
				late = n
			}
		}
		for vb := range s.vbuckets {
			s.vbuckets[vb].owner = &sink{}
		}
		s.mu.Unlock()
		time.Sleep(projectorclient.StreamTimeout + time.Second)
		synctest.Wait()
		stops := func(want int, when string) {
			t.Helper()
			synctest.Wait()
			h.mu.Lock()
			defer h.mu.Unlock()
			n := 0
			for _, what := range h.stopped {
				if strings.HasPrefix(what, "a") {
					n++
				}
			}
			if n != want {
				t.Errorf("%s: %d times stopped, want %d", when, n, want)
			}
		}
		stops(1, "given up")
		k := &sink{s: s}
		arrives := func(kind keyversion.Kind, request uint64) {
			t.Helper()
			ev := &keyversion.Event{Kind: kind, Begin: &keyversion.Begin{}}
			ev.Incarnation.Counter = request
			if wanted, err := k.admit(ctx, ev); wanted || err != nil {
				t.Errorf("it is accepted: %v", err)
			}
		}
		arrives(keyversion.StreamBegin, late)
		arrives(keyversion.StreamBegin, late)
		stops(2, "it begins")
		h.mu.Lock()
		h.hang["a"] = false
		h.mu.Unlock()
		arrives(keyversion.Insert, late)
		stops(3, "it goes on")
		arrives(keyversion.Insert, late-1000)
		stops(3, "an event of another subscriber arrives")
		for n := range uint64(2 * maxGivenUp) {
			s.mu.Lock()
			s.requests[n] = &request{addr: "b", topic: "t", failed: true}
			s.mu.Unlock()
		}
		s.forget(ctx)
		synctest.Wait()
		s.mu.Lock()
		if len(s.givenUp) > maxGivenUp || s.givenUp[late] == nil {
			t.Errorf("%d topics are remembered", len(s.givenUp))
		}
		s.mu.Unlock()
		cancel()
		<-ended
		_ = s.calls.Wait()
	})
}

// TestOnlyDuplicateStreamsOfATopicAreStopped: streams that another topic delivers, again if the stop failed, and
// never one that counts, or may still count; one that has ended needs no stop.
func TestOnlyDuplicateStreamsOfATopicAreStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hosts{hang: map[string]bool{"b": true}}
		s := &Subscription{vbuckets: make([]vbucket, 4), client: h, log: hclog.NewNullLogger(), requests: map[uint64]*request{
			1: {addr: "a", streams: map[uint16]bool{0: true, 1: true, 2: true}},
			2: {addr: "b", streams: map[uint16]bool{0: true, 1: true, 2: true, 3: true}}}}
		for vb, request := range []uint64{1, 2, 1, 0} {
			s.vbuckets[vb].request = request
		}
		s.vbuckets[3].candidates = []uint64{2}
		end := &keyversion.Event{Kind: keyversion.StreamEnd, VBucket: 2}
		end.Incarnation.Counter = 2
		s.noteStreams(end)
		trim := func(want string) {
			t.Helper()
			s.trim(t.Context())
			s.trim(t.Context()) // a stop is being sent
			synctest.Wait()
			slices.Sort(h.stopped)
			if got := fmt.Sprint(h.stopped); got != want {
				t.Errorf("stopped %s, want %s", got, want)
			}
			h.stopped = nil
		}
		trim("[a[1] b[0]]")
		trim("[]")
		time.Sleep(maxPause)
		h.hang = nil
		trim("[b[0]]")
		time.Sleep(maxPause)
		trim("[]")
		_ = s.calls.Wait()
	})
}

// TestConnectionsOfAllProjectors: the data port accepts the connections of all topics that are open at all
// projectors, as many for each as a router may have; one that is rejected would be requested again and again.
func TestConnectionsOfAllProjectors(t *testing.T) {
	if topicConnections != router.MaxConnections {
		t.Errorf("a topic of a projector is taken to have at most %d connections, it may have %d", topicConnections,
			router.MaxConnections)
	}
	s := requesting(t, &hosts{}, at())
	var allowed int
	s.allow = func(n int) { allowed = n }
	addrs := make([]string, maxProjectors)
	for _, n := range []int{0, 1, 100, maxProjectors, 2} {
		s.found(projectorList{addrs: addrs[:n]})
		if want := n * router.MaxConnections * (maxTopics + 1); allowed < max(want, minConnections) {
			t.Errorf("%d projectors: %d connections are allowed, want at least %d", n, allowed, want)
		}
	}
	s.found(projectorList{addrs: append(addrs, "http://one-more")})
	if len(s.addrs) != 2 {
		t.Errorf("%d projectors are used after %d were returned, the most is %d", len(s.addrs), maxProjectors+1,
			maxProjectors)
	}
}
