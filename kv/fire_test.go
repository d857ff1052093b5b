package kv

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/internal/testing/draws"
	"tidemark/internal/testing/ports"
	"tidemark/kv/clustermap"
	"tidemark/kv/kvclient"
	"tidemark/kv/server"
)

var (
	fireHurts = flag.Int("fire", 6, "things that happen to the cluster of TestClusterUnderFire")
	fireSeed  = flag.Uint64("fire.seed", 0, "seed of TestClusterUnderFire; 0: -rapid.seed")
)

// logTail is how many bytes of a node's log are shown after a failure.
const logTail = 20_000

// fire is a cluster of node processes and the clients that write to it.
type fire struct {
	t      *testing.T
	nodes  []*nodeProcess
	r      *rand.Rand
	acks   atomic.Int64
	failed atomic.Int64 // writes that failed

	mu    sync.Mutex
	keys  map[string]*valueRange
	tally map[string]int
}

// nodeProcess is the process of one node.
type nodeProcess struct {
	t    *testing.T
	conf Config
	cmd  *exec.Cmd
}

// valueRange is the range of values that a key may have: from acked, the newest acknowledged write, to tried, the
// newest one sent. One client writes each key.
type valueRange struct{ acked, tried int }

// runProcess runs a node in a child process; text is its Config as JSON.
func runProcess(text string) int {
	var conf Config
	err := json.Unmarshal([]byte(text), &conf)
	conf.Logger = hclog.New(&hclog.LoggerOptions{Level: hclog.Info, Output: os.Stderr})
	if err == nil {
		var n *Node
		if n, err = Open(conf); err == nil {
			ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
			defer stop()
			err = n.Run(ctx)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func (b *nodeProcess) start() {
	b.t.Helper()
	c := b.conf
	text, err := json.Marshal(map[string]any{"NodeID": c.NodeID, "Dir": c.Dir, "Listen": c.Listen, "Admin": c.Admin,
		"Nodes": c.Nodes, "Buckets": c.Buckets,
		"User": c.User, "Password": c.Password, "Heartbeat": 20 * time.Millisecond, "Nasty": c.Nasty,
		"SegmentBytes": 64 << 10, "Housekeep": 50 * time.Millisecond})
	if err != nil {
		b.t.Fatal(err)
	}
	b.cmd = exec.Command(os.Args[0])
	b.cmd.Env = append(os.Environ(), envServe+"="+string(text))
	log, err := os.OpenFile(filepath.Join(c.Dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		b.t.Fatal(err)
	}
	defer log.Close()
	b.cmd.Stderr = log
	if err := b.cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
}

// end sends a signal and waits for the process. A process stopped by SIGTERM must exit without an error.
func (b *nodeProcess) end(s syscall.Signal) {
	b.t.Helper()
	_ = b.cmd.Process.Signal(s)
	b.t.Logf("%s: %s gets %v", time.Now().UTC().Format("15:04:05.000"), b.conf.NodeID, s)
	guard := time.AfterFunc(testTimeout, func() { _ = b.cmd.Process.Kill() })
	err := b.cmd.Wait()
	// A negative exit code means that SIGTERM came before the process had installed its handler.
	if !guard.Stop() || s == syscall.SIGTERM && err != nil && b.cmd.ProcessState.ExitCode() >= 0 {
		b.t.Errorf("%s ended by %v with %v", b.conf.NodeID, s, err)
	}
	b.cmd = nil
}

func newFire(t *testing.T, n, replicas int, moods server.Moods) *fire {
	seed := *fireSeed
	if seed == 0 {
		seed = draws.Seed(t)
	}
	t.Logf("-fire.seed %d", seed)
	f := &fire{t: t, r: rand.New(rand.NewPCG(seed, 1)), keys: map[string]*valueRange{}, tally: map[string]int{}}
	addrs := ports.Addrs(t, 2*n)
	var peers []Peer
	for i := range n {
		peers = append(peers, Peer{ID: fmt.Sprint("kv", i+1), Memcached: addrs[2*i], Admin: addrs[2*i+1]})
	}
	for _, p := range peers {
		c := testConfig(t.TempDir())
		c.NodeID, c.Listen, c.Admin, c.Nodes, c.Buckets[0].Replicas, c.Nasty = p.ID, p.Memcached, p.Admin, peers, replicas,
			moods
		b := &nodeProcess{t: t, conf: c}
		b.start()
		f.nodes = append(f.nodes, b)
	}
	t.Cleanup(func() {
		for _, b := range f.nodes {
			if b.cmd != nil {
				b.end(syscall.SIGKILL)
			}
			if text, err := os.ReadFile(filepath.Join(b.conf.Dir, "log")); err == nil && t.Failed() {
				t.Logf("%s:\n%s", b.conf.NodeID, text[max(0, len(text)-logTail):])
			}
		}
	})
	return f
}

func (f *fire) remote() Remote {
	return Remote{User: testUser, Password: testPassword, HTTP: &http.Client{Timeout: testTimeout,
		Transport: &http.Transport{DisableKeepAlives: true}}}
}

// view returns the newest map that any member has, and the view of each node that answers.
func (f *fire) view() (m clustermap.Map, views map[string]ClusterView) {
	views = map[string]ClusterView{}
	for _, b := range f.nodes {
		var v ClusterView
		if b.cmd == nil || f.remote().Call(within(f.t), b.conf.Admin, http.MethodGet, pathCluster, nil, &v) != nil {
			continue
		}
		views[b.conf.NodeID] = v
		if v.Member && (m.Rev == 0 || v.Map.Newer(m)) {
			m = v.Map
		}
	}
	return m, views
}

// command sends a request to each node in turn until the leader accepts it.
func (f *fire) command(path string, body any) (err error) {
	for _, b := range f.nodes {
		if err = f.remote().Call(within(f.t), b.conf.Admin, http.MethodPost, path, body, nil); err == nil {
			return nil
		}
		if other := (*NotLeaderError)(nil); !errors.As(err, &other) {
			f.t.Logf("%s at %s: %v", path, b.conf.NodeID, err)
		}
	}
	return err
}

// whole waits until no operation is in progress, all members are ready with the newest map and each vbucket has an
// active copy. It returns that map.
func (f *fire) whole() clustermap.Map {
	f.t.Helper()
	var m clustermap.Map
	eventually(f.t, func() error {
		var views map[string]ClusterView
		if m, views = f.view(); m.Rev == 0 || m.Operation != nil {
			return fmt.Errorf("map %d.%d, operation %+v: %+v", m.RevEpoch, m.Rev, m.Operation, views[m.Leader].Progress)
		}
		high := map[uint16]uint64{}
		for _, n := range m.Nodes {
			if v := views[n.ID]; !v.Ready || v.Map.Rev != m.Rev || v.Map.RevEpoch != m.RevEpoch {
				return fmt.Errorf("%s is not ready (%t), or not at map %d.%d", n.ID, v.Ready, m.RevEpoch, m.Rev)
			}
			for _, c := range views[n.ID].Copies["world"] {
				if c.State == "active" {
					high[c.VBucket] = c.High
				}
			}
		}
		if len(high) != len(m.Buckets[0].Chains) {
			return fmt.Errorf("%d active vbuckets", len(high))
		}
		return nil
	})
	return m
}

// client writes rising numbers to its own keys and checks what it reads against the writes that were acknowledged.
func (f *fire) client(ctx context.Context, id int) {
	var seeds []string
	for _, b := range f.nodes {
		seeds = append(seeds, b.conf.Listen)
	}
	c, err := kvclient.Connect(within(f.t), seeds, kvclient.Options{User: testUser, Password: testPassword,
		Bucket: "world"})
	if err != nil {
		f.t.Error(err)
		return
	}
	defer c.Close()
	for i := 1; ctx.Err() == nil; i++ {
		key := fmt.Sprintf("c%d-%d", id, i%40)
		f.mu.Lock()
		p := f.keys[key]
		if p == nil {
			p = &valueRange{}
			f.keys[key] = p
		}
		p.tried = i
		f.mu.Unlock()
		if _, err := c.Set(within(f.t), key, []byte(strconv.Itoa(i)+strings.Repeat(" ", 200)),
			kvclient.StoreOptions{}); err != nil {
			f.failed.Add(1)
			continue
		}
		f.mu.Lock()
		p.acked = i
		f.mu.Unlock()
		f.acks.Add(1)
		if i%3 == 0 {
			f.holds(c, fmt.Sprintf("c%d-%d", id, (i/3)%40))
		}
	}
}

// holds reads a key and checks that its value is within its range.
func (f *fire) holds(c *kvclient.Client, key string) {
	f.mu.Lock()
	p, ok := f.keys[key]
	if !ok || p.acked == 0 {
		f.mu.Unlock()
		return
	}
	want := *p
	f.mu.Unlock()
	d, err := c.Get(within(f.t), key)
	got, _ := strconv.Atoi(strings.TrimSpace(string(d.Value)))
	if err != nil || got < want.acked || got > want.tried {
		f.t.Errorf("%s: %s is %d (%v), acknowledged was %d, tried %d", time.Now().UTC().Format("15:04:05.000"), key, got, err,
			want.acked, want.tried)
	}
}

// goesOn waits until more writes have been acknowledged to clients.
func (f *fire) goesOn(more int64) {
	f.t.Helper()
	from := f.acks.Load()
	eventually(f.t, func() error {
		if now := f.acks.Load(); now < from+more {
			m, views := f.view()
			return fmt.Errorf("only %d writes were acknowledged of %d; map %d.%d led by %s, operation %+v: %+v", now-from, more,
				m.RevEpoch, m.Rev, m.Leader, m.Operation, views[m.Leader].Progress)
		}
		return nil
	})
}

// hurt kills, stops, moves or fails over nodes in a way that must lose nothing, and returns what it did.
func (f *fire) hurt() string {
	b := f.nodes[f.r.IntN(len(f.nodes))]
	switch f.r.IntN(7) {
	case 0:
		b.end(syscall.SIGKILL)
		b.start()
		return b.conf.NodeID + " killed"
	case 1:
		b.end(syscall.SIGTERM)
		b.start()
		return b.conf.NodeID + " stopped"
	case 2:
		for _, b := range f.nodes {
			b.end(syscall.SIGKILL)
		}
		for _, i := range f.r.Perm(len(f.nodes)) {
			f.nodes[i].start()
		}
		return "all killed"
	case 3:
		_ = b.cmd.Process.Signal(syscall.SIGSTOP)
		pause := time.NewTimer(time.Duration(f.r.IntN(800)) * time.Millisecond)
		<-pause.C
		_ = b.cmd.Process.Signal(syscall.SIGCONT)
		return b.conf.NodeID + " stopped for a moment"
	case 4, 5:
		return f.move(b)
	}
	m, _ := f.view()
	if _, member := m.Node(b.conf.NodeID); !member || len(m.Nodes) < 3 {
		return f.move(b)
	}
	if f.command(pathFailover, FailoverRequest{Nodes: []string{b.conf.NodeID}}) != nil {
		return "failover refused"
	}
	return b.conf.NodeID + " failed over"
}

// move adds a node that is no member, or removes b if all nodes are members.
func (f *fire) move(b *nodeProcess) string {
	m, _ := f.view()
	for _, x := range f.nodes {
		if _, member := m.Node(x.conf.NodeID); !member && m.Rev > 0 {
			if f.command(pathRebalance, RebalanceRequest{Add: []clustermap.Node{{ID: x.conf.NodeID, Memcached: x.conf.Listen,
				Admin: x.conf.Admin}}}) != nil {
				return "addition refused"
			}
			return x.conf.NodeID + " added"
		}
	}
	if f.command(pathRebalance, RebalanceRequest{Remove: []string{b.conf.NodeID}}) != nil {
		return "removal refused"
	}
	return b.conf.NodeID + " removed"
}

// TestClusterUnderFire kills, stops, pauses, moves and fails over nodes in random order, also during a rebalance,
// while clients write and read. No acknowledged write is lost or replaced by an older one, the cluster always makes
// progress, and in the end every copy that can become the only one has all writes. -fire 500 runs more rounds.
func TestClusterUnderFire(t *testing.T) {
	t.Parallel()
	for _, part := range []struct {
		name     string
		replicas int
		moods    server.Moods
	}{{"mild", 1, server.NoMoods}, {"every mood", 2, server.AllMoods &^ server.Losing}} {
		t.Run(part.name, func(t *testing.T) {
			f := newFire(t, 3, part.replicas, part.moods)
			ctx, stop := context.WithCancel(context.Background())
			defer stop()
			var clients sync.WaitGroup
			for id := range 4 {
				clients.Go(func() { f.client(ctx, id) })
			}
			f.goesOn(100)
			for range *fireHurts {
				began := time.Now()
				what := f.hurt()
				f.tally[what]++
				t.Logf("%s: %s, until %s", began.UTC().Format("15:04:05.000"), what, time.Now().UTC().Format("15:04:05.000"))
				f.goesOn(f.r.Int64N(100))
				if t.Failed() {
					break
				}
			}
			f.whole()
			f.goesOn(100)
			stop()
			clients.Wait()
			t.Logf("%v; %d acknowledged, %d errors", f.tally, f.acks.Load(), f.failed.Load())
			f.last()
		})
	}
}

// last fails over one node after the other until one is left, and checks after each failover that no write is lost.
func (f *fire) last() {
	f.t.Helper()
	var seeds []string
	for _, b := range f.nodes {
		seeds = append(seeds, b.conf.Listen)
	}
	c, err := kvclient.Connect(within(f.t), seeds, kvclient.Options{User: testUser, Password: testPassword,
		Bucket: "world"})
	if err != nil {
		f.t.Fatal(err)
	}
	defer c.Close()
	for {
		for key := range f.keys {
			f.holds(c, key)
		}
		m := f.whole()
		if len(m.Nodes) == 1 {
			return
		}
		// With a replica of each vbucket on the other nodes, the failover of a node that answers loses nothing.
		if err := f.command(pathRebalance, RebalanceRequest{}); err != nil {
			f.t.Fatal(err)
		}
		m = f.whole()
		ids := []string{}
		for _, n := range m.Nodes {
			ids = append(ids, n.ID)
		}
		slices.Sort(ids)
		gone := ids[f.r.IntN(len(ids))]
		eventually(f.t, func() error { return f.command(pathFailover, FailoverRequest{Nodes: []string{gone}}) })
	}
}
