package indexerclient

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/timestamp"
	"tidemark/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// receiver is an indexer that accepts stability timestamps.
type receiver struct {
	mu       sync.Mutex
	fails    bool // it returns an error after it has stored the timestamps
	acked    wire.StabilityBases
	newest   map[string]uint64 // by bucket: the seqno of vbucket 0
	deltas   int
	requests int
}

func (r *receiver) take(all []wire.BucketStability) {
	for _, s := range all {
		r.newest[s.Bucket] = s.Vector.Seqnos[0]
	}
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests++
	rpc.Message(func(_ context.Context, m *wire.StabilityRequest) (*wire.StabilityReply, error) {
		r.deltas += len(m.Deltas)
		all, missing := r.acked.Decode(m)
		r.take(all)
		if r.fails {
			return nil, rpc.Refuse(errcode.BadRequest, "as the test wants")
		}
		return &wire.StabilityReply{Missing: missing}, nil
	}).ServeHTTP(w, req)
}

// TestStabilityTravelsAsChanges: whatever an indexer had before, it has what was sent once the call has succeeded,
// and it gets deltas against what it has.
func TestStabilityTravelsAsChanges(t *testing.T) {
	r := &receiver{acked: wire.StabilityBases{}, newest: map[string]uint64{}}
	server := httptest.NewServer(r)
	defer server.Close()
	c := New(1, nil)
	defer c.Close()
	number := uint64(0)
	publish := func(what string, deltas int, buckets ...string) {
		t.Helper()
		number++
		req := &wire.StabilityRequest{Fence: wire.Fence{ClusterID: "c"}}
		want := maps.Clone(r.newest)
		for _, b := range buckets {
			s := wire.BucketStability{Stability: timestamp.Stability{Vector: timestamp.New(4)}}
			s.Vector.Set(0, timestamp.Position{VBUUID: 7, Seqno: 10 * number})
			s.Bucket, s.Ref = b, timestamp.Ref{Generation: 1, Number: number, Hash: s.Vector.Hash()}
			req.Stabilities = append(req.Stabilities, s)
			want[b] = 10 * number
		}
		before := r.deltas
		err := c.Stability(t.Context(), server.URL, req)
		var p *rpc.Problem
		if r.fails != errors.As(err, &p) || !r.fails && err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if !maps.Equal(r.newest, want) || r.deltas-before != deltas {
			t.Errorf("%s: indexer has %v after %d deltas, want %v after %d", what, r.newest, r.deltas-before, want, deltas)
		}
	}
	publish("first", 0, "a", "b")
	publish("changes", 2, "a", "b")
	publish("one more bucket", 1, "a", "c")
	r.acked = wire.StabilityBases{}
	publish("started again", 2, "a", "b") // sent in full by a second request
	publish("changes after that", 2, "a", "b")
	r.fails = true
	publish("answer lost", 2, "a", "b")
	r.fails = false
	publish("after a failure", 0, "a", "b")
	publish("changes after that", 2, "a", "b")
	if !slices.Equal(slices.Sorted(maps.Keys(r.newest)), []string{"a", "b", "c"}) {
		t.Error(r.newest)
	}
}

// TestNewLeaderSendsChanges: a new leader sends deltas against what the previous leader has probably sent. An
// indexer without that base gets the full timestamp.
func TestNewLeaderSendsChanges(t *testing.T) {
	r := &receiver{acked: wire.StabilityBases{}, newest: map[string]uint64{}}
	server := httptest.NewServer(r)
	defer server.Close()
	stable := func(number uint64) wire.BucketStability {
		s := wire.BucketStability{Stability: timestamp.Stability{Vector: timestamp.New(4)}}
		s.Vector.Set(0, timestamp.Position{VBUUID: 7, Seqno: 10 * number})
		s.Bucket, s.Ref = "a", timestamp.Ref{Generation: 1, Number: number, Hash: s.Vector.Hash()}
		return s
	}
	publish := func(c *Client, number uint64, requests, deltas int, base ...wire.BucketStability) {
		t.Helper()
		r.requests, r.deltas = 0, 0
		if err := c.Stability(t.Context(), server.URL, &wire.StabilityRequest{
			Stabilities: []wire.BucketStability{stable(number)}, Base: base}); err != nil {
			t.Fatal(err)
		}
		if r.newest["a"] != 10*number || r.requests != requests || r.deltas != deltas {
			t.Errorf("number %d: it has %d after %d requests with %d changes, want %d and %d", number, r.newest["a"], r.requests,
				r.deltas, requests, deltas)
		}
	}
	former := New(1, nil)
	defer former.Close()
	publish(former, 1, 1, 0)
	publish(former, 2, 1, 1)
	next := New(1, nil)
	defer next.Close()
	publish(next, 3, 1, 1, stable(2))
	publish(next, 4, 1, 1)
	publish(former, 5, 2, 1, stable(3)) // 4 was sent to it
	publish(next, 6, 1, 1, stable(5))   // what it has sent itself is older
	publish(next, 7, 1, 1, stable(3))   // what it has sent itself is newer
}

// TestRememberedDefinitionsAreBounded: an indexer that was evicted from the client's table gets full timestamps.
func TestRememberedDefinitionsAreBounded(t *testing.T) {
	c := New(1, nil)
	defer c.Close()
	for i := range maxAcked + 10 {
		c.put(string(rune('a'+i)), wire.StabilityBases{"b": {}})
	}
	if len(c.acked) > maxAcked {
		t.Errorf("%d addresses are remembered, want %d at most", len(c.acked), maxAcked)
	}
	if acked := c.take("nobody"); len(acked) != 0 {
		t.Error(acked)
	}
}
