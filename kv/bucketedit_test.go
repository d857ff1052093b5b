package kv

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"tidemark/kv/clustermap"
	"tidemark/kv/kvclient"
)

// edit changes a bucket's settings by REST at a node.
func edit(t *testing.T, n *Node, name string, form ...string) {
	t.Helper()
	if status, body := rest(t, n, "POST", pathBuckets+"/"+name, form...); status != http.StatusOK || body != "" {
		t.Fatal(status, body)
	}
}

// A form changes the settings that it names and no others. A setting that cannot be changed may be sent with its
// current value; another value is refused with the field's name. All settings survive a restart.
func TestBucketIsEditedByREST(t *testing.T) {
	config := testConfig(t.TempDir())
	n, stop := runNode(t, config)
	made := makeBucket(t, n, "new", "replicaNumber", "2")
	same := []string{"name", "new", "ramQuotaMB", "256", "bucketType", "couchbase", "numVBuckets", "16", "replicaIndex",
		"0", "storageBackend", "couchstore", "conflictResolutionType", "seqno", "evictionPolicy", "valueOnly"}
	edit(t, n, "new", append(slices.Clone(same), "flushEnabled", "1")...)
	if b := detailsOf(t, n, "new"); b.ReplicaNumber != 2 || b.Controllers["flush"] == "" || b.UUID != made.UUID {
		t.Errorf("%+v", b)
	}
	if status, body := rest(t, n, "POST", pathBuckets+"/new/controller/doFlush"); status != http.StatusOK {
		t.Error(status, body)
	}
	edit(t, n, "new", "replicaNumber", "1")
	if b := detailsOf(t, n, "new"); b.ReplicaNumber != 1 || b.Controllers["flush"] == "" {
		t.Errorf("%+v", b)
	}
	edit(t, n, "world", "flushEnabled", "0") // a bucket of the node's own configuration
	if status, body := rest(t, n, "POST", pathBuckets+"/world/controller/doFlush"); status != http.StatusBadRequest ||
		body != `{"_":"Flush is disabled for the bucket"}` {
		t.Error(status, body)
	}
	revision := n.cluster.current().Rev
	edit(t, n, "new", same...)
	if rev := n.cluster.current().Rev; rev != revision {
		t.Errorf("a change of nothing makes map %d of %d", rev, revision)
	}
	for _, x := range []struct {
		status       int
		words, field string
		value        string
	}{
		{400, `{"errors":{"name":"The name of a bucket cannot be changed"}}`, "name", "other"},
		{400, `"bucketType":"The type of a bucket cannot be changed"`, "bucketType", "ephemeral"},
		{400, `"numVBuckets":"The number of vbuckets cannot be changed"`, "numVBuckets", "32"},
		{400, `"numVBuckets":"The number of vbuckets cannot be changed"`, "numVBuckets", "12"},
		{400, `"storageBackend":"The storage backend of`, "storageBackend", "magma"},
		{400, `"conflictResolutionType":"The conflict resolution`, "conflictResolutionType", "lww"},
		{400, `"replicaNumber":"The value must be an integer between 0 and 3"`, "replicaNumber", "4"},
		{400, `"flushEnabled":"The value must be one of`, "flushEnabled", "yes"},
		{400, `"ramQuota":"The value must be an integer`, "ramQuota", "99"},
		{400, `"maxTTL":"The value must be one of`, "maxTTL", "60"},
		{400, `"durabilityMinLevel":`, "durabilityMinLevel", "majority"},
		{400, `"odd":"Unsupported key"`, "odd", "1"},
	} {
		if status, body := rest(t, n, "POST", pathBuckets+"/new", x.field, x.value); status != x.status ||
			!strings.Contains(body, x.words) {
			t.Errorf("%s=%s: %d %s, want %d and %q", x.field, x.value, status, body, x.status, x.words)
		}
	}
	if status, body := rest(t, n, "POST", pathBuckets+"/none", "flushEnabled", "1"); status != http.StatusNotFound ||
		!strings.Contains(body, "resource not found") {
		t.Error(status, body)
	}
	stop()
	n, _ = runNode(t, config)
	if b := detailsOf(t, n, "new"); b.ReplicaNumber != 1 || b.Controllers["flush"] == "" {
		t.Errorf("after a restart: %+v", b)
	}
	if b := detailsOf(t, n, "world"); b.Controllers["flush"] != "" {
		t.Errorf("after a restart: %+v", b)
	}
}

