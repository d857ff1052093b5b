package consensus

import (
	"errors"
	"io"
	"net"
	"testing"
)

// TestClosedConnectionsAreNotErrors: at an orderly stop the library logs no error for its connections.
func TestClosedConnectionsAreNotErrors(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, end := range []struct {
		name  string
		close func(theirs *net.TCPConn, ours *guarded) error
	}{
		{"here", func(_ *net.TCPConn, ours *guarded) error { return ours.Conn.Close() }},
		{"there", func(theirs *net.TCPConn, _ *guarded) error { return theirs.Close() }},
		{"there, abruptly", func(theirs *net.TCPConn, _ *guarded) error {
			return errors.Join(theirs.SetLinger(0),
				theirs.Close())
		}},
	} {
		t.Run(end.name, func(t *testing.T) {
			theirs, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer theirs.Close()
			conn, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			g := &guarded{Conn: conn, stream: &stream{}, identified: true}
			if err := end.close(theirs.(*net.TCPConn), g); err != nil {
				t.Fatal(err)
			}
			if _, err := g.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Errorf("%v, want the end", err)
			}
		})
	}
}
