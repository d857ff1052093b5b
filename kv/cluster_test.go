package kv

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"tidemark/internal/rpc"
	"tidemark/kv/clustermap"
	"tidemark/kv/kvclient"
	"tidemark/kv/mcbp"
	"tidemark/kv/store"
	"tidemark/projector/feed"
)

func TestReplicasAreCopies(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 3, 2)
	c := g.client()
	ctx := within(t)
	for i := range 300 {
		key := fmt.Sprint("k", i%90)
		var err error
		switch i % 5 {
		case 3:
			_, err = c.Delete(ctx, key, 0)
		case 4:
			_, err = c.Set(ctx, key, []byte(`{"i":1}`), kvclient.StoreOptions{Flags: uint32(i), Expiry: uint32(time.Now().Unix()) + 1 + uint32(i%2)*1000})
		default:
			_, err = c.Set(ctx, key, []byte(strings.Repeat("x", i)), kvclient.StoreOptions{})
		}
		if err != nil && !errors.Is(err, kvclient.ErrKeyNotFound) {
			t.Fatal(err)
		}
	}
	eventually(t, func() error { // active copies make tombstones of expired documents, replicas receive them
		n := 0
		for _, node := range g.nodes {
			n += int(node.buckets()[0].store.Counters().Expired.Load())
		}
		if n == 0 {
			return errors.New("nothing expired")
		}
		return nil
	})
	g.same()
	// A replica that was away resumes where it was; one that lost its files is filled from the beginning.
	g.stop("kv3")
	for i := range 100 {
		if vb := mcbp.VBucket(fmt.Append(nil, "k", i), 16); g.nodes["kv1"].View().Map.Buckets[0].Chains[vb][0] != "kv3" {
			if _, err := c.Set(ctx, fmt.Sprint("k", i), []byte("later"), kvclient.StoreOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	g.again("kv3")
	g.same()
	if resets := g.nodes["kv3"].buckets()[0].store.Counters().Resets.Load(); resets != 0 {
		t.Errorf("%d replicas were filled again although they had a part", resets)
	}
}

func TestFailoverWithoutLoss(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 3, 1)
	c := g.client()
	h := newHistory()
	stop := h.run(t, c)
	h.count(t, 300)
	err := g.post("kv2", pathFailover, FailoverRequest{Nodes: []string{"kv3"}}, nil)
	if other := (*NotLeaderError)(nil); !errors.As(err, &other) || other.Leader != g.nodes["kv1"].AdminAddr() {
		t.Fatal(err)
	}
	var a FailoverAnswer
	if err := g.post("kv2", pathFailover, FailoverRequest{Nodes: []string{"kv1"}}, &a); err != nil { // kv1 is the leader
		t.Fatal(err)
	}
	if len(a.Promotions) == 0 || a.RevEpoch != 2 {
		t.Fatalf("%+v", a)
	}
	h.count(t, 300)
	stop()
	h.check(t, c)
	if v := g.nodes["kv1"].View(); v.Member || len(v.Copies["world"]) != 0 {
		t.Errorf("the failed over node still has %d vbuckets", len(v.Copies["world"]))
	}
	// The remaining nodes do not have a replica of each vbucket: a second failover would lose data and is refused with
	// the reason.
	err = g.post("kv2", pathFailover, FailoverRequest{Nodes: []string{"kv3"}}, nil)
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "it has no replica") ||
		!strings.Contains(err.Error(), "--lose") {
		t.Fatal(err)
	}
	h.check(t, c)
}

