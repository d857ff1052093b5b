// Package gocb tests the embedded KV with Couchbase's own SDK for Go: what an application does first must work. It is
// a separate module, because the SDK has many dependencies that nothing else here needs:
//
//	cd kv/clients/testdata/gocb && go test ./...
package gocb

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/couchbase/gocb/v2"

	"tidemark/kv"
)

const (
	user, password = "index", "secret-Pa55"
	patience       = time.Minute
)

// run starts the nodes of a cluster and returns them with the functions that stop each.
func run(t *testing.T, nodes, replicas int) (all []*kv.Node, stops []func()) {
	t.Helper()
	var peers []kv.Peer
	for i := range nodes {
		peers = append(peers, kv.Peer{ID: fmt.Sprint("kv", i+1), Memcached: "127.0.0.1:0", Admin: "127.0.0.1:0"})
	}
	for _, p := range peers {
		n, err := kv.Open(kv.Config{NodeID: p.ID, Dir: t.TempDir(), Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Nodes: peers,
			Buckets: []kv.BucketConfig{{Name: "world", UUID: "0123456789abcdef0123456789abcdef", VBuckets: 16, Replicas: replicas}},
			User:    user, Password: password})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, n)
	}
	for i, n := range all {
		peers[i].Memcached, peers[i].Admin = n.MemcachedAddr(), n.AdminAddr()
	}
	for _, n := range all {
		if err := n.SetPeers(peers); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- n.Run(ctx) }()
		stop := func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			done <- nil
		}
		stops = append(stops, stop)
		t.Cleanup(stop)
	}
	for _, n := range all {
		select {
		case <-n.Ready():
		case <-time.After(patience):
			t.Fatal("a node does not serve")
		}
	}
	return all, stops
}

func connect(t *testing.T, seeds string) (*gocb.Cluster, *gocb.Bucket) {
	t.Helper()
	c, err := gocb.Connect(seeds, gocb.ClusterOptions{Username: user, Password: password})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(nil) })
	b := c.Bucket("world")
	if err := b.WaitUntilReady(patience, nil); err != nil {
		t.Fatalf("%s: %v", seeds, err)
	}
	return c, b
}

// Whichever way the client finds the cluster, it reads and writes, and sees the buckets and its user.
func TestConnect(t *testing.T) {
	nodes, _ := run(t, 1, 0)
	_, kvPort, _ := net.SplitHostPort(nodes[0].MemcachedAddr())
	for i, seeds := range []string{"couchbase://127.0.0.1:" + kvPort, "couchbase://127.0.0.1:1,localhost:" + kvPort,
		"couchbase://127.0.0.1:" + kvPort + "?network=default"} {
		t.Run(seeds, func(t *testing.T) {
			c, b := connect(t, seeds)
			key := rand.Text()
			if _, err := b.DefaultCollection().Upsert(key, map[string]int{"n": 7}, nil); err != nil {
				t.Fatal(err)
			}
			var got map[string]int
			if r, err := b.DefaultCollection().Get(key, nil); err != nil || r.Content(&got) != nil || got["n"] != 7 {
				t.Fatal(got, err)
			}
			all, err := c.Buckets().GetAllBuckets(nil)
			if w := all["world"]; err != nil || w.BucketType != gocb.CouchbaseBucketType || !w.FlushEnabled ||
				w.NumVBuckets != 16 {
				t.Fatalf("%+v %v", all, err)
			}
			if _, err := c.Buckets().GetBucket("other", nil); !errors.Is(err, gocb.ErrBucketNotFound) {
				t.Fatalf("a bucket that there is not: %v", err)
			}
			me, err := c.Users().GetUser(user, nil)
			if err != nil || len(me.EffectiveRoles) != 1 || me.EffectiveRoles[0].Name != "admin" {
				t.Fatalf("%+v %v", me, err)
			}
			if err := c.Buckets().FlushBucket("world", nil); err != nil {
				t.Fatal(err)
			}
			if _, err := b.DefaultCollection().Get(key, nil); !errors.Is(err, gocb.ErrDocumentNotFound) {
				t.Fatalf("a flushed document: %v", err)
			}
			manageBucket(t, c, fmt.Sprint("b", i))
			scope := fmt.Sprint("s", i)
			if err := b.CollectionsV2().CreateScope(scope, nil); err != nil {
				t.Fatal(err)
			}
			if err := b.CollectionsV2().CreateScope(scope, nil); !errors.Is(err, gocb.ErrScopeExists) {
				t.Fatalf("a scope twice: %v", err)
			}
			if err := b.CollectionsV2().DropCollection(scope, "c", nil); !errors.Is(err, gocb.ErrCollectionNotFound) {
				t.Fatalf("a collection that there is not: %v", err)
			}
		})
	}
}

