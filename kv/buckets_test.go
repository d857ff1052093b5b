package kv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"tidemark/kv/clustermap"
	"tidemark/kv/kvclient"
	"tidemark/kv/mcbp"
)

// folders returns the names of a node's bucket folders.
func folders(t *testing.T, n *Node) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(n.config.Dir, bucketsName))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// bucketDetails is the answer to GET /pools/default/buckets/{name}.
type bucketDetails struct {
	Name, UUID                 string
	ReplicaNumber, NumVBuckets int
	Controllers                map[string]string
}

func detailsOf(t *testing.T, n *Node, name string) (b bucketDetails) {
	t.Helper()
	status, body := rest(t, n, "GET", pathBuckets+"/"+name)
	if err := json.Unmarshal([]byte(body), &b); err != nil || status != http.StatusOK {
		t.Fatal(status, body, err)
	}
	return b
}

func makeBucket(t *testing.T, n *Node, name string, more ...string) bucketDetails {
	t.Helper()
	form := append([]string{"name", name, "ramQuota", "100"}, more...)
	if status, body := rest(t, n, "POST", pathBuckets, form...); status != http.StatusAccepted || body != "" {
		t.Fatal(status, body)
	}
	return detailsOf(t, n, name)
}

func dropBucket(t *testing.T, n *Node, name string) {
	t.Helper()
	if status, body := rest(t, n, "DELETE", pathBuckets+"/"+name); status != http.StatusOK || body != "" {
		t.Fatal(status, body)
	}
}

