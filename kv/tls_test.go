package kv

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/couchbase/gocbcore/v10"
	"github.com/couchbase/gocbcore/v10/memd"

	"tidemark/internal/tlsconf"
	"tidemark/kv/mcbp"
	"tidemark/kv/store"
)

// runTLSNode runs a node with a second port for TLS, and returns the pool with the CA that its clients must trust.
func runTLSNode(t *testing.T) (*Node, *x509.CertPool) {
	t.Helper()
	dir := t.TempDir()
	ca, err := tlsconf.CreateCA(dir, "test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	files, err := ca.Issue(dir, "kv1", tlsconf.Request{Peer: tlsconf.Peer{Role: tlsconf.KV, ID: "kv1"},
		Hosts: []string{"127.0.0.1", "localhost"}})
	if err != nil {
		t.Fatal(err)
	}
	config := testConfig(t.TempDir())
	config.ListenTLS = "127.0.0.1:0"
	if config.TLS, err = tlsconf.OpenNode(files, tlsconf.KV, "kv1", nil); err != nil {
		t.Fatal(err)
	}
	n, _ := runNode(t, config)
	pem, err := os.ReadFile(filepath.Join(dir, tlsconf.CAFile))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		t.Fatal("no CA")
	}
	return n, pool
}

func dialTLS(t *testing.T, addr string, pool *x509.CertPool) *rawClient {
	t.Helper()
	nc, err := tls.Dial("tcp", addr, &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(60 * time.Second))
	return &rawClient{t: t, nc: nc, r: bufio.NewReaderSize(nc, 256<<10)}
}

// Inside TLS a client may authenticate with PLAIN; on the plain port of the same node it must use SCRAM.
func TestTLSPort(t *testing.T) {
	t.Parallel()
	n, pool := runTLSNode(t)
	c := dialTLS(t, n.MemcachedTLSAddr(), pool)
	if l := c.want(request(mcbp.OpSASLList, 0, nil, nil, nil), mcbp.StatusOK); !strings.HasSuffix(string(l.Value),
		" PLAIN") {
		t.Fatalf("mechanisms %q", l.Value)
	}
	plain := request(mcbp.OpSASLAuth, 0, nil, []byte("PLAIN"), []byte("\x00"+testUser+"\x00"+testPassword))
	c.want(plain, mcbp.StatusOK)
	c.want(request(mcbp.OpGet, 0, nil, []byte("a"), nil), mcbp.StatusNoBucket)
	c.want(request(mcbp.OpSelectBucket, 0, nil, []byte("world"), nil), mcbp.StatusOK)
	big := strings.Repeat("x", 5<<20)
	c.want(setFrame(0, "big", big), mcbp.StatusOK)
	if g := c.want(request(mcbp.OpGet, 0, nil, []byte("big"), nil), mcbp.StatusOK); string(g.Value) != big {
		t.Fatal("another value came back")
	}
	if s := dialTLS(t, n.MemcachedTLSAddr(), pool).scram(testUser, testPassword); s != mcbp.StatusOK {
		t.Fatal(s)
	}
	config := c.want(request(mcbp.OpGetClusterConfig, 0, nil, nil, nil), mcbp.StatusOK)
	parsed, err := mcbp.ParseClusterConfig(config.Value)
	if err != nil {
		t.Fatal(err)
	}
	if a, err := parsed.KVAddr(0, "127.0.0.1", true); err != nil || a != n.MemcachedTLSAddr() {
		t.Fatalf("address with TLS %q %v, want %q", a, err, n.MemcachedTLSAddr())
	}
	if a, err := parsed.KVAddr(0, "127.0.0.1", false); err != nil || a != n.MemcachedAddr() {
		t.Fatalf("address without TLS %q %v, want %q", a, err, n.MemcachedAddr())
	}

	clear := dialRaw(t, n.MemcachedAddr())
	clear.want(plain, mcbp.StatusAuthError)
	mute := dialRaw(t, n.MemcachedTLSAddr())
	mute.send(request(mcbp.OpNoop, 0, nil, nil, nil))
	mute.closed("a client without TLS on the port of TLS")
	if _, err := tls.Dial("tcp", n.MemcachedTLSAddr(), &tls.Config{RootCAs: x509.NewCertPool(),
		MinVersion: tls.VersionTLS12}); err == nil {
		t.Fatal("a client without a CA trusts the node")
	}
}

