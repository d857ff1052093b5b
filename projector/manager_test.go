package projector

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/internal/tlsconf"
	"tidemark/keyversion"
	"tidemark/kv"
	"tidemark/kv/clustermap"
	"tidemark/kv/kvclient"
	"tidemark/kv/kvclient/kvclienttest"
	"tidemark/kv/kvclient/restmap"
	"tidemark/wire"
)

// managedKV is a KV node that provides no cluster map itself; only its manager does.
type managedKV struct {
	t     *testing.T
	conf  kv.Config
	node  atomic.Pointer[kv.Node]
	stop  func()
	proxy string
}

func newManagedKV(t *testing.T) *managedKV {
	m := &managedKV{t: t}
	m.proxy = kvclienttest.WithoutMaps(t, func() string { return m.node.Load().MemcachedAddr() })
	m.conf = kv.Config{NodeID: "kv1", Dir: t.TempDir(), Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", User: "u",
		Password: "secret", Nodes: []kv.Peer{{ID: "kv1", Memcached: m.proxy}},
		Buckets: []kv.BucketConfig{{Name: testBucket, UUID: testUUID, VBuckets: vbuckets}}}
	m.start()
	return m
}

func (m *managedKV) start() {
	m.t.Helper()
	n, err := kv.Open(m.conf)
	if err != nil {
		m.t.Fatal(err)
	}
	m.node.Store(n)
	m.stop = running(m.t, func(ctx context.Context) { _ = n.Run(ctx) })
	<-n.Ready()
	m.conf.Admin = n.AdminAddr() // the manager stays where it is
}

// again stops the node and starts it with another configuration.
func (m *managedKV) again(edit func(*kv.Config)) {
	m.t.Helper()
	m.stop()
	edit(&m.conf)
	m.start()
}

func (m *managedKV) post(path string) {
	m.t.Helper()
	req, err := http.NewRequestWithContext(m.t.Context(), http.MethodPost, "http://"+m.conf.Admin+path, nil)
	if err != nil {
		m.t.Fatal(err)
	}
	req.SetBasicAuth("u", m.conf.Password)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		m.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		m.t.Fatalf("%s: %s", path, resp.Status)
	}
}

// untilBegun requests all streams until each has begun.
func (w *world) untilBegun() {
	w.t.Helper()
	before := len(w.data.kinds(keyversion.StreamBegin))
	w.eventually("streams begin again", func() bool {
		w.counter += 10
		reply, err := w.client.Streams(context.Background(), w.url, w.request(w.counter, allVBuckets()...))
		if err != nil || reply.Buckets[0].Code != "" {
			return false
		}
		for _, r := range reply.Buckets[0].Results {
			if r.Outcome != wire.StartBegun {
				return false
			}
		}
		return true
	})
	w.eventually("BEGIN of each", func() bool { return len(w.data.kinds(keyversion.StreamBegin)) >= before+vbuckets })
}

func allVBuckets() []wire.StreamStart {
	all := make([]wire.StreamStart, vbuckets)
	for v := range all {
		all[v].VBucket = uint16(v)
	}
	return all
}

// row writes a document directly to the node, and waits until its key is indexed.
func (w *world) row(m *managedKV, key, value string) {
	w.t.Helper()
	c, err := kvclient.Connect(w.t.Context(), []string{m.node.Load().MemcachedAddr()}, kvclient.Options{User: "u",
		Password: m.conf.Password, Bucket: testBucket})
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	// The map leads to the proxy, which passes documents on.
	if _, err := c.Set(w.t.Context(), key, []byte(`{"f1":"`+value+`"}`), kvclient.StoreOptions{}); err != nil {
		w.t.Fatal(err)
	}
	want := fmt.Sprintf("%s:[%q]", key, value)
	w.eventually(want, func() bool { return strings.Contains(fmt.Sprint(w.data.rows(1)), want) })
}

