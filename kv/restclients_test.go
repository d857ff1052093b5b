package kv

import (
	"context"
	"sync/atomic"
	"testing"

	"tidemark/kv/kvclient"
	"tidemark/kv/kvclient/kvclienttest"
	"tidemark/kv/kvclient/restmap"
	"tidemark/kv/mcbp"
)

// mapless returns a node whose map is available only from its manager: its memcached port serves none.
func mapless(t *testing.T) *Node {
	t.Helper()
	var opened atomic.Pointer[Node]
	config := testConfig(t.TempDir())
	config.Nodes = []Peer{{ID: "kv1",
		Memcached: kvclienttest.WithoutMaps(t, func() string { return opened.Load().MemcachedAddr() })}}
	n, _ := runNode(t, config)
	opened.Store(n)
	return n
}

// A client that gets its maps from a manager needs no node that serves them.
func TestClientByREST(t *testing.T) {
	n := mapless(t)
	source := restmap.New(restmap.Options{Managers: []string{n.AdminAddr()}, Bucket: "world", User: testUser,
		Password: func() (string, error) { return testPassword, nil }})
	c, err := kvclient.Connect(t.Context(), nil, kvclient.Options{User: testUser, Password: testPassword, Bucket: "world",
		Maps: func(ctx context.Context) (*mcbp.ClusterConfig, string, error) {
			a, err := source.Ask(ctx)
			return a.Config, a.Manager, err
		}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Set(t.Context(), "a", []byte(`{"n":1}`), kvclient.StoreOptions{}); err != nil {
		t.Fatal(err)
	}
	if d, err := c.Get(t.Context(), "a"); err != nil || string(d.Value) != `{"n":1}` {
		t.Fatal(d, err)
	}
	// Without the manager, the same node is not enough.
	_, err = kvclient.Connect(t.Context(), []string{n.config.Nodes[0].Memcached}, kvclient.Options{User: testUser,
		Password: testPassword, Bucket: "world"})
	if err == nil {
		t.Fatal("a node without maps was enough")
	}
}
