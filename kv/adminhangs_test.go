package kv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"tidemark/kv/clustermap"
)

// addressOf returns the server's host:port.
func addressOf(s *httptest.Server) string { return strings.TrimPrefix(s.URL, "http://") }

// TestStatusAsksNodesInParallel: Status requests all nodes in parallel. Each node answers only when all have been
// asked, so that requests made one after another would hang.
func TestStatusAsksNodesInParallel(t *testing.T) {
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

// TestSilentNodesAreReportedInOrder: the error lists unreachable nodes in the order of the configured addresses, so
// that two runs read the same.
func TestSilentNodesAreReportedInOrder(t *testing.T) {
	t.Parallel()
	var addresses []string
	for port := range 8 {
		addresses = append(addresses, fmt.Sprintf("127.0.0.1:%d", port+1))
	}
	_, err := NewAdmin(addresses, "u", "p", nil).Status(t.Context())
	if !errors.Is(err, ErrSilent) {
		t.Fatal(err)
	}
	lines := strings.Split(err.Error(), "\n")
	for i, line := range lines {
		if len(lines) != len(addresses) || !strings.Contains(line, addresses[i]+"/") {
			t.Errorf("line %d is not of %s: %s", i, addresses[i], line)
		}
	}
}

// TestPeersAnswerInOrder: the answers of nodes asked in parallel come in the order of the nodes, whichever answers
// first.
func TestPeersAnswerInOrder(t *testing.T) {
	t.Parallel()
	nodes := []clustermap.Node{{ID: "c"}, {ID: "a"}, {ID: "d"}, {ID: "b"}}
	next := make([]chan struct{}, len(nodes)+1)
	for i := range next {
		next[i] = make(chan struct{})
	}
	close(next[len(nodes)])
	answers := (&peers{}).each(t.Context(), nodes, func(_ context.Context, x clustermap.Node) (clustermap.Map, error) {
		i := slices.Index(nodes, x)
		<-next[i+1] // the last node answers first
		defer close(next[i])
		return clustermap.Map{Rev: int64(i)}, nil
	})
	for i, a := range answers {
		if a.id != nodes[i].ID || a.value.Rev != int64(i) || a.err != nil {
			t.Errorf("answer %d: %+v", i, a)
		}
	}
}

// TestHungNodeIsAskedLast: the client does not send a command for the cluster to a node that hangs, wherever in
// the list that node is.
func TestHungNodeIsAskedLast(t *testing.T) {
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
	t.Cleanup(cancel) // runs before the servers are closed
	if _, err := a.Failover(ctx, FailoverRequest{Nodes: []string{"hangs"}}); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(commanded) != 1 || commanded[0] != "lives" {
		t.Errorf("commanded: %v, want the node that lives alone", commanded)
	}
}

// TestNodesDoNotRedirect: the client follows no redirect, so that the password and the command reach only the
// address that was configured.
func TestNodesDoNotRedirect(t *testing.T) {
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

// TestIncompleteAnswerCountsAsSilence: a node that begins an answer and does not finish it counts as one that has not
// answered. The command is sent to it once, and the caller gets ErrSilent.
func TestIncompleteAnswerCountsAsSilence(t *testing.T) {
	t.Parallel()
	var commanded atomic.Int64
	breaks := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			commanded.Add(1)
		}
		w.Header().Set("Content-Length", "100")
		_, _ = w.Write([]byte("{"))
	}))
	t.Cleanup(breaks.Close)
	follows := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.WriteHeader(http.StatusMisdirectedRequest)
		_ = json.NewEncoder(w).Encode(problem{Code: codeNotLeader, Detail: "ask", Leader: addressOf(breaks)})
	}))
	t.Cleanup(follows.Close)
	_, err := NewAdmin([]string{addressOf(breaks), addressOf(follows)}, "u", "p", nil).Failover(t.Context(),
		FailoverRequest{Nodes: []string{"x"}})
	if !errors.Is(err, ErrSilent) || commanded.Load() != 1 {
		t.Errorf("commanded %d times: %v", commanded.Load(), err)
	}
	a := NewAdmin([]string{addressOf(breaks)}, "u", "p", nil)
	_, users := a.Users(t.Context())
	_, groups := a.Groups(t.Context())
	_, manifest := a.Manifest(t.Context(), "b")
	for _, err := range []error{users, groups, manifest} {
		if !errors.Is(err, ErrSilent) || !strings.Contains(err.Error(), addressOf(breaks)) {
			t.Errorf("asked for what it knows: %v", err)
		}
	}
}