// A failover that is cancelled while it waits for the replicas leaves no vbucket sealed against writes.
func TestCancelledFailoverSealsNothing(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 3, 1)
	for id := range g.nodes {
		if err := g.post(id, pathPause, PauseRequest{Paused: true}, nil); err != nil {
			t.Fatal(err)
		}
	}
	b := g.nodes["kv3"].buckets()[0].store
	var active []*store.VBucket
	for i := range b.VBuckets() {
		if state, _ := b.VBucket(uint16(i)).Status(); state == store.Active {
			active = append(active, b.VBucket(uint16(i)))
		}
	}
	write := func(v *store.VBucket) error {
		r, err := v.Apply(store.Change{Key: []byte("a")})
		if err == nil {
			err = r.Ticket.Wait()
		}
		return err
	}
	eventually(t, func() error { // the replicas stay behind, so that the failover has to wait
		for _, v := range active {
			if err := write(v); err != nil {
				t.Fatal(err)
			}
		}
		for _, n := range g.nodes {
			if open := n.server.Counters().Streams.Load(); open > 0 {
				return fmt.Errorf("%d streams are open", open)
			}
		}
		return nil
	})
	ctx, cancel := context.WithCancel(within(t))
	done := make(chan error, 1)
	go func() {
		_, err := g.nodes["kv1"].cluster.failover(ctx, FailoverRequest{Nodes: []string{"kv3"}})
		done <- err
	}()
	eventually(t, func() error {
		if err := write(active[len(active)-1]); !errors.Is(err, store.ErrSealed) {
			return fmt.Errorf("a write to a vbucket that is about to be given up: %w", err)
		}
		return nil
	})
	cancel()
	if err := <-done; err == nil {
		t.Fatal("the failover succeeded without replicas")
	}
	for _, v := range active {
		if err := write(v); err != nil {
			t.Errorf("vbucket %d: %v", v.Info().ID, err)
		}
	}
}

