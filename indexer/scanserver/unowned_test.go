package scanserver

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/peers"
	"tidemark/indexer/scan"
	"tidemark/indexer/snapshots"
	"tidemark/internal/rpc"
	"tidemark/internal/rpc/route"
	"tidemark/projectorclient"
	"tidemark/wire"
)

// TestUnownedVBuckets checks that a session scan waits while a vbucket has no owner, because no component knows what
// KV has. If it waits too long, its error has a code of its own and lists the vbuckets.
func TestUnownedVBuckets(t *testing.T) {
	var requests, owned atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	projector := httptest.NewServer(rpc.Message(func(context.Context, *wire.SeqnosRequest) (*wire.SeqnosReply, error) {
		r := &wire.SeqnosReply{VBuckets: []uint16{0, 2}, VBUUIDs: []uint64{7, 9}, Seqnos: []uint64{70, 90}}
		switch n, from := requests.Add(1), owned.Load(); {
		case from == 0 && n == 3: // the time is over in the middle of a round
			cancel()
		case from > 0 && n >= from:
			r.VBuckets, r.VBUUIDs, r.Seqnos = append(r.VBuckets, 1), append(r.VBUUIDs, 8), append(r.Seqnos, 80)
		}
		return r, nil
	}))
	defer projector.Close()
	projectors := projectorclient.New(1, nil)
	defer projectors.Close()
	truth := NewTruth(Sources{Projectors: projectors, Definitions: func() wire.Definitions {
		return wire.Definitions{Buckets: []wire.Bucket{{Name: "b", VBuckets: 3}},
			Projectors: []wire.ProjectorEndpoint{{ID: "p", Admin: projector.URL}}}
	}})

	_, err := truth.CurrentSeqnos(ctx, "b")
	if e := scan.AsError(err); err == nil || e.Code != errcode.VBucketsUnavailable ||
		!slices.Equal(e.VBuckets, []uint16{1}) || !strings.Contains(e.Detail, "1 of 3 vbuckets") {
		t.Errorf("no projector owns vbucket 1: %+v", e)
	}

	requests.Store(0)
	owned.Store(3) // the third request finds an owner
	v, err := truth.CurrentSeqnos(t.Context(), "b")
	if err != nil || !slices.Equal(v.Seqnos, []uint64{70, 80, 90}) || !slices.Equal(v.VBUUIDs, []uint64{7, 8, 9}) ||
		requests.Load() != 3 {
		t.Errorf("%v, %v after %d requests", v, err, requests.Load())
	}
	if _, err := truth.CurrentSeqnos(t.Context(), "other"); scan.CodeOf(err) != errcode.IndexNotHosted {
		t.Errorf("a bucket that is not known: %v", err)
	}
}

// answerTo returns the server's answer to a scan of a user, or to a part for the indexer with that number. What is
// admitted is answered at once.
func (s *Server) answerTo(path, user, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	r.Header.Set(scan.HeaderUser, user)
	r.Header.Set(peers.HeaderNode, user)
	w := httptest.NewRecorder()
	table := &route.Table{Routes: s.Routes()}
	for i := range table.Routes {
		if strings.HasSuffix(table.Routes[i].Path, ":scan") {
			table.Routes[i].Handle = func(http.ResponseWriter, *http.Request) error { return nil }
		}
	}
	table.Handler().ServeHTTP(w, r)
	return w
}

// TestScansAreBounded checks that a node with the maximum number of scans, or of parts of other scans, refuses more
// at once, with the time to retry. Scans and parts do not use each other's places.
func TestScansAreBounded(t *testing.T) {
	full := func() *rpc.Places {
		places := rpc.NewPlaces(1, "scans")
		if err := places.Enter(rpc.Anonymous); err != nil {
			t.Fatal(err)
		}
		return places
	}
	s := &Server{scans: full(), parts: full()}
	for _, path := range []string{"/v1/indexes/1:scan", "/v1/indexes/1:count", SlicesPath} {
		w := s.answerTo(path, "", "{}")
		var p rpc.Problem
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != http.StatusServiceUnavailable ||
			p.Code != errcode.Busy || w.Header().Get("Retry-After") == "" ||
			!strings.Contains(p.Detail, "which is the limit") {
			t.Errorf("%s: %d %s, %v", path, w.Code, w.Body, err)
		}
	}
	if s.scans.Taken() != 1 || s.parts.Taken() != 1 {
		t.Error("a refused scan took or gave a place")
	}
}

// TestScansAreShared checks that a user who takes all places that he can get leaves some for others. The same holds
// for an indexer that coordinates as many scans as it can, whoever the users are.
func TestScansAreShared(t *testing.T) {
	s := &Server{scans: rpc.NewPlaces(4, "scans"), parts: rpc.NewPlaces(4, "parts of scans"),
		nameOf: func(n index.NodeID) string { return fmt.Sprintf("i%d", n) }}
	for of, who := range map[*rpc.Places]string{s.scans: "ann", s.parts: "i7"} {
		for of.Enter(who) == nil {
			continue
		}
	}
	for _, c := range []struct{ path, who, body, refused string }{
		{"/v1/indexes/1:scan", "ann", "{}", "3 of the 3 scans in progress on this node belong to ann"},
		{"/v1/indexes/1:scan", "bob", "{}", ""},
		{SlicesPath, "7", "{}", "3 of the 3 parts of scans in progress on this node belong to i7"},
		{SlicesPath, "8", "{}", ""},
	} {
		w := s.answerTo(c.path, c.who, c.body)
		if (c.refused == "") != (w.Code == http.StatusOK) || !strings.Contains(w.Body.String(), c.refused) {
			t.Errorf("%s enters %s: %d %s", c.who, c.path, w.Code, w.Body)
		}
	}
	if s.scans.Taken() != 3 || s.parts.Taken() != 3 {
		t.Error(s.scans.Taken(), s.parts.Taken())
	}
}

// TestPartsGrowWithIndexers has each of several indexers coordinate scans in which all others have parts. Each
// indexer gets its share of the others' places, and an indexer that coordinates only a few scans gets all that it
// needs.
func TestPartsGrowWithIndexers(t *testing.T) {
	for _, c := range []struct {
		quota             int64
		many, scans       int // that many indexers with that many scans each
		few, least, fewer int // indexers with fewer scans; the least that each of many gets; the scans of each of few
	}{
		{1 << 30, 7, 30, 0, 30, 0}, // one user, who got only 192 on all of them together
		{1 << 30, 3, MaxScans, 0, MaxScans, 0},
		{512 << 20, 1, MaxScans, 6, MaxScans, 20},
		{1 << 30, 7, MaxScans, 3, 100, 20},
		{8 << 30, 20, MaxScans, 3, MaxScans, 20},
	} {
		p := New(Options{MaxParts: int(c.quota / PartMemory), Pins: &snapshots.Pins{}, Nodes: &peers.Nodes{},
			Registry: prometheus.NewRegistry(), Log: hclog.NewNullLogger(), Now: time.Now}).parts
		had := map[int]int{}
		for i := range MaxScans {
			for n := range c.many + c.few {
				if i < c.scans && (n < c.many || i < c.fewer) && p.Enter(strconv.Itoa(n)) == nil {
					had[n]++
				}
			}
		}
		for n := range c.many + c.few {
			if n < c.many && had[n] < c.least || n >= c.many && had[n] < c.fewer {
				t.Errorf("%+v: %v", c, had)
				break
			}
		}
	}
}
