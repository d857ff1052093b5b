package kv

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/couchbase/gocbcore/v10/memd"
	"github.com/couchbase/gomemcached"
	memcached "github.com/couchbase/gomemcached/client"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/internal/testing/atonce"
	"tidemark/kv/clustermap"
	"tidemark/kv/mcbp"
	"tidemark/kv/seglog"
)

const envServe = "TIDEMARK_KV_TEST_SERVE"

func TestMain(m *testing.M) {
	if what := os.Getenv(envServe); strings.HasPrefix(what, "{") {
		os.Exit(runProcess(what))
	} else if what != "" {
		os.Exit(serveForTest(what))
	}
	atonce.Tests(10) // these tests mostly wait
	goleakMain(m)
}

// serveForTest is the body of a child process: a node that prints its address once it is ready, and runs until it is
// killed or its standard input ends.
func serveForTest(dir string) int {
	n, err := Open(testConfig(dir))
	if err != nil {
		fmt.Println("error:", err)
		return 1
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-n.Ready()
		fmt.Println(n.MemcachedAddr())
	}()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	if err := n.Run(ctx); err != nil {
		fmt.Println("error:", err)
		return 1
	}
	return 0
}

// child is a node in its own process.
type child struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.WriteCloser
	addr  string
}

func startChild(t *testing.T, dir string) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envServe+"="+dir)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{t: t, cmd: cmd, stdin: stdin}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil || strings.HasPrefix(line, "error") {
		t.Fatalf("child: %q %v", line, err)
	}
	c.addr = strings.TrimSpace(line)
	return c
}

func (c *child) signal() { _ = c.cmd.Process.Signal(syscall.SIGKILL) }

func (c *child) kill() {
	c.signal()
	_ = c.cmd.Wait()
}

func (c *child) stop() {
	c.t.Helper()
	_ = c.stdin.Close()
	if err := c.cmd.Wait(); err != nil {
		c.t.Fatalf("orderly stop: %v", err)
	}
}

// failoverLogs reads the failover log of every vbucket and its high seqno.
func failoverLogs(t *testing.T, addr string) (logs [16]string, highs [16]uint64) {
	t.Helper()
	c := openDCP(t, addr, "logs", 0)
	a := c.want(request(mcbp.OpGetAllVBSeqnos, 0, nil, nil, nil), mcbp.StatusOK)
	seqnos, err := mcbp.DecodeVBSeqnos(a.Value)
	if err != nil || len(seqnos) != 16 {
		t.Fatal(seqnos, err)
	}
	for vb := range uint16(16) {
		a := c.want(request(mcbp.OpDCPFailoverLog, vb, nil, nil, nil), mcbp.StatusOK)
		log, err := mcbp.DecodeFailoverLog(a.Value)
		if err != nil {
			t.Fatal(err)
		}
		logs[vb], highs[vb] = fmt.Sprint(log), seqnos[vb].Seqno
	}
	return logs, highs
}

