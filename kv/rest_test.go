package kv

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/couchbase/gocbcore/v10"

	"tidemark/internal/rpc"
	"tidemark/kv/mcbp"
)

// asSDK sends a request to a node as SDKs do to a cluster manager.
func asSDK(t *testing.T, n *Node, method, path, password string, form url.Values) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(within(t), method, "http://"+n.AdminAddr()+path,
		strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if password != "" {
		req.SetBasicAuth(testUser, password)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// answered requires status 200 and decodes the body into to.
func answered(t *testing.T, resp *http.Response, to any) {
	t.Helper()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode == http.StatusOK && to != nil {
		err = json.Unmarshal(body, to)
	}
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %.300s %v", resp.Request.URL.Path, resp.Status, body, err)
	}
}

func TestRESTShapes(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	var pools struct {
		Pools []struct{ URI string }
	}
	answered(t, asSDK(t, n, http.MethodGet, pathPools, "", nil), &pools)
	if len(pools.Pools) != 0 {
		t.Errorf("a foreign user sees %+v", pools)
	}
	answered(t, asSDK(t, n, http.MethodGet, pathPools, testPassword, nil), &pools)
	if len(pools.Pools) != 1 || pools.Pools[0].URI != pathPool {
		t.Errorf("%+v", pools)
	}
	var pool struct {
		Nodes []struct {
			Hostname, Status, OTPNode string
			ThisNode                  bool
			Ports                     map[string]int
		}
		Buckets struct {
			BucketNames []struct{ BucketName, UUID string }
		}
	}
	answered(t, asSDK(t, n, http.MethodGet, pathPool, testPassword, nil), &pool)
	if len(pool.Nodes) != 1 || pool.Nodes[0].Hostname != n.AdminAddr() || pool.Nodes[0].Status != "healthy" ||
		!pool.Nodes[0].ThisNode || pool.Nodes[0].Ports["direct"] != portOf(n.MemcachedAddr()) ||
		len(pool.Buckets.BucketNames) != 1 || pool.Buckets.BucketNames[0].UUID != n.config.Buckets[0].UUID {
		t.Errorf("%+v", pool)
	}
	var services struct{ NodesExt []mcbp.ConfigNodeExt }
	answered(t, asSDK(t, n, http.MethodGet, pathNodeServices, testPassword, nil), &services)
	if len(services.NodesExt) != 1 || services.NodesExt[0].Services[mcbp.ServiceManager] != portOf(n.AdminAddr()) {
		t.Errorf("%+v", services)
	}
	resp := asSDK(t, n, http.MethodGet, "/pools/default/b/world", testPassword, nil)
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := mcbp.ParseClusterConfig(body); err != nil || c.Name != "world" || c.NumVBuckets() != 16 ||
		!strings.Contains(string(body), `"streamingUri":"/pools/default/bs/world"`) {
		t.Errorf("%s: %v", body, err)
	}
	for _, path := range []string{"/pools/default/b/none", "/pools/default/bs/none", "/pools/default/buckets/none",
		"/settings/rbac/users/local/nobody"} {
		if resp := asSDK(t, n, http.MethodGet, path, testPassword, nil); resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s", path, resp.Status)
		}
	}
	for _, path := range []string{pathPool, pathNodeServices, pathBuckets, "/pools/default/b/world",
		"/pools/default/bs/world", pathWhoAmI, pathUsers} {
		for _, password := range []string{"", "wrong"} {
			if resp := asSDK(t, n, http.MethodGet, path, password, nil); resp.StatusCode != http.StatusUnauthorized {
				t.Errorf("%s with password %q: %s", path, password, resp.Status)
			}
		}
	}
}

