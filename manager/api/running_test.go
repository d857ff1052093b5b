package api

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/wire"
)

// TestHungIndexerIsNamed checks that the others' scans are listed, and that an indexer that does not answer by
// the deadline is named, as is one whose address refuses connections.
func TestHungIndexerIsNamed(t *testing.T) {
	t.Parallel()
	lives := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.String() != "/v1/scans?running=7&slow=3" {
			t.Errorf("asked for %s", r.URL)
		}
		rpc.Write(w, r, http.StatusOK, &wire.IndexerScans{Name: "i1", Running: 1,
			Scans: []wire.RunningScan{{ScanInfo: wire.ScanInfo{ID: "i1.1"}}}})
	}))
	defer lives.Close()
	asked, over := make(chan struct{}), make(chan struct{})
	hangs := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(asked)
		<-over
	}))
	defer hangs.Close()
	defer close(over)
	a := New(Config{})
	defer a.Close()
	reports, unanswered := running{a.ground}.askScans(t.Context(), []indexerAt{{"i2", hangs.URL}, {"i1", lives.URL}, {"i0", "http://127.0.0.1:1"}}, 7, 3)
	<-asked
	if len(reports) != 1 || reports[0].Name != "i1" || len(reports[0].Scans) != 1 {
		t.Errorf("%+v", reports)
	}
	if len(unanswered) != 2 || unanswered[0].Indexer != "i0" || unanswered[1].Indexer != "i2" ||
		unanswered[1].Error == "" {
		t.Errorf("%+v", unanswered)
	}
}

// TestScanIsCancelledAtItsIndexer checks that, of two indexers registered under one name, the one with the scan ends
// it, also while the other one hangs.
func TestScanIsCancelledAtItsIndexer(t *testing.T) {
	t.Parallel()
	over := make(chan struct{})
	hangs := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-over }))
	defer hangs.Close()
	defer close(over)
	has := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rpc.Write(w, r, http.StatusOK, wire.OK{})
	}))
	defer has.Close()
	hasNot := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		rpc.WriteProblem(w, rpc.Refuse(errcode.UnknownScan, "no such scan"))
	}))
	defer hasNot.Close()
	a := New(Config{})
	defer a.Close()
	for name, c := range map[string]struct {
		at   []string
		want errcode.Code
	}{
		"one":                                  {at: []string{has.URL}},
		"one that hangs before":                {at: []string{hangs.URL, has.URL}},
		"one without it before":                {at: []string{hasNot.URL, has.URL}},
		"none has it":                          {at: []string{hasNot.URL, hasNot.URL}, want: errcode.UnknownScan},
		"the indexer that may have it is gone": {at: []string{"http://127.0.0.1:1", hasNot.URL}, want: errcode.Unavailable},
	} {
		var named []indexerAt
		for _, addr := range c.at {
			named = append(named, indexerAt{"i1", addr})
		}
		err := running{a.ground}.cancelAt(t.Context(), named, &wire.CancelScan{ID: "i1.1", By: "u"})
		var p *rpc.Problem
		if (err == nil) != (c.want == "") || errors.As(err, &p) && p.Code != c.want {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestSlowFromIsSentToAll checks that all indexers are sent the threshold, also if one hangs, which is then named.
func TestSlowFromIsSentToAll(t *testing.T) {
	t.Parallel()
	over := make(chan struct{})
	hangs := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-over }))
	defer hangs.Close()
	defer close(over)
	var got wire.SlowFrom
	takes := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/scans:slow" {
			t.Errorf("asked for %s", r.URL)
		}
		if err := rpc.Read(r, &got); err != nil {
			t.Error(err)
		}
		rpc.Write(w, r, http.StatusOK, wire.OK{})
	}))
	defer takes.Close()
	a := New(Config{})
	defer a.Close()
	errs := running{a.ground}.setSlowFrom(t.Context(), []indexerAt{{"i1", hangs.URL}, {"i2", takes.URL}},
		&wire.SlowFrom{FromMS: 5, By: "u"})
	if len(errs) != 2 || errs[0] == nil || errs[1] != nil || got != (wire.SlowFrom{FromMS: 5, By: "u"}) {
		t.Errorf("%v, sent %+v", errs, got)
	}
}
