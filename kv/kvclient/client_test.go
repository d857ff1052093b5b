package kvclient_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tidemark/kv/kvclient"
	"tidemark/kv/kvclient/kvclienttest"
	"tidemark/kv/mcbp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func serve(t testing.TB, s *kvclienttest.Server) *kvclienttest.Server {
	t.Helper()
	if s.Bucket == "" {
		s.User, s.Password, s.Bucket = "u", "p", "b"
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

func options() kvclient.Options {
	return kvclient.Options{User: "u", Password: "p", Bucket: "b", Name: "test", OpTimeout: time.Second}
}

func connect(t testing.TB, opt kvclient.Options, seeds ...string) *kvclient.Client {
	t.Helper()
	c, err := kvclient.Connect(within(t, time.Minute), seeds, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestHandshake(t *testing.T) {
	tests := []struct {
		name string
		srv  *kvclienttest.Server
		edit func(*kvclient.Options)
		want error
		says string
	}{
		{name: "SHA512"},
		{name: "SHA256", srv: &kvclienttest.Server{Mechanisms: "PLAIN SCRAM-SHA256 SCRAM-SHA1"}},
		{name: "SHA1", srv: &kvclienttest.Server{Mechanisms: "SCRAM-SHA1"}},
		{name: "wrong password", edit: func(o *kvclient.Options) { o.Password = "q" }, want: kvclient.ErrAuth,
			says: "AUTH_ERROR"},
		{name: "unknown user", edit: func(o *kvclient.Options) { o.User = "x" }, want: kvclient.ErrAuth},
		{name: "unknown bucket", edit: func(o *kvclient.Options) { o.Bucket = "x" }, want: kvclient.ErrNoBucket, says: `bucket "x"`},
		{name: "only PLAIN, in the clear", srv: &kvclienttest.Server{Mechanisms: "PLAIN"}, want: kvclient.ErrAuth,
			says: "without TLS"},
		{name: "PLAIN when allowed", srv: &kvclienttest.Server{Mechanisms: "PLAIN"},
			edit: func(o *kvclient.Options) { o.AllowPlain = true }},
		{name: "no mechanism in common", srv: &kvclienttest.Server{Mechanisms: "OAUTHBEARER"}, want: kvclient.ErrAuth,
			says: "OAUTHBEARER"},
		{name: "node that hangs up", srv: &kvclienttest.Server{Before: func(p *kvclienttest.Peer,
			f mcbp.Frame) bool {
			_ = p.Close()
			return true
		}}, want: nil, says: "HELLO"},
		{name: "mute node", srv: &kvclienttest.Server{Before: func(*kvclienttest.Peer, mcbp.Frame) bool { return true }},
			edit: func(o *kvclient.Options) { o.DialTimeout = 50 * time.Millisecond }, want: context.DeadlineExceeded,
			says: "HELLO"},
		{name: "not memcached", srv: &kvclienttest.Server{Before: func(p *kvclienttest.Peer, f mcbp.Frame) bool {
			p.Raw([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
			return true
		}}, want: mcbp.ErrMagic},
		{name: "lying length", srv: &kvclienttest.Server{Before: func(p *kvclienttest.Peer, f mcbp.Frame) bool {
			p.Raw([]byte{0x81, 0x1f, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0})
			return true
		}}, want: mcbp.ErrTooLarge},
		{name: "answer that is too long for a login", srv: &kvclienttest.Server{Before: func(p *kvclienttest.Peer,
			f mcbp.Frame) bool {
			p.Raw([]byte{0x81, 0x1f, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0})
			return true
		}}, want: mcbp.ErrTooLarge},
		{name: "wrong opaque", srv: &kvclienttest.Server{Before: func(p *kvclienttest.Peer, f mcbp.Frame) bool {
			f.Opaque += 5
			p.Reply(f, mcbp.StatusOK, mcbp.Frame{})
			return true
		}}, want: kvclient.ErrProtocol},
		{name: "request instead of an answer", srv: &kvclienttest.Server{Before: func(p *kvclienttest.Peer,
			f mcbp.Frame) bool {
			p.Send(mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPNoop, 0, f.Opaque)})
			return true
		}}, want: kvclient.ErrProtocol},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.srv == nil {
				tt.srv = &kvclienttest.Server{}
			}
			srv := serve(t, tt.srv)
			opt := options()
			if tt.edit != nil {
				tt.edit(&opt)
			}
			s, err := kvclient.Handshake(within(t, time.Minute), srv.Addr(), opt)
			if err == nil {
				_ = s.Close()
			}
			good := tt.want == nil && tt.says == ""
			if good && err != nil || !good && err == nil || tt.want != nil && !errors.Is(err, tt.want) {
				t.Fatalf("got %v, want %v", err, tt.want)
			}
			if err != nil && !strings.Contains(strings.ReplaceAll(err.Error(), "none of SCRAM-SHA512", "OAUTHBEARER"), tt.says) {
				t.Fatalf("%q does not say %q", err, tt.says)
			}
			if err != nil && strings.Contains(err.Error(), opt.Password+"\"") && len(opt.Password) > 3 {
				t.Fatalf("%q shows the password", err)
			}
		})
	}
}

func TestHandshakeTLS(t *testing.T) {
	// A listener with TLS and a certificate that is signed by no trusted CA: the client must refuse it unless configured
	// otherwise, and must not fall back to plain text.
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := ln.Accept()
		if err != nil {
			return
		}
		_ = tls.Server(c, &tls.Config{}).Handshake() // no certificate: fails
		_ = c.Close()
	}()
	opt := options()
	opt.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	if _, err := kvclient.Handshake(within(t, time.Minute), ln.Addr().String(), opt); err == nil ||
		!strings.Contains(err.Error(), "TLS") {
		t.Fatalf("got %v", err)
	}
	_ = ln.Close()
	<-done
}

