package topic

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"tidemark/keyversion"
	"tidemark/wire"
)

// TestDataWaitsForTheAnswer: data that arrives before the projector's answer waits for it, but not forever.
func TestDataWaitsForTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Subscription{user: newUser(), taking: map[*sink]struct{}{}, known: make(chan struct{})}
		receive := func() <-chan error {
			done := make(chan error, 1)
			go func() {
				k := &sink{s: s, hello: keyversion.Hello{Connections: 1}}
				done <- k.Receive(t.Context(), &keyversion.Batch{Events: []keyversion.Event{{VBucket: 3}}}, func() {})
			}()
			return done
		}
		began := time.Now()
		if err := <-receive(); err == nil || time.Since(began) != answerWait {
			t.Errorf("%v after %v, want a refusal after %v", err, time.Since(began), answerWait)
		}
		done := receive()
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("%v before the answer", err)
		default:
		}
		s.mu.Lock()
		s.begin(&wire.Subscription{VBuckets: 4})
		s.mu.Unlock()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestStreamsBehindTheHandlerAreNotRequestedAgain: while the user's function runs, streams that have to begin after
// it on its connection are not requested again, nor before they have had their time afterwards; those of other
// connections and requests are.
func TestStreamsBehindTheHandlerAreNotRequestedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Subscription{user: newUser(), taking: map[*sink]struct{}{}, known: make(chan struct{}),
			cfg: Config{ID: "a"}, loop: loop{next: 9}}
		proceed := make(chan struct{})
		s.cfg.Handle = func(context.Context, *keyversion.Event) error { <-proceed; return nil }
		began := time.Now()
		s.begin(&wire.Subscription{VBuckets: 6})
		for vb := range s.vbuckets {
			s.vbuckets[vb].request, s.vbuckets[vb].idle = 8, began
		}
		s.vbuckets[5].request = 9
		at, err := s.accept(t.Context(), keyversion.Hello{Topic: "/backfill/a/8", Connection: 1, Connections: 2})
		if err != nil {
			t.Fatal(err)
		}
		k := at.(*sink)
		s.vbuckets[1].owner = k
		ev := keyversion.Event{Kind: keyversion.Insert, VBucket: 1, Seqno: 1}
		ev.Incarnation.Counter = 8
		done := make(chan error, 1)
		go func() { done <- k.Receive(t.Context(), &keyversion.Batch{Events: []keyversion.Event{ev}}, func() {}) }()
		due := func() (all []int) {
			s.mu.Lock()
			defer s.mu.Unlock()
			for vb := range s.vbuckets {
				if s.needsRequest(uint16(vb), time.Now()) {
					all = append(all, vb)
				}
			}
			return all
		}
		for _, tc := range []struct {
			after   time.Duration
			proceed bool
			want    string
		}{{after: beginTimeout, want: "[]"}, {after: time.Millisecond, want: "[0 2 4 5]"},
			{after: time.Hour, proceed: true, want: "[0 2 4 5]"}, {after: beginTimeout, want: "[0 2 4 5]"},
			{after: time.Millisecond, want: "[0 2 3 4 5]"}} {
			time.Sleep(tc.after)
			if tc.proceed {
				close(proceed)
				if err := <-done; err != nil {
					t.Fatal(err)
				}
			}
			if got := fmt.Sprint(due()); got != tc.want {
				t.Errorf("%v after it began, vbuckets %s are requested, want %s", time.Since(began), got, tc.want)
			}
		}
	})
}