// A dead node is failed over by REST, and a connected client continues at the other one.
func TestFailover(t *testing.T) {
	nodes, stops := run(t, 2, 1)
	_, b := connect(t, "couchbase://"+nodes[0].MemcachedAddr())
	c := b.DefaultCollection()
	var keys []string
	for i := range 200 {
		keys = append(keys, fmt.Sprint("doc-", i))
		if _, err := c.Upsert(keys[i], i, &gocb.UpsertOptions{Timeout: patience}); err != nil {
			t.Fatal(err)
		}
	}
	// It dies when the other one has everything, although that may not have been notified yet.
	for deadline := time.Now().Add(patience); !follows(nodes[0], nodes[1]); {
		if time.Now().After(deadline) {
			t.Fatal("the replicas do not follow")
		}
		time.Sleep(10 * time.Millisecond)
	}
	stops[1]()
	post(t, nodes[0], "/controller/startGracefulFailover", url.Values{"otpNode": {"ns_1@kv2"}})
	for i, key := range keys {
		var n int
		r, err := c.Get(key, &gocb.GetOptions{Timeout: patience})
		if err == nil {
			err = r.Content(&n)
		}
		if err != nil || n != i {
			t.Fatalf("%s: %d %v", key, n, err)
		}
		if _, err := c.Upsert(key, i+1, &gocb.UpsertOptions{Timeout: patience}); err != nil {
			t.Fatal(err)
		}
	}
}

// follows reports whether a node has complete copies of all active vbuckets of another one.
func follows(n, active *kv.Node) bool {
	have := map[uint16]kv.CopyView{}
	for _, c := range n.View().Copies["world"] {
		have[c.VBucket] = c
	}
	for _, c := range active.View().Copies["world"] {
		if h := have[c.VBucket]; c.State == "active" && (h.High < c.High || !h.Whole || !h.Joined) {
			return false
		}
	}
	return true
}

func post(t *testing.T, n *kv.Node, path string, form url.Values) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+n.AdminAddr()+path,
		strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.SetBasicAuth(user, password)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %s", path, resp.Status, body)
	}
}