// TestDialTLS checks that a server is recognized by the address that was dialed, without its zone, and not trusted
// without a configuration.
func TestDialTLS(t *testing.T) {
	s := httptest.NewTLSServer(http.NotFoundHandler()) // at ::1, by its certificate
	defer s.Close()
	trusts := x509.NewCertPool()
	trusts.AddCert(s.Certificate())
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, s.Listener.Addr().String())
	}
	var other x509.HostnameError
	for _, tt := range []struct {
		addr string
		conf *tls.Config
		good func(error) bool
	}{
		{"[::1%eth0]:1", &tls.Config{RootCAs: trusts}, func(err error) bool { return err == nil }},
		{"[fe80::1%eth0]:1", &tls.Config{RootCAs: trusts}, func(err error) bool { return errors.As(err, &other) }},
		{"[::1%eth0]:1", nil, func(err error) bool { return err != nil && !errors.As(err, &other) }},
	} {
		conn, err := kvclient.DialTLS(within(t, time.Minute), dial, "tcp", tt.addr, tt.conf)
		if !tt.good(err) {
			t.Errorf("%s: %v", tt.addr, err)
		}
		if err == nil {
			_ = conn.Close()
		}
	}
}

func TestOperations(t *testing.T) {
	st := newStore()
	c := connect(t, options(), serve(t, &kvclienttest.Server{Handle: st.handle}).Addr())
	ctx := within(t, time.Minute)
	if _, err := c.Get(ctx, "k"); !errors.Is(err, kvclient.ErrKeyNotFound) || !strings.Contains(err.Error(), `"k"`) {
		t.Fatal(err)
	}
	m, err := c.Set(ctx, "k", []byte(`{"a":1}`), kvclient.StoreOptions{Flags: 7})
	vb := mcbp.VBucket([]byte("k"), 4)
	if err != nil || m != (kvclient.Mutation{VBucket: vb, VBUUID: 100 + uint64(vb), Seqno: 1, CAS: 1}) {
		t.Fatalf("%+v, %v", m, err)
	}
	d, err := c.Get(ctx, "k")
	if err != nil || string(d.Value) != `{"a":1}` || d.Flags != 7 || d.CAS != 1 {
		t.Fatalf("%+v, %v", d, err)
	}
	if _, err := c.Add(ctx, "k", nil, kvclient.StoreOptions{}); !errors.Is(err, kvclient.ErrKeyExists) ||
		errors.Is(err, kvclient.ErrAmbiguous) {
		t.Fatal(err)
	}
	if _, err := c.Set(ctx, "k", nil, kvclient.StoreOptions{CAS: 99}); !errors.Is(err, kvclient.ErrKeyExists) {
		t.Fatal(err)
	}
	if _, err := c.Replace(ctx, "k", []byte("2"), kvclient.StoreOptions{CAS: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Delete(ctx, "k", 1); !errors.Is(err, kvclient.ErrKeyExists) {
		t.Fatal(err)
	}
	if m, err := c.Delete(ctx, "k", 0); err != nil || m.Seqno != 3 {
		t.Fatalf("%+v, %v", m, err)
	}
	if _, err := c.Replace(ctx, "k", nil, kvclient.StoreOptions{}); !errors.Is(err, kvclient.ErrKeyNotFound) {
		t.Fatal(err)
	}
	for _, key := range []string{"", strings.Repeat("k", 251)} {
		if _, err := c.Set(ctx, key, nil, kvclient.StoreOptions{}); !errors.Is(err, kvclient.ErrTooBig) {
			t.Fatal(err)
		}
	}
	if _, err := c.Set(ctx, "k", make([]byte, mcbp.MaxValue+1), kvclient.StoreOptions{}); !errors.Is(err,
		kvclient.ErrTooBig) {
		t.Fatal(err)
	}
	big := strings.Repeat("x", mcbp.MaxValue)
	if _, err := c.Set(ctx, "big", []byte(big), kvclient.StoreOptions{}); err != nil {
		t.Fatal(err)
	}
	if d, err := c.Get(ctx, "big"); err != nil || string(d.Value) != big {
		t.Fatal(len(d.Value), err)
	}
	seqnos, err := c.VBucketSeqnos(ctx)
	if err != nil || len(seqnos) != 4 || seqnos[vb] < 3 {
		t.Fatalf("%v, %v", seqnos, err)
	}
}

// Every fault is temporary; the operation must succeed.
func TestRetries(t *testing.T) {
	for name, fault := range map[string]func(f mcbp.Frame, n int) (mcbp.Status, action){
		"temporary": func(_ mcbp.Frame, n int) (mcbp.Status, action) {
			return mcbp.StatusTemporary,
				onFirst(n, 3, actStatus)
		},
		"no memory": func(_ mcbp.Frame, n int) (mcbp.Status, action) {
			return mcbp.StatusNoMemory,
				onFirst(n, 1, actStatus)
		},
		"hangs up before":    func(_ mcbp.Frame, n int) (mcbp.Status, action) { return 0, onFirst(n, 2, actDrop) },
		"hangs up after":     func(_ mcbp.Frame, n int) (mcbp.Status, action) { return 0, onFirst(n, 1, actLose) },
		"never answers once": func(_ mcbp.Frame, n int) (mcbp.Status, action) { return 0, onFirst(n, 1, actMute) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := newStore()
			st.fault = fault
			opt := options()
			opt.OpTimeout = 100 * time.Millisecond
			c := connect(t, opt, serve(t, &kvclienttest.Server{Handle: st.handle}).Addr())
			if _, err := c.Set(within(t, time.Minute), "k", []byte("v"), kvclient.StoreOptions{}); err != nil {
				t.Fatal(err)
			}
			if v, _ := st.get("k"); v != "v" {
				t.Fatalf("stored %q", v)
			}
		})
	}
}

func onFirst(n, times int, a action) action {
	if n <= times {
		return a
	}
	return actNone
}

// A lost answer followed by a refusal is not a clean refusal: the first attempt may have caused it.
func TestAmbiguous(t *testing.T) {
	st := newStore()
	st.fault = func(f mcbp.Frame, n int) (mcbp.Status, action) { return 0, onFirst(n, 1, actLose) }
	c := connect(t, options(), serve(t, &kvclienttest.Server{Handle: st.handle}).Addr())
	_, err := c.Add(within(t, time.Minute), "k", []byte("v"), kvclient.StoreOptions{})
	if !errors.Is(err, kvclient.ErrAmbiguous) || !errors.Is(err, kvclient.ErrKeyExists) {
		t.Fatal(err)
	}
}

func TestDeadline(t *testing.T) {
	ctx, end := context.WithCancelCause(t.Context())
	defer end(nil)
	st := newStore()
	st.fault = func(_ mcbp.Frame, n int) (mcbp.Status, action) {
		if n == 3 {
			end(context.DeadlineExceeded)
		}
		return mcbp.StatusTemporary, actStatus
	}
	c := connect(t, options(), serve(t, &kvclienttest.Server{Handle: st.handle}).Addr())
	_, err := c.Get(ctx, "k")
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, kvclient.ErrTemporary) {
		t.Fatalf("got %v, want the deadline and the reason", err)
	}
}

