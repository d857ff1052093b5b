package kv

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"tidemark/kv/clustermap"
)

// addressOf is a server's host:port.
func addressOf(s *httptest.Server) string { return strings.TrimPrefix(s.URL, "http://") }

// TestStatusAsksNodesSideBySide: each node answers when all have been asked, as nodes that hang would have it.
func TestStatusAsksNodesSideBySide(t *testing.T) {
	t.Parallel()
	const n = 3
	var asked sync.WaitGroup
	asked.Add(n)
	var addresses []string
	for range n {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked.Done()
			all := make(chan struct{})
			go func() { asked.Wait(); close(all) }()
			select {
			case <-all:
				_ = json.NewEncoder(w).Encode(ClusterView{Node: r.Host, Ready: true, Map: clustermap.Map{}})
			case <-r.Context().Done():
			}
		}))
		t.Cleanup(s.Close)
		addresses = append(addresses, addressOf(s))
	}
	a := NewAdmin(addresses, "u", "p", nil)
	status, err := a.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range status.Nodes {
		if x.State == "unreachable" {
			t.Errorf("%s: %s", x.Admin, x.Detail)
		}
	}
	if len(status.Nodes) != n {
		t.Errorf("%d nodes, want %d", len(status.Nodes), n)
	}
}

// TestANodeThatHangsIsAskedLast: a command for the cluster is not spent on a node that hangs, wherever in the list that
// is.
func TestANodeThatHangsIsAskedLast(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	var commanded []string
	serve := func(name string, hangs bool) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				mu.Lock()
				commanded = append(commanded, name)
				mu.Unlock()
			}
			if hangs {
				select {
				case <-r.Context().Done():
				case <-ctx.Done():
				}
			}
		}))
		t.Cleanup(s.Close)
		return addressOf(s)
	}
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	a := NewAdmin([]string{serve("hangs", true), addressOf(gone), serve("lives", false)}, "u", "p", nil)
	t.Cleanup(cancel) // first
	if _, err := a.Failover(ctx, FailoverRequest{Nodes: []string{"hangs"}}); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(commanded) != 1 || commanded[0] != "lives" {
		t.Errorf("commanded: %v, want the node that lives alone", commanded)
	}
}

// TestNodesSendNobodyElsewhere: the password and what is ordered go to no other address than the one that was named.
func TestNodesSendNobodyElsewhere(t *testing.T) {
	t.Parallel()
	var elsewhere atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	t.Cleanup(other.Close)
	s := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	t.Cleanup(s.Close)
	err := NewRemote("u", "p", testTimeout, nil).Call(t.Context(), addressOf(s), http.MethodPost, pathFlush,
		FlushRequest{Bucket: "world"}, nil)
	if err == nil || elsewhere.Load() > 0 {
		t.Errorf("%v, followed %d times", err, elsewhere.Load())
	}
}