// A bucket's administrator changes the settings of that bucket, and of no other, through any member. The number of
// replicas can be changed only by a role that may change the cluster.
func TestBucketIsEditedByItsAdmin(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 2, 0)
	makeBucket(t, g.nodes["kv1"], "new", "replicaNumber", "0")
	users{t, g.nodes["kv1"]}.set("somebody", "bucket_admin[world]")
	u := users{t, g.nodes["kv2"]}
	for path, want := range map[string]int{"/world": http.StatusOK, "/new": http.StatusForbidden} {
		if status, body := u.call("somebody", userPassword, "POST", pathBuckets+path, "flushEnabled", "0"); status != want {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if !g.nodes["kv1"].cluster.current().Bucket("world").NoFlush {
		t.Error("nothing is changed")
	}
	u.set("both", "bucket_admin[world],cluster_admin")
	for _, x := range []struct {
		user, replicas string
		want           int
		words          string
	}{
		{"somebody", "1", http.StatusForbidden, `{"errors":{"replicaNumber":"Changing the number of replicas needs a role`},
		{"somebody", "0", http.StatusOK, ""}, // the current value
		{"both", "1", http.StatusOK, ""},
	} {
		status, body := u.call(x.user, userPassword, "POST", pathBuckets+"/world", "replicaNumber", x.replicas)
		if status != x.want || !strings.HasPrefix(body, x.words) {
			t.Errorf("%s replicas by %s: %d %s", x.replicas, x.user, status, body)
		}
	}
	if m := g.nodes["kv1"].cluster.current(); m.Bucket("world").Replicas != 1 {
		t.Errorf("%+v", m.Bucket("world"))
	}
}

// replicas returns how many replica copies of a bucket each node holds.
func (g *group) replicas(bucket string) map[string]int {
	out := map[string]int{}
	for id, n := range g.nodes {
		for _, c := range n.View().Copies[bucket] {
			if c.State == "replica" {
				out[id]++
			}
		}
	}
	return out
}

// A bucket that gets replicas while clients write has them spread over all nodes, and a node that dies loses nothing.
// Once the number of replicas is lowered, the nodes drop the extra copies. The other bucket keeps its copies.
func TestReplicasAreChanged(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 3, 0)
	makeBucket(t, g.nodes["kv1"], "other", "replicaNumber", "1", "numVBuckets", "8")
	eventually(t, func() error {
		if n := g.replicas("other"); n["kv1"]+n["kv2"]+n["kv3"] != 8 {
			return fmt.Errorf("%v", n)
		}
		return nil
	})
	other := g.nodes["kv1"].cluster.current().Bucket("other").Chains
	c := g.client()
	h := newHistory()
	stop := h.run(t, c)
	h.count(t, 200)
	edit(t, g.nodes["kv3"], "world", "replicaNumber", "1")
	h.count(t, 200)
	g.settled()
	if n := g.replicas("world"); n["kv1"]+n["kv2"]+n["kv3"] != 16 || n["kv1"] > 7 || n["kv2"] > 7 || n["kv3"] > 7 {
		t.Errorf("16 vbuckets have replicas %v", n)
	}
	stop()
	g.same()
	eventually(t, func() error { // the failover is refused until the replicas are whole
		return g.post("kv1", pathFailover, FailoverRequest{Nodes: []string{"kv2"}}, nil)
	})
	h.check(t, c)
	edit(t, g.nodes["kv3"], "world", "replicaNumber", "0")
	g.settled()
	eventually(t, func() error {
		if n := g.replicas("world"); n["kv1"]+n["kv3"] > 0 {
			return fmt.Errorf("left are %v", n)
		}
		return nil
	})
	h.check(t, c)
	for v, chain := range g.nodes["kv1"].cluster.current().Bucket("other").Chains {
		was := slices.DeleteFunc(slices.Clone(other[v]), func(id string) bool { return id == "kv2" })
		if got := slices.Sorted(slices.Values(chain)); !slices.Equal(got, slices.Sorted(slices.Values(was))) {
			t.Errorf("vbucket %d of the other bucket: %v after %v", v, chain, other[v])
		}
	}
}

