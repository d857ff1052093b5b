package topic

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/wire"
)

// requesting returns a subscription of which only the requests are tested.
func requesting(t *testing.T, h projectors, addrs func(context.Context) ([]string, error)) *Subscription {
	t.Helper()
	s, err := Open(Config{ID: "x", Bucket: "b", Handle: func(context.Context, *keyversion.Event) error { return nil },
		Projectors: addrs})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	s.client, s.log = h, hclog.NewNullLogger()
	return s
}

// at returns a Config.Projectors with fixed addresses.
func at(addrs ...string) func(context.Context) ([]string, error) {
	return func(context.Context) ([]string, error) { return addrs, nil }
}

// markBegun marks begun streams as present, until ctx ends.
func (s *Subscription) markBegun(ctx context.Context) {
	for tick := time.NewTicker(time.Second); ctx.Err() == nil; {
		s.mu.Lock()
		for vb := range s.vbuckets {
			if v := &s.vbuckets[vb]; v.request != 0 {
				v.owner = &sink{s: s}
			}
		}
		s.mu.Unlock()
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// lagging are projectors of which b does not have index 2 yet, unless it is requested by id.
type lagging struct {
	hosts
	carries map[uint64][]index.ID // by counter of the request
}

func (l *lagging) Subscribe(ctx context.Context, addr string, req *wire.Subscribe) (*wire.Subscription, error) {
	r, err := l.hosts.Subscribe(ctx, addr, req)
	if err != nil {
		return nil, err
	}
	r.Indexes = []index.ID{1, 2}
	switch {
	case addr == "b" && len(req.Indexes) == 0:
		time.Sleep(time.Millisecond) // a answers first
		r.Indexes = []index.ID{1}
	case addr == "c":
		time.Sleep(time.Millisecond)
		r.Indexes = []index.ID{2, 1}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.carries[req.Counter] = r.Indexes
	return r, nil
}

// TestAllStreamsAreOfTheSameIndexes: while an index is created, projectors interpret the first request differently.
// The first answer determines the subscription's indexes; a topic of other indexes is stopped, and the subscription
// requested again, with their ids, from its projector. An answer with the same ids in another order is accepted.
func TestAllStreamsAreOfTheSameIndexes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &lagging{hosts: hosts{begin: map[string][]uint16{"a": {0}, "b": {1}, "c": {2}}, vbuckets: 3,
			requests: map[string]int{}}, carries: map[uint64][]index.ID{}}
		s := requesting(t, l, at("a", "b", "c"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		go s.markBegun(ctx)
		_ = s.requestLoop(ctx)
		_ = s.calls.Wait()
		if got := s.Indexes(); !slices.Equal(got, []index.ID{1, 2}) {
			t.Errorf("the subscription is for indexes %v, want those of the first answer, 1 and 2", got)
		}
		for vb := range s.vbuckets {
			got := slices.Sorted(slices.Values(l.carries[s.vbuckets[vb].request]))
			if !slices.Equal(got, s.Indexes()) {
				t.Errorf("vbucket %d has keys of indexes %v, the subscription is for %v", vb, got, s.Indexes())
			}
		}
		if want := []string{"b[]"}; !slices.Equal(l.stopped, want) {
			t.Errorf("stopped %v, want %v", l.stopped, want)
		}
		if l.requests["c"] > 2 {
			t.Errorf("%d requests to c, whose answer is for the same indexes", l.requests["c"])
		}
	})
}

// TestDataOfOtherIndexes: data of a first request waits for the answer that names its indexes, and does not count if
// they are not those of the subscription.
func TestDataOfOtherIndexes(t *testing.T) {
	for _, tc := range []struct {
		of   []index.ID
		want string
	}{{[]index.ID{1, 2}, "[7]"}, {[]index.ID{1}, "[]"}} {
		synctest.Test(t, func(t *testing.T) {
			s := requesting(t, &hosts{}, at("a", "b"))
			var seqnos []uint64
			s.cfg.Handle = func(_ context.Context, ev *keyversion.Event) error {
				seqnos = append(seqnos, ev.Seqno)
				return nil
			}
			answer := func(addr string, req *wire.Subscribe, ids []index.ID, vb uint16) {
				t.Helper()
				r := wire.StartResult{VBucketHistory: wire.VBucketHistory{VBucket: vb}, Outcome: wire.StartBegun}
				if err := s.answered(t.Context(), addr, req, &wire.Subscription{ClusterID: "c", BucketUUID: "u", VBuckets: 2,
					Indexes: ids, Results: []wire.StartResult{r}}, nil); err != nil {
					t.Fatal(err)
				}
			}
			a, _ := s.nextRequest("a")
			b, _ := s.nextRequest("b")
			answer("a", a, []index.ID{1, 2}, 0)
			k := &sink{s: s, request: b.Counter, hello: keyversion.Hello{Connections: 1}}
			events := make([]keyversion.Event, 2)
			events[0] = keyversion.Event{Kind: keyversion.StreamBegin, VBucket: 1, Begin: &keyversion.Begin{}}
			events[1] = keyversion.Event{Kind: keyversion.Insert, VBucket: 1, Seqno: 7}
			for i := range events {
				events[i].Incarnation.Counter = b.Counter
			}
			done := make(chan error, 1)
			go func() { done <- k.Receive(t.Context(), &keyversion.Batch{Events: events}, func() {}) }()
			synctest.Wait()
			if len(seqnos) > 0 {
				t.Fatal("events were handled before their indexes are known")
			}
			answer("b", b, tc.of, 1)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(seqnos); got != tc.want {
				t.Errorf("streams of indexes %v: got %s, want %s", tc.of, got, tc.want)
			}
			_ = s.calls.Wait()
		})
	}
}
