package consensus

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
)

// dialled is an accepted connection from one of the ports of a host.
type dialled struct {
	net.Conn
	from *net.TCPAddr
}

func (d dialled) RemoteAddr() net.Addr { return d.from }

// TestRefusalsAreLoggedOnce: refused servers dial again and again, alternating and from changing ports. This end, not
// the library, logs each refusal once, until the reason changes or the server was accepted.
func TestRefusalsAreLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	epoch := uint64(7)
	s := &stream{id: "m1", clusterID: func() string { return "0123456789abcdef" }, epoch: func() uint64 { return epoch },
		member: func(string) bool { return false }, log: hclog.New(&hclog.LoggerOptions{Output: &log}),
		refused: map[string]string{}}
	port := 50000
	call := func(id string, host byte) {
		t.Helper()
		ours, theirs := net.Pipe()
		defer theirs.Close()
		go func() {
			who := handshake{cluster: "0123456789abcdef", wants: "m1", id: id, epoch: 6}
			_, _ = theirs.Write(who.encode())
			if w, err := readHandshakeReply(theirs); err == nil && w.refusal == "" {
				_, _ = theirs.Write([]byte("x"))
			}
		}()
		port++
		g := &guarded{Conn: dialled{ours, &net.TCPAddr{IP: net.IPv4(10, 0, 0, host), Port: port}}, stream: s}
		defer g.Close()
		if _, err := g.Read(make([]byte, 1)); epoch > 6 && !errors.Is(err, io.EOF) {
			t.Errorf("%v is an error that the library logs", err)
		}
	}
	logged := func(when string, want int) {
		t.Helper()
		if n := strings.Count(log.String(), "connection of a manager refused"); n != want {
			t.Errorf("%s: logged %d times, want %d:\n%s", when, n, want, log.String())
		}
	}
	for range 5 {
		call("m2-00000000", 2)
		call("m3-00000000", 3)
	}
	logged("two servers in turns", 2)
	call("m2-00000000", 4)
	logged("one of them from another host", 3)
	epoch = 8
	call("m3-00000000", 3)
	logged("for another reason", 4)
	epoch = 6
	call("m3-00000000", 3)
	epoch = 8
	call("m3-00000000", 3)
	logged("after it was accepted", 5)
	for i := range 3 * maxRefused {
		call(fmt.Sprint("x", i), 5)
	}
	if len(s.refused) > maxRefused {
		t.Errorf("%d refusals are kept, want at most %d", len(s.refused), maxRefused)
	}
}