// A projector that only knows its node's cluster manager, with a node that provides no map, handles the deletion and
// recreation of buckets, with either feed.
func TestByManager(t *testing.T) {
	for _, kind := range []FeedKind{FeedNative, FeedGocbcore} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			m := newManagedKV(t)
			var password atomic.Value
			password.Store("secret")
			w := newWorldWith(t, m.conf.Admin, kind, func(c *Config) {
				c.KVManager = c.KV
				c.ReadPassword = func() (string, error) { return password.Load().(string), nil }
			})
			w.define(1, 1)
			w.untilBegun()
			w.row(m, "a", "x")

			ends := len(w.data.kinds(keyversion.StreamEnd))
			m.post("/pools/default/buckets/" + testBucket + "/controller/doFlush")
			w.eventually("END of every vbucket after the flush", func() bool {
				return len(w.data.kinds(keyversion.StreamEnd)) >= ends+vbuckets
			})
			w.untilBegun()
			w.row(m, "b", "y")

			// KV's password changes; the projector's file has it later.
			m.again(func(c *kv.Config) { c.Password = "another" })
			w.eventually("the password is refused", func() bool {
				reply, err := w.client.Streams(context.Background(), w.url, w.request(w.counter+5, allVBuckets()...))
				return err != nil && strings.Contains(err.Error(), "--kv-password-file") ||
					err == nil && strings.Contains(fmt.Sprint(reply.Buckets[0]), "--kv-password-file")
			})
			password.Store("another")
			w.untilBegun()
			w.row(m, "c", "z")

			// The bucket is deleted, and made anew under its name: in a cluster whose revisions begin anew, too.
			m.again(func(c *kv.Config) { c.Dir, c.Buckets[0].UUID = t.TempDir(), "ffff" })
			w.eventually("the new bucket", func() bool {
				reply, err := w.client.Bucket(t.Context(), w.url, &wire.BucketRequest{Bucket: testBucket})
				return err == nil && reply.UUID == "ffff"
			})
			w.eventually("the old one is refused", func() bool {
				reply, err := w.client.Streams(context.Background(), w.url, w.request(w.counter+10, allVBuckets()...))
				return err != nil && strings.Contains(err.Error(), string(errcode.BucketGone)) ||
					err == nil && reply.Buckets[0].Code == errcode.BucketGone
			})
		})
	}
}

// Nodes are failed over and added: the manager's stream of maps reports it, and the projector's node only has the
// vbuckets that both the map and the engine assign to it.
func TestByManagerNodesComeAndGo(t *testing.T) {
	t.Parallel()
	nodes := []*managedKV{{t: t}, {t: t}}
	var peers []kv.Peer
	for i, m := range nodes {
		m.proxy = kvclienttest.WithoutMaps(t, func() string { return m.node.Load().MemcachedAddr() })
		peers = append(peers, kv.Peer{ID: fmt.Sprint("kv", i+1), Memcached: m.proxy, Admin: "127.0.0.1:0"})
	}
	for i, m := range nodes {
		n, err := kv.Open(kv.Config{NodeID: peers[i].ID, Dir: t.TempDir(), Listen: "127.0.0.1:0", Admin: "127.0.0.1:0",
			User: "u", Password: "secret", Nodes: peers,
			Buckets: []kv.BucketConfig{{Name: testBucket, UUID: testUUID, VBuckets: vbuckets, Replicas: 1}}})
		if err != nil {
			t.Fatal(err)
		}
		m.node.Store(n)
		m.conf.Admin, m.conf.Password = n.AdminAddr(), "secret"
	}
	for i, m := range nodes {
		peers[i].Admin = m.conf.Admin
	}
	for _, m := range nodes {
		if err := m.node.Load().SetPeers(peers); err != nil {
			t.Fatal(err)
		}
		m.stop = running(t, func(ctx context.Context) { _ = m.node.Load().Run(ctx) })
	}
	<-nodes[0].node.Load().Ready()
	<-nodes[1].node.Load().Ready()
	w := newWorldWith(t, nodes[0].conf.Admin, FeedNative, func(c *Config) { c.KVManager = c.KV })
	w.define(1, 1)
	hosts := func(what string, n int) {
		t.Helper()
		w.eventually(what, func() bool {
			_, _ = w.client.Streams(context.Background(), w.url, w.request(w.counter+1, allVBuckets()...)) // opens the bucket
			b := w.p.bucket(testBucket)
			if b == nil {
				return false
			}
			h := b.hosted.Load()
			return h != nil && len(h.VBuckets) == n && h.Node == nodes[0].proxy
		})
	}
	hosts("half of the vbuckets", vbuckets/2)
	nodes[0].post("/controller/startGracefulFailover?otpNode=ns_1@kv2")
	hosts("all vbuckets", vbuckets)
	admin := kv.NewAdmin([]string{nodes[0].conf.Admin}, "u", "secret", nil)
	if err := admin.Rebalance(t.Context(), kv.RebalanceRequest{Add: []clustermap.Node{{ID: "kv2",
		Memcached: nodes[1].proxy, Admin: nodes[1].conf.Admin}}}); err != nil {
		t.Fatal(err)
	}
	hosts("half of them again", vbuckets/2)
}