// mapsOf opens the stream of maps of a node; next waits for its next document.
func mapsOf(t *testing.T, n *Node) (next func() *mcbp.ClusterConfig) {
	t.Helper()
	in := bufio.NewReader(asSDK(t, n, http.MethodGet, "/pools/default/bs/world", testPassword, nil).Body)
	return func() *mcbp.ClusterConfig {
		t.Helper()
		text := ""
		for !strings.HasSuffix(text, endOfDocument) {
			line, err := in.ReadString('\n')
			if err != nil {
				t.Fatalf("%q %v", text, err)
			}
			text += line
		}
		c, err := mcbp.ParseClusterConfig([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
}

// The stream sends the current map, then each map that replaces it, once, through any member, in the same form as
// that member's answer to a single request.
func TestRESTStream(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 2, 0)
	var streams []func() *mcbp.ClusterConfig
	for _, n := range g.nodes {
		streams = append(streams, mapsOf(t, n))
	}
	first := streams[0]()
	if c := streams[1](); c.RevEpoch != first.RevEpoch || c.Rev != first.Rev {
		t.Fatalf("%d.%d and %d.%d", c.RevEpoch, c.Rev, first.RevEpoch, first.Rev)
	}
	for i := range int64(3) {
		if status, body := rest(t, g.nodes["kv2"], http.MethodPost, scopesOf, "name", fmt.Sprint("s", i)); status !=
			http.StatusOK {
			t.Fatal(status, body)
		}
		for _, next := range streams {
			if c := next(); c.RevEpoch != first.RevEpoch || c.Rev != first.Rev+1+i {
				t.Fatalf("%d.%d is shown after %d.%d", c.RevEpoch, c.Rev, first.RevEpoch, first.Rev+i)
			}
		}
	}
	var once mcbp.ClusterConfig
	answered(t, asSDK(t, g.nodes["kv1"], http.MethodGet, "/pools/default/b/world", testPassword, nil), &once)
	if again := mapsOf(t, g.nodes["kv1"])(); again.Rev != first.Rev+3 || !reflect.DeepEqual(&once, again) {
		t.Errorf("the stream begins with %+v, asked once it is %+v", again, once)
	}
}

// A node failed over by an SDK's request is no member in the following maps, and a repeated request is refused.
func TestRESTFailover(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 2, 0)
	next := mapsOf(t, g.nodes["kv1"])
	if c := next(); c.NumNodes() != 2 {
		t.Fatalf("%+v", c.Nodes)
	}
	out := url.Values{"otpNode": {otpPrefix + "kv2"}}
	answered(t, asSDK(t, g.nodes["kv1"], http.MethodPost, pathFailOverNode, testPassword, out), nil)
	if c := next(); c.NumNodes() != 1 || len(c.Owned(0)) != c.NumVBuckets() {
		t.Errorf("%+v", c)
	}
	resp := asSDK(t, g.nodes["kv1"], http.MethodPost, pathFailOverNode, testPassword, out)
	if resp.StatusCode != http.StatusBadRequest {
		t.Errorf("failed over twice: %s", resp.Status)
	}
}

// The number of map streams of a node is limited, and a client that disconnects frees its place.
func TestRESTStreamsAreBounded(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	for range maxMapStreams {
		if err := n.mapStreams.Enter(rpc.Anonymous); err != nil {
			t.Fatal(err)
		}
	}
	if resp := asSDK(t, n, http.MethodGet, "/pools/default/bs/world", testPassword, nil); resp.StatusCode !=
		http.StatusServiceUnavailable {
		t.Fatal(resp.Status)
	}
	n.mapStreams.Leave(rpc.Anonymous)
	resp := asSDK(t, n, http.MethodGet, "/pools/default/bs/world", testPassword, nil)
	if resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status)
	}
	_ = resp.Body.Close()
	for deadline := time.Now().Add(testTimeout); n.mapStreams.Enter(rpc.Anonymous) != nil; {
		if time.Now().After(deadline) {
			t.Fatal("a stream whose client has gone keeps its place")
		}
		time.Sleep(time.Millisecond)
	}
}

// gocbcore connects to the cluster with only the manager's address.
func TestGocbcoreByREST(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	agent, err := gocbcore.CreateAgent(&gocbcore.AgentConfig{
		BucketName: "world", SeedConfig: gocbcore.SeedConfig{HTTPAddrs: []string{n.AdminAddr()}},
		SecurityConfig: gocbcore.SecurityConfig{Auth: gocbcore.PasswordAuthProvider{Username: testUser,
			Password: testPassword}, AuthMechanisms: []gocbcore.AuthMechanism{gocbcore.ScramSha512AuthMechanism}},
		ConfigPollerConfig: gocbcore.ConfigPollerConfig{HTTPRetryDelay: 10 * time.Millisecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = agent.Close() })
	if err := await(t, func(done chan<- error) error {
		_, err := agent.WaitUntilReady(time.Now().Add(testTimeout), gocbcore.WaitUntilReadyOptions{},
			func(_ *gocbcore.WaitUntilReadyResult, err error) { done <- err })
		return err
	}); err != nil {
		t.Fatal(err)
	}
	set(t, agent, "a", `{"n":1}`)
	if v, err := get(t, agent, "a"); v != `{"n":1}` || err != nil {
		t.Fatalf("%q %v", v, err)
	}
}