// While replicas are being made, a rebalance and another change of their number are refused; other settings may be
// changed. The operation can be stopped like a rebalance, and the next rebalance makes the missing replicas.
func TestChangesWhileReplicasAreMade(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 2, 0)
	n := g.nodes["kv1"]
	makeBucket(t, n, "other", "replicaNumber", "0")
	for _, x := range g.nodes {
		x.replicator.pause("world", true) // the operation cannot finish meanwhile
	}
	c := g.client()
	for i := range 50 {
		if _, err := c.Set(within(t), fmt.Sprint("k", i), []byte("1"), kvclient.StoreOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	edit(t, n, "world", "replicaNumber", "1")
	if status, body := rest(t, n, "POST", pathBuckets+"/world", "replicaNumber", "2"); status !=
		http.StatusServiceUnavailable || !strings.Contains(body, `"replicaNumber":"Cannot change replicas during rebalance.`) {
		t.Error(status, body)
	}
	if err := g.post("kv1", pathRebalance, RebalanceRequest{}, nil); err == nil ||
		!strings.Contains(err.Error(), `a change of the replicas of bucket "world" is running`) {
		t.Error(err)
	}
	edit(t, n, "world", "replicaNumber", "1", "flushEnabled", "0") // replicaNumber is 1 already
	a := NewAdmin([]string{n.AdminAddr()}, testUser, testPassword, nil)
	other := clustermap.BucketChange{Name: "other", Edit: &clustermap.BucketEdit{Replicas: new(0)}}
	same := clustermap.BucketChange{Name: "world", Edit: &clustermap.BucketEdit{Replicas: new(1)}}
	if _, op, err := a.ChangeBuckets(within(t), other); err != nil || op != "" {
		t.Errorf("of a bucket that has its replicas: operation %q, %v", op, err)
	}
	if _, op, err := a.ChangeBuckets(within(t), same); err != nil || op != n.cluster.current().Operation.ID {
		t.Errorf("operation %q is not %+v: %v", op, n.cluster.current().Operation, err)
	}
	if err := g.post("kv1", pathRebalance, RebalanceRequest{Stop: true}, nil); err != nil {
		t.Fatal(err)
	}
	if m := n.cluster.current(); m.Operation != nil || m.Bucket("world").Replicas != 1 || !m.Bucket("world").NoFlush {
		t.Errorf("%+v", m.Operation)
	}
	for _, x := range g.nodes {
		x.replicator.pause("world", false)
	}
	if err := g.post("kv1", pathRebalance, RebalanceRequest{}, nil); err != nil {
		t.Fatal(err)
	}
	g.settled()
	if got := g.replicas("world"); !maps.Equal(got, map[string]int{"kv1": 8, "kv2": 8}) {
		t.Errorf("%v", got)
	}
}

// The leader decides whether a bucket may be flushed: a member that has not received the change of this setting yet
// does not refuse the flush.
func TestFlushOfABucketThatAMemberDoesNotHave(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 2, 0)
	edit(t, g.nodes["kv1"], "world", "flushEnabled", "0")
	late := g.nodes["kv2"]
	late.cluster.changing.Lock()
	goesOn := sync.OnceFunc(late.cluster.changing.Unlock)
	defer goesOn()
	if _, _, err := g.nodes["kv1"].cluster.revise(within(t), func(m clustermap.Map) (clustermap.Map, error) {
		return m.ChangeBuckets(clustermap.BucketChange{Name: "world", Edit: &clustermap.BucketEdit{NoFlush: new(false)}})
	}); err != nil {
		t.Fatal(err)
	}
	var leads *NotLeaderError
	if _, err := late.cluster.flushAll(within(t), "world"); !errors.As(err, &leads) {
		t.Error(err)
	}
	goesOn()
	eventually(t, func() error {
		if status, body := rest(t, late, "POST", pathBuckets+"/world/controller/doFlush"); status != http.StatusOK {
			return errors.New(body)
		}
		return nil
	})
}