// A request for some copies gets only those, and no vbucket chains, whose size grows with the number of vbuckets.
func TestRequestForSomeCopies(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	remote := NewRemote(testUser, testPassword, clusterWait, nil)
	for _, c := range []struct {
		of   copies
		path string
		have []uint16
	}{
		{copies{"world": {3, 7}, "other": {1}}, "/v1/cluster?copies=other%3A1&copies=world%3A3%2C7", []uint16{3, 7}},
		{copies{"world": {15, 99}}, "/v1/cluster?copies=world%3A15%2C99", []uint16{15}},
		{copies{}, "/v1/cluster?copies=", nil},
	} {
		if got := c.of.path(); len(c.of) < 2 && got != c.path {
			t.Errorf("%v is asked for at %s, want %s", c.of, got, c.path)
		}
		for _, path := range []string{c.path, c.of.path()} {
			var view ClusterView
			if err := remote.Call(within(t), n.AdminAddr(), http.MethodGet, path, nil, &view); err != nil {
				t.Fatal(err)
			}
			var have []uint16
			for _, v := range view.Copies["world"] {
				have = append(have, v.VBucket)
			}
			whole := n.View().Map
			if !slices.Equal(have, c.have) || !view.Ready || view.Map.RevEpoch != whole.RevEpoch || view.Map.Rev != whole.Rev {
				t.Errorf("%s: vbuckets %v of %+v, want %v", path, have, view, c.have)
			}
			if id := n.buckets()[0].id(); len(have) > 0 && view.Map.BucketOf(id.name, id.uuid) == nil {
				t.Errorf("%s: of which bucket they are is not said: %+v", path, view.Map)
			}
			for _, b := range view.Map.Buckets {
				if len(b.Chains) > 0 {
					t.Errorf("%s: with %d chains", path, len(b.Chains))
				}
			}
		}
	}
	for _, bad := range []string{"world", "world:", "world:x", "world:1,", "world:65536"} {
		err := remote.Call(within(t), n.AdminAddr(), http.MethodGet, pathCluster+"?copies="+bad, nil, nil)
		if err == nil || !strings.Contains(err.Error(), "want a bucket and its vbuckets") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// A request names the copies it wants, of one bucket or several, as long as the list fits into a request.
func TestRequestForManyCopies(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	remote := NewRemote(testUser, testPassword, clusterWait, nil)
	for _, c := range []struct {
		buckets, more int
		named         bool
	}{{1, 0, true}, {8, 0, true}, {8, 1, false}, {7, 1025, false}, {clustermap.MaxBuckets, 0, false}} {
		of := copies{}
		for i := range c.buckets {
			for vb := range uint16(clustermap.MaxVBuckets) {
				name := strings.Repeat("x", 90) + strconv.Itoa(i)
				of[name] = append(of[name], vb)
			}
		}
		for vb := range c.more {
			of["world"] = append(of["world"], uint16(vb))
		}
		path := of.path()
		if named := path != pathCluster; named != c.named {
			t.Errorf("%+v: named %v", c, named)
		}
		if err := remote.Call(within(t), n.AdminAddr(), http.MethodGet, path, nil, nil); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestFailoverWithLoss(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 3, 1)
	c := g.client()
	h := newHistory()
	write := func(n int) {
		t.Helper()
		for w := range 4 {
			if err := h.write(within(t), c, w, n, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	write(200)
	g.settled()
	for id := range g.nodes {
		if err := g.post(id, pathPause, PauseRequest{Paused: true}, nil); err != nil {
			t.Fatal(err)
		}
	}
	before := map[uint16]uint64{}
	eventually(t, func() error { // the replicas' streams are closed
		for _, n := range g.nodes {
			if open := n.server.Counters().Streams.Load(); open > 0 {
				return fmt.Errorf("%d streams are open", open)
			}
		}
		return nil
	})
	for _, n := range g.nodes {
		for _, v := range n.View().Copies["world"] {
			if v.State == "replica" {
				before[v.VBucket] = v.High
			}
		}
	}
	write(120)
	highs := map[uint16]uint64{}
	for _, v := range g.nodes["kv3"].View().Copies["world"] {
		if v.State == "active" {
			highs[v.VBucket] = v.High
		}
	}
	eventually(t, func() error { // the replicas learn the active copy's seqno
		for _, id := range []string{"kv1", "kv2"} {
			for _, v := range g.nodes[id].View().Copies["world"] {
				if high, of := highs[v.VBucket]; of && v.State == "replica" && v.Known != high {
					return fmt.Errorf("%s: %+v, the active copy is at %d", id, v, high)
				}
			}
		}
		return nil
	})
	g.stop("kv3")
	err := g.post("kv1", pathFailover, FailoverRequest{Nodes: []string{"kv3"}}, nil)
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "seqno") {
		t.Fatalf("a failover that loses: %v", err)
	}
	var a FailoverAnswer
	if err := g.post("kv1", pathFailover, FailoverRequest{Nodes: []string{"kv3"}, Lose: true}, &a); err != nil {
		t.Fatal(err)
	}
	promoted := map[uint16]uint64{}
	for _, p := range a.Promotions {
		promoted[p.VBucket] = p.Seqno
		if p.Seqno != before[p.VBucket] || p.Empty {
			t.Errorf("%+v, the replica was at %d", p, before[p.VBucket])
		}
	}
	lost := 0
	for key, all := range h.writes {
		want := 0
		for _, w := range all {
			if at, ok := promoted[w.VBucket]; !ok || w.Seqno <= at {
				want = w.n
			} else {
				lost++
			}
		}
		d, err := c.Get(within(t), key)
		if err != nil || string(d.Value) != strconv.Itoa(want) {
			t.Errorf("%s is %q (%v), want %d", key, d.Value, err, want)
		}
	}
	if lost == 0 {
		t.Fatal("nothing was lost: the test shows nothing")
	}
	// The old owner comes back with all its data, and must not consider itself active.
	g.again("kv3")
	ready(t, g.nodes["kv3"])
	if v := g.nodes["kv3"].View(); v.Member || len(v.Copies["world"]) != 0 {
		t.Fatalf("kv3 is a member %v with %d vbuckets", v.Member, len(v.Copies["world"]))
	}
	for id := range g.nodes {
		if err := g.post(id, pathPause, PauseRequest{}, nil); err != nil {
			t.Fatal(err)
		}
	}
	// When kv3 is added again, it rolls its copies back to where their branches part.
	n := g.nodes["kv3"]
	if err := g.post("kv1", pathRebalance, RebalanceRequest{Add: []clustermap.Node{{ID: "kv3",
		Memcached: n.MemcachedAddr(), Admin: n.AdminAddr()}}}, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if v := n.View(); !v.Member || v.Map.Operation != nil {
			return fmt.Errorf("rebalance: %+v", g.nodes["kv1"].View().Progress)
		}
		return nil
	})
	g.same()
	h.writes = map[string][]acked{}
	write(60)
	g.same()
	h.check(t, c)
}

func TestRebalanceUnderWrites(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 2, 1)
	c := g.client()
	h := newHistory()
	stop := h.run(t, c)
	h.count(t, 200)
	rebalance := func(r RebalanceRequest, members ...string) {
		t.Helper()
		var leader string
		for id, n := range g.nodes {
			if v := n.View(); v.Member && v.Map.Leader == id {
				leader = id
			}
		}
		if err := g.post(leader, pathRebalance, r, nil); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() error {
			v := g.nodes[members[0]].View()
			var have []string
			for _, n := range v.Map.Nodes {
				have = append(have, n.ID)
			}
			if !slices.Equal(have, members) || v.Map.Operation != nil {
				return fmt.Errorf("members %v, want %v; %+v", have, members, g.nodes[leader].View().Progress)
			}
			return nil
		})
	}
	p := g.join("kv3")
	rebalance(RebalanceRequest{Add: []clustermap.Node{{ID: p.ID, Memcached: p.Memcached, Admin: p.Admin}}}, "kv1", "kv2",
		"kv3")
	h.count(t, 200)
	g.settledUnderLoad("kv1", "kv2", "kv3")
	rebalance(RebalanceRequest{Remove: []string{"kv1"}}, "kv2", "kv3") // kv1 is the leader
	h.count(t, 200)
	stop()
	h.check(t, c)
	g.same()
	if err := g.post("kv2", pathRebalance, RebalanceRequest{Remove: []string{"kv9"}}, nil); !errors.Is(err, ErrRefused) ||
		!strings.Contains(err.Error(), "kv9") {
		t.Fatal(err)
	}
	if err := g.post("kv2", pathRebalance, RebalanceRequest{Remove: []string{"kv2", "kv3"}}, nil); !errors.Is(err,
		ErrRefused) {
		t.Fatal(err)
	}
	// The removed node has nothing active after a restart either, and may be added again.
	g.stop("kv1")
	g.again("kv1")
	ready(t, g.nodes["kv1"])
	n := g.nodes["kv1"]
	if v := n.View(); v.Member || len(v.Copies["world"]) != 0 {
		t.Fatalf("kv1 has %d vbuckets", len(v.Copies["world"]))
	}
	rebalance(RebalanceRequest{Add: []clustermap.Node{{ID: "kv1", Memcached: n.MemcachedAddr(), Admin: n.AdminAddr()}}},
		"kv2", "kv3", "kv1")
	g.same()
	h.check(t, c)
}

// settledUnderLoad checks that the active vbuckets are spread evenly over the given nodes.
func (g *group) settledUnderLoad(ids ...string) {
	g.t.Helper()
	for _, id := range ids {
		if n := g.nodes[id].Status().Buckets[0].ActiveVBuckets; n < 16/len(ids) || n > 16/len(ids)+1 {
			g.t.Errorf("%s has %d active vbuckets", id, n)
		}
	}
}

// A rebalance resumes after its leader, its source or its target was restarted at any point of it.
func TestRebalanceResumes(t *testing.T) {
	t.Parallel()
	for _, victim := range []string{"kv1", "kv2", "kv3"} {
		t.Run(victim, func(t *testing.T) {
			g := newGroup(t, 2, 1)
			c := g.client()
			h := newHistory()
			stop := h.run(t, c)
			h.count(t, 100)
			p := g.join("kv3")
			r := RebalanceRequest{Add: []clustermap.Node{{ID: p.ID, Memcached: p.Memcached, Admin: p.Admin}}}
			if err := g.post("kv1", pathRebalance, r, nil); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				g.stop(victim)
				g.again(victim)
				ready(t, g.nodes[victim])
				h.count(t, 20)
			}
			// A repeated request does no harm; after the end of the first rebalance it begins another one.
			eventually(t, func() error { return g.post("kv1", pathRebalance, r, nil) })
			eventually(t, func() error {
				if v := g.nodes["kv1"].View(); v.Map.Operation != nil || len(v.Map.Nodes) != 3 {
					return fmt.Errorf("%+v", v.Progress)
				}
				return nil
			})
			h.count(t, 20)
			stop()
			g.same()
			h.check(t, c)
		})
	}
}

func TestNodeComparesMapsBeforeServing(t *testing.T) {
	g := newGroup(t, 3, 1)
	for _, id := range []string{"kv1", "kv2", "kv3"} {
		g.stop(id)
	}
	g.again("kv3")
	n := g.nodes["kv3"]
	client := login(t, n.MemcachedAddr())
	client.want(setFrame(15, "x", "1"), mcbp.StatusTemporary) // kv3 may have been failed over
	client.want(request(mcbp.OpGetClusterConfig, 0, nil, nil, nil), mcbp.StatusOK)
	eventually(t, func() error {
		if missing, _ := n.cluster.awaited(); len(missing) != 2 {
			return fmt.Errorf("it waits for %v", missing)
		}
		return nil
	})
	wantUnready(t, n, rpc.Reason{Code: reasonMembers, Detail: "warming up: waiting for a majority of the members, one " +
		"of which may have a newer map; kv1, kv2 did not answer. If they are lost permanently, fail them over"})
	g.again("kv1") // two of three are a majority
	ready(t, n)
	ready(t, g.nodes["kv1"])
	wantUnready(t, n)
	client.want(setFrame(15, "x", "1"), mcbp.StatusOK)
}

func TestClusterInterfaceNeedsThePassword(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	for _, path := range []string{pathMap, pathSeal, pathPause, pathFlush, pathFailover, pathRebalance} {
		r := Remote{User: testUser, Password: "wrong",
			HTTP: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
		if err := r.Call(within(t), n.AdminAddr(), http.MethodPost, path, struct{}{}, nil); !errors.Is(err, ErrRefused) ||
			!strings.Contains(err.Error(), "password") {
			t.Errorf("%s: %v", path, err)
		}
		r.Password = testPassword
		if err := r.Call(within(t), n.AdminAddr(), http.MethodPost, path, "nonsense", nil); !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// A node folder from the time when each bucket had its own fixed map keeps its vbuckets where they are.
func TestFolderOfAnOldVersion(t *testing.T) {
	dir := t.TempDir()
	n, stop := runNode(t, testConfig(dir))
	login(t, n.MemcachedAddr()).want(setFrame(3, "a", "1"), mcbp.StatusOK)
	chains := n.View().Map.Buckets[0].Chains
	stop()
	if err := os.Remove(dir + "/" + mapName); err != nil {
		t.Fatal(err)
	}
	old := fmt.Sprintf(`{"format":1,"rev_epoch":1,"rev":7,"bucket":"world","uuid":%q,"nodes":[{"id":"kv1","memcached":"127.0.0.1:1","admin":"127.0.0.1:2"}],"chains":%s}`,
		testConfig(dir).Buckets[0].UUID, strings.ReplaceAll(strings.ReplaceAll(fmt.Sprintf("%q", chains), " ", ","), "],[",
			"],["))
	if err := os.WriteFile(dir+"/buckets/world/map.json", []byte(old), 0o600); err != nil {
		t.Fatal(err)
	}
	n, _ = runNode(t, testConfig(dir))
	if v := n.View(); v.Map.Rev < 8 || v.Map.Leader != "kv1" {
		t.Fatalf("%+v", v.Map)
	}
	login(t, n.MemcachedAddr()).want(request(mcbp.OpGet, 3, nil, []byte("a"), nil), mcbp.StatusOK)
}

// A takeover ends the streams of the old owner, and the consumer resumes at the new owner from its position, with the
// vbucket UUID of the old branch.
func TestConsumerSurvivesATakeover(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 2, 0)
	c := g.client()
	dial := func(id string) *feed.Conn {
		t.Helper()
		conn, err := feed.Dial(within(t), feed.Config{Addr: g.nodes[id].MemcachedAddr(), Bucket: "world", User: testUser,
			Password: testPassword, Name: "consumer-" + id})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	var last kvclient.Mutation
	for _, key := range keysOf(0, 16, 20) {
		var err error
		if last, err = c.Set(within(t), key, []byte("1"), kvclient.StoreOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	old := dial("kv1")
	if _, err := old.OpenStream(within(t), feed.StreamRequest{VBucket: 0, End: mcbp.EndOfTime}); err != nil {
		t.Fatal(err)
	}
	if err := g.post("kv1", pathRebalance, RebalanceRequest{Remove: []string{"kv1"}}, nil); err != nil {
		t.Fatal(err)
	}
	var at uint64
	var end feed.Event
	for end.Kind != feed.StreamEnd {
		block, err := old.Next(within(t))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range block.Events {
			if e.Kind.IsDocument() {
				at = e.Seqno
			}
			if e.Kind == feed.StreamEnd {
				end = e
			}
		}
		block.Release()
	}
	if at != last.Seqno || end.EndReason != mcbp.EndStateChanged {
		t.Fatalf("ended at %d of %d with reason %v", at, last.Seqno, end.EndReason)
	}
	g.settled()
	log, err := dial("kv2").OpenStream(within(t), feed.StreamRequest{VBucket: 0, End: mcbp.EndOfTime, Start: at,
		VBUUID: last.VBUUID, SnapStart: at, SnapEnd: at})
	if err != nil || len(log) != 2 || log[0].Seqno != at || log[1].VBUUID != last.VBUUID {
		t.Fatalf("%+v, %v", log, err)
	}
	if _, err := old.OpenStream(within(t), feed.StreamRequest{VBucket: 0, End: mcbp.EndOfTime}); !errors.Is(err,
		feed.ErrNotMyVBucket) {
		t.Fatal(err)
	}
}
