package kv

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"tidemark/kv/kvclient"
	"tidemark/kv/mcbp"
	"tidemark/kv/seglog"
)

// TestFlush: a flushed bucket is at seqno 0 in every vbucket, on branches that share nothing with the former ones.
// Its streams have ended, also in a vbucket that was at once written up to the former seqno again. A restart changes
// nothing of that.
func TestFlush(t *testing.T) {
	config := testConfig(t.TempDir())
	n, stop := runNode(t, config)
	kv := login(t, n.MemcachedAddr(), mcbp.FeatureMutationToken)
	for vb := range uint16(4) {
		kv.want(setFrame(vb, "a", "1"), mcbp.StatusOK)
	}
	before, _ := failoverLogs(t, n.MemcachedAddr())
	c := openDCP(t, n.MemcachedAddr(), "c", 0)
	c.want(fromZero(9), mcbp.StatusOK) // vbucket 9 is empty
	c.want(fromZero(1), mcbp.StatusOK)
	for c.read().Op != mcbp.OpDCPMutation {
	}
	ended := map[uint16]bool{}
	flush := func(bucket string) error {
		r := Remote{User: testUser, Password: testPassword, HTTP: http.DefaultClient}
		return r.Call(within(t), n.AdminAddr(), http.MethodPost, pathFlush, FlushRequest{Bucket: bucket}, nil)
	}
	if err := flush("nobody's"); err == nil {
		t.Error("a bucket that is not there was emptied")
	}
	if err := flush("world"); err != nil {
		t.Fatal(err)
	}
	kv.want(setFrame(1, "b", "2"), mcbp.StatusOK)
	for len(ended) < 2 {
		f := c.read()
		if f.Op != mcbp.OpDCPStreamEnd {
			t.Fatalf("the stream goes on: %s", line(f))
		}
		ended[f.VBucket()] = true
	}
	kv.want(request(mcbp.OpGet, 1, nil, []byte("a"), nil), mcbp.StatusKeyNotFound)
	check := func() {
		t.Helper()
		logs, highs := failoverLogs(t, n.MemcachedAddr())
		for vb := range logs {
			want := uint64(0)
			if vb == 1 {
				want = 1
			}
			if logs[vb] == before[vb] || highs[vb] != want {
				t.Errorf("vbucket %d is at %d on %s, was on %s", vb, highs[vb], logs[vb], before[vb])
			}
		}
	}
	check()
	stop()
	n, _ = runNode(t, config)
	check()
}

// TestFlushWithAHungDisk: a node whose disk hangs, simulated by holding its lock for changes, does not block the
// leader's right to change the map. A flush whose caller has given up does not happen later.
func TestFlushWithAHungDisk(t *testing.T) {
	g := newGroup(t, 2, 0)
	c := g.client()
	if _, err := c.Set(within(t), "k", []byte("1"), kvclient.StoreOptions{}); err != nil {
		t.Fatal(err)
	}
	n := g.nodes["kv1"]
	r := FlushRequest{Bucket: n.buckets()[0].name}
	n.cluster.changing.Lock()
	hangs := sync.OnceFunc(n.cluster.changing.Unlock)
	defer hangs()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	done, failed := n.cluster.flushAt(ctx, n.cluster.current(), FlushRequest{Bucket: r.Bucket, Check: true})
	if len(failed) == 0 || !strings.Contains(failed[0].Error(), "kv1 cannot: its disk does not answer") {
		t.Errorf("%v can, %v cannot", done, failed)
	}
	hangs()
	for _, n := range g.nodes {
		if err := n.cluster.flush(ctx, r); !errors.Is(err, ErrRefused) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a flush whose caller has given up: %v", err)
		}
	}
	if _, err := c.Get(within(t), "k"); err != nil {
		t.Errorf("the document is gone: %v", err)
	}
}

