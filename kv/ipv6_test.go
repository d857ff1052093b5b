package kv

import (
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/couchbase/gocbcore/v10"

	"tidemark/kv/kvclient"
	"tidemark/kv/kvclient/restmap"
)

// A node that has only IPv6 addresses is reachable by its map, by its manager and by SDKs, also when its map has
// $HOST for its own name.
func TestIPv6(t *testing.T) {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skip("this machine has no ::1; kv/mcbp has the addresses as tables: ", err)
	}
	_ = l.Close()
	for _, listen := range []string{"[::1]:0", "[::]:0"} {
		config := testConfig(t.TempDir())
		config.Listen, config.Admin = listen, listen
		n, _ := runNode(t, config)
		memcached, admin := onLoopback(n.MemcachedAddr()), onLoopback(n.AdminAddr())
		var pool struct{ Nodes []struct{ Hostname string } }
		req, err := http.NewRequestWithContext(within(t), http.MethodGet, "http://"+admin+pathPool, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.SetBasicAuth(testUser, testPassword)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		answered(t, resp, &pool)
		_ = resp.Body.Close()
		if len(pool.Nodes) != 1 || pool.Nodes[0].Hostname != admin {
			t.Errorf("%s: %+v, want %s", listen, pool, admin)
		}
		a, err := restmap.New(restmap.Options{Managers: []string{admin}, Bucket: "world", User: testUser,
			Password: func() (string, error) { return testPassword, nil }}).Ask(within(t))
		if err != nil {
			t.Fatal(err)
		}
		if at, err := a.Node("", false); err != nil || at != memcached {
			t.Errorf("%s: by the manager at %s, %v", listen, at, err)
		}
		c, err := kvclient.Connect(within(t), []string{memcached}, kvclient.Options{User: testUser, Password: testPassword,
			Bucket: "world"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Set(within(t), "a", []byte("1"), kvclient.StoreOptions{}); err != nil {
			t.Error(err)
		}
		_ = c.Close()
		for _, seed := range []gocbcore.SeedConfig{{MemdAddrs: []string{memcached}}, {HTTPAddrs: []string{admin}}} {
			gocbcoreReads(t, seed)
		}
	}
}

// onLoopback returns the address by which this machine reaches a listener on all interfaces.
func onLoopback(address string) string { return strings.Replace(address, "[::]", "[::1]", 1) }

// gocbcoreReads reads the document a with gocbcore.
func gocbcoreReads(t *testing.T, seed gocbcore.SeedConfig) {
	t.Helper()
	agent, err := gocbcore.CreateAgent(&gocbcore.AgentConfig{BucketName: "world", SeedConfig: seed,
		SecurityConfig: gocbcore.SecurityConfig{Auth: gocbcore.PasswordAuthProvider{Username: testUser,
			Password: testPassword}, AuthMechanisms: []gocbcore.AuthMechanism{gocbcore.ScramSha512AuthMechanism}},
		ConfigPollerConfig: gocbcore.ConfigPollerConfig{HTTPRetryDelay: 10 * time.Millisecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer agent.Close()
	if err := await(t, func(done chan<- error) error {
		_, err := agent.WaitUntilReady(time.Now().Add(testTimeout), gocbcore.WaitUntilReadyOptions{},
			func(_ *gocbcore.WaitUntilReadyResult, err error) { done <- err })
		return err
	}); err != nil {
		t.Fatalf("%+v: %v", seed, err)
	}
	if v, err := get(t, agent, "a"); v != "1" || err != nil {
		t.Errorf("%+v: %q %v", seed, v, err)
	}
}
