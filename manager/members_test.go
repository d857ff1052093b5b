package manager

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/internal/rpc"
	"tidemark/internal/testing/need"
	"tidemark/internal/testing/ports"
	"tidemark/manager/api/v1"
	"tidemark/manager/consensus"
	"tidemark/wire"
)

// TestJoinAndRemove: a fourth manager joins by --join alone and gets its vote; a removed one ends, and its folder does
// not start again; a node of another cluster is refused by name.
func TestJoinAndRemove(t *testing.T) {
	t.Parallel()
	c := newTrio(t)
	addrs := ports.Addrs(t, 2)
	cfg := Config{Name: "m4", Dir: need.Memory(t), REST: addrs[0], Raft: addrs[1], Join: c.cfgs[0].Join,
		Heartbeat:    c.cfgs[0].Heartbeat,
		PromoteAfter: 300 * time.Millisecond}
	m, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	c.until("the fourth manager has its vote", func() bool {
		var s v1.Status
		_, _, body := c.call(c.nodes[0], "GET", "/v1/status", "", nil)
		voters := 0
		if json.Unmarshal(body, &s) == nil {
			for _, x := range s.Managers {
				if x.Role != "nonvoter" && x.Alive {
					voters++
				}
			}
		}
		return voters == 4
	})
	code, h, body := c.call(c.follower(), "GET", "/v1/readindex", "", map[string]string{"Tidemark-Cluster": "another"})
	if p := problemOf(t, h, body); code != 409 || p.Code != "FOREIGN_CLUSTER" || !strings.Contains(p.Detail, "another") {
		t.Errorf("a node of another cluster: %d %s", code, body)
	}
	if code, _, body := c.call(c.follower(), "DELETE", "/v1/cluster/managers/m4", "", nil); code != 200 {
		t.Fatalf("removal: %d %s", code, body)
	}
	select {
	case err := <-done:
		if !errors.Is(err, consensus.ErrRemoved) {
			t.Fatalf("the removed manager ended with %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the removed manager goes on")
	}
	if _, err := Open(cfg); !errors.Is(err, consensus.ErrRemoved) {
		t.Errorf("a removed manager's folder starts again: %v", err)
	}
	if code, _, _ := c.call(c.follower(), "DELETE", "/v1/cluster/managers/m4", "", nil); code != 404 {
		t.Errorf("removal of one that is gone: %d", code)
	}
}

// TestOneThatHangsKeepsNoManagerFromTheOthers: the manager that is asked first takes the connection and says nothing,
// as one that is stopped does. The next one is told all the same.
func TestOneThatHangsKeepsNoManagerFromTheOthers(t *testing.T) {
	t.Parallel()
	hangs := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // so that the server sees the client go
		<-r.Context().Done()
	}))
	defer hangs.Close()
	told := make(chan struct{}, 1)
	lives := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rpc.Write(w, r, http.StatusOK, wire.OK{})
		select {
		case told <- struct{}{}:
		default:
		}
	}))
	defer lives.Close()
	m := &Manager{log: hclog.NewNullLogger(), peers: rpc.NewClient(4, nil)}
	defer m.peers.Close()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if err := m.announce(t.Context(), &wire.RegisterManager{}, []string{hangs.URL, lives.URL}); err != nil {
			t.Fatal(err)
		}
		select {
		case <-told:
			return
		default:
		}
	}
	t.Error("the second manager was never told")
}
