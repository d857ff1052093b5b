package kv

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/internal/logging"
	"tidemark/internal/testing/ports"
	"tidemark/kv/clustermap"
	"tidemark/kv/kvclient"
)

const clusterWait = 60 * time.Second // bounds a hang; no test measures it

// group is a cluster of nodes in this process; nodes can be stopped and started again at the same addresses.
type group struct {
	t     *testing.T
	nodes map[string]*Node
	stops map[string]func()
	confs map[string]Config
}

// newGroup starts nodes kv1 to kvN with the bucket "world" of 16 vbuckets.
func newGroup(t *testing.T, n, replicas int) *group {
	t.Helper()
	return newGroupWith(t, n, replicas, func(*Config) {})
}

// newGroupWith is newGroup with changes to the nodes' configurations.
func newGroupWith(t *testing.T, n, replicas int, edit func(*Config)) *group {
	t.Helper()
	g := &group{t: t, nodes: map[string]*Node{}, stops: map[string]func(){}, confs: map[string]Config{}}
	var peers []Peer
	for i := range n {
		peers = append(peers, Peer{ID: fmt.Sprint("kv", i+1), Memcached: ports.Addr(t), Admin: ports.Addr(t)})
	}
	for _, p := range peers {
		config := testConfig(t.TempDir())
		config.NodeID, config.Nodes, config.Buckets[0].Replicas = p.ID, peers, replicas
		edit(&config)
		g.open(config)
	}
	for i := range peers {
		peers[i].Memcached, peers[i].Admin = g.nodes[peers[i].ID].MemcachedAddr(), g.nodes[peers[i].ID].AdminAddr()
		peers[i].MemcachedTLS = g.nodes[peers[i].ID].MemcachedTLSAddr()
	}
	for id, node := range g.nodes {
		config := g.confs[id]
		config.Nodes, config.Listen, config.Admin = peers, node.MemcachedAddr(), node.AdminAddr()
		g.confs[id] = config
		if err := node.SetPeers(peers); err != nil {
			t.Fatal(err)
		}
		g.run(id)
	}
	for _, node := range g.nodes {
		ready(t, node)
	}
	g.settled()
	return g
}

func (g *group) open(config Config) {
	g.t.Helper()
	config.Heartbeat = 20 * time.Millisecond
	config.Logger = logging.New(testWriter{g.t, config.NodeID}, "kv", hclog.Warn, false)
	n, err := Open(config)
	if err != nil {
		g.t.Fatal(err)
	}
	g.nodes[config.NodeID], g.confs[config.NodeID] = n, config
}

type testWriter struct {
	t  *testing.T
	id string
}

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Logf("%s: %s", w.id, strings.TrimSpace(string(b)))
	return len(b), nil
}

func (g *group) run(id string) { g.stops[id] = start(g.t, g.nodes[id]) }

// stop shuts a node down in order; again starts it at the same addresses.
func (g *group) stop(id string) { g.stops[id]() }

func (g *group) again(id string) {
	g.t.Helper()
	g.open(g.confs[id])
	g.run(id)
}

// join starts a node that waits until a rebalance adds it.
func (g *group) join(id string) Peer {
	g.t.Helper()
	config := testConfig(g.t.TempDir())
	config.NodeID, config.Join = id, true
	config.Nodes = []Peer{{ID: id}}
	config.Listen, config.Admin = ports.Addr(g.t), ports.Addr(g.t)
	g.open(config)
	n := g.nodes[id]
	g.run(id)
	ready(g.t, n)
	return Peer{ID: id, Memcached: n.MemcachedAddr(), Admin: n.AdminAddr()}
}

// settled waits until all members have the same map and every replica is level with its active copy.
func (g *group) settled() {
	g.t.Helper()
	eventually(g.t, func() error {
		var m clustermap.Map
		for id, n := range g.nodes {
			if v := n.View(); v.Member && (m.Rev == 0 || v.Map.Newer(m)) {
				m = v.Map
			} else if v.Map.Rev == 0 && id == m.Leader {
				return errors.New("no map")
			}
		}
		if m.Operation != nil {
			return fmt.Errorf("a rebalance is under way: %+v", g.nodes[m.Leader].View().Progress)
		}
		high := map[uint16]uint64{}
		for _, member := range m.Nodes {
			v := g.nodes[member.ID].View()
			if !v.Ready || v.Map.RevEpoch != m.RevEpoch || v.Map.Rev != m.Rev ||
				member.Memcached != g.nodes[member.ID].MemcachedAddr() {
				return fmt.Errorf("%s has map %d.%d of %d.%d", member.ID, v.Map.RevEpoch, v.Map.Rev, m.RevEpoch, m.Rev)
			}
			for _, c := range v.Copies["world"] {
				if c.State == "active" {
					high[c.VBucket] = c.High
				}
			}
		}
		if len(high) != len(m.Buckets[0].Chains) {
			return fmt.Errorf("%d active vbuckets", len(high))
		}
		for _, member := range m.Nodes {
			for _, c := range g.nodes[member.ID].View().Copies["world"] {
				if c.State == "replica" && (!c.Joined || !c.Whole || c.High != high[c.VBucket]) {
					return fmt.Errorf("%s: replica %+v, the active copy is at %d", member.ID, c, high[c.VBucket])
				}
			}
		}
		return nil
	})
}

