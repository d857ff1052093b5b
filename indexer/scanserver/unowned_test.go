package scanserver

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"tidemark/errcode"
	"tidemark/indexer/scan"
	"tidemark/internal/rpc"
	"tidemark/internal/rpc/route"
	"tidemark/projectorclient"
	"tidemark/wire"
)

// TestUnownedVBuckets: what KV has now cannot be said of a vbucket that nobody owns: a session scan waits until
// somebody does, and else is told by name, with the vbuckets.
func TestUnownedVBuckets(t *testing.T) {
	var asked, owned atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	projector := httptest.NewServer(rpc.Message(func(context.Context, *wire.SeqnosRequest) (*wire.SeqnosReply, error) {
		r := &wire.SeqnosReply{VBuckets: []uint16{0, 2}, VBUUIDs: []uint64{7, 9}, Seqnos: []uint64{70, 90}}
		switch n, from := asked.Add(1), owned.Load(); {
		case from == 0 && n == 3: // patience is over in the middle of a round
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
		t.Errorf("nobody owns vbucket 1: %+v", e)
	}

	asked.Store(0)
	owned.Store(3) // the third time
	v, err := truth.CurrentSeqnos(t.Context(), "b")
	if err != nil || !slices.Equal(v.Seqnos, []uint64{70, 80, 90}) || !slices.Equal(v.VBUUIDs, []uint64{7, 8, 9}) ||
		asked.Load() != 3 {
		t.Errorf("%v, %v after %d questions", v, err, asked.Load())
	}
	if _, err := truth.CurrentSeqnos(t.Context(), "other"); scan.CodeOf(err) != errcode.IndexNotHosted {
		t.Errorf("a bucket that is not known: %v", err)
	}
}

// asked is what the server answers to somebody who asks for a user; a scan that is let in is answered at once.
func (s *Server) asked(path, user, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	r.Header.Set(scan.HeaderUser, user)
	w := httptest.NewRecorder()
	table := &route.Table{Routes: s.Routes()}
	for i := range table.Routes {
		if strings.HasSuffix(table.Routes[i].Path, ":scan") && table.Routes[i].Path != SlicesPath {
			table.Routes[i].Handle = func(http.ResponseWriter, *http.Request) error { return nil }
		}
	}
	table.Handler().ServeHTTP(w, r)
	return w
}

// TestScansAreBounded: a node that has as many scans as it takes, or parts of others' scans, says so at once and when
// to come again; neither takes the other's places.
func TestScansAreBounded(t *testing.T) {
	full := func() *rpc.Places {
		places := rpc.NewPlaces(1, "scans")
		if err := places.Enter(rpc.Anonymous); err != nil {
			t.Fatal(err)
		}
		return places
	}
	s := &Server{scans: full(), parts: full()}
	for path, code := range map[string]errcode.Code{"/v1/indexes/1:scan": errcode.Busy,
		"/v1/indexes/1:count": errcode.Busy, SlicesPath: errcode.Unavailable} {
		w := s.asked(path, "", "{}")
		var p rpc.Problem
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != http.StatusServiceUnavailable ||
			p.Code != code || code == errcode.Busy && w.Header().Get("Retry-After") == "" ||
			!strings.Contains(p.Detail, "the most it takes") {
			t.Errorf("%s: %d %s, %v", path, w.Code, w.Body, err)
		}
	}
	if s.scans.Taken() != 1 || s.parts.Taken() != 1 {
		t.Error("a refused scan took or gave a place")
	}
}

// TestUsersShareScans: a user who takes all that he can get, by way of a manager or as one whose parts other nodes ask
// for, leaves places for others.
func TestUsersShareScans(t *testing.T) {
	s := &Server{scans: rpc.NewPlaces(4, "scans"), parts: rpc.NewPlaces(4, "parts of scans")}
	for _, places := range []*rpc.Places{s.scans, s.parts} {
		for places.Enter("ann") == nil {
			continue
		}
	}
	for who, want := range map[string]bool{"ann": false, "bob": true} {
		w := s.asked("/v1/indexes/1:scan", who, "{}")
		if want != (w.Code == http.StatusOK) || !want && !strings.Contains(w.Body.String(), "3 of the 3 scans") {
			t.Errorf("%s enters: %d %s", who, w.Code, w.Body)
		}
	}
	w := s.asked(SlicesPath, "", `{"user":"ann"}`)
	if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "3 of the 3 parts of scans") {
		t.Errorf("a part for ann: %d %s", w.Code, w.Body)
	}
	if s.scans.Taken() != 3 || s.parts.Taken() != 3 {
		t.Error(s.scans.Taken(), s.parts.Taken())
	}
}