// clientOf returns a client of one bucket, connected through the given nodes.
func clientOf(t *testing.T, bucket string, nodes ...*Node) *kvclient.Client {
	t.Helper()
	var seeds []string
	for _, n := range nodes {
		seeds = append(seeds, n.MemcachedAddr())
	}
	c, err := kvclient.Connect(within(t), seeds, kvclient.Options{User: testUser, Password: testPassword, Bucket: bucket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// The documented calls work, and an invalid request is refused with all fields that are wrong.
func TestBucketsByREST(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	b := makeBucket(t, n, "new", "replicaNumber", "2", "bucketType", "membase", "evictionPolicy", "valueOnly")
	if len(b.UUID) != 32 || b.ReplicaNumber != 2 || b.NumVBuckets != 16 || b.Controllers["flush"] != "" {
		t.Errorf("%+v", b)
	}
	flushed := makeBucket(t, n, "flushed", "flushEnabled", "1", "numVBuckets", "64")
	if flushed.NumVBuckets != 64 || flushed.ReplicaNumber != 1 || flushed.Controllers["flush"] == "" {
		t.Errorf("%+v", flushed)
	}
	var all []bucketDetails
	if _, body := rest(t, n, "GET", pathBuckets); json.Unmarshal([]byte(body), &all) != nil || len(all) != 3 {
		t.Errorf("%s", body)
	}
	ok := []string{"name", "x", "ramQuota", "100"}
	for _, x := range []struct {
		status              int
		words, method, path string
		form                []string
	}{
		{400, `"name":"Bucket name needs to be specified"`, "POST", "", nil},
		{400, `"ramQuota":"The RAM Quota must be specified`, "POST", "", []string{"name", "x"}},
		{400, `"name":"Bucket name cannot be empty"`, "POST", "", []string{"name", ""}},
		{400, `"name":"Bucket name can only contain`, "POST", "", []string{"name", "a/b"}},
		{400, `"name":"Bucket name cannot start with dot."`, "POST", "", []string{"name", ".a"}},
		{400, `"name":"Bucket name cannot exceed 100`, "POST", "", []string{"name", strings.Repeat("x", 101)}},
		{400, `"ramQuota":"The value must be an integer`, "POST", "", []string{"ramQuota", "99"}},
		{400, `"ramQuotaMB":"The value must be an integer`, "POST", "", []string{"ramQuotaMB", "much"}},
		{400, `"replicaNumber":`, "POST", "", append(ok, "replicaNumber", "4")},
		{400, `"numVBuckets":"The value must be a power`, "POST", "", append(ok, "numVBuckets", "12")},
		{400, `"flushEnabled":"The value must be one of`, "POST", "", append(ok, "flushEnabled", "yes")},
		{400, `"evictionPolicy":"The value must be one of`, "POST", "", append(ok, "evictionPolicy", "fullEviction")},
		{400, `"bucketType":`, "POST", "", append(ok, "bucketType", "memcached")},
		{400, `"odd":"Unsupported key"`, "POST", "", append(ok, "odd", "1")},
		{400, `"name":"Bucket with given name already exists"`, "POST", "", []string{"name", "new", "ramQuota", "100"}},
		{400, `{"_":"Flush is disabled for the bucket"}`, "POST", "/new/controller/doFlush", nil},
		{404, "resource not found", "DELETE", "/none", nil},
		{404, "resource not found", "POST", "/none/controller/doFlush", nil},
	} {
		if status, body := rest(t, n, x.method, pathBuckets+x.path, x.form...); status != x.status ||
			!strings.Contains(body, x.words) {
			t.Errorf("%s %s %v: %d %s, want %d and %q", x.method, x.path, x.form, status, body, x.status, x.words)
		}
	}
	if status, body := rest(t, n, "POST", pathBuckets+"/flushed/controller/doFlush"); status != http.StatusOK {
		t.Error(status, body)
	}
	for i := 3; i < clustermap.MaxBuckets; i++ {
		makeBucket(t, n, fmt.Sprint("b", i), "numVBuckets", "1")
	}
	if status, body := rest(t, n, "POST", pathBuckets, ok...); status != http.StatusBadRequest ||
		!strings.Contains(body, "Cannot create more than 30 buckets") {
		t.Error(status, body)
	}
}

// Dropping a bucket closes its clients' connections and removes its files; a new bucket of the same name starts
// empty. A node without any bucket still reports its services. All of this survives a restart, also for the bucket of
// the node's own configuration.
func TestBucketIsDroppedAndRecreated(t *testing.T) {
	config := testConfig(t.TempDir())
	n, stop := runNode(t, config)
	kv := login(t, n.MemcachedAddr())
	kv.want(setFrame(1, "a", "1"), mcbp.StatusOK)
	dcp := openDCP(t, n.MemcachedAddr(), "c", 0)
	dcp.want(fromZero(2), mcbp.StatusOK)
	used := n.quota.Used()
	dropBucket(t, n, "world")
	for _, c := range []*rawClient{kv, dcp} {
		for err := error(nil); err == nil; {
			_, err = c.r.ReadByte()
		}
	}
	if n.quota.Used() != 0 || used == 0 {
		t.Errorf("%d bytes of %d are taken by no bucket", n.quota.Used(), used)
	}
	if got := folders(t, n); len(got) > 0 {
		t.Errorf("left are %v", got)
	}
	var services struct{ NodesExt []mcbp.ConfigNodeExt }
	answered(t, asSDK(t, n, http.MethodGet, pathNodeServices, testPassword, nil), &services)
	if len(services.NodesExt) != 1 || services.NodesExt[0].Services[mcbp.ServiceKV] != portOf(n.MemcachedAddr()) {
		t.Errorf("%+v", services)
	}
	stop()
	n, stop = runNode(t, config)
	if status, body := rest(t, n, "GET", pathBuckets); status != http.StatusOK || body != "[]" {
		t.Errorf("after a restart: %d %s", status, body)
	}
	made := makeBucket(t, n, "world", "numVBuckets", "32")
	if made.UUID == config.Buckets[0].UUID || made.NumVBuckets != 32 {
		t.Errorf("%+v", made)
	}
	kv = login(t, n.MemcachedAddr())
	kv.want(request(mcbp.OpGet, 1, nil, []byte("a"), nil), mcbp.StatusKeyNotFound)
	kv.want(setFrame(31, "b", "2"), mcbp.StatusOK)
	stop()
	n, _ = runNode(t, config)
	kv = login(t, n.MemcachedAddr())
	kv.want(request(mcbp.OpGet, 31, nil, []byte("b"), nil), mcbp.StatusOK)
	if got := folders(t, n); !slices.Equal(got, []string{"world" + madeMark + made.UUID}) {
		t.Errorf("there are %v", got)
	}
}

// A bucket is made and dropped through any member. Its documents have replicas, are failed over and moved like those
// of other buckets, and a node that joins gets its copies.
func TestBucketsOfACluster(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 2, 1)
	made := makeBucket(t, g.nodes["kv2"], "new", "replicaNumber", "1", "numVBuckets", "8")
	for _, n := range g.nodes {
		if len(folders(t, n)) != 2 {
			t.Errorf("%s has %v", n.config.NodeID, folders(t, n))
		}
	}
	c := clientOf(t, "new", g.nodes["kv1"], g.nodes["kv2"])
	put := func(c *kvclient.Client, n int, value string) {
		t.Helper()
		for i := range n {
			if _, err := c.Set(within(t), fmt.Sprint("k", i), []byte(value), kvclient.StoreOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	put(c, 60, "1")
	p := g.join("kv3")
	var r RebalanceRequest
	r.Add = []clustermap.Node{{ID: p.ID, Memcached: p.Memcached, Admin: p.Admin}}
	g.nodes["kv3"].replicator.pause("world", true) // the rebalance cannot finish meanwhile
	if err := g.post("kv1", pathRebalance, r, nil); err != nil {
		t.Fatal(err)
	}
	if status, body := rest(t, g.nodes["kv1"], "DELETE", pathBuckets+"/new"); status != http.StatusServiceUnavailable ||
		!strings.Contains(body, "during rebalance") {
		t.Error(status, body)
	}
	g.nodes["kv3"].replicator.pause("world", false)
	g.settled()
	b := g.nodes["kv3"].cluster.current()
	if x := b.BucketOf("new", made.UUID); x == nil || len(g.nodes["kv3"].View().Copies["new"]) == 0 {
		t.Fatalf("kv3 has nothing of the bucket")
	}
	eventually(t, func() error { // the failover is refused until the replicas are whole
		return g.post("kv1", pathFailover, FailoverRequest{Nodes: []string{"kv2"}}, nil)
	})
	for i := range 60 {
		if d, err := c.Get(within(t), fmt.Sprint("k", i)); err != nil || string(d.Value) != "1" {
			t.Fatalf("%s: %q %v", fmt.Sprint("k", i), d.Value, err)
		}
	}
	// kv2 is no member any more. It learns of the drop too, and of the next bucket, of which it has no copies.
	dropBucket(t, g.nodes["kv3"], "new")
	again := makeBucket(t, g.nodes["kv3"], "new", "numVBuckets", "8")
	eventually(t, func() error {
		for _, n := range g.nodes {
			if got := folders(t, n); slices.Contains(got, "new"+madeMark+made.UUID) {
				return fmt.Errorf("%s has %v", n.config.NodeID, got)
			}
		}
		return nil
	})
	c = clientOf(t, "new", g.nodes["kv1"])
	if _, err := c.Get(within(t), "k1"); !errors.Is(err, kvclient.ErrKeyNotFound) {
		t.Errorf("of the bucket before: %v", err)
	}
	put(c, 60, "2")
	r.Add = []clustermap.Node{{ID: "kv2", Memcached: g.nodes["kv2"].MemcachedAddr(), Admin: g.nodes["kv2"].AdminAddr()}}
	if err := g.post("kv1", pathRebalance, r, nil); err != nil {
		t.Fatal(err)
	}
	g.settled()
	copies := g.nodes["kv2"].View().Copies["new"]
	if len(copies) == 0 || g.nodes["kv2"].cluster.current().BucketOf("new", again.UUID) == nil {
		t.Errorf("kv2 has %v", copies)
	}
}

// A node that is down while buckets are dropped and made applies both changes after its restart, before it serves.
func TestBucketsWhileANodeIsDown(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 3, 1)
	before := makeBucket(t, g.nodes["kv1"], "new", "replicaNumber", "1")
	c := clientOf(t, "new", g.nodes["kv1"])
	for i := range 50 {
		if _, err := c.Set(within(t), fmt.Sprint("k", i), []byte("1"), kvclient.StoreOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	g.stop("kv3")
	leader := g.nodes["kv1"].cluster
	if _, err := leader.changeBuckets(within(t), clustermap.BucketChange{Name: "new", Drop: true}); !errors.Is(err,
		ErrRefused) || !strings.Contains(err.Error(), "kv3 must answer") {
		t.Fatal(err)
	}
	// A node may fail after it has answered the leader: the leader commits the map all the same.
	for _, change := range []clustermap.BucketChange{{Name: "new", Drop: true}, {Name: "world", Drop: true},
		{Name: "new", UUID: "second", VBuckets: 8, Replicas: 1}, {Name: "world", UUID: "third", VBuckets: 8}} {
		next, err := leader.current().ChangeBuckets(change)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := leader.commit(within(t), next, "", nil); err != nil {
			t.Fatal(err)
		}
	}
	if got := folders(t, g.nodes["kv3"]); !slices.Contains(got, "world") ||
		!slices.Contains(got, "new"+madeMark+before.UUID) {
		t.Fatalf("kv3, which is down, has %v", got)
	}
	g.again("kv3")
	ready(t, g.nodes["kv3"])
	want := []string{"new" + madeMark + "second", "world" + madeMark + "third"}
	eventually(t, func() error {
		for _, n := range g.nodes {
			if got := folders(t, n); !slices.Equal(got, want) {
				return fmt.Errorf("%s has %v, want %v", n.config.NodeID, got, want)
			}
		}
		return nil
	})
	g.settled()
	if err := g.post("kv1", pathFailover, FailoverRequest{Nodes: []string{"kv3"}, Lose: true}, nil); err != nil {
		t.Fatal(err)
	}
}

// A node is killed after it has written a new map to disk and before its files match that map. It changes the files
// when it starts.
func TestKilledBetweenMapAndFiles(t *testing.T) {
	t.Parallel()
	for what, damage := range map[string]func(t *testing.T, n *Node){
		"nothing done": func(*testing.T, *Node) {},
		"half of the files removed": func(t *testing.T, n *Node) {
			for _, b := range n.buckets() {
				if err := os.Remove(filepath.Join(b.logDir(), "manifest.json")); err != nil {
					t.Fatal(err)
				}
			}
		},
		"a folder made": func(t *testing.T, n *Node) {
			if err := os.MkdirAll(filepath.Join(n.config.Dir, bucketsName, "new"+madeMark+"u", "log"), 0o700); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			config := testConfig(t.TempDir())
			n, stop := runNode(t, config)
			login(t, n.MemcachedAddr()).want(setFrame(1, "a", "1"), mcbp.StatusOK)
			m := n.cluster.current()
			stop()
			for _, c := range []clustermap.BucketChange{{Name: "world", Drop: true}, {Name: "new", UUID: "u", VBuckets: 8}} {
				var err error
				if m, err = m.ChangeBuckets(c); err != nil {
					t.Fatal(err)
				}
			}
			if err := n.cluster.store(m); err != nil {
				t.Fatal(err)
			}
			damage(t, n)
			if err := os.MkdirAll(filepath.Join(config.Dir, bucketsName, "somebody's"), 0o700); err != nil {
				t.Fatal(err)
			}
			n, _ = runNode(t, config)
			if got := folders(t, n); !slices.Equal(got, []string{"new" + madeMark + "u", "somebody's"}) {
				t.Errorf("there are %v", got)
			}
			c := clientOf(t, "new", n)
			if _, err := c.Set(within(t), "a", []byte("1"), kvclient.StoreOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
}

// Buckets made and dropped under writes and streams leave nothing behind.
func TestBucketsComeAndGoUnderLoad(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 2, 1)
	for round := range 4 {
		makeBucket(t, g.nodes["kv1"], "new", "numVBuckets", "8", "replicaNumber", "1")
		c := clientOf(t, "new", g.nodes["kv1"], g.nodes["kv2"])
		ctx, cancel := context.WithCancel(within(t))
		var all sync.WaitGroup
		written := make(chan struct{}, 1)
		for w := range 3 {
			all.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					_, err := c.Set(ctx, fmt.Sprint(w, "-", i%100), []byte("1"), kvclient.StoreOptions{})
					if err != nil {
						return // the bucket was dropped
					}
					if i == 50 {
						select {
						case written <- struct{}{}:
						default:
						}
					}
				}
			})
		}
		<-written
		dropBucket(t, g.nodes["kv2"], "new")
		cancel()
		all.Wait()
		_ = c.Close()
		eventually(t, func() error {
			for _, n := range g.nodes {
				if got := folders(t, n); !slices.Equal(got, []string{"world"}) {
					return fmt.Errorf("round %d: %s has %v", round, n.config.NodeID, got)
				}
				if used := n.quota.Used(); used != 0 {
					return fmt.Errorf("round %d: %d bytes are taken by no document", round, used)
				}
			}
			return nil
		})
	}
	for _, n := range g.nodes {
		eventually(t, func() error {
			n.replicator.mu.Lock()
			defer n.replicator.mu.Unlock()
			if links, seen := len(n.replicator.links), len(n.replicator.known); links > 1 || seen > 16 {
				return fmt.Errorf("%d links, %d replicas are remembered", links, seen)
			}
			return nil
		})
	}
}

// A node that cannot open a bucket, because a file is in the way of its folder, reports that and retries.
func TestBucketThatCannotBeOpened(t *testing.T) {
	t.Parallel()
	config := testConfig(t.TempDir())
	n, _ := runNode(t, config)
	next, err := n.cluster.current().ChangeBuckets(clustermap.BucketChange{Name: "new", UUID: "u", VBuckets: 8})
	if err != nil {
		t.Fatal(err)
	}
	inTheWay := filepath.Join(config.Dir, bucketsName, "new"+madeMark+"u")
	if err := os.WriteFile(inTheWay, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := n.cluster.commit(within(t), next, "", nil); err != nil {
		t.Fatal(err)
	}
	if all := n.reasons(); len(all) != 1 || !strings.Contains(all[0].Detail, "bucket new cannot be opened") {
		t.Errorf("%+v", all)
	}
	c := dialRaw(t, n.MemcachedAddr())
	c.scram(testUser, testPassword)
	c.want(request(mcbp.OpSelectBucket, 0, nil, []byte("new"), nil), mcbp.StatusOK)
	c.want(request(mcbp.OpGet, 0, nil, []byte("a"), nil), mcbp.StatusTemporary)
	if err := os.Remove(inTheWay); err != nil {
		t.Fatal(err)
	}
	if err := n.cluster.awaitBucket(within(t), bucketID{"new", "u"}, false); err != nil {
		t.Fatal(err)
	}
	c.want(request(mcbp.OpGet, 0, nil, []byte("a"), nil), mcbp.StatusKeyNotFound)
	if all := n.reasons(); len(all) > 0 {
		t.Errorf("%+v", all)
	}
}

// A node that still has a former bucket of the same name is no source of replicas.
func TestReplicasOfAnotherBucketOfTheName(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 2, 1)
	makeBucket(t, g.nodes["kv1"], "new", "replicaNumber", "1", "numVBuckets", "8")
	c := clientOf(t, "new", g.nodes["kv1"], g.nodes["kv2"])
	for i := range 50 {
		if _, err := c.Set(within(t), fmt.Sprint("k", i), []byte("1"), kvclient.StoreOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	late := g.nodes["kv2"]
	late.cluster.changing.Lock()
	goesOn := sync.OnceFunc(late.cluster.changing.Unlock)
	defer goesOn()
	first := g.nodes["kv1"]
	for _, change := range []clustermap.BucketChange{{Name: "new", Drop: true},
		{Name: "new", UUID: "second", VBuckets: 8, Replicas: 1}} {
		next, err := first.cluster.current().ChangeBuckets(change)
		if err != nil {
			t.Fatal(err)
		}
		if err := first.cluster.adopt(next, nil); err != nil {
			t.Fatal(err)
		}
	}
	from := late.server.Counters().DCPOpens.Load()
	eventually(t, func() error {
		if n := late.server.Counters().DCPOpens.Load() - from; n < 3 {
			return fmt.Errorf("%d connections were opened", n)
		}
		return nil
	})
	for _, x := range first.View().Copies["new"] {
		if x.High > 0 || x.Joined {
			t.Errorf("%+v", x)
		}
	}
	have := surveyOf(first.cluster.current(), []ClusterView{first.View(), late.View()})
	for at := range have {
		if at.node == "kv2" && at.bucket == "new" {
			t.Fatalf("a failover would count on what kv2 has of the bucket before: %+v", at)
		}
	}
	for _, want := range []copyOf{{"kv1", "new", 0}, {"kv2", "world", 0}} {
		if _, known := have[want]; !known {
			t.Errorf("%+v is not known", want)
		}
	}
	goesOn()
	eventually(t, func() error {
		for _, x := range first.View().Copies["new"] {
			if x.State == "replica" && !x.Joined {
				return fmt.Errorf("vbucket %d has not joined", x.VBucket)
			}
		}
		return nil
	})
	if _, err := clientOf(t, "new", late).Get(within(t), "k1"); !errors.Is(err, kvclient.ErrKeyNotFound) {
		t.Errorf("of the bucket before: %v", err)
	}
}

// A node removes the folders of buckets that the map lists as dropped, as far back as the map keeps them; folders
// that the map does not name stay.
func TestSwept(t *testing.T) {
	m := clustermap.Map{Buckets: []clustermap.Bucket{{Name: "there", UUID: "u1", Made: true}, {Name: "old", UUID: "u2"}},
		Dropped: []clustermap.Dropped{{Name: "there", UUID: "u0", Made: true}, {Name: "gone", UUID: "u3"}}}
	for folder, want := range map[string]bool{"there~u1": false, "there~u0": true, "there~u9": false, "other~u0": false,
		"there": false, "old": false, "gone": true, "gone~u3": false, "unknown": false} {
		if got := swept(m, folder); got != want {
			t.Errorf("%s: %v, want %v", folder, got, want)
		}
	}
}