// A node killed with SIGKILL in the middle of writes has, after its restart, every acknowledged and every streamed
// write, and a new branch at the high seqno of each vbucket. An orderly stop adds no branch.
func TestKilledNodeKeepsWhatWasAcknowledgedOrStreamed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const leastKeys = 10
	acked := map[string]uint64{} // key → seqno of its newest acknowledged version
	var streamed atomic.Uint64
	for round := range 3 {
		c := startChild(t, dir)
		before, _ := failoverLogs(t, c.addr)
		kv := login(t, c.addr, mcbp.FeatureMutationToken)
		dcp := openDCP(t, c.addr, "watch", 0)
		dcp.want(fromZero(0), mcbp.StatusOK)
		watching := make(chan struct{})
		go func() {
			defer close(watching)
			for {
				f, err := dcp.tryRead()
				if err != nil {
					return
				}
				if f.Op == mcbp.OpDCPMutation {
					if m, err := mcbp.DecodeMutation(f.Extras); err == nil {
						streamed.Store(m.Seqno)
					}
				}
			}
		}()
		timer := time.NewTimer(0) // kills the node; starts once enough writes are acknowledged
		timer.Stop()
		for i := 0; ; i++ {
			if i == 2*leastKeys {
				timer = time.AfterFunc(time.Duration(150+round*50)*time.Millisecond, c.signal)
			}
			key := fmt.Sprintf("k%d", i%500)
			f := setFrame(uint16(i%2), key, fmt.Sprint(i))
			f.Opaque = uint32(i)
			b, _ := mcbp.Append(nil, f)
			if _, err := kv.nc.Write(b); err != nil {
				break
			}
			a, err := kv.tryRead()
			if err != nil {
				break
			}
			if token, err := mcbp.DecodeMutationToken(a.Extras); a.Status() == mcbp.StatusOK && err == nil {
				acked[fmt.Sprint(i%2, " ", key)] = token.Seqno
			}
		}
		timer.Stop()
		c.kill()
		<-watching

		c = startChild(t, dir)
		logs, highs := failoverLogs(t, c.addr)
		if highs[0] < streamed.Load() {
			t.Fatalf("streamed up to %d, after the kill the node has %d", streamed.Load(), highs[0])
		}
		for vb := range logs {
			if !strings.HasSuffix(logs[vb], strings.TrimPrefix(before[vb], "[")) || logs[vb] == before[vb] {
				t.Fatalf("vbucket %d: log %s, before the kill %s", vb, logs[vb], before[vb])
			}
		}
		reader := openDCP(t, c.addr, "read", 0)
		found := map[string]uint64{}
		for vb := range uint16(2) {
			reader.want(streamFrame(vb, mcbp.StreamRequest{End: highs[vb]}), mcbp.StatusOK)
			for f := reader.read(); f.Op != mcbp.OpDCPStreamEnd; f = reader.read() {
				if f.Op == mcbp.OpDCPMutation {
					m, _ := mcbp.DecodeMutation(f.Extras)
					found[fmt.Sprint(vb, " ", string(f.Key))] = m.Seqno
				}
			}
		}
		if len(acked) < leastKeys {
			t.Fatalf("only %d keys written before the kill", len(acked))
		}
		for key, seqno := range acked {
			if found[key] < seqno {
				t.Fatalf("%s was acknowledged at %d, after the kill it is at %d", key, seqno, found[key])
			}
		}
		c.stop()
		c = startChild(t, dir)
		if again, _ := failoverLogs(t, c.addr); again != logs {
			t.Fatalf("after an orderly stop: %v, before %v", again, logs)
		}
		c.stop()
	}
}

func TestFolderIsUsedOnce(t *testing.T) {
	dir := t.TempDir()
	n, stop := runNode(t, testConfig(dir))
	if _, err := Open(testConfig(dir)); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), dir) {
		t.Fatalf("a second node on the folder: %v", err)
	}
	other := testConfig(t.TempDir())
	other.Listen = n.MemcachedAddr()
	if _, err := Open(other); err == nil || !strings.Contains(err.Error(), n.MemcachedAddr()) {
		t.Fatalf("an address in use: %v", err)
	}
	other.Listen, other.Admin = "127.0.0.1:0", n.AdminAddr()
	if _, err := Open(other); err == nil || !strings.Contains(err.Error(), n.AdminAddr()) {
		t.Fatalf("an admin address in use: %v", err)
	}
	stop()
	_, stop = runNode(t, testConfig(dir))
	stop()
}

