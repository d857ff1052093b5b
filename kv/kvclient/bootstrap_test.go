package kvclient_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tidemark/internal/tlsconf"
	"tidemark/kv"
	"tidemark/kv/kvclient"
	"tidemark/kv/kvclient/kvclienttest"
	"tidemark/kv/mcbp"
)

// tlsNode runs an embedded node that supports TLS too, with a certificate for 127.0.0.1; it returns the CA's file.
func tlsNode(t *testing.T) (n *kv.Node, ca string) {
	t.Helper()
	dir := t.TempDir()
	authority, err := tlsconf.CreateCA(dir, "test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	files, err := authority.Issue(dir, "kv1", tlsconf.Request{Peer: tlsconf.Peer{Role: tlsconf.KV, ID: "kv1"},
		Hosts: []string{"127.0.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
	conf := kv.Config{NodeID: "kv1", Dir: t.TempDir(), Listen: "127.0.0.1:0", ListenTLS: "127.0.0.1:0",
		Admin: "127.0.0.1:0", User: "u", Password: "p",
		Buckets: []kv.BucketConfig{{Name: "b", UUID: "0123456789abcdef0123456789abcdef", VBuckets: 8}}}
	if conf.TLS, err = tlsconf.OpenNode(files, tlsconf.KV, "kv1", nil); err != nil {
		t.Fatal(err)
	}
	if n, err = kv.Open(conf); err != nil {
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
	return n, filepath.Join(dir, tlsconf.CAFile)
}

// Users whose password is in an external directory can send it only in the clear: inside TLS, to a node with a
// verified certificate, and only after the node has refused SCRAM.
func TestUsersOfADirectory(t *testing.T) {
	dir := t.TempDir()
	authority, err := tlsconf.CreateCA(dir, "test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	files, err := authority.Issue(dir, "kv1", tlsconf.Request{Peer: tlsconf.Peer{Role: tlsconf.KV, ID: "kv1"},
		Hosts: []string{"127.0.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		t.Fatal(err)
	}
	encrypted := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
	checked := kvclient.TLSFiles{CA: filepath.Join(dir, tlsconf.CAFile)}
	const all = "SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1 PLAIN"
	for _, tt := range []struct {
		name      string
		offered   string
		files     kvclient.TLSFiles
		directory bool
		password  string
		plain     int // how often it was sent in the clear
		want      error
	}{
		{"a user of the node", all, checked, false, "p", 0, nil},
		{"a user of a directory", all, checked, true, "p", 1, nil},
		{"a wrong password", all, checked, true, "q", 1, kvclient.ErrAuth},
		{"without PLAIN", "SCRAM-SHA512", checked, true, "p", 0, kvclient.ErrAuth},
		{"PLAIN alone", "PLAIN", checked, true, "p", 1, nil},
		{"a node without a verified identity", all, kvclient.TLSFiles{SkipVerify: true}, true, "p", 0, kvclient.ErrAuth},
		{"no TLS", all, kvclient.TLSFiles{}, true, "p", 0, kvclient.ErrAuth},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var sent atomic.Int64
			srv := &kvclienttest.Server{Mechanisms: tt.offered, Directory: tt.directory,
				Before: func(_ *kvclienttest.Peer, f mcbp.Frame) bool {
					if f.Op == mcbp.OpSASLAuth && string(f.Key) == "PLAIN" {
						sent.Add(1)
					}
					return false
				}}
			opt := options()
			opt.Password = tt.password
			conf, err := tt.files.Config()
			if err != nil {
				t.Fatal(err)
			}
			if opt.TLS = conf; conf != nil {
				srv.TLS = encrypted
			}
			s, err := kvclient.Handshake(within(t, time.Minute), serve(t, srv).Addr(), opt)
			if err == nil {
				_ = s.Close()
			}
			if tt.want == nil && err != nil || !errors.Is(err, tt.want) || sent.Load() != int64(tt.plain) {
				t.Fatalf("%v, want %v; the password was sent %d times, want %d", err, tt.want, sent.Load(), tt.plain)
			}
		})
	}
}

// Everything is sent inside TLS, to the port that the map has for it; the client does not talk to an untrusted node.
func TestTLSToANode(t *testing.T) {
	n, ca := tlsNode(t)
	_, other := tlsNode(t)
	for name, tt := range map[string]struct {
		files kvclient.TLSFiles
		says  string
	}{
		"its CA":             {files: kvclient.TLSFiles{CA: ca}},
		"not verified":       {files: kvclient.TLSFiles{SkipVerify: true}},
		"another CA":         {files: kvclient.TLSFiles{CA: other}, says: "certificate"},
		"the system's CAs":   {files: kvclient.TLSFiles{Enabled: true}, says: "certificate"},
		"no TLS on its port": {says: "HELLO"},
	} {
		t.Run(name, func(t *testing.T) {
			conf, err := tt.files.Config()
			if err != nil {
				t.Fatal(err)
			}
			opt := options()
			opt.TLS = conf
			if tt.says != "" {
				opt.DialTimeout = 5 * time.Second
				s, err := kvclient.Handshake(within(t, time.Minute), n.MemcachedTLSAddr(), opt)
				if err == nil {
					_ = s.Close()
				}
				if err == nil || !strings.Contains(err.Error(), tt.says) {
					t.Fatalf("%v does not say %q", err, tt.says)
				}
				return
			}
			c := connect(t, opt, n.MemcachedTLSAddr())
			for i := range 20 {
				if _, err := c.Set(within(t, time.Minute), fmt.Sprint("k", i), []byte("1"), kvclient.StoreOptions{}); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func TestTLSFilesRefused(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty.pem")
	if err := os.WriteFile(empty, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]kvclient.TLSFiles{
		"no such CA":                 {CA: filepath.Join(dir, "none.pem")},
		"a CA without a certificate": {CA: empty},
		"certificate without key":    {Cert: empty},
		"key without certificate":    {Key: empty},
		"no pair":                    {Cert: empty, Key: empty},
		"verified or not":            {CA: empty, SkipVerify: true},
	} {
		if _, err := f.Config(); !errors.Is(err, kvclient.ErrTLS) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if conf, err := (kvclient.TLSFiles{}).Config(); conf != nil || err != nil {
		t.Errorf("no TLS: %v %v", conf, err)
	}
}

// Each way in which a bootstrap fails has its own error, which advises what to do; temporary failures are retried.
func TestBootstrapErrors(t *testing.T) {
	embedded, _ := tlsNode(t)
	answer := func(op mcbp.Opcode, status mcbp.Status, times int32) *kvclienttest.Server {
		left := atomic.Int32{}
		left.Store(times)
		return &kvclienttest.Server{Before: func(p *kvclienttest.Peer, f mcbp.Frame) bool {
			if f.Op != op || left.Add(-1) < 0 {
				return false
			}
			p.Reply(f, status, mcbp.Frame{})
			return true
		}}
	}
	late := func(config string, times int32) *kvclienttest.Server { // this many times another config first
		left := atomic.Int32{}
		left.Store(times)
		return &kvclienttest.Server{Config: func(s *kvclienttest.Server) []byte {
			if left.Add(-1) >= 0 {
				return []byte(config)
			}
			return kvclienttest.ClusterMap(2, []*kvclienttest.Server{s}, [][]int{{0}})
		}}
	}
	for _, tt := range []struct {
		name string
		srv  *kvclienttest.Server // nil: the embedded node
		edit func(*kvclient.Options)
		want error // nil: it succeeds
		says string
	}{
		{name: "wrong password", edit: func(o *kvclient.Options) { o.Password = "x" }, want: kvclient.ErrAuth,
			says: "check the user and the password"},
		{name: "unknown user", edit: func(o *kvclient.Options) { o.User = "x" }, want: kvclient.ErrAuth, says: `user "x"`},
		{name: "missing bucket", edit: func(o *kvclient.Options) { o.Bucket = "x" }, want: kvclient.ErrNoBucket,
			says: "that the user may read it"},
		{name: "no right to the bucket", srv: answer(mcbp.OpSelectBucket, mcbp.StatusNoAccess, 1000),
			want: kvclient.ErrNoBucket, says: "that the user may read it"},
		{name: "engine that cannot select a bucket", srv: &kvclienttest.Server{Features: []mcbp.Feature{mcbp.FeatureXerror}},
			want: kvclient.ErrNotSupported, says: "5.0"},
		{name: "engine without maps", srv: answer(mcbp.OpGetClusterConfig, mcbp.StatusUnknownCommand, 1000),
			want: kvclient.ErrNotSupported, says: "too old"},
		{name: "warmup that ends", srv: answer(mcbp.OpSelectBucket, mcbp.StatusTemporary, 3)},
		{name: "map that comes late", srv: answer(mcbp.OpGetClusterConfig, mcbp.StatusTemporary, 3)},
		{name: "map that the engine does not have yet", srv: answer(mcbp.OpGetClusterConfig, mcbp.StatusKeyNotFound, 3)},
		{name: "map that is not made yet", srv: late(`{"rev":1,"nodeLocator":"vbucket","nodes":[],"vBucketServerMap":{"vBucketMap":[]}}`, 3)},
		{name: "memcached bucket", srv: late(`{"rev":1,"nodeLocator":"ketama","nodes":[{"hostname":"$HOST:8091","ports":{"direct":11210}}]}`, 1000),
			want: mcbp.ErrNoVBuckets, says: "Couchbase or ephemeral"},
		{name: "engine without HELLO", srv: answer(mcbp.OpHello, mcbp.StatusUnknownCommand, 1000),
			want: kvclient.ErrNotSupported, says: "too old"},
		{name: "no mechanism but CRAM-MD5", srv: &kvclienttest.Server{Mechanisms: "CRAM-MD5"}, want: kvclient.ErrAuth,
			says: "offers none of SCRAM-SHA512"},
		{name: "PLAIN beside CRAM-MD5, without TLS", srv: &kvclienttest.Server{Mechanisms: "CRAM-MD5 PLAIN"},
			want: kvclient.ErrAuth, says: "not allowed without TLS"},
		{name: "PLAIN beside CRAM-MD5, allowed", srv: &kvclienttest.Server{Mechanisms: "CRAM-MD5 PLAIN"},
			edit: func(o *kvclient.Options) { o.AllowPlain = true }},
		{name: "SCRAM-SHA1 only", srv: &kvclienttest.Server{Mechanisms: "CRAM-MD5 SCRAM-SHA1 PLAIN"}},
		{name: "few features", srv: &kvclienttest.Server{Features: []mcbp.Feature{mcbp.FeatureSelectBucket}}},
		{name: "HELLO during warmup", srv: answer(mcbp.OpHello, mcbp.StatusTemporary, 2)},
		{name: "SASL during warmup", srv: answer(mcbp.OpSASLAuth, mcbp.StatusTemporary, 2)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			addr := embedded.MemcachedAddr()
			if tt.srv != nil {
				addr = serve(t, tt.srv).Addr()
			}
			opt := options()
			if tt.edit != nil {
				tt.edit(&opt)
			}
			c, err := kvclient.Connect(within(t, 60*time.Second), []string{addr}, opt)
			if err == nil {
				_ = c.Close()
			}
			if !errors.Is(err, tt.want) || err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Fatalf("%v, want %v that says %q", err, tt.want, tt.says)
			}
		})
	}
}

// A bucket that is deleted while it is used ends the operations on it with its own error, not with a timeout.
func TestBucketDeletedInUse(t *testing.T) {
	st := newStore()
	var gone atomic.Bool
	srv := serve(t, &kvclienttest.Server{Handle: st.handle, Before: func(p *kvclienttest.Peer, f mcbp.Frame) bool {
		if !gone.Load() {
			return false
		}
		switch f.Op {
		case mcbp.OpSelectBucket:
			p.Reply(f, mcbp.StatusKeyNotFound, mcbp.Frame{})
			return true
		case mcbp.OpSet, mcbp.OpGetClusterConfig:
			_ = p.Close() // like engines close the connections of a deleted bucket
			return true
		}
		return false
	}})
	c := connect(t, options(), srv.Addr())
	if _, err := c.Set(within(t, time.Minute), "k", nil, kvclient.StoreOptions{}); err != nil {
		t.Fatal(err)
	}
	gone.Store(true)
	if _, err := c.Set(within(t, 60*time.Second), "k", nil, kvclient.StoreOptions{}); !errors.Is(err,
		kvclient.ErrNoBucket) {
		t.Fatal(err)
	}
}

// A node that requires a new login is served by the next connection.
func TestAuthenticationLapses(t *testing.T) {
	st := newStore()
	var stale atomic.Int64
	var logins atomic.Int64
	srv := serve(t, &kvclienttest.Server{Handle: st.handle, Before: func(p *kvclienttest.Peer, f mcbp.Frame) bool {
		switch {
		case f.Op == mcbp.OpSASLAuth:
			logins.Add(1)
		case f.Op == mcbp.OpSet && stale.Add(-1) >= 0:
			p.Reply(f, mcbp.StatusAuthStale, mcbp.Frame{})
			return true
		}
		return false
	}})
	c := connect(t, options(), srv.Addr())
	if _, err := c.Set(within(t, time.Minute), "k", nil, kvclient.StoreOptions{}); err != nil {
		t.Fatal(err)
	}
	stale.Store(1)
	if _, err := c.Set(within(t, time.Minute), "k", nil, kvclient.StoreOptions{}); !errors.Is(err, kvclient.ErrAuth) {
		t.Fatal(err)
	}
	if _, err := c.Set(within(t, time.Minute), "k", nil, kvclient.StoreOptions{}); err != nil || logins.Load() != 2 {
		t.Fatalf("%v after %d logins, want 2", err, logins.Load())
	}
}

// A map is adopted only if it is newer, whichever way it arrives; the epoch takes precedence over the revision.
func TestMapsOnlyRise(t *testing.T) {
	st := newStore()
	var epoch, rev atomic.Int64
	epoch.Store(2)
	rev.Store(5)
	config := func(s *kvclienttest.Server) []byte {
		parsed, err := mcbp.ParseClusterConfig(kvclienttest.ClusterMap(rev.Load(), []*kvclienttest.Server{s},
			[][]int{{0}, {0}, {0}, {0}}))
		if err != nil {
			return nil
		}
		parsed.RevEpoch = epoch.Load()
		b, _ := parsed.Marshal()
		return b
	}
	srv := serve(t, &kvclienttest.Server{Handle: st.handle, Config: config})
	c := connect(t, options(), srv.Addr())
	for _, step := range []struct{ epoch, rev, wantEpoch, wantRev int64 }{
		{2, 4, 2, 5}, {1, 99, 2, 5}, {2, 6, 2, 6}, {3, 1, 3, 1}, {2, 1000, 3, 1}, {3, 1, 3, 1}, {3, 2, 3, 2},
	} {
		epoch.Store(step.epoch)
		rev.Store(step.rev)
		if err := c.Refresh(within(t, time.Minute)); err != nil {
			t.Fatal(err)
		}
		if m := c.Config(); m.RevEpoch != step.wantEpoch || m.Rev != step.wantRev {
			t.Fatalf("after %d.%d the map is %d.%d, want %d.%d", step.epoch, step.rev, m.RevEpoch, m.Rev, step.wantEpoch,
				step.wantRev)
		}
	}
}

// A client that reaches a node under its external address uses the others' external addresses in the map.
func TestExternalNetwork(t *testing.T) {
	st := newStore()
	first, second := &kvclienttest.Server{Handle: st.handle}, &kvclienttest.Server{Handle: st.handle}
	serve(t, first)
	serve(t, second)
	config := func(*kvclienttest.Server) []byte {
		parsed, err := mcbp.ParseClusterConfig(kvclienttest.ClusterMap(1, []*kvclienttest.Server{first, second},
			[][]int{{0}, {0}, {1}, {1}}))
		if err != nil {
			return nil
		}
		for i, s := range []*kvclienttest.Server{first, second} {
			parsed.NodesExt[i].Hostname = fmt.Sprintf("inside-%d.invalid", i)
			parsed.NodesExt[i].AlternateAddresses = map[string]mcbp.AlternateAddress{"external": {Hostname: "127.0.0.1",
				Ports: map[string]int{"kv": s.Port()}}}
		}
		b, _ := parsed.Marshal()
		return b
	}
	first.Config, second.Config = config, config
	for name, network := range map[string]string{"found out": "", "named": mcbp.NetworkExternal} {
		opt := options()
		opt.Network = network
		c := connect(t, opt, first.Addr())
		for i := range 20 {
			if _, err := c.Set(within(t, time.Minute), fmt.Sprint("k", i), nil, kvclient.StoreOptions{}); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if _, err := c.VBucketSeqnos(within(t, time.Minute)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	opt := options()
	opt.Network = mcbp.NetworkDefault
	c := connect(t, opt, first.Addr())
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := c.Set(ctx, "k1", nil, kvclient.StoreOptions{}); err == nil {
		t.Error("an address that leads nowhere was reached")
	}
}
