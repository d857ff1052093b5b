package consensus_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"tidemark/internal/tlsconf"
	"tidemark/manager/consensus"
)

// TestLeaderWithoutAValidCertificate checks that the followers elect another leader as soon as they no longer accept
// the certificate of the present one, although it holds connections that began when they did. Here its CA is no longer
// trusted; when a certificate expires the same check fails.
func TestLeaderWithoutAValidCertificate(t *testing.T) {
	t.Parallel()
	authority := func() (ca *tlsconf.CA, pem []byte) {
		dir := t.TempDir()
		ca, err := tlsconf.CreateCA(dir, "test", tlsconf.LeafValidity)
		if err != nil {
			t.Fatal(err)
		}
		if pem, err = os.ReadFile(filepath.Join(dir, tlsconf.CAFile)); err != nil {
			t.Fatal(err)
		}
		return ca, pem
	}
	before, beforePEM := authority()
	after, afterPEM := authority()
	issue := func(s *server, ca *tlsconf.CA, trusted []byte) tlsconf.Files {
		files, err := ca.Issue(filepath.Dir(s.dir), "tls", tlsconf.Request{Replace: true,
			Peer: tlsconf.Peer{Role: tlsconf.Manager, ID: s.name}, Hosts: []string{"127.0.0.1"}})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(files.CA, trusted, 0o600); err != nil {
			t.Fatal(err)
		}
		return files
	}

	all := servers{newServer(t, "m1"), newServer(t, "m2"), newServer(t, "m3")}
	for _, s := range all {
		files := issue(s, before, slices.Concat(beforePEM, afterPEM))
		s.tune = func(cfg *consensus.Config) {
			var err error
			if cfg.TLS, err = tlsconf.OpenNode(files, tlsconf.Manager, s.name, nil); err != nil {
				t.Fatal(err)
			}
			cfg.REST = "https://" + s.name
		}
		s.start()
	}
	all.bootstrap()
	all.propose(projector("p1", "http://1"))

	old := all.leader()
	others := slices.DeleteFunc(slices.Clone(all), func(s *server) bool { return s == old })
	for _, s := range others {
		issue(s, after, afterPEM)
	}
	eventually(t, "another leader", func() bool {
		return slices.ContainsFunc(others, func(s *server) bool { _, ok := s.node.Serving(); return ok })
	})
	eventually(t, "the old leader does not lead", func() bool { _, ok := old.node.Serving(); return !ok })
	others.propose(projector("p2", "http://2"))
	others.agree()

	issue(old, after, afterPEM) // it is replaced without a restart
	all.agree()
}
