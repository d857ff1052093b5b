package manager

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"tidemark/fsm"
	"tidemark/internal/rpc"
	"tidemark/internal/testing/need"
	"tidemark/internal/testing/pipenet"
	"tidemark/internal/testing/ports"
	"tidemark/manager/api/v1"
	"tidemark/manager/consensus"
	"tidemark/statecontext"
	"tidemark/wire"
)

// TestJoinAndRemove: a fourth manager joins with --join alone and becomes a voter; a removed one exits, and does not
// start again on its folder; a node of another cluster is refused by name.
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

// announcer returns as much of a manager as announces itself to others.
func announcer(t *testing.T) *Manager {
	t.Helper()
	m := &Manager{cfg: Config{RESTAdvertise: "m1"}, log: hclog.NewNullLogger(), peers: rpc.NewClient(4, nil)}
	machine := fsm.New(m.log, func(err error) { t.Error(err) })
	entry, err := statecontext.Encode(statecontext.Command{Body: &statecontext.BootstrapCluster{ClusterID: "c", Epoch: 1,
		FormatLevel: statecontext.FormatLevel}})
	if err != nil {
		t.Fatal(err)
	}
	machine.Apply(&raft.Log{Index: 1, Data: entry})
	if m.raft, err = consensus.Open(consensus.Config{Name: "m1", Dir: t.TempDir(), REST: "http://m1",
		Listener: pipenet.Listen()}, machine); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.peers.Close()
		if err := m.raft.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

type roundTrip func(r *http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestAnnouncementWaitsForTheLeader: the leader records an address after it has tried the previous one,
// where packets are lost. An announcement waits for that.
func TestAnnouncementWaitsForTheLeader(t *testing.T) {
	t.Parallel()
	m := announcer(t)
	synctest.Test(t, func(t *testing.T) {
		answered := false
		m.peers.Wrap(func(http.RoundTripper) http.RoundTripper {
			return roundTrip(func(r *http.Request) (*http.Response, error) {
				select {
				case <-time.After(m.raft.JoinTimeout() - time.Millisecond):
				case <-r.Context().Done():
					return nil, r.Context().Err()
				}
				answered = true
				w := httptest.NewRecorder()
				rpc.Write(w, r, http.StatusOK, wire.OK{})
				return w.Result(), nil
			})
		})
		if err := m.announce(t.Context(), &wire.RegisterManager{}, []string{"http://leader"}); err != nil || !answered {
			t.Errorf("it was not waited for: %v", err)
		}
	})
}

// TestOthersAreProbedDuringAnAnnouncement: a manager whose announcement hangs probes the other managers' addresses
// meanwhile: without them there may be no leader.
func TestOthersAreProbedDuringAnAnnouncement(t *testing.T) {
	t.Parallel()
	m := announcer(t)
	m.cfg.Join = []string{"m2"}
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var hangs atomic.Bool
		var asked atomic.Int64
		m.peers.Wrap(func(http.RoundTripper) http.RoundTripper {
			return roundTrip(func(r *http.Request) (*http.Response, error) {
				if r.Method == http.MethodPost {
					hangs.Store(true)
					<-r.Context().Done()
					hangs.Store(false)
				} else if hangs.Load() && asked.Add(1) == 3 {
					stop()
				}
				return nil, errors.New("no answer")
			})
		})
		time.AfterFunc(m.raft.JoinTimeout(), stop)
		if err := m.register(ctx); err != nil || asked.Load() < 3 {
			t.Errorf("asked %d times, %v", asked.Load(), err)
		}
	})
}

// TestHungManagerDoesNotBlockAnnouncements: the first manager accepts the connection and does not answer, like a
// stopped process. The next manager gets the announcement nevertheless.
func TestHungManagerDoesNotBlockAnnouncements(t *testing.T) {
	t.Parallel()
	hangs := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // so that the server notices when the client is gone
		<-r.Context().Done()
	}))
	defer hangs.Close()
	announced := make(chan struct{}, 1)
	lives := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rpc.Write(w, r, http.StatusOK, wire.OK{})
		select {
		case announced <- struct{}{}:
		default:
		}
	}))
	defer lives.Close()
	m := announcer(t)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if err := m.announce(t.Context(), &wire.RegisterManager{}, []string{hangs.URL, lives.URL}); err != nil {
			t.Fatal(err)
		}
		select {
		case <-announced:
			return
		default:
		}
	}
	t.Error("the second manager was sent no announcement")
}