// post sends a request to the admin interface of a member.
func (g *group) post(id, path string, body, answer any) error {
	r := Remote{User: testUser, Password: testPassword,
		HTTP: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	return r.Call(within(g.t), g.nodes[id].AdminAddr(), http.MethodPost, path, body, answer)
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), clusterWait)
	t.Cleanup(cancel)
	return ctx
}

func (g *group) client() *kvclient.Client {
	g.t.Helper()
	var seeds []string
	for _, n := range g.nodes {
		seeds = append(seeds, n.MemcachedAddr())
	}
	c, err := kvclient.Connect(within(g.t), seeds, kvclient.Options{User: testUser, Password: testPassword,
		Bucket: "world"})
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = c.Close() })
	return c
}

// acked is one acknowledged write of the number n.
type acked struct {
	kvclient.Mutation
	n int
}

// history records the writes that were sent and those that were acknowledged.
type history struct {
	mu     sync.Mutex
	writes map[string][]acked // acknowledged, by key, in order
	tried  map[string]int     // the newest number that was sent, by key
}

// write stores numbers under the writer's own keys until stop is closed or n writes are done.
func (h *history) write(ctx context.Context, c *kvclient.Client, writer, n int, stop <-chan struct{}) error {
	for i := 1; i <= n; i++ {
		select {
		case <-stop:
			return nil
		default:
		}
		key := fmt.Sprintf("w%d-%d", writer, i%50)
		h.mu.Lock()
		h.tried[key] = i
		h.mu.Unlock()
		m, err := c.Set(ctx, key, []byte(strconv.Itoa(i)), kvclient.StoreOptions{})
		if err != nil {
			return fmt.Errorf("%s = %d: %w", key, i, err)
		}
		h.mu.Lock()
		h.writes[key] = append(h.writes[key], acked{m, i})
		h.mu.Unlock()
	}
	return nil
}

// check reads every key: its value must be the newest acknowledged one or one sent later.
func (h *history) check(t *testing.T, c *kvclient.Client) {
	t.Helper()
	for key, all := range h.writes {
		d, err := c.Get(within(t), key)
		got, _ := strconv.Atoi(string(d.Value))
		if last := all[len(all)-1]; err != nil || got < last.n || got > h.tried[key] {
			t.Errorf("%s is %q (%v), acknowledged was %d as %+v", key, d.Value, err, last.n, last.Mutation)
		}
	}
}

func newHistory() *history { return &history{writes: map[string][]acked{}, tried: map[string]int{}} }

// run writes with several writers until the returned stop is called.
func (h *history) run(t *testing.T, c *kvclient.Client) (stop func()) {
	ctx, done := within(t), make(chan struct{})
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			if err := h.write(ctx, c, w, 1<<30, done); err != nil {
				t.Error(err)
			}
		})
	}
	return func() {
		close(done)
		all.Wait()
	}
}

// count waits until that many more writes have been acknowledged.
func (h *history) count(t *testing.T, more int) {
	t.Helper()
	total := func() (n int) {
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, all := range h.writes {
			n += len(all)
		}
		return n
	}
	from := total()
	eventually(t, func() error {
		if n := total(); n < from+more {
			return fmt.Errorf("%d writes, want %d", n, from+more)
		}
		return nil
	})
}

// contents returns all that a node's copy of a vbucket has, as text.
func contents(n *Node, vb uint16) string {
	v := n.buckets()[0].store.VBucket(vb)
	var out strings.Builder
	info := v.Info()
	fmt.Fprintln(&out, info.High, info.Items, info.Tombstones, info.Failover)
	if s, _ := v.SnapshotAfter(0, 1<<62); s != nil {
		for _, d := range s.Next(nil, 1<<20) {
			fmt.Fprintln(&out, d.Seqno, d.Key, string(d.Value), d.Rev, d.Cas, d.Flags, d.Expiry, d.DeleteTime, d.Datatype,
				d.Deleted, d.Expired)
		}
		s.Close()
	}
	return out.String()
}

// same checks that each replica equals its active copy.
func (g *group) same() {
	g.t.Helper()
	g.settled()
	var m clustermap.Map
	for _, n := range g.nodes {
		if v := n.View(); v.Member {
			m = v.Map
		}
	}
	for vb, chain := range m.Buckets[0].Chains {
		for _, id := range chain[1:] {
			eventually(g.t, func() error { // a document may expire between the two reads
				if want, got := contents(g.nodes[chain[0]], uint16(vb)), contents(g.nodes[id], uint16(vb)); got != want {
					return fmt.Errorf("vbucket %d on %s:\n%s\non %s:\n%s", vb, id, got, chain[0], want)
				}
				return nil
			})
		}
	}
}
