package doctor_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tidemark/internal/tlsconf"
	"tidemark/kv"
	"tidemark/kv/doctor"
	"tidemark/kv/kvclient"
	"tidemark/kv/kvclient/kvclienttest"
	"tidemark/kv/mcbp"
	"tidemark/kv/server"
	"tidemark/timestamp"
)

// longTimeout is the deadline of requests to nodes that are expected to answer; no verdict depends on it.
const longTimeout = 3 * time.Minute

// node runs an embedded node with a bucket.
func node(t *testing.T, edit func(*kv.Config)) *kv.Node {
	t.Helper()
	conf := kv.Config{NodeID: "kv1", Dir: t.TempDir(), Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", User: "u",
		Password: "p", Buckets: []kv.BucketConfig{{Name: "b", UUID: "0123456789abcdef0123456789abcdef", VBuckets: 64}}}
	edit(&conf)
	n, err := kv.Open(conf)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	<-n.Ready()
	return n
}

func options(addr ...string) doctor.Options {
	return doctor.Options{Seeds: addr, KV: kvclient.Options{User: "u", Password: "p", Bucket: "b"}, Timeout: longTimeout}
}

// expect checks for findings, each "check result: text", and that no other finding is worse than ok.
func expect(t *testing.T, r *doctor.Report, want ...string) {
	t.Helper()
	var others []string
	for _, c := range r.Checks {
		if c.Check == "latency" && c.Result == doctor.Warning { // as fast as the machine is; TestJudgements has slow nodes
			c.Result = doctor.OK
		}
		line := c.Check + " " + string(c.Result) + ": " + c.Seen + " " + strings.Join(c.Nodes, " ")
		at := slices.IndexFunc(want, func(w string) bool {
			head, text, _ := strings.Cut(w, ": ")
			return strings.HasPrefix(line, head+": ") && strings.Contains(line, text)
		})
		if at >= 0 {
			want = slices.Delete(slices.Clone(want), at, at+1)
		} else if c.Result != doctor.OK {
			others = append(others, line)
		}
	}
	if len(want) > 0 || len(others) > 0 {
		t.Errorf("missing: %q; not expected: %q; the report: %+v", want, others, r)
	}
}

// TestMoods checks that the properties of an engine are found, and that tolerable ones are no failure.
func TestMoods(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		moods server.Moods
		want  []string
	}{
		{server.NoMoods, []string{"reachable ok: ", "login ok: SCRAM-SHA512", "bucket ok: persistent",
			"map ok: 64 vbuckets",
			"vbuckets ok: ", "dcp ok: a stream granted", "controls ok: ", "statistics ok: ", "purge ok: kept for 72h",
			"clock ok: within",
			"collections ok: 1 collection",
			"reads ok: permitted", "seqnos ok: ", "latency ok: ", "version ok: ", "warmup ok: "}},
		{server.NoStats, []string{"statistics warning: NO_ACCESS"}},
		{server.NoFlowControl, []string{"controls warning: no flow control"}},
		{server.NoCloseEnd, []string{"controls warning: STREAM_END"}},
		{server.OldControls, []string{"controls warning: STREAM_END"}},
		{server.NoopIntervals, []string{"controls warning: every 20 s"}},
		{server.Eviction, []string{"bucket warning: auto_delete"}},
		{server.Purges, []string{"purge warning: kept for 1s"}},
		{server.OddMaps, []string{"reachable warning: has no vbucket", "map warning: $HOST"}},
		{server.Temporary, []string{"dcp ok: ", "seqnos ok: "}},
		{server.MapLag | server.Frames | server.Gaps | server.Pauses, nil},
		{server.AllMoods, []string{"reachable warning: has no vbucket", "map warning: $HOST",
			"statistics warning: NO_ACCESS",
			"controls warning: no flow control", "controls warning: STREAM_END", "controls warning: every 20 s"}},
	} {
		t.Run(tt.moods.String(), func(t *testing.T) {
			n := node(t, func(c *kv.Config) { c.Nasty = tt.moods })
			r := doctor.Examine(t.Context(), options(n.MemcachedAddr()))
			for range 10 { // the first requests are refused while the node warms up
				if text := fmt.Sprint(r); tt.moods.Has(server.Warmup) && strings.Contains(text, "warm") {
					r = doctor.Examine(t.Context(), options(n.MemcachedAddr()))
				}
			}
			expect(t, r, tt.want...)
			if err := r.Err(); err != nil || r.VBuckets != 64 || r.UUID == "" || r.Network != mcbp.NetworkDefault {
				t.Errorf("%v, %+v", err, r)
			}
		})
	}
}