// TestFlushReachesReplicas: replicas of a flushed vbucket become empty.
func TestFlushReachesReplicas(t *testing.T) {
	g := newGroup(t, 2, 1)
	c := g.client()
	for i := range 200 {
		if _, err := c.Set(within(t), fmt.Sprint("k", i), []byte("1"), kvclient.StoreOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	g.same()
	for id := range g.nodes {
		if err := g.post(id, pathFlush, FlushRequest{Bucket: g.nodes[id].buckets()[0].name}, nil); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() error {
		for id, n := range g.nodes {
			for _, v := range n.View().Copies[n.buckets()[0].name] {
				if v.High != 0 || v.Items != 0 {
					return fmt.Errorf("%s has %+v", id, v)
				}
			}
		}
		return nil
	})
	g.same()
}

// flushed sends a flush of the bucket to a member by REST, as SDKs do.
func (g *group) flushed(id string) (status int, body string) {
	g.t.Helper()
	return rest(g.t, g.nodes[id], http.MethodPost, "/pools/default/buckets/world/controller/doFlush")
}

// items returns how many documents each member has in its active vbuckets.
func (g *group) items() map[string]int {
	out := map[string]int{}
	for id, n := range g.nodes {
		for _, v := range n.View().Copies["world"] {
			if v.State == "active" {
				out[id] += v.Items
			}
		}
	}
	return out
}

func (g *group) fill(n int) {
	g.t.Helper()
	c := g.client()
	for i := range n {
		if _, err := c.Set(within(g.t), fmt.Sprint("k", i), []byte("1"), kvclient.StoreOptions{}); err != nil {
			g.t.Fatal(err)
		}
	}
}

// flushesWhenWarm flushes the bucket with the command line's client while a node is still loading its documents. The
// node becomes ready after its second refusal.
func (g *group) flushesWhenWarm(id string) {
	g.t.Helper()
	g.fill(20)
	g.nodes[id].serving.Store(false)
	a := NewAdmin([]string{g.nodes["kv1"].AdminAddr()}, testUser, testPassword, nil)
	next, refused := a.remote.HTTP.Transport, atomic.Int32{}
	a.remote.HTTP.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(r)
		if err == nil && r.URL.Path == pathFlushAll && resp.StatusCode == http.StatusConflict && refused.Add(1) == 2 {
			g.nodes[id].serving.Store(true)
		}
		return resp, err
	})
	if err := a.Flush(within(g.t), "world"); err != nil || refused.Load() != 2 {
		g.t.Errorf("after %d refusals: %v", refused.Load(), err)
	}
	if now := g.items(); now["kv1"]+now["kv2"]+now["kv3"] != 0 {
		g.t.Errorf("left are %v", now)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestFlushIsAllOrNothing: while a member does not answer or is not ready, no member flushes. The request may be sent
// to any member.
func TestFlushIsAllOrNothing(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 3, 1)
	g.fill(200)
	before := g.items()
	g.stop("kv3")
	if status, body := g.flushed("kv2"); status != http.StatusServiceUnavailable || !strings.Contains(body, "kv3") {
		t.Errorf("%d %s", status, body)
	}
	g.again("kv3")
	ready(t, g.nodes["kv3"])
	g.settled()
	g.nodes["kv3"].serving.Store(false) // the node answers, but is still loading its documents
	if status, body := g.flushed("kv1"); status != http.StatusServiceUnavailable ||
		!strings.Contains(body, "nothing was emptied") || !strings.Contains(body, "kv3") ||
		!strings.Contains(body, "it is still reading its documents: try again when it is ready") {
		t.Errorf("%d %s", status, body)
	}
	g.nodes["kv3"].serving.Store(true)
	if now := g.items(); !maps.Equal(now, before) {
		t.Fatalf("emptied in part: %v, had %v", now, before)
	}
	if status, body := g.flushed("kv2"); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	if now := g.items(); now["kv1"]+now["kv2"]+now["kv3"] != 0 {
		t.Errorf("left are %v", now)
	}
	g.flushesWhenWarm("kv3")
	if status, _ := rest(t, g.nodes["kv1"], http.MethodPost, "/pools/default/buckets/none/controller/doFlush"); status !=
		http.StatusNotFound {
		t.Error(status)
	}
}

// TestFailedFlushNamesFlushedNodes: when a node's disk fails in the middle of a flush, the error names that node and
// the flushed ones, and a repeated flush completes. A node refuses a flush that was planned for another map.
func TestFailedFlushNamesFlushedNodes(t *testing.T) {
	t.Parallel()
	var broken atomic.Bool
	g := newGroupWith(t, 2, 0, func(c *Config) {
		if c.NodeID == "kv2" {
			c.WrapFile = func(f seglog.File) seglog.File { return &brokenFile{f, &broken} }
		}
	})
	g.fill(200)
	broken.Store(true)
	status, body := g.flushed("kv1")
	if status != http.StatusServiceUnavailable || !strings.Contains(body, "emptied only on kv1") ||
		!strings.Contains(body, "kv2, where part of it") {
		t.Errorf("%d %s", status, body)
	}
	if now := g.items(); now["kv1"] != 0 {
		t.Errorf("kv1 has %v", now)
	}
	broken.Store(false)
	eventually(t, func() error {
		if status, body := g.flushed("kv1"); status != http.StatusOK { // kv2 checks its log again
			return fmt.Errorf("%d %s", status, body)
		}
		return nil
	})
	if now := g.items(); now["kv1"]+now["kv2"] != 0 {
		t.Errorf("left are %v", now)
	}
	m := g.nodes["kv2"].cluster.current()
	other := FlushRequest{Bucket: "world", RevEpoch: m.RevEpoch, Rev: m.Rev + 1}
	if err := g.post("kv2", pathFlush, other, nil); err == nil || !strings.Contains(err.Error(), "have moved") {
		t.Error(err)
	}
}

// TestFlushBesideARebalance: a flush during a rebalance is refused and empties nothing.
func TestFlushBesideARebalance(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 2, 0)
	g.fill(50)
	leader := g.nodes["kv1"]
	end, err := leader.cluster.alone(within(t)) // the leader's rebalance cannot make a step
	if err != nil {
		t.Fatal(err)
	}
	m, err := leader.cluster.current().StartRebalance("r", nil, []string{"kv2"})
	if err == nil {
		_, err = leader.cluster.commit(within(t), m, "", nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range g.nodes { // nor once end is called
		n.replicator.pause("", true)
	}
	end()
	if status, body := g.flushed("kv2"); status != http.StatusServiceUnavailable || !strings.Contains(body, "rebalance") {
		t.Errorf("%d %s", status, body)
	}
	if now := g.items(); now["kv1"]+now["kv2"] != 50 {
		t.Errorf("left are %v", now)
	}
}

// brokenFile fails writes while broken is set.
type brokenFile struct {
	seglog.File
	broken *atomic.Bool
}

func (f *brokenFile) Write(b []byte) (int, error) {
	if f.broken.Load() {
		return 0, syscall.EIO
	}
	return f.File.Write(b)
}
