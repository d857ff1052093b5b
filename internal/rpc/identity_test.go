package rpc

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"tidemark/errcode"
)

func TestRequestIDs(t *testing.T) {
	for id, ok := range map[string]bool{"": false, "a": true, "Abc.9_:/+=-": true, "with space": false,
		"line\nbreak": false, "ä": false,
		strings.Repeat("x", MaxRequestID): true, strings.Repeat("x", MaxRequestID+1): false, NewRequestID(): true} {
		if ValidRequestID(id) != ok {
			t.Errorf("%q: want %v", id, ok)
		}
	}
	if a, b := NewRequestID(), NewRequestID(); a == b || len(a) != 32 {
		t.Errorf("ids %s and %s", a, b)
	}
}

// TestRequestIDIsForwarded checks the id through a server that calls another one, and in the returned problem.
func TestRequestIDIsForwarded(t *testing.T) {
	var deep string
	last := httptest.NewServer(Identify(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		deep = RequestID(r.Context())
		WriteProblem(w, Refuse(errcode.KVUnavailable, "no"))
	})))
	defer last.Close()
	c := NewClient(1, nil)
	defer c.Close()
	first := httptest.NewServer(Identify(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		WriteProblem(w, c.Do(r.Context(), http.MethodPost, last.URL, nil, nil))
	})))
	defer first.Close()
	ask := func(id string) (string, *Problem) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, first.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(HeaderRequestID, id)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.Header.Get(HeaderRequestID), ReadProblem(resp)
	}
	if id, p := ask("mine-1"); id != "mine-1" || p.RequestID != id || deep != id {
		t.Errorf("the client sent mine-1; the answer has %q, the problem %q, the last server %q", id, p.RequestID, deep)
	}
	if id, p := ask("not one"); !ValidRequestID(id) || id == "not one" || p.RequestID != id || deep != id {
		t.Errorf("answer %q, problem %q, the last server %q", id, p.RequestID, deep)
	}
	if RequestID(context.Background()) != "" || Principal(context.Background()) != Anonymous ||
		Principal(WithPrincipal(context.Background(), "ann")) != "ann" {
		t.Error("a context has a request id that was not set, or lacks one that was")
	}
}
