package feed_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tidemark/internal/tlsconf"
	"tidemark/kv"
	"tidemark/kv/kvclient"
	"tidemark/kv/kvclient/kvclienttest"
	"tidemark/kv/mcbp"
	"tidemark/projector/feed"
	"tidemark/projector/feed/gocb"
)

// certified creates a CA in dir, and certificate and key of the KV node kv1 at 127.0.0.1.
func certified(t *testing.T) (dir string, files tlsconf.Files) {
	t.Helper()
	dir = t.TempDir()
	ca, err := tlsconf.CreateCA(dir, "test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if files, err = ca.Issue(dir, "kv1", tlsconf.Request{Peer: tlsconf.Peer{Role: tlsconf.KV, ID: "kv1"},
		Hosts: []string{"127.0.0.1"}}); err != nil {
		t.Fatal(err)
	}
	return dir, files
}

// Both feeds consume inside TLS, and accept only certificates of the CA.
func TestInsideTLS(t *testing.T) {
	dir, files := certified(t)
	source, err := tlsconf.OpenNode(files, tlsconf.KV, "kv1", nil)
	if err != nil {
		t.Fatal(err)
	}
	either(t, func(t *testing.T, dial feed.Dialer) {
		s := &stage{TB: t, dial: dial, mood: func(*kv.Config) {}, dir: t.TempDir(), truth: map[string]string{},
			edit: func(c *kv.Config) { c.TLS, c.ListenTLS = source, "127.0.0.1:0" }}
		s.open()
		t.Cleanup(func() { s.stop() })
		for _, key := range []string{"a", "b", "c", "d", "e"} {
			s.set(key, "1")
		}
		conf := s.conf()
		conf.Addr = s.node.MemcachedTLSAddr()
		if conf.TLS, err = (kvclient.TLSFiles{CA: filepath.Join(dir, tlsconf.CAFile)}).Config(); err != nil {
			t.Fatal(err)
		}
		c := dialWith(t, dial, conf)
		m := s.mirror()
		m.follow(t, c, all())
		m.read(t, c, targets(t, c))
		s.compare(m)
		if conf.TLS, err = (kvclient.TLSFiles{Enabled: true}).Config(); err != nil {
			t.Fatal(err)
		}
		conf.RequestTimeout = 5 * time.Second
		if c, err := dial(within(t, 60*time.Second), conf); err == nil {
			_ = c.Close()
			t.Error("a node of an unknown CA is trusted")
		}
	})
}

// TestRestsOfARealNode: with rests, with and without TLS, with the least window and the usual one, everything arrives:
// a trickle, a burst of many times the window, and a document that is larger than window and socket buffer.
func TestRestsOfARealNode(t *testing.T) {
	dir, files := certified(t)
	source, err := tlsconf.OpenNode(files, tlsconf.KV, "kv1", nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{TB: t, dial: feed.DialFeed, mood: func(*kv.Config) {}, dir: t.TempDir(), truth: map[string]string{},
		edit: func(c *kv.Config) { c.TLS, c.ListenTLS = source, "127.0.0.1:0" }}
	s.open()
	t.Cleanup(func() { s.stop() })
	trusting, err := (kvclient.TLSFiles{CA: filepath.Join(dir, tlsconf.CAFile)}).Config()
	if err != nil {
		t.Fatal(err)
	}
	for _, secured := range []bool{false, true} {
		for _, window := range []int{feed.MinBufferBytes, feed.DefaultBufferBytes} {
			conf := s.conf()
			conf.Calm, conf.BufferBytes = feed.NewCalm(), window
			if secured {
				conf.Addr, conf.TLS = s.node.MemcachedTLSAddr(), trusting
			}
			c := dialWith(t, s.dial, conf)
			m := s.mirror()
			m.follow(t, c, all())
			for _, round := range []struct{ documents, bytes int }{{5, 100}, {400, 5 << 10}, {1, 8 << 20}, {5, 100}} {
				keys := make([]string, round.documents)
				for i := range keys {
					keys[i] = fmt.Sprint("k", i)
				}
				s.setAll(keys, strings.Repeat("x", round.bytes))
				m.read(t, c, targets(t, c))
				s.compare(m)
			}
		}
	}
}

// onlyCommonName returns the configuration of a node whose certificate names it by its common name alone, as in older
// clusters, and one of a client that trusts it.
func onlyCommonName(t *testing.T, name string) (node, trusting *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{{Certificate: [][]byte{der},
			PrivateKey: key}}},
		&tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
}