// twoNodes is a cluster whose map the test changes.
type twoNodes struct {
	srv   [2]*kvclienttest.Server
	store [2]*kvStore
	rev   atomic.Int64
	owner atomic.Int64 // node of vbuckets 2 and 3
}

func newTwoNodes(t *testing.T) *twoNodes {
	w := &twoNodes{}
	w.owner.Store(1)
	w.rev.Store(1)
	for i := range w.srv {
		w.store[i] = newStore()
		w.store[i].config = w.config
		w.srv[i] = &kvclienttest.Server{Handle: w.store[i].handle,
			Config: func(*kvclienttest.Server) []byte { return w.config() }}
	}
	w.own()
	for i := range w.srv {
		serve(t, w.srv[i])
	}
	return w
}

func (w *twoNodes) config() []byte {
	o := int(w.owner.Load())
	return kvclienttest.ClusterMap(w.rev.Load(), w.srv[:], [][]int{{0}, {0}, {o}, {o}})
}

func (w *twoNodes) own() {
	o := w.owner.Load()
	for i := range w.srv {
		w.store[i].mu.Lock()
		w.store[i].owned = map[uint16]bool{0: i == 0, 1: i == 0, 2: i == int(o), 3: i == int(o)}
		w.store[i].mu.Unlock()
	}
}

