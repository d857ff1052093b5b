package tlsconf

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"
)

// TestByRole checks that a user's call to an indexer is accepted by any indexer with a certificate of the cluster's
// own CA, whatever its address is, and made to no other server.
func TestByRole(t *testing.T) {
	dir := t.TempDir()
	ours, err := CreateCA(filepath.Join(dir, "ours"), "ours", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := CreateCA(filepath.Join(dir, "theirs"), "theirs", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	source, err := Open(Files{CA: filepath.Join(dir, "ours", CAFile)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if ByRole(nil, Indexer) != nil || ByRole(&tls.Config{MinVersion: tls.VersionTLS12}, Indexer) != nil {
		t.Error("a configuration without CAs of its own was converted")
	}
	forbidden := errors.New("forbidden by the person")
	for _, c := range []struct {
		name string
		ca   *CA
		role Role
		own  func(tls.ConnectionState) error
		want bool
	}{
		{"an indexer", ours, Indexer, nil, true},
		{"a manager", ours, Manager, nil, false},
		{"a projector", ours, Projector, nil, false},
		{"a user", ours, User, nil, false},
		{"an indexer of another cluster", theirs, Indexer, nil, false},
		{"an indexer that the person's own check refuses", ours, Indexer,
			func(tls.ConnectionState) error { return forbidden }, false},
		{"one that it takes", ours, Indexer, func(tls.ConnectionState) error { return nil }, true},
	} {
		files, err := c.ca.Issue(t.TempDir(), "x", Request{Peer: Peer{Role: c.role, ID: "x"},
			Hosts: []string{"elsewhere.example"}})
		if err != nil {
			t.Fatal(err)
		}
		cert, err := tls.LoadX509KeyPair(files.Cert, files.Key)
		if err != nil {
			t.Fatal(err)
		}
		conf := source.UserClient()
		conf.VerifyConnection = c.own
		l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert},
			MinVersion: tls.VersionTLS12})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			if s, err := l.Accept(); err == nil {
				_, _ = io.Copy(io.Discard, s) // until the client disconnects
				_ = s.Close()
			}
		}()
		dialer := net.Dialer{Timeout: time.Minute}
		conn, err := tls.DialWithDialer(&dialer, "tcp", l.Addr().String(), ByRole(conf, Indexer))
		if err == nil {
			_ = conn.Close()
		}
		<-done
		_ = l.Close()
		if (err == nil) != c.want {
			t.Errorf("%s: %v", c.name, err)
		}
		var unknown x509.UnknownAuthorityError
		if c.ca == theirs && !errors.As(err, &unknown) {
			t.Errorf("%s: refused for %v", c.name, err)
		}
	}
}