// manageBucket creates a bucket and drops it, as applications do.
func manageBucket(t *testing.T, c *gocb.Cluster, name string) {
	t.Helper()
	settings := gocb.CreateBucketSettings{BucketSettings: gocb.BucketSettings{Name: name, RAMQuotaMB: 128,
		BucketType: gocb.CouchbaseBucketType}}
	if err := c.Buckets().CreateBucket(settings, nil); err != nil {
		t.Fatal(err)
	}
	if err := c.Buckets().CreateBucket(settings, nil); !errors.Is(err, gocb.ErrBucketExists) {
		t.Fatalf("a bucket twice: %v", err)
	}
	if err := c.Buckets().FlushBucket(name, nil); !errors.Is(err, gocb.ErrBucketNotFlushable) {
		t.Fatalf("a bucket that cannot be flushed: %v", err)
	}
	b := c.Bucket(name)
	if err := b.WaitUntilReady(patience, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := b.DefaultCollection().Upsert("k", 1, nil); err != nil {
		t.Fatal(err)
	}
	// What the client reads of a bucket it may write back, with its changes.
	have, err := c.Buckets().GetBucket(name, nil)
	if err != nil {
		t.Fatal(err)
	}
	have.FlushEnabled, have.NumReplicas = true, 2
	if err := c.Buckets().UpdateBucket(*have, nil); err != nil {
		t.Fatal(err)
	}
	if now, err := c.Buckets().GetBucket(name, nil); err != nil || !now.FlushEnabled || now.NumReplicas != 2 {
		t.Fatalf("%+v %v", now, err)
	}
	if err := c.Buckets().FlushBucket(name, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := b.DefaultCollection().Get("k", nil); !errors.Is(err, gocb.ErrDocumentNotFound) {
		t.Fatalf("a flushed document: %v", err)
	}
	for what, change := range map[string]func(*gocb.BucketSettings){
		"type":     func(b *gocb.BucketSettings) { b.BucketType, b.EvictionPolicy = gocb.EphemeralBucketType, "" },
		"vbuckets": func(b *gocb.BucketSettings) { b.NumVBuckets = 128 },
	} {
		other := *have
		change(&other)
		if err := c.Buckets().UpdateBucket(other, nil); err == nil || !strings.Contains(err.Error(), "cannot be changed") {
			t.Fatalf("another %s: %v", what, err)
		}
	}
	if err := c.Buckets().DropBucket(name, nil); err != nil {
		t.Fatal(err)
	}
	if err := c.Buckets().UpdateBucket(*have, nil); !errors.Is(err, gocb.ErrBucketNotFound) {
		t.Fatalf("a bucket that was dropped: %v", err)
	}
	if err := c.Buckets().DropBucket(name, nil); !errors.Is(err, gocb.ErrBucketNotFound) {
		t.Fatalf("a bucket dropped twice: %v", err)
	}
}

// Users are created, changed and removed by the SDK's own user manager, while their clients are connected.
func TestUsers(t *testing.T) {
	nodes, _ := run(t, 2, 0)
	seeds := "couchbase://" + nodes[0].MemcachedAddr()
	c, b := connect(t, seeds)
	const app, secret = "app", "app-secret"
	grant := func(password string, roles ...string) {
		t.Helper()
		u := gocb.User{Username: app, DisplayName: "An application", Password: password}
		for _, r := range roles {
			u.Roles = append(u.Roles, gocb.Role{Name: r, Bucket: "world"})
		}
		if err := c.Users().UpsertUser(u, nil); err != nil {
			t.Fatal(err)
		}
	}
	grant(secret, "data_reader")
	u, err := c.Users().GetUser(app, nil)
	if err != nil || u.DisplayName != "An application" || len(u.Roles) != 1 || u.Roles[0].Name != "data_reader" ||
		u.Roles[0].Bucket != "world" {
		t.Fatalf("%+v %v", u, err)
	}
	if all, err := c.Users().GetAllUsers(nil); err != nil || len(all) != 2 {
		t.Fatalf("%+v %v", all, err)
	}
	if roles, err := c.Users().GetRoles(nil); err != nil || len(roles) < 9 {
		t.Fatalf("%+v %v", roles, err)
	}
	if _, err := b.DefaultCollection().Upsert("k", 1, nil); err != nil {
		t.Fatal(err)
	}
	mine, err := gocb.Connect(seeds, gocb.ClusterOptions{Username: app, Password: secret})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = mine.Close(nil) }()
	docs := mine.Bucket("world").DefaultCollection()
	if err := mine.Bucket("world").WaitUntilReady(patience, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := docs.Get("k", nil); err != nil {
		t.Fatalf("a reader: %v", err)
	}
	if _, err := docs.Upsert("k", 2, nil); !errors.Is(err, gocb.ErrAuthenticationFailure) {
		t.Fatalf("a reader writes: %v", err)
	}
	grant("", "data_reader", "data_writer") // with the password unchanged
	if _, err := docs.Upsert("k", 2, nil); err != nil {
		t.Fatalf("who may write by now: %v", err)
	}
	if err := b.CollectionsV2().CreateScope("s", nil); err != nil {
		t.Fatal(err)
	}
	if err := b.CollectionsV2().CreateCollection("s", "c", nil, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Scope("s").Collection("c").Upsert("k", 1, nil); err != nil {
		t.Fatal(err)
	}
	part := gocb.Role{Name: "data_reader", Bucket: "world", Scope: "s", Collection: "c"}
	if err := c.Users().UpsertUser(gocb.User{Username: app, Roles: []gocb.Role{part}}, nil); err != nil {
		t.Fatal(err)
	}
	if u, err := c.Users().GetUser(app, nil); err != nil || len(u.Roles) != 1 || u.Roles[0] != part {
		t.Fatalf("%+v %v", u, err)
	}
	if _, err := mine.Bucket("world").Scope("s").Collection("c").Get("k", nil); err != nil {
		t.Fatalf("a reader of a collection: %v", err)
	}
	if _, err := mine.Bucket("world").Scope("s").Collection("c").Upsert("k", 2, nil); !errors.Is(err,
		gocb.ErrAuthenticationFailure) {
		t.Fatalf("a reader of a collection writes: %v", err)
	}
	if _, err := docs.Get("k", nil); err == nil {
		t.Fatal("a reader of a collection reads another one")
	}
	if _, err := mine.Users().GetAllUsers(nil); err == nil {
		t.Fatal("an application sees users")
	}
	if err := c.Users().UpsertGroup(gocb.Group{Name: "team", Description: "A team", Roles: []gocb.Role{
		{Name: "data_reader", Bucket: "world"}, {Name: "data_writer", Bucket: "world"}}}, nil); err != nil {
		t.Fatal(err)
	}
	if g, err := c.Users().GetGroup("team", nil); err != nil || g.Description != "A team" || len(g.Roles) != 2 {
		t.Fatalf("%+v %v", g, err)
	}
	if all, err := c.Users().GetAllGroups(nil); err != nil || len(all) != 1 || all[0].Name != "team" {
		t.Fatalf("%+v %v", all, err)
	}
	if err := c.Users().UpsertUser(gocb.User{Username: app, Groups: []string{"team"}}, nil); err != nil {
		t.Fatal(err)
	}
	if u, err := c.Users().GetUser(app, nil); err != nil || len(u.Roles) != 0 || len(u.EffectiveRoles) != 2 ||
		len(u.Groups) != 1 || u.EffectiveRoles[0].Origins[0].Name != "team" {
		t.Fatalf("%+v %v", u, err)
	}
	if _, err := docs.Upsert("k", 3, nil); err != nil {
		t.Fatalf("whose group may write: %v", err)
	}
	if err := c.Users().DropGroup("team", nil); err != nil {
		t.Fatal(err)
	}
	if err := c.Users().DropGroup("team", nil); !errors.Is(err, gocb.ErrGroupNotFound) {
		t.Fatalf("a group dropped twice: %v", err)
	}
	if _, err := c.Users().GetGroup("team", nil); !errors.Is(err, gocb.ErrGroupNotFound) {
		t.Fatalf("a group that was dropped: %v", err)
	}
	if _, err := docs.Upsert("k", 3, nil); !errors.Is(err, gocb.ErrAuthenticationFailure) {
		t.Fatalf("whose group was dropped: %v", err)
	}
	if err := c.Users().DropUser(app, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := docs.Get("k", nil); !errors.Is(err, gocb.ErrAuthenticationFailure) {
		t.Fatalf("a user that was removed: %v", err)
	}
	if err := c.Users().DropUser(app, nil); !errors.Is(err, gocb.ErrUserNotFound) {
		t.Fatalf("removed twice: %v", err)
	}
	if err := c.Users().DropUser(user, nil); err == nil {
		t.Fatal("the configured user is removed")
	}
}