// The client follows a vbucket that moves, first by the map in the body of NOT_MY_VBUCKET, then without one by a
// request.
func TestFollowsTheMap(t *testing.T) {
	w := newTwoNodes(t)
	c := connect(t, options(), w.srv[0].Addr())
	ctx := within(t, time.Minute)
	key := keyOf(3)
	set := func(value string, node int) {
		t.Helper()
		if _, err := c.Set(ctx, key, []byte(value), kvclient.StoreOptions{}); err != nil {
			t.Fatal(err)
		}
		if v, _ := w.store[node].get(key); v != value {
			t.Fatalf("node %d has %q, want %q", node, v, value)
		}
	}
	set("one", 1)
	w.owner.Store(0)
	w.rev.Add(1)
	w.own()
	set("two", 0)
	if got := c.Config().Rev; got != 2 {
		t.Fatalf("map revision %d, want 2", got)
	}
	// The next refusal has no map.
	for i := range w.store {
		w.store[i].mu.Lock()
		w.store[i].config = func() []byte { return nil }
		w.store[i].mu.Unlock()
	}
	w.owner.Store(1)
	w.rev.Add(1)
	w.own()
	set("three", 1)
	if _, err := c.VBucketSeqnos(ctx); err != nil {
		t.Fatal(err)
	}
}

// silence is a node that hangs: it accepts connections and never sends a byte. It counts them.
func silence(t *testing.T) (addr string, taken *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	taken = &atomic.Int64{}
	var held []net.Conn
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			taken.Add(1)
			held = append(held, nc)
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
		for _, nc := range held {
			_ = nc.Close()
		}
	})
	return l.Addr().String(), taken
}