// TestEarlierTopics checks which topics count as those of an earlier process: none that may belong to a process that
// began later and still runs.
func TestEarlierTopics(t *testing.T) {
	s := requesting(t, &hosts{}, at("a"))
	synctest.Test(t, func(t *testing.T) {
		s.first = uint64(time.Now().UnixNano())
		s.next = s.first + 3
		for _, tc := range []struct {
			id, endpoint string
			counter      uint64
			want         bool
		}{
			{"x", "127.0.0.1:1", 7, true}, {"x", "127.0.0.1:1", s.first, true}, {"x", s.Endpoint(), s.first, true},
			{"x", "127.0.0.1:1", s.first + 1, false}, {"x", s.Endpoint(), s.next, false},
			{"x", "127.0.0.1:1", s.next + 1, false}, {"x", s.Endpoint(), s.next + 1, true},
			{"x", "127.0.0.1:1", s.first + uint64(clockSkew), false},
			{"x", "127.0.0.1:1", s.first + uint64(clockSkew) + 1, true}, {"y", s.Endpoint(), 7, false},
		} {
			topic := &wire.TopicState{Topic: fmt.Sprintf("/backfill/%s/%d", tc.id, tc.counter),
				Endpoints: []wire.EndpointState{{Address: tc.endpoint}}}
			if got := s.isEarlier(topic); got != tc.want {
				t.Errorf("%s to %s is of an earlier process: %v, want %v", topic.Topic, tc.endpoint, got, tc.want)
			}
		}
	})
}

// TestConnectionEndsWhileHandlerRuns: a function that returns its context's error has not failed; it gets the
// event again. Any other error ends the subscription.
func TestConnectionEndsWhileHandlerRuns(t *testing.T) {
	bad := errors.New("bad")
	for _, tc := range []struct {
		end   bool
		err   error // nil: the context's
		final bool
	}{{true, nil, false}, {true, bad, true}, {false, bad, true}, {false, context.Canceled, true}} {
		ctx, cancel := context.WithCancel(t.Context())
		s := &Subscription{failed: make(chan error, 1), vbuckets: []vbucket{{request: 1}}}
		s.cfg.Handle = func(ctx context.Context, _ *keyversion.Event) error {
			if tc.end {
				cancel()
			}
			if tc.err == nil {
				return ctx.Err()
			}
			return tc.err
		}
		k := &sink{s: s}
		s.vbuckets[0].owner = k
		ev := &keyversion.Event{Kind: keyversion.Insert, Seqno: 5}
		ev.Incarnation.Counter = 1
		if err := k.event(ctx, ev); err == nil {
			t.Errorf("%+v: no error: the connection would go on after what was not handled", tc)
		}
		if final := len(s.failed) == 1; final != tc.final || s.vbuckets[0].at.Seqno != 0 {
			t.Errorf("%+v: final %v, position %+v", tc, final, s.vbuckets[0].at)
		}
		cancel()
	}
}

// TestNoEventsAfterAnError: after the function has failed it is not called any more, whatever arrives on other
// connections, and neither is Rollback.
func TestNoEventsAfterAnError(t *testing.T) {
	bad := errors.New("bad")
	for _, rollback := range []bool{false, true} {
		calls := 0
		s := requesting(t, &hosts{}, at("a"))
		s.cfg.Handle = func(context.Context, *keyversion.Event) error { calls++; return bad }
		s.cfg.Rollback = func(context.Context, uint16, uint64) error { calls++; return bad }
		s.begin(&wire.Subscription{VBuckets: 2})
		receive := func(vb uint16) error {
			k := &sink{s: s, request: 1, hello: keyversion.Hello{Connections: 1}}
			s.vbuckets[vb].request, s.vbuckets[vb].owner = 1, k
			ev := keyversion.Event{Kind: keyversion.Insert, VBucket: vb, Seqno: 1}
			ev.Incarnation.Counter = 1
			return k.Receive(t.Context(), &keyversion.Batch{Events: []keyversion.Event{ev}}, func() {})
		}
		if rollback {
			if err := s.rollBack(t.Context(), &wire.StartResult{}); !errors.Is(err, bad) {
				t.Error(err)
			}
		}
		for vb := range uint16(2) {
			if err := receive(vb); !errors.Is(err, bad) {
				t.Errorf("vbucket %d: %v, want %v", vb, err, bad)
			}
		}
		if err := s.rollBack(t.Context(), &wire.StartResult{}); !errors.Is(err, bad) {
			t.Error(err)
		}
		if calls != 1 {
			t.Errorf("called %d times, want none after its error", calls)
		}
	}
}
