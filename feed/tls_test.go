package feed_test

import (
	"path/filepath"
	"testing"
	"time"

	"tidemark/feed"
	"tidemark/kv"
	"tidemark/kvclient"
	"tidemark/tlsconf"
)

// Both feeds consume inside TLS, and trust only whom the CA vouches for.
func TestInsideTLS(t *testing.T) {
	dir := t.TempDir()
	ca, err := tlsconf.CreateCA(dir, "test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	files, err := ca.Issue(dir, "kv1", tlsconf.Request{Peer: tlsconf.Peer{Role: tlsconf.KV, ID: "kv1"}, Hosts: []string{"127.0.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
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
			t.Error("a node that nobody vouches for is trusted")
		}
	})
}