func TestGocbcoreAgentsInsideTLS(t *testing.T) {
	t.Parallel()
	n, pool := runTLSNode(t)
	secure := gocbcore.SecurityConfig{
		UseTLS: true, TLSRootCAProvider: func() *x509.CertPool { return pool },
		Auth:           gocbcore.PasswordAuthProvider{Username: testUser, Password: testPassword},
		AuthMechanisms: []gocbcore.AuthMechanism{gocbcore.PlainAuthMechanism},
	}
	ready := gocbcore.WaitUntilReadyOptions{ServiceTypes: []gocbcore.ServiceType{gocbcore.MemdService}}
	seed := gocbcore.SeedConfig{MemdAddrs: []string{n.MemcachedTLSAddr()}}
	kv, err := gocbcore.CreateAgent(&gocbcore.AgentConfig{BucketName: "world", SeedConfig: seed, SecurityConfig: secure,
		IoConfig: gocbcore.IoConfig{UseCollections: true, UseMutationTokens: true}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = kv.Close() })
	dcp, err := gocbcore.CreateDcpAgent(&gocbcore.DCPAgentConfig{BucketName: "world", SeedConfig: seed,
		SecurityConfig: secure, IoConfig: gocbcore.IoConfig{UseCollections: true}},
		"test:tls", memd.DcpOpenFlagProducer)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dcp.Close() })
	for _, wait := range []func(time.Time, gocbcore.WaitUntilReadyOptions,
		gocbcore.WaitUntilReadyCallback) (gocbcore.PendingOp, error){kv.WaitUntilReady, dcp.WaitUntilReady} {
		if err := await(t, func(done chan<- error) error {
			_, err := wait(time.Now().Add(testTimeout), ready, func(_ *gocbcore.WaitUntilReadyResult, err error) { done <- err })
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	key := keysOf(3, 16, 1)[0]
	set(t, kv, key, `{"n":1}`)
	if v, err := get(t, kv, key); v != `{"n":1}` || err != nil {
		t.Fatalf("get: %q %v", v, err)
	}
	o := newObserver()
	if _, err := openStream(t, dcp, 3, memd.DcpStreamAddFlagActiveOnly, 0, 0, endless, 0, 0, o); err != nil {
		t.Fatal(err)
	}
	o.expect(t, "snapshot 0-1 2", "mutation 1 "+key+`={"n":1}`)
}

// tlsGroup returns a cluster of two nodes with certificates. issue makes further certificates of its CA, and caOnly
// is a source with the CA alone.
func tlsGroup(t *testing.T) (g *group, issue func(role tlsconf.Role, id string) *tlsconf.Source,
	caOnly *tlsconf.Source) {
	t.Helper()
	dir := t.TempDir()
	ca, err := tlsconf.CreateCA(dir, "test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	g = newGroupWith(t, 2, 1, func(c *Config) {
		files, err := ca.Issue(dir, c.NodeID, tlsconf.Request{Peer: tlsconf.Peer{Role: tlsconf.KV, ID: c.NodeID},
			Hosts: []string{"127.0.0.1"}})
		if err != nil {
			t.Fatal(err)
		}
		if c.TLS, err = tlsconf.OpenNode(files, tlsconf.KV, c.NodeID, nil); err != nil {
			t.Fatal(err)
		}
		c.ListenTLS = "127.0.0.1:0"
	})
	issue = func(role tlsconf.Role, id string) *tlsconf.Source {
		t.Helper()
		files, err := ca.Issue(dir, string(role)+"-"+id, tlsconf.Request{Peer: tlsconf.Peer{Role: role, ID: id}})
		if err != nil {
			t.Fatal(err)
		}
		source, err := tlsconf.Open(files, nil)
		if err != nil {
			t.Fatal(err)
		}
		return source
	}
	if caOnly, err = tlsconf.Open(tlsconf.Files{CA: filepath.Join(dir, tlsconf.CAFile)}, nil); err != nil {
		t.Fatal(err)
	}
	return g, issue, caOnly
}

// With a certificate the admin port is HTTPS. Reads need a certificate or the password, changes the password,
// requests between nodes a node's certificate too. The nodes coordinate over it.
func TestAdminInsideTLS(t *testing.T) {
	t.Parallel()
	g, issue, caOnly := tlsGroup(t)
	kv1 := g.nodes["kv1"]
	remote := func(password string, source *tlsconf.Source) Remote {
		return NewRemote(testUser, password, clusterWait, source.UserClient())
	}
	admin, node := issue(tlsconf.Admin, "operator"), issue(tlsconf.KV, "kv9")
	for _, x := range []struct {
		what         string
		remote       Remote
		method, path string
		body         any
		refused      string // a word of the refusal; empty if the request is accepted
	}{
		{"status with the password", remote(testPassword, caOnly), http.MethodGet, pathCluster, nil, ""},
		{"status with a certificate", remote("", admin), http.MethodGet, pathCluster, nil, ""},
		{"status with nothing", remote("", caOnly), http.MethodGet, pathCluster, nil, "certificate"},
		{"status with a wrong password", remote("x", caOnly), http.MethodGet, "/v1/status", nil,
			"wrong KV user or password"},
		{"status with a wrong password beside a certificate", remote("x", admin), http.MethodGet, pathCluster, nil,
			"wrong KV user or password"},
		{"figures with nothing", remote("", caOnly), http.MethodGet, "/metrics", nil, "certificate"},
		{"a failover with a certificate only", remote("", admin), http.MethodPost, pathFailover, FailoverRequest{},
			"password"},
		{"a pause with the password", remote(testPassword, caOnly), http.MethodPost, pathPause, PauseRequest{Bucket: "none"},
			""},
		{"an uncertified map", remote(testPassword, caOnly), http.MethodPost, pathMap, pushRequest{}, "client certificate"},
		{"a map from an administrator", remote(testPassword, admin), http.MethodPost, pathMap, pushRequest{}, "another role"},
		{"the map with its keys for the password", remote(testPassword, caOnly), http.MethodGet, pathMap, nil,
			"client certificate"},
		{"the map with its keys for an administrator", remote(testPassword, admin), http.MethodGet, pathMap, nil,
			"another role"},
		{"the map for a node", remote(testPassword, node), http.MethodGet, pathMap, nil, ""},
		{"a seal from an administrator", remote(testPassword, admin), http.MethodPost, pathSeal, sealRequest{},
			"another role"},
		{"a seal from a node that does not know the password", remote("", node), http.MethodPost, pathSeal, sealRequest{},
			"password"},
		{"a seal from a node", remote(testPassword, node), http.MethodPost, pathSeal, sealRequest{}, ""},
	} {
		err := x.remote.Call(within(t), kv1.AdminAddr(), x.method, x.path, x.body, nil)
		if x.refused == "" && err != nil || x.refused != "" && (!errors.Is(err, ErrRefused) ||
			!strings.Contains(err.Error(), x.refused)) {
			t.Errorf("%s: %v, want a refusal that says %q", x.what, err, x.refused)
		}
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if err := (Remote{HTTP: remote("", caOnly).HTTP, TLS: true}).Call(within(t), kv1.AdminAddr(), http.MethodGet, path,
			nil, nil); err != nil {
			t.Errorf("%s without anything: %v", path, err)
		}
	}

	plain, _ := runNode(t, testConfig(t.TempDir()))
	if err := NewRemote(testUser, testPassword, clusterWait, nil).Call(within(t), kv1.AdminAddr(), http.MethodGet,
		pathCluster, nil, nil); !errors.Is(err, ErrNeedsTLS) {
		t.Errorf("without TLS at a node with it: %v", err)
	}
	if err := remote(testPassword, caOnly).Call(within(t), plain.AdminAddr(), http.MethodGet, pathCluster, nil,
		nil); !errors.Is(err, ErrNoTLS) {
		t.Errorf("with TLS at a node without it: %v", err)
	}
	foreign, err := tlsconf.Open(tlsconf.Files{CA: otherCA(t)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var unknown *tls.CertificateVerificationError
	if err := remote(testPassword, foreign).Call(within(t), kv1.AdminAddr(), http.MethodGet, pathCluster, nil,
		nil); !errors.As(err, &unknown) {
		t.Errorf("another CA: %v", err)
	}

	a := NewAdmin([]string{kv1.AdminAddr()}, testUser, testPassword, caOnly.UserClient())
	answer, err := a.Failover(within(t), FailoverRequest{Nodes: []string{"kv2"}})
	if err != nil || len(answer.Promotions) != 8 {
		t.Fatalf("failover: %+v %v", answer, err)
	}
	status, err := a.Status(within(t))
	if err != nil || len(status.Nodes) != 1 || status.Nodes[0].Buckets[0].Active != 16 {
		t.Fatalf("%+v %v", status, err)
	}
}

// otherCA returns the file of a CA that issued no certificate of these nodes.
func otherCA(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if _, err := tlsconf.CreateCA(dir, "another", time.Hour); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, tlsconf.CAFile)
}

// Nodes with TLS replicate over it, and only from nodes with a certificate of a KV node.
func TestReplicationInsideTLS(t *testing.T) {
	t.Parallel()
	g, _, _ := tlsGroup(t)
	for id, other := range map[string]string{"kv1": "kv2", "kv2": "kv1"} {
		if addr, encrypted := g.nodes[id].memcachedOf(other); addr != g.nodes[other].MemcachedTLSAddr() || encrypted == nil {
			t.Errorf("%s connects to %s at %s, inside TLS %t", id, other, addr, encrypted != nil)
		}
	}
	kv := login(t, g.nodes["kv1"].MemcachedAddr())
	for vb := range uint16(16) {
		if v := g.nodes["kv1"].buckets()[0].store.VBucket(vb); v.Info().State == store.Active {
			kv.want(setFrame(vb, "a", "1"), mcbp.StatusOK)
		}
	}
	g.settled() // each replica has what its active copy has
}