// The same with a manager inside TLS, while the node's certificate is renewed, and then replaced by one of another CA,
// which the projector's CA file has by then.
func TestByManagerInsideTLS(t *testing.T) {
	for _, kind := range []FeedKind{FeedNative, FeedGocbcore} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			authority, err := tlsconf.CreateCA(dir, "test", time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			certificate := func(authority *tlsconf.CA) *tlsconf.Source {
				folder := t.TempDir()
				files, err := authority.Issue(folder, "kv1", tlsconf.Request{Peer: tlsconf.Peer{Role: tlsconf.KV, ID: "kv1"},
					Hosts: []string{"127.0.0.1"}})
				if err != nil {
					t.Fatal(err)
				}
				source, err := tlsconf.OpenNode(files, tlsconf.KV, "kv1", nil)
				if err != nil {
					t.Fatal(err)
				}
				return source
			}
			m := &managedKV{t: t, conf: kv.Config{NodeID: "kv1", Dir: t.TempDir(), Listen: "127.0.0.1:0", Admin: "127.0.0.1:0",
				ListenTLS: "127.0.0.1:0", TLS: certificate(authority), User: "u", Password: "secret",
				Buckets: []kv.BucketConfig{{Name: testBucket, UUID: testUUID, VBuckets: vbuckets}}}}
			m.start()
			w := newWorldWith(t, m.conf.Admin, kind, func(c *Config) {
				c.KVManager = c.KV
				c.ReadKVTLS = kvclient.TLSFiles{CA: filepath.Join(dir, tlsconf.CAFile)}.Config
				if c.KVTLS, err = c.ReadKVTLS(); err != nil {
					t.Fatal(err)
				}
			})
			w.define(1, 1)
			w.untilBegun()
			w.row(m, "a", "x")
			m.again(func(c *kv.Config) { c.TLS = certificate(authority) }) // at another port for documents, too
			w.untilBegun()
			w.row(m, "b", "y")
			folder := t.TempDir()
			another, err := tlsconf.CreateCA(folder, "another", time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			pem, err := os.ReadFile(filepath.Join(folder, tlsconf.CAFile))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, tlsconf.CAFile), pem, 0o600); err != nil {
				t.Fatal(err)
			}
			m.again(func(c *kv.Config) { c.TLS = certificate(another) })
			w.untilBegun()
			w.row(m, "c", "z")
		})
	}
}

// Map sources of buckets that are no longer used are dropped, and their number is bounded; those of streamed buckets
// stay.
func TestMapsAreForgotten(t *testing.T) {
	t.Parallel()
	var m managedMaps
	made := 0
	fresh := func(bucket string) *restmap.Source {
		made++
		return restmap.New(restmap.Options{Bucket: bucket})
	}
	now := time.Now()
	streamed := m.of("streamed", now, fresh)
	streamed.held++
	asked := m.of("asked", now, fresh)
	if m.of("asked", now.Add(mapsAge), fresh) != asked || made != 2 {
		t.Errorf("%d were made for two buckets", made)
	}
	m.of("another", now.Add(2*mapsAge), fresh)
	if len(m.sources) != 3 {
		t.Errorf("%d are kept, one is too old only from now on", len(m.sources))
	}
	m.of("a third", now.Add(2*mapsAge+1), fresh)
	if m.sources["asked"] != nil || m.sources["streamed"] != streamed {
		t.Error("kept are", slices.Sorted(maps.Keys(m.sources)))
	}
	for i := range 2 * maxSources {
		m.of(fmt.Sprint(i), now.Add(2*mapsAge+time.Duration(i)), fresh)
	}
	last := fmt.Sprint(2*maxSources - 1)
	if len(m.sources) != maxSources || m.sources["streamed"] != streamed || m.sources[last] == nil ||
		m.sources["0"] != nil {
		t.Errorf("%d are kept", len(m.sources))
	}
	streamed.held--
	m.of("end", now.Add(4*mapsAge), fresh)
	if len(m.sources) != 1 {
		t.Error("kept are", len(m.sources))
	}
}