// TestRefusedLogin checks that a cause that keeps everything from working is named, and determines the command's
// exit code.
func TestRefusedLogin(t *testing.T) {
	n := node(t, func(*kv.Config) {})
	for _, tt := range []struct {
		name string
		edit func(*doctor.Options)
		want string
		err  error
	}{
		{"a wrong password", func(o *doctor.Options) { o.KV.Password = "x" },
			"login will not work: AUTH_ERROR", kvclient.ErrAuth},
		{"no such user", func(o *doctor.Options) { o.KV.User = "x" },
			"login will not work: AUTH_ERROR", kvclient.ErrAuth},
		{"no such bucket", func(o *doctor.Options) { o.KV.Bucket = "x" }, "login will not work: no such bucket",
			kvclient.ErrNoBucket},
		{"nothing listens", func(o *doctor.Options) { o.Seeds = []string{"127.0.0.1:1"} },
			"reachable will not work: connection refused", kvclient.ErrNoMap},
		{"a port for REST", func(o *doctor.Options) { o.Seeds = []string{n.AdminAddr()} },
			"reachable will not work: does not speak the memcached protocol", kvclient.ErrNoMap},
	} {
		o := options(n.MemcachedAddr())
		tt.edit(&o)
		r := doctor.Examine(t.Context(), o)
		expect(t, r, tt.want)
		if err := r.Err(); !errors.Is(err, doctor.ErrFails) || !errors.Is(err, tt.err) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// TestEncryption checks that certificates are examined, also untrusted ones.
func TestEncryption(t *testing.T) {
	dir := t.TempDir()
	authority, err := tlsconf.CreateCA(dir, "test", 2*tlsconf.LeafValidity) // no certificate outlives it
	if err != nil {
		t.Fatal(err)
	}
	files, err := authority.Issue(dir, "kv1", tlsconf.Request{Peer: tlsconf.Peer{Role: tlsconf.KV, ID: "kv1"},
		Hosts: []string{"127.0.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
	n := node(t, func(c *kv.Config) {
		c.ListenTLS = "127.0.0.1:0"
		if c.TLS, err = tlsconf.OpenNode(files, tlsconf.KV, "kv1", nil); err != nil {
			t.Fatal(err)
		}
	})
	foreign := t.TempDir()
	if _, err := tlsconf.CreateCA(foreign, "foreign", time.Hour); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, addr string
		files      kvclient.TLSFiles
		want       string
	}{
		{"the CA", n.MemcachedTLSAddr(), kvclient.TLSFiles{CA: filepath.Join(dir, tlsconf.CAFile)},
			"tls ok: valid until"},
		{"unchecked", n.MemcachedTLSAddr(), kvclient.TLSFiles{SkipVerify: true}, "tls warning: valid until"},
		{"another CA", n.MemcachedTLSAddr(), kvclient.TLSFiles{CA: filepath.Join(foreign, tlsconf.CAFile)},
			"tls will not work: 127.0.0.1, until"},
		{"a port without TLS", n.MemcachedAddr(), kvclient.TLSFiles{SkipVerify: true}, "reachable will not work: TLS"},
		{"a port with TLS", n.MemcachedTLSAddr(), kvclient.TLSFiles{}, "reachable will not work: is it one with TLS"},
	} {
		o := options(tt.addr)
		if o.KV.TLS, err = tt.files.Config(); err != nil {
			t.Fatal(err)
		}
		r := doctor.Examine(t.Context(), o)
		t.Log(tt.name)
		expect(t, r, tt.want)
	}
}

// TestHungNodes checks that a node that stops answering, at any request, is named, and that the other node is judged
// all the same.
func TestHungNodes(t *testing.T) {
	t.Parallel()
	const deadline = 10 * time.Second
	var beside sync.WaitGroup
	for _, op := range []mcbp.Opcode{mcbp.OpHello, mcbp.OpNoop, mcbp.OpGetClusterConfig, mcbp.OpStat, mcbp.OpDCPOpen,
		mcbp.OpDCPControl, mcbp.OpDCPStreamReq} {
		var nodes []*kvclienttest.Server
		config := func(*kvclienttest.Server) []byte { return kvclienttest.ClusterMap(1, nodes, [][]int{{0}, {1}}) }
		for i := range 2 {
			s := &kvclienttest.Server{User: "u", Password: "p", Bucket: "b", Config: config, Handle: answers(uint16(i))}
			if i == 1 {
				s.Before = func(_ *kvclienttest.Peer, f mcbp.Frame) bool { return f.Op == op }
			}
			nodes = append(nodes, s)
		}
		for _, s := range nodes {
			if err := s.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Stop)
		}
		beside.Go(func() {
			o := options(nodes[0].Addr(), nodes[1].Addr())
			o.Timeout = deadline
			r := doctor.Examine(t.Context(), o)
			named, judged := false, false
			for _, c := range r.Checks {
				named = named || c.Check == "reachable" && c.Result == doctor.Fails && slices.Contains(c.Nodes, nodes[1].Addr()) &&
					strings.Contains(c.Seen, "hangs")
				judged = judged || c.Check == "dcp" && c.Result == doctor.OK && slices.Contains(c.Nodes, nodes[0].Addr())
			}
			if !named || !judged || r.Err() == nil {
				t.Errorf("%v: named: %t, the other is judged: %t, %v: %+v", op, named, judged, r.Err(), r)
			}
		})
	}
	beside.Wait()
}

// answers is a node that has one vbucket and refuses no request.
func answers(vb uint16) func(p *kvclienttest.Peer, f mcbp.Frame) bool {
	return func(p *kvclienttest.Peer, f mcbp.Frame) bool {
		switch f.Op {
		case mcbp.OpGet:
			p.Reply(f, mcbp.StatusKeyNotFound, mcbp.Frame{})
		case mcbp.OpGetAllVBSeqnos:
			p.Reply(f, mcbp.StatusOK, mcbp.Frame{Value: mcbp.AppendVBSeqno(nil, mcbp.VBucketSeqno{VBucket: vb, Seqno: 3})})
		case mcbp.OpDCPFailoverLog, mcbp.OpDCPStreamReq:
			p.Reply(f, mcbp.StatusOK, mcbp.Frame{Value: mcbp.AppendFailoverLog(nil, timestamp.FailoverLog{{VBUUID: 5}})})
		case mcbp.OpGetCollectionsManifest:
			b, _ := mcbp.DefaultManifest().MarshalJSON()
			p.Reply(f, mcbp.StatusOK, mcbp.Frame{Value: b})
		default:
			p.Reply(f, mcbp.StatusOK, mcbp.Frame{})
		}
		return true
	}
}

// TestWrongKind checks that a bucket without vbuckets is reported as such, and that a cluster that has lost a node
// names it.
func TestWrongKind(t *testing.T) {
	s := &kvclienttest.Server{User: "u", Password: "p", Bucket: "b", Config: func(*kvclienttest.Server) []byte {
		return []byte(`{"rev":3,"name":"b","nodeLocator":"ketama","nodes":[{"hostname":"$HOST:8091","ports":{"direct":1}}],` +
			`"nodesExt":[{"services":{"kv":1}}]}`)
	}, Before: func(p *kvclienttest.Peer, f mcbp.Frame) bool {
		if f.Op != mcbp.OpDCPOpen && f.Op != mcbp.OpGetAllVBSeqnos {
			return false
		}
		p.Reply(f, mcbp.StatusNotSupported, mcbp.Frame{})
		return true
	}, Handle: answers(0)}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	r := doctor.Examine(t.Context(), options(s.Addr()))
	expect(t, r, "map will not work: type Memcached", "dcp will not work: NOT_SUPPORTED",
		"seqnos will not work: NOT_SUPPORTED")
	if !errors.Is(r.Err(), doctor.ErrFails) {
		t.Error(r.Err())
	}

	gone := &kvclienttest.Server{}
	if err := gone.Start(); err != nil {
		t.Fatal(err)
	}
	left := &kvclienttest.Server{User: "u", Password: "p", Bucket: "b", Handle: answers(0)}
	left.Config = func(*kvclienttest.Server) []byte {
		return kvclienttest.ClusterMap(1, []*kvclienttest.Server{left, gone}, [][]int{{0}, {1}})
	}
	if err := left.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(left.Stop)
	gone.Stop()
	r = doctor.Examine(t.Context(), options(left.Addr()))
	expect(t, r, "reachable will not work: connection refused")
	if r.Nodes != 2 {
		t.Errorf("%d nodes", r.Nodes)
	}
}

// TestEndlessStatistics checks that a node that sends statistics without end is cut off, and that the report contains
// that.
func TestEndlessStatistics(t *testing.T) {
	t.Parallel()
	const lines = 1 << 17
	s := &kvclienttest.Server{User: "u", Password: "p", Bucket: "b"}
	s.Handle = func(p *kvclienttest.Peer, f mcbp.Frame) bool {
		if f.Op == mcbp.OpStat && string(f.Key) == "vbucket-details" {
			for i := range lines {
				p.Reply(f, mcbp.StatusOK, mcbp.Frame{Key: fmt.Appendf(nil, "vb_%d:max_cas", i), Value: []byte("1")})
			}
		}
		return answers(0)(p, f)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	r := doctor.Examine(t.Context(), options(s.Addr()))
	for _, c := range r.Checks {
		if c.Check == "statistics" && c.Result == doctor.Warning && strings.Contains(c.Seen, "entries more than") {
			return
		}
	}
	t.Errorf("%+v", r)
}

// TestManagers checks that a cluster given by its managers is examined like one given by its nodes, even if some
// managers hang or are gone; a node then need not return a map.
func TestManagers(t *testing.T) {
	var opened atomic.Pointer[kv.Node]
	n := node(t, func(c *kv.Config) {
		c.Nodes = []kv.Peer{{ID: "kv1",
			Memcached: kvclienttest.WithoutMaps(t, func() string { return opened.Load().MemcachedAddr() })}}
	})
	opened.Store(n)
	byManager := func(edit func(*doctor.Options)) *doctor.Report {
		o := options()
		o.Managers = []string{n.AdminAddr()}
		edit(&o)
		return doctor.Examine(t.Context(), o)
	}
	r := byManager(func(*doctor.Options) {})
	expect(t, r, "map warning: returns no map itself")
	if r.Err() != nil || r.VBuckets != 64 || r.Nodes != 1 || !slices.ContainsFunc(r.Checks, func(c doctor.Check) bool {
		return c.Check == "manager" && c.Result == doctor.OK
	}) {
		t.Errorf("%+v %v", r, r.Err())
	}
	r = byManager(func(o *doctor.Options) { o.Managers = append(o.Managers, "127.0.0.1:1") })
	expect(t, r, "map warning: returns no map itself", "manager warning: refused")
	foreign := node(t, func(c *kv.Config) { c.Buckets[0].UUID = "77" })
	r = byManager(func(o *doctor.Options) { o.Managers = append(o.Managers, foreign.AdminAddr()) })
	expect(t, r, "map warning: returns no map itself", "manager will not work: another bucket of the name")
	for _, tt := range []struct {
		edit func(*doctor.Options)
		want string
		err  error
	}{
		{func(o *doctor.Options) { o.KV.Password = "x" }, "manager will not work: 401", kvclient.ErrAuth},
		{func(o *doctor.Options) { o.KV.Bucket = "x" }, "manager will not work: not found", kvclient.ErrNoBucket},
		{func(o *doctor.Options) { o.Managers = []string{"127.0.0.1:1"} }, "manager will not work: refused",
			kvclient.ErrNoMap},
		{func(o *doctor.Options) { o.Managers = []string{n.MemcachedAddr()} }, "manager will not work: ", kvclient.ErrNoMap},
	} {
		r := byManager(tt.edit)
		expect(t, r, tt.want)
		if err := r.Err(); !errors.Is(err, doctor.ErrFails) || !errors.Is(err, tt.err) {
			t.Errorf("%s: %v", tt.want, err)
		}
	}
}