// A node that hangs does not block callers that request the map, however long its timeout is and however many there
// are; and all callers that wait for it wait for one connection.
func TestANodeThatHangs(t *testing.T) {
	w := newTwoNodes(t)
	hung, taken := silence(t)
	o := options()
	o.DialTimeout = time.Hour
	c := connect(t, o, hung, w.srv[0].Addr())
	ctx := within(t, time.Minute)
	var wg sync.WaitGroup
	for range 64 { // each starts with another one of the known nodes
		wg.Go(func() {
			if err := c.Refresh(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := taken.Load(); n > 1 {
		t.Errorf("%d connections to the node that hangs", n)
	}
	if _, err := c.Set(ctx, keyOf(0), []byte("a"), kvclient.StoreOptions{}); err != nil {
		t.Error(err)
	}
}

// keyOf returns a key of a vbucket, of four.
func keyOf(vb uint16) string {
	for i := 0; ; i++ {
		if k := fmt.Sprint("key", i); mcbp.VBucket([]byte(k), 4) == vb {
			return k
		}
	}
}

func TestConnectRefuses(t *testing.T) {
	ctx, end := context.WithCancelCause(t.Context())
	defer end(nil)
	var asked atomic.Int64
	srv := serve(t, &kvclienttest.Server{Config: func(*kvclienttest.Server) []byte {
		if asked.Add(1) == 3 { // the answers before it have been read
			end(context.DeadlineExceeded)
		}
		return []byte(`{}`)
	}})
	if _, err := kvclient.Connect(ctx, []string{srv.Addr()}, options()); !errors.Is(err, mcbp.ErrConfig) ||
		!errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v, want the deadline and the reason", err)
	}
	if _, err := kvclient.Connect(t.Context(), nil, options()); !errors.Is(err, kvclient.ErrNoMap) {
		t.Fatal(err)
	}
	opt := options()
	opt.Password = "bad"
	start := time.Now()
	if _, err := kvclient.Connect(within(t, time.Minute), []string{srv.Addr()}, opt); !errors.Is(err, kvclient.ErrAuth) {
		t.Fatal(err)
	}
	if time.Since(start) > 30*time.Second {
		t.Fatal("a bad password was tried again and again")
	}
}

// TestClosedClient checks that Close ends operations in progress, however much time they have left.
func TestClosedClient(t *testing.T) {
	st := newStore()
	st.fault = func(mcbp.Frame, int) (mcbp.Status, action) { return 0, actMute }
	opt := options()
	opt.OpTimeout = time.Hour
	c := connect(t, opt, serve(t, &kvclienttest.Server{Handle: st.handle}).Addr())
	done := make(chan error, 1)
	go func() { _, err := c.Get(t.Context(), "k"); done <- err }()
	for {
		st.mu.Lock()
		n := st.ops
		st.mu.Unlock()
		if n > 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	_ = c.Close()
	select {
	case err := <-done:
		if !errors.Is(err, kvclient.ErrClosed) {
			t.Fatal(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("an operation goes on after Close")
	}
}

// Answers to another request than the pending one end the connection. They were once taken for several answers to one
// request, and the connection blocked on the second one.
func TestAnswersToAnotherRequest(t *testing.T) {
	srv := serve(t, &kvclienttest.Server{Handle: func(p *kvclienttest.Peer, f mcbp.Frame) bool {
		f.Op = mcbp.OpStat
		for range 3 {
			p.Reply(f, mcbp.StatusOK, mcbp.Frame{Key: []byte("vb_0"), Value: []byte("active")})
		}
		return true
	}})
	opt := options()
	opt.OpTimeout = time.Minute
	conn, err := kvclient.Dial(within(t, time.Minute), srv.Addr(), opt)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Do(within(t, time.Minute), mcbp.Frame{Header: mcbp.Request(mcbp.OpGet, 0, 0),
		Key: []byte("k")}); !errors.Is(err, kvclient.ErrProtocol) {
		t.Error(err)
	}
	<-conn.Done()
	_ = conn.Close()
}

func TestStat(t *testing.T) {
	srv := serve(t, &kvclienttest.Server{Handle: func(p *kvclienttest.Peer, f mcbp.Frame) bool {
		if string(f.Key) != "vbucket-details" {
			p.Reply(f, mcbp.StatusKeyNotFound, mcbp.Frame{})
			return true
		}
		p.Reply(f, mcbp.StatusOK, mcbp.Frame{Key: []byte("vb_0"), Value: []byte("active")})
		p.Reply(f, mcbp.StatusOK, mcbp.Frame{Key: []byte("vb_0:high_seqno"), Value: []byte("7")})
		p.Reply(f, mcbp.StatusOK, mcbp.Frame{})
		return true
	}})
	conn, err := kvclient.Dial(within(t, time.Minute), srv.Addr(), options())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx := within(t, time.Minute)
	stats := map[string]string{}
	err = conn.Stat(ctx, "vbucket-details", func(key, value []byte) { stats[string(key)] = string(value) })
	if err != nil || len(stats) != 2 || stats["vb_0:high_seqno"] != "7" {
		t.Fatalf("%v, %v", stats, err)
	}
	if err := conn.Stat(ctx, "nonsense", func(_, _ []byte) {}); !errors.Is(err, kvclient.ErrKeyNotFound) {
		t.Fatal(err)
	}
}

// TestCollectionUnknownToAStaleNode checks that one node that has not received the manifest with a collection does
// not decide that the collection does not exist, and that not all nodes are asked if it does not.
func TestCollectionUnknownToAStaleNode(t *testing.T) {
	var asked atomic.Int64
	node := func(has bool) string {
		return serve(t, &kvclienttest.Server{
			Handle: func(p *kvclienttest.Peer, f mcbp.Frame) bool {
				switch {
				case f.Op != mcbp.OpGetCollectionID:
					p.Reply(f, mcbp.StatusUnknownCommand, mcbp.Frame{})
				case has:
					p.Reply(f, mcbp.StatusOK, mcbp.Frame{Extras: mcbp.AppendCollectionID(nil, 7, 9)})
				default:
					asked.Add(1)
					p.Reply(f, mcbp.StatusUnknownCollection, mcbp.Frame{})
				}
				return true
			}}).Addr()
	}
	opt := options()
	opt.Collection = "s.c"
	connect(t, opt, node(false), node(true))
	if n := asked.Load(); n > 1 {
		t.Errorf("%d nodes without it were asked, there is one", n)
	}
	asked.Store(0)
	var seeds []string
	for range 8 {
		seeds = append(seeds, node(false))
	}
	if _, err := kvclient.Connect(within(t, time.Minute), seeds, opt); !errors.Is(err, kvclient.ErrNoCollection) {
		t.Fatal(err)
	}
	if n := asked.Load(); n != 5 {
		t.Errorf("%d nodes were asked before giving up, want 5", n)
	}
}