// The native feed accepts such a node; gocbcore cannot, and the error names the alternative.
func TestOnlyACommonName(t *testing.T) {
	n := newNode(nil)
	var conf feed.Config
	n.TLS, conf.TLS = onlyCommonName(t, "127.0.0.1")
	n.start(t)
	trusting := conf.TLS
	conf = config(n)
	conf.TLS = trusting
	dialWith(t, feed.DialFeed, conf)
	c, err := gocb.Dial(within(t, time.Minute), conf)
	if err == nil {
		_ = c.Close()
	}
	if !errors.Is(err, feed.ErrNotSupported) || !strings.Contains(err.Error(), "use the native feed") {
		t.Errorf("gocbcore: %v", err)
	}
	conf.TLS = &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}
	dialWith(t, gocb.Dial, conf) // without a check there is no error
}

// A user whose password is in a directory, so that SCRAM is refused, can stream with either feed: inside TLS with a
// verified node, and nowhere else.
func TestUserOfADirectory(t *testing.T) {
	dir, files := certified(t)
	pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		t.Fatal(err)
	}
	checked, err := (kvclient.TLSFiles{CA: filepath.Join(dir, tlsconf.CAFile)}).Config()
	if err != nil {
		t.Fatal(err)
	}
	either(t, func(t *testing.T, dial feed.Dialer) {
		n := newNode(nil)
		n.TLS = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
		n.Directory, n.Mechanisms = true, "SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1 PLAIN"
		n.start(t)
		conf := config(n)
		conf.TLS = checked
		c := dialWith(t, dial, conf)
		if _, err := c.OpenStream(within(t, time.Minute), feed.StreamRequest{VBucket: 1, End: mcbp.EndOfTime}); err != nil {
			t.Fatal(err)
		}
		until(t, c, "the begin", func(e *feed.Event) bool { return e.Kind == feed.StreamBegin })
		refused := func(what string, conf feed.Config) {
			c, err := dial(within(t, time.Minute), conf)
			if err == nil {
				_ = c.Close()
			}
			if !errors.Is(err, feed.ErrAuth) {
				t.Errorf("%s: %v", what, err)
			}
		}
		wrong, anybody := conf, conf
		wrong.Password = "q"
		refused("another password", wrong)
		anybody.TLS = &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}
		refused("a node without a verified identity", anybody)
	})
}

// A node that identifies a user by certificate allows no other login: both feeds accept that.
func TestUserByCertificate(t *testing.T) {
	dir, files := certified(t)
	pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range []string{"u", ""} {
		either(t, func(t *testing.T, dial feed.Dialer) {
			n := newNode(nil)
			n.User, n.Password = "", ""
			n.TLS = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair},
				ClientAuth: tls.RequestClientCert}
			n.Before = func(p *kvclienttest.Peer, f mcbp.Frame) bool {
				switch f.Op {
				case mcbp.OpSASLList, mcbp.OpSASLAuth, mcbp.OpSASLStep:
					p.Reply(f, mcbp.StatusNotSupported, mcbp.Frame{})
					return true
				case mcbp.OpSelectBucket:
					if shown := p.Conn.(*tls.Conn).ConnectionState().PeerCertificates; len(shown) == 0 {
						p.Reply(f, mcbp.StatusNoAccess, mcbp.Frame{})
						return true
					}
				}
				return false
			}
			n.start(t)
			conf := config(n)
			conf.User = user
			if conf.TLS, err = (kvclient.TLSFiles{CA: filepath.Join(dir, tlsconf.CAFile), Cert: files.Cert,
				Key: files.Key}).Config(); err != nil {
				t.Fatal(err)
			}
			c := dialWith(t, dial, conf)
			if _, err := c.OpenStream(within(t, time.Minute), feed.StreamRequest{VBucket: 1, End: mcbp.EndOfTime}); err != nil {
				t.Fatal(err)
			}
			without := conf
			if without.TLS, err = (kvclient.TLSFiles{CA: filepath.Join(dir, tlsconf.CAFile)}).Config(); err != nil {
				t.Fatal(err)
			}
			foreign, err := dial(within(t, time.Minute), without)
			if err == nil {
				_ = foreign.Close()
				t.Error("who shows no certificate is let in")
			}
		})
	}
}