func TestConfigurationErrors(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"no id":               func(c *Config) { c.NodeID = "" },
		"no folder":           func(c *Config) { c.Dir = "" },
		"no password":         func(c *Config) { c.Password = "" },
		"not among the nodes": func(c *Config) { c.Nodes = []Peer{{ID: "other"}} },
		"a node listed twice": func(c *Config) { c.Nodes = []Peer{{ID: "kv1"}, {ID: "kv1"}} },
		"no bucket":           func(c *Config) { c.Buckets = nil },
		"bucket name with /":  func(c *Config) { c.Buckets[0].Name = "a/b" },
		"bucket named ..":     func(c *Config) { c.Buckets[0].Name = ".." },
		"bucket without uuid": func(c *Config) { c.Buckets[0].UUID = "" },
		"12 vbuckets":         func(c *Config) { c.Buckets[0].VBuckets = 12 },
		"2048 vbuckets":       func(c *Config) { c.Buckets[0].VBuckets = 2048 },
		"bucket listed twice": func(c *Config) { c.Buckets = append(c.Buckets, c.Buckets[0]) },
		"less vbuckets than nodes": func(c *Config) {
			c.Nodes, c.Buckets[0].VBuckets = []Peer{{ID: "kv1"}, {ID: "kv2"}}, 1
		},
	} {
		config := testConfig(t.TempDir())
		change(&config)
		if _, err := Open(config); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBucketKeepsItsShape(t *testing.T) {
	dir := t.TempDir()
	_, stop := runNode(t, testConfig(dir))
	stop()
	for name, change := range map[string]func(*Config){
		"another number of vbuckets": func(c *Config) { c.Buckets[0].VBuckets = 32 },
		"another uuid":               func(c *Config) { c.Buckets[0].UUID = "x" },
	} {
		config := testConfig(dir)
		change(&config)
		if _, err := Open(config); !errors.Is(err, clustermap.ErrMap) {
			t.Errorf("%s: %v", name, err)
		}
	}
	path := filepath.Join(dir, mapName)
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(testConfig(dir)); !errors.Is(err, clustermap.ErrMap) || !strings.Contains(err.Error(), path) {
		t.Errorf("a damaged map: %v", err)
	}
}

func TestFlippedBitInADataFile(t *testing.T) {
	dir := t.TempDir()
	n, stop := runNode(t, testConfig(dir))
	login(t, n.MemcachedAddr()).want(setFrame(0, "a", "1"), mcbp.StatusOK)
	stop()
	path := filepath.Join(dir, "buckets", "world", "log", "0000000000000001.seg")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	whole[len(whole)/2] ^= 4
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	damaged, err := Open(testConfig(dir))
	if err != nil {
		t.Fatal(err)
	}
	if err := damaged.Run(context.Background()); !errors.Is(err, seglog.ErrCorrupt) ||
		!strings.Contains(err.Error(), path+" at offset ") {
		t.Fatalf("%v", err)
	}
}

// smallDisk mounts a tmpfs of 8 MiB for the node's folder. Without the privilege to mount, it injects write errors
// once the log files have 4 MiB. freeUp makes room for 4 MiB. trouble is how the node's reason begins when it is full.
func smallDisk(t *testing.T, config *Config) (freeUp func(), trouble string) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err == nil {
		t.Log("full disk: a tmpfs of 8 MiB")
		t.Cleanup(func() {
			if err := syscall.Unmount(dir, 0); err != nil {
				t.Error(err)
			}
		})
		ballast := filepath.Join(dir, "ballast")
		if err := os.WriteFile(ballast, make([]byte, 4<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		config.Dir = filepath.Join(dir, "node")
		return func() { _ = os.Remove(ballast) }, "bucket world accepts no documents: "
	}
	t.Log("full disk: injected write errors, because no tmpfs can be mounted")
	room := &atomic.Int64{}
	room.Store(4 << 20)
	config.Dir = dir
	config.WrapFile = func(f seglog.File) seglog.File { return &smallFile{f, room} }
	return func() { room.Add(4 << 20) }, "bucket world cannot be written: make room on the disk"
}

type smallFile struct {
	seglog.File
	room *atomic.Int64
}

func (f *smallFile) Write(b []byte) (int, error) {
	if f.room.Add(-int64(len(b))) < 0 {
		f.room.Add(int64(len(b)))
		return 0, syscall.ENOSPC
	}
	return f.File.Write(b)
}

func TestFullDisk(t *testing.T) {
	config := testConfig("")
	freeUp, trouble := smallDisk(t, &config)
	n, stop := runNode(t, config)
	c := login(t, n.MemcachedAddr())
	value := strings.Repeat("x", 50_000)
	acked := 0
	for i := range 400 {
		a := c.call(setFrame(0, fmt.Sprint("k", i), value))
		status := a.Status()
		if status == mcbp.StatusTemporary {
			break
		}
		if status != mcbp.StatusOK {
			t.Fatalf("set %d: %v", i, status)
		}
		acked++
	}
	if acked < 20 || acked > 200 {
		t.Fatalf("%d sets of 50 KB fitted", acked)
	}
	c.want(request(mcbp.OpGet, 0, nil, []byte("k0"), nil), mcbp.StatusOK)
	c.want(request(mcbp.OpGet, 0, nil, fmt.Append(nil, "k", acked), nil), mcbp.StatusKeyNotFound)
	if at := unready(t, n); len(at) != 1 || at[0].Code != reasonDisk || !strings.HasPrefix(at[0].Detail, trouble) {
		t.Errorf("its reasons are %+v, want one that begins with %q", at, trouble)
	}
	freeUp()
	deadline := time.Now().Add(testTimeout)
	for {
		if a := c.call(setFrame(0, "after", value)); a.Status() == mcbp.StatusOK {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no recovery although there is room")
		}
		time.Sleep(20 * time.Millisecond)
	}
	wantUnready(t, n)
	stop()
	n, stop = runNode(t, config)
	if got := n.Status().Buckets[0]; got.Items != acked+1 || got.HighSeqnoMax != uint64(acked+1) || !got.OrderlyStart {
		t.Fatalf("after a restart: %+v, want %d documents", got, acked+1)
	}
	stop()
}

// A node whose disk is full before it serves fails with advice, and starts once there is room.
func TestStartOnAFullDisk(t *testing.T) {
	config := testConfig(t.TempDir())
	room := &atomic.Int64{}
	config.WrapFile = func(f seglog.File) seglog.File { return &smallFile{f, room} }
	n, err := Open(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Run(context.Background()); !errors.Is(err, syscall.ENOSPC) ||
		!strings.Contains(err.Error(), "make room on the disk") {
		t.Fatal(err)
	}
	room.Store(1 << 20)
	again, stop := runNode(t, config)
	login(t, again.MemcachedAddr()).want(setFrame(0, "a", "1"), mcbp.StatusOK)
	stop()
}

func httpGet(t *testing.T, n *Node, path string) (int, string) {
	t.Helper()
	client := http.Client{Timeout: testTimeout, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get("http://" + n.AdminAddr() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(body)
}

// wantUnready checks that /readyz reports exactly these reasons, or readiness if there are none, while /healthz is
// 200.
func wantUnready(t *testing.T, n *Node, want ...rpc.Reason) {
	t.Helper()
	if len(want) > 0 {
		if got := unready(t, n); !slices.Equal(got, want) {
			t.Errorf("readyz has the reasons %+v, want %+v", got, want)
		}
		return
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if code, body := httpGet(t, n, path); code != http.StatusOK {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
}

// unready returns the reasons in /readyz of a node that is not ready, and checks that /healthz is 200.
func unready(t *testing.T, n *Node) []rpc.Reason {
	t.Helper()
	if code, body := httpGet(t, n, "/healthz"); code != http.StatusOK {
		t.Errorf("healthz: %d %q", code, body)
	}
	code, body := httpGet(t, n, "/readyz")
	var p rpc.Problem
	if err := json.Unmarshal([]byte(body), &p); err != nil {
		t.Fatalf("readyz: %d %s: %v", code, body, err)
	}
	if code != http.StatusServiceUnavailable || p.Code != errcode.NotReady || p.RetryAfterMS == 0 {
		t.Errorf("readyz: %d %s", code, body)
	}
	return p.Reasons
}

func TestAdmin(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	c := openDCP(t, n.MemcachedAddr(), "c", 0)
	c.want(setFrame(3, "a", "1"), mcbp.StatusOK)
	c.want(fromZero(3), mcbp.StatusOK)
	c.lines("snapshot 0-1 2 <nil>", "mutation 1 a=1 <nil>")
	wantUnready(t, n)
	_, body := httpGet(t, n, "/v1/status")
	var s Status
	if err := json.Unmarshal([]byte(body), &s); err != nil {
		t.Fatal(err)
	}
	if s.Node.ID != "kv1" || s.Node.Role != "kv" || s.Counters.DCPOpens != 1 || s.Counters.StreamRequests != 1 ||
		s.Counters.Streams != 1 ||
		s.Buckets[0].ActiveVBuckets != 16 || s.Buckets[0].Items != 1 || s.Buckets[0].HighSeqnoMax != 1 ||
		!s.Buckets[0].OrderlyStart {
		t.Errorf("status %s", body)
	}
	_, body = httpGet(t, n, "/v1/buckets")
	if !strings.Contains(body, `"chains":[["kv1"]`) || !strings.Contains(body, `"high_seqno":1`) {
		t.Errorf("buckets %s", body)
	}
	_, body = httpGet(t, n, "/metrics")
	for _, want := range []string{"tidemark_kv_dcp_stream_requests_total 1", `tidemark_kv_bucket_items{bucket="world"} 1`, "tidemark_kv_dcp_items_total 1"} {
		if !strings.Contains(body, want) {
			t.Errorf("metrics lack %q", want)
		}
	}
	if code, _ := httpGet(t, n, "/nonsense"); code != 404 {
		t.Errorf("unknown path: %d", code)
	}
	r, err := http.Post("http://"+n.AdminAddr()+"/v1/status", "text/plain", nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if r.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", r.StatusCode)
	}
}

// runCluster runs nodes that share the bucket's vbuckets.
func runCluster(t *testing.T, dirs ...string) (nodes []*Node, stop func()) {
	t.Helper()
	var peers []Peer
	for i := range dirs {
		peers = append(peers, Peer{ID: fmt.Sprint("kv", i+1), Memcached: "127.0.0.1:0", Admin: "127.0.0.1:0"})
	}
	var stops []func()
	for i, dir := range dirs {
		config := testConfig(dir)
		config.NodeID, config.Nodes = peers[i].ID, peers
		n, err := Open(config)
		if err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, n)
	}
	for i, n := range nodes {
		peers[i].Memcached, peers[i].Admin = n.MemcachedAddr(), n.AdminAddr()
	}
	for _, n := range nodes {
		if err := n.SetPeers(peers); err != nil {
			t.Fatal(err)
		}
		stops = append(stops, start(t, n))
	}
	for _, n := range nodes {
		ready(t, n)
	}
	eventually(t, func() error { // the leader has published the addresses
		for _, n := range nodes {
			for i, x := range n.View().Map.Nodes {
				if x.Memcached != nodes[i].MemcachedAddr() {
					return fmt.Errorf("%s has %s at %s", n.config.NodeID, x.ID, x.Memcached)
				}
			}
		}
		return nil
	})
	return nodes, func() {
		for _, s := range stops {
			s()
		}
	}
}

func TestTwoNodesHoldOneBucket(t *testing.T) {
	dirs := []string{t.TempDir(), t.TempDir()}
	nodes, stop := runCluster(t, dirs...)
	agent := kvAgent(t, nodes[0].MemcachedAddr(), "world")
	for vb := range uint16(16) {
		set(t, agent, keysOf(vb, 16, 1)[0], `{}`)
	}
	for _, n := range nodes {
		if b := n.Status().Buckets[0]; b.ActiveVBuckets != 8 || b.Items != 8 {
			t.Errorf("node has %+v", b)
		}
	}
	dcp := dcpAgent(t, nodes[1].MemcachedAddr(), "world", "two", memd.DcpOpenFlagProducer)
	for _, vb := range []uint16{0, 15} {
		o := newObserver()
		if _, err := openStream(t, dcp, vb, memd.DcpStreamAddFlagActiveOnly, 0, 0, endless, 0, 0, o); err != nil {
			t.Fatal(err)
		}
		o.expect(t, "snapshot 0-1 2", "mutation 1 "+keysOf(vb, 16, 1)[0]+"={}")
	}
	c := login(t, nodes[0].MemcachedAddr(), mcbp.FeatureKnownConfig, mcbp.FeatureDedupNMVB)
	a := c.want(setFrame(15, "x", "1"), mcbp.StatusNotMyVBucket)
	config, err := mcbp.ParseClusterConfig(a.Value)
	if err != nil || config.ThisNode() != 0 || config.Owner(15) != 1 || len(config.Owned(0)) != 8 {
		t.Fatalf("config %s: %v", a.Value, err)
	}
	if addr, _ := config.KVAddr(1, "", false); addr != nodes[1].MemcachedAddr() {
		t.Fatalf("node 1 is said to be at %s, is at %s", addr, nodes[1].MemcachedAddr())
	}
	if a := c.want(setFrame(15, "x", "1"), mcbp.StatusNotMyVBucket); len(a.Value) != 0 {
		t.Fatal("the same config twice")
	}
	known := mcbp.KnownConfig{RevEpoch: config.RevEpoch, Rev: config.Rev}
	if a := c.want(request(mcbp.OpGetClusterConfig, 0, known.AppendExtras(nil), nil, nil),
		mcbp.StatusOK); len(a.Value) != 0 {
		t.Fatal("a known config was sent")
	}
	known.Rev--
	if a := c.want(request(mcbp.OpGetClusterConfig, 0, known.AppendExtras(nil), nil, nil),
		mcbp.StatusOK); len(a.Value) == 0 {
		t.Fatal("a newer config was not sent")
	}
	stop()
	nodes, stop = runCluster(t, dirs...) // on other ports
	c = login(t, nodes[1].MemcachedAddr())
	a = c.want(request(mcbp.OpGetClusterConfig, 0, nil, nil, nil), mcbp.StatusOK)
	later, err := mcbp.ParseClusterConfig(a.Value)
	if err != nil || !later.Newer(config) || later.ThisNode() != 1 ||
		fmt.Sprint(later.Owned(0)) != fmt.Sprint(config.Owned(0)) {
		t.Fatalf("config after a restart on other ports: %s", a.Value)
	}
	if err := nodes[0].SetPeers([]Peer{{ID: "kv2"}, {ID: "kv1"}}); !errors.Is(err, ErrConfig) {
		t.Fatalf("another order of nodes: %v", err)
	}
	stop()
}

func TestQuotaOnThePort(t *testing.T) {
	config := testConfig(t.TempDir())
	config.QuotaBytes = 100_000
	n, _ := runNode(t, config)
	c := login(t, n.MemcachedAddr())
	value := strings.Repeat("x", 30_000)
	for i := range 3 {
		c.want(setFrame(0, fmt.Sprint("k", i), value), mcbp.StatusOK)
	}
	c.want(setFrame(0, "k3", value), mcbp.StatusNoMemory)
	c.want(request(mcbp.OpDelete, 0, nil, []byte("k0"), nil), mcbp.StatusOK)
	c.want(setFrame(0, "k3", value), mcbp.StatusOK)
}

func TestGomemcached(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	c, err := memcached.Connect("tcp", n.MemcachedAddr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.AuthScramSha(testUser, testPassword); err != nil {
		t.Fatal(err)
	}
	if _, err := c.SelectBucket("world"); err != nil {
		t.Fatal(err)
	}
	for i, key := range keysOf(3, 16, 3) {
		if r, err := c.Set(3, key, 0, 0, fmt.Appendf(nil, `{"n":%d}`, i)); err != nil || r.Status != gomemcached.SUCCESS {
			t.Fatal(r, err)
		}
	}
	if r, err := c.Get(3, keysOf(3, 16, 1)[0]); err != nil || string(r.Body) != `{"n":0}` {
		t.Fatal(r, err)
	}
	if r, err := c.Del(3, keysOf(3, 16, 2)[1]); err != nil || r.Status != gomemcached.SUCCESS {
		t.Fatal(r, err)
	}
	if r, err := c.Get(3, keysOf(3, 16, 2)[1]); err == nil || r.Status != gomemcached.KEY_ENOENT {
		t.Fatal(r, err)
	}
	stats, err := c.StatsMap("vbucket-details 3")
	if err != nil || stats["vb_3:high_seqno"] != "4" {
		t.Fatal(stats, err)
	}
	d, err := memcached.Connect("tcp", n.MemcachedAddr())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := d.AuthScramSha(testUser, testPassword); err != nil {
		t.Fatal(err)
	}
	if _, err := d.SelectBucket("world"); err != nil {
		t.Fatal(err)
	}
	if _, err := d.EnableFeatures(memcached.Features{memcached.FeatureXattr, memcached.FeatureCollections,
		memcached.FeatureXerror, memcached.FeatureDataType}); err != nil {
		t.Fatal(err)
	}
	feed, err := d.NewUprFeed()
	if err != nil {
		t.Fatal(err)
	}
	if err, _ := feed.UprOpenWithFeatures("upr", 0, 1<<20, memcached.UprFeatures{Xattribute: true,
		IncludeDeletionTime: true, EnableExpiry: true, SendStreamEndOnClose: true}); err != nil {
		t.Fatal(err)
	}
	if err := feed.StartFeed(); err != nil {
		t.Fatal(err)
	}
	defer feed.Close()
	if err := feed.UprRequestStream(3, 1, 0, 0, 0, 4, 0, 0); err != nil {
		t.Fatal(err)
	}
	var got []string
	for len(got) == 0 || got[len(got)-1] != "end" {
		select {
		case e, ok := <-feed.C:
			if !ok {
				t.Fatalf("feed closed after %q: %v", got, feed.Error)
			}
			switch e.Opcode {
			case gomemcached.UPR_SNAPSHOT:
				got = append(got, fmt.Sprintf("snapshot %d-%d", e.SnapstartSeq, e.SnapendSeq))
			case gomemcached.UPR_MUTATION:
				got = append(got, fmt.Sprintf("mutation %d", e.Seqno))
			case gomemcached.UPR_DELETION:
				got = append(got, fmt.Sprintf("deletion %d", e.Seqno))
			case gomemcached.UPR_STREAMEND:
				got = append(got, "end")
			}
		case <-time.After(testTimeout):
			t.Fatalf("nothing more after %q", got)
		}
	}
	if strings.Join(got, " ") != "snapshot 0-4 mutation 1 mutation 3 deletion 4 end" {
		t.Fatalf("feed showed %q", got)
	}
}
