package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"tidemark/collate"
	"tidemark/errcode"
	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/partition"
	"tidemark/statecontext"
	"tidemark/wire"
)

// TestSamplingAsksReplicas checks that, after an indexer that hangs, and one whose copy does not serve, another
// replica is asked; an indexer that hangs is asked last from then on. If no other indexer has the slice, that is
// reported in time.
func TestSamplingAsksReplicas(t *testing.T) {
	t.Parallel()
	over := make(chan struct{})
	var hung, refused atomic.Int64
	hangs := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		hung.Add(1)
		<-over
	}))
	defer hangs.Close()
	defer close(over)
	refuses := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		refused.Add(1)
		rpc.WriteProblem(w, rpc.Refuse(errcode.IndexNotHosted, "it does not serve"))
	}))
	defer refuses.Close()
	answers := httptest.NewServer(rpc.Message(func(_ context.Context,
		req *wire.SampleRequest) (*wire.SampleReply, error) {
		if req.Wanted > wire.MaxSampled || req.Keys > wire.MaxSampleKeys || req.Bytes > wire.MaxSampleBytes {
			return nil, fmt.Errorf("%+v", req)
		}
		slice := int64(req.Copy) / 10
		return &wire.SampleReply{Rows: 1, Of: 1, Keys: [][]byte{collate.AppendInt64(nil, slice)}}, nil
	}))
	defer answers.Close()
	a := New(Config{})
	defer a.Close()
	const parts = 40
	x := &statecontext.Index{}
	x.Definition.Name, x.Topology.Layout.Partitions = "x", parts
	for i := range index.CopyID(parts) {
		for n := range index.CopyID(3) {
			x.Topology.Copies = append(x.Topology.Copies, partition.Copy{ID: 10*i + n, Slice: index.SliceID(i),
				Node: index.NodeID(n), State: partition.Allocated})
		}
	}
	s := sampling{ground: a.ground, until: time.Now().Add(15 * time.Second), silent: map[index.NodeID]bool{},
		ask: askOf(parts), addrs: map[index.NodeID]string{0: hangs.URL, 1: refuses.URL, 2: answers.URL}}
	of, err := s.all(t.Context(), x)
	if err != nil || hung.Load() == 0 || hung.Load() > 2*sampledAtOnce || refused.Load() == 0 {
		t.Fatalf("%v; asked who hangs %d times, who refuses %d times", err, hung.Load(), refused.Load())
	}
	cuts, err := partition.Quantiles(samplesOf(of), 4)
	if err != nil || fmt.Sprintf("%s", cuts.Values) != "[10 20 30]" {
		t.Errorf("%s, %v", cuts.Values, err)
	}
	x.Topology.Copies = x.Topology.Copies[:len(x.Topology.Copies)-1] // no indexer has the last slice
	var p *rpc.Problem
	s.until = time.Now().Add(3 * sampleAgain)
	if _, err := s.all(t.Context(), x); !errors.As(err, &p) || p.Code != errcode.Unavailable {
		t.Errorf("a slice without a copy: %v", err)
	}
}

// TestSamplingWaitsForACopy checks that, while no copy of a slice serves because it is moved or rolled back, copies
// are asked again until one does. (A split once failed with INDEX_NOT_HOSTED.)
func TestSamplingWaitsForACopy(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	answers := httptest.NewServer(rpc.Message(func(context.Context, *wire.SampleRequest) (*wire.SampleReply, error) {
		if asked.Add(1) < 4 {
			return nil, rpc.Refuse(errcode.IndexNotHosted, "it does not serve")
		}
		return &wire.SampleReply{Rows: 1, Of: 1, Keys: [][]byte{collate.AppendInt64(nil, 1)}}, nil
	}))
	defer answers.Close()
	a := New(Config{})
	defer a.Close()
	s := sampling{ground: a.ground, until: time.Now().Add(time.Minute), silent: map[index.NodeID]bool{}, ask: askOf(1),
		addrs: map[index.NodeID]string{1: answers.URL, 2: answers.URL}}
	r, err := s.one(t.Context(), []partition.Copy{{ID: 10, Node: 1}, {ID: 11, Node: 2}})
	if err != nil || r.Rows != 1 || asked.Load() != 4 {
		t.Errorf("%+v, %v; asked %d times", r, err, asked.Load())
	}
}

// TestTurnsOfCopies checks that the last copy has its turn, whichever others hang; a single copy has all the time,
// and none has more than samplePatience.
func TestTurnsOfCopies(t *testing.T) {
	for copies := 1; copies <= 5; copies++ {
		left := 7 * time.Second
		for i := range copies {
			one := turn(left, copies-i)
			if want := 7 * time.Second / time.Duration(copies); (one - want).Abs() > time.Microsecond {
				t.Errorf("copy %d of %d is waited for %v, want %v", i, copies, one, want)
			}
			left -= one
		}
	}
	if one := turn(time.Hour, 2); one != samplePatience {
		t.Error(one)
	}
	if one := turn(-time.Second, 1); one <= 0 { // would be no limit
		t.Error(one)
	}
}

// TestSamplingIsBounded checks that the answers of all slices together are limited, and each may have some entries.
func TestSamplingIsBounded(t *testing.T) {
	for parts := 1; parts <= partition.MaxPartitions; parts++ {
		r := askOf(parts)
		tooMuch := r.Wanted > wire.MaxSampled || r.Keys > wire.MaxSampleKeys || r.Bytes > wire.MaxSampleBytes
		if tooMuch || r.Bytes*parts > keyBytesInAll || r.Keys*parts > keysInAll || r.Wanted < leastSampled ||
			r.Keys < leastKeys || r.Bytes < partition.MaxBound {
			t.Fatalf("%d slices: %+v", parts, r)
		}
	}
}
