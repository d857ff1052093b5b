package scanserver

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"tidemark/internal/rpc"
	"tidemark/projectorclient"
	"tidemark/timestamp"
	"tidemark/wire"
)

// TestClaims has two projectors claim vbucket 0.
func TestClaims(t *testing.T) {
	reply := func(uuid, seqno, rev uint64) *wire.SeqnosReply {
		return &wire.SeqnosReply{VBuckets: []uint16{0}, VBUUIDs: []uint64{uuid}, Seqnos: []uint64{seqno},
			Revision: timestamp.MapRevision{Rev: rev}}
	}
	for _, tc := range []struct {
		name     string
		replies  []*wire.SeqnosReply
		at       timestamp.Position
		disputes int
	}{
		{"one", []*wire.SeqnosReply{reply(7, 70, 0)}, timestamp.Position{VBUUID: 7, Seqno: 70}, 0},
		{"two of one KV node", []*wire.SeqnosReply{reply(7, 70, 0), reply(7, 71, 0)}, timestamp.Position{VBUUID: 7, Seqno: 71},
			0},
		{"of one KV node, the later answer is older", []*wire.SeqnosReply{reply(7, 71, 0), reply(7, 70, 0)},
			timestamp.Position{VBUUID: 7, Seqno: 71}, 0},
		{"two branches, which map is not known", []*wire.SeqnosReply{reply(7, 70, 0), reply(8, 68, 0)}, timestamp.Position{}, 1},
		{"two branches, the first under the newer map", []*wire.SeqnosReply{reply(8, 68, 4), reply(7, 70, 3)},
			timestamp.Position{VBUUID: 8, Seqno: 68}, 0},
		{"two branches, the second under the newer map", []*wire.SeqnosReply{reply(7, 70, 3), reply(8, 68, 4)},
			timestamp.Position{VBUUID: 8, Seqno: 68}, 0},
		{"two branches under one map, then a newer one", []*wire.SeqnosReply{reply(7, 70, 3), reply(9, 69, 3), reply(8, 68, 4)},
			timestamp.Position{VBUUID: 8, Seqno: 68}, 0},
		{"two branches under one map, then an older one", []*wire.SeqnosReply{reply(7, 70, 3), reply(9, 69, 3), reply(8, 68, 2)},
			timestamp.Position{}, 1},
		{"two branches, the first under the newest map and an older one, too",
			[]*wire.SeqnosReply{reply(7, 70, 5), reply(7, 71, 3), reply(8, 68, 4)}, timestamp.Position{VBUUID: 7, Seqno: 71}, 0},
		{"the same, the older answer first", []*wire.SeqnosReply{reply(7, 71, 3), reply(7, 70, 5), reply(8, 68, 4)},
			timestamp.Position{VBUUID: 7, Seqno: 71}, 0},
		{"two branches under one map, then the first under a newer one",
			[]*wire.SeqnosReply{reply(7, 70, 3), reply(9, 69, 3), reply(7, 70, 4)}, timestamp.Position{VBUUID: 7, Seqno: 70}, 0},
		{"two branches under one map, then the first under an older one",
			[]*wire.SeqnosReply{reply(7, 70, 3), reply(9, 69, 3), reply(7, 71, 2)}, timestamp.Position{}, 1},
		{"lengths that differ", []*wire.SeqnosReply{{VBuckets: []uint16{0}, Seqnos: []uint64{1}}, reply(7, 70, 0)},
			timestamp.Position{VBUUID: 7, Seqno: 70}, 0},
		{"a vbucket that the bucket does not have", []*wire.SeqnosReply{{VBuckets: []uint16{1}, VBUUIDs: []uint64{1},
			Seqnos: []uint64{1}}, reply(7, 70, 0)}, timestamp.Position{VBUUID: 7, Seqno: 70}, 0},
	} {
		c := newClaims(1)
		for _, r := range tc.replies {
			c.add(r)
		}
		if missing := c.missing(); c.disputes != tc.disputes || len(missing) != tc.disputes || c.owned != 1 ||
			tc.disputes == 0 && c.at.At(0) != tc.at {
			t.Errorf("%s: %+v, missing %v", tc.name, c, missing)
		}
	}
}

// TestHungNodeDelaysNothing queries seqnos where every vbucket has an owner that answers, and another
// projector gets no answer from its KV node, or does not know of a failover yet.
func TestHungNodeDelaysNothing(t *testing.T) {
	requests := make(chan bool, 10) // whether the vbucket map was requested
	good := httptest.NewServer(rpc.Message(func(_ context.Context,
		req *wire.SeqnosRequest) (*wire.SeqnosReply, error) {
		requests <- req.Map
		r := &wire.SeqnosReply{VBuckets: []uint16{0, 1}, VBUUIDs: []uint64{7, 8}, Seqnos: []uint64{70, 80}}
		if req.Map {
			r.Revision.Rev = 5
		}
		return r, nil
	}))
	defer good.Close()
	stale := httptest.NewServer(rpc.Message(func(_ context.Context,
		req *wire.SeqnosRequest) (*wire.SeqnosReply, error) {
		r := &wire.SeqnosReply{VBuckets: []uint16{1}, VBUUIDs: []uint64{6}, Seqnos: []uint64{90}}
		if req.Map {
			r.Revision.Rev = 4
		}
		return r, nil
	}))
	defer stale.Close()
	hangs := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = http.MaxBytesReader(nil, r.Body, 1<<20).Read(make([]byte, 1<<10))
		<-r.Context().Done()
	}))
	defer hangs.Close()
	projectors := projectorclient.New(4, nil)
	defer projectors.Close()
	defs := wire.Definitions{Buckets: []wire.Bucket{{Name: "b", VBuckets: 2}}}
	truth := NewTruth(Sources{Definitions: func() wire.Definitions { return defs }, Projectors: projectors})
	for _, tc := range []struct {
		name string
		urls []string
		maps []bool // the requests to the good projector
	}{
		{"one hangs", []string{hangs.URL, good.URL}, []bool{false}},
		{"one does not know that it was failed over", []string{stale.URL, good.URL}, []bool{false, true}},
	} {
		defs.Projectors = nil
		for _, url := range tc.urls {
			defs.Projectors = append(defs.Projectors, wire.ProjectorEndpoint{Admin: url})
		}
		for tries := 1; ; tries++ {
			began := time.Now()
			v, err := truth.CurrentSeqnos(t.Context(), "b")
			took := time.Since(began)
			var maps []bool
			for len(requests) > 0 {
				maps = append(maps, <-requests)
			}
			if took > projectorclient.ReadTimeout && tries < 10 { // the machine may have been stalled for as long
				continue
			}
			if err != nil || !slices.Equal(v.Seqnos, []uint64{70, 80}) || !slices.Equal(v.VBUUIDs, []uint64{7, 8}) ||
				!slices.Equal(maps, tc.maps) || took > projectorclient.ReadTimeout {
				t.Errorf("%s: %v, %v after %v, requested maps %v", tc.name, v, err, took, maps)
			}
			break
		}
	}
}
