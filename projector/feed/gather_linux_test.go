package feed

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tidemark/internal/tlsconf"
)

// pair returns a TCP connection with its gatherer, which has been started; both are closed at the end of the test.
func pair(t *testing.T) (*gatherer, net.Conn) {
	t.Helper()
	g, to := unstarted(t)
	g.start(nil, false)
	if g.wakeup == nil || g.want != gatherBytes {
		t.Fatalf("a TCP connection is read plainly: %+v", g)
	}
	g.wait = time.Minute // hang guard
	return g, to
}

// unstarted is like pair, with a gatherer that has not been started.
func unstarted(t *testing.T) (*gatherer, net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	to, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	from, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = to.Close(), from.Close() })
	return newGatherer(from, DefaultBufferBytes), to
}

// TestRestsInsideTLS: a connection inside TLS rests when nothing is left to read, not after each record.
func TestRestsInsideTLS(t *testing.T) {
	dir := t.TempDir()
	ca, err := tlsconf.CreateCA(dir, "test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	files, err := ca.Issue(dir, "kv1", tlsconf.Request{Peer: tlsconf.Peer{Role: tlsconf.KV, ID: "kv1"},
		Hosts: []string{"127.0.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
	cert, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		t.Fatal(err)
	}
	const records, record = 100, 300
	g, to := pair(t)
	g.wakeup = nil
	node := tls.Server(to, &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}})
	sent := make(chan error, 1)
	go func() {
		for range records {
			if _, err := node.Write(make([]byte, record)); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	in := tls.Client(g, &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true})
	if err := errors.Join(in.Handshake(), <-sent); err != nil {
		t.Fatal(err)
	}
	for have := 0; have < (records-1)*record; time.Sleep(time.Millisecond) { // what the handshake left unread
		if err := g.socket.raw.Control(func(fd uintptr) { have, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }); err != nil {
			t.Fatal(err)
		}
	}
	rests := 0
	g.rest = func(int) { rests++ }
	if _, err := io.ReadFull(in, make([]byte, records*record)); err != nil {
		t.Fatal(err)
	}
	if rests > 1 { // the first follows the handshake
		t.Errorf("%d rests while %d records wait", rests, records)
	}
}

// TestRestsDependOnAllThatWasRead: not on the last read alone, since TLS reads pieces of a few KiB, and what is
// gathered is not followed by a rest.
func TestRestsDependOnAllThatWasRead(t *testing.T) {
	for _, gathering := range []bool{false, true} {
		g, to := pair(t)
		var rests []int
		g.rest = func(n int) { rests = append(rests, n) }
		transfer := func(n, piece int) {
			t.Helper()
			if _, err := to.Write(make([]byte, n)); err != nil {
				t.Fatal(err)
			}
			for buf := make([]byte, piece); n > 0; {
				k, err := g.Read(buf)
				if err != nil {
					t.Fatal(err)
				}
				n -= k
			}
		}
		most := 1005
		if gathering {
			most += 64 << 10
			g.want = 32 << 10
			if err := g.setGathering(true); err != nil {
				t.Fatal(err)
			}
			transfer(64<<10, 32<<10)
			g.wait = time.Nanosecond // what follows does not arrive in time
		}
		transfer(1005, 100)
		transfer(1, 100)
		if !slices.Equal(rests, []int{most}) {
			t.Errorf("gathering %v: rests after %v bytes, want one after %d", gathering, rests, most)
		}
	}
}

// largestBuffer returns the bytes to which the system lets a receive buffer grow.
func largestBuffer(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/sys/net/ipv4/tcp_rmem")
	if err != nil {
		t.Fatal(err)
	}
	var least, first, most int
	if _, err := fmt.Sscan(string(text), &least, &first, &most); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return most
}

// TestRoomDuringRests: what may arrive during a rest has room, although the receive buffer cannot grow; otherwise the
// node is held up and seems slow, and the rests never become shorter.
func TestRoomDuringRests(t *testing.T) {
	for _, buffer := range []int{0, 16 << 10, 64 << 10} {
		g, to := pair(t)
		if buffer > 0 {
			if err := g.Conn.(*net.TCPConn).SetReadBuffer(buffer); err != nil {
				t.Fatal(err)
			}
		}
		most := g.room()
		if most == 0 || most > restBytes || buffer == 0 && most < min(restBytes, largestBuffer(t)/4) {
			t.Errorf("with a buffer of %d bytes %d may arrive", buffer, most)
		}
		g.quiet(2 * most)
		go func() { _, _ = to.Write(make([]byte, 2*restBytes)) }() // until the test ends
		until, have := time.Now().Add(time.Minute), 0
		for ; have < most && time.Now().Before(until); time.Sleep(time.Millisecond) {
			if err := g.socket.raw.Control(func(fd uintptr) { have, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }); err != nil {
				t.Fatal(err)
			}
		}
		if have < most {
			t.Errorf("with a buffer of %d bytes %d may arrive, and %d have room", buffer, most, have)
		}
	}
	g, _ := pair(t)
	g.socket.raw = refusing{g.socket.raw}
	if most := g.room(); most != restBytesUnknown {
		t.Errorf("where the system refuses %d may arrive", most)
	}
}

// TestQuiet: data that arrives while the connection rests wakes nobody, and can be read at once afterwards, however
// much arrived.
func TestQuiet(t *testing.T) {
	for _, n := range []int{1, 1000, gatherBytes} {
		g, to := pair(t)
		g.wakeup = nil
		written := make(chan error, 1)
		g.rest = func(int) {
			g.quiet(gatherBytes)
			go func() {
				_, err := to.Write(make([]byte, n))
				written <- err
			}()
			if n < gatherBytes {
				if err := <-written; err != nil {
					t.Error(err)
				}
				written <- nil
			}
			g.quiet(1)
		}
		g.drained = true
		if _, err := io.ReadFull(g, make([]byte, n)); err != nil {
			t.Fatal(err)
		}
		if err := <-written; err != nil {
			t.Fatal(err)
		}
	}
}

// TestGather: reads return data that came in many pieces, in order; nothing is lost when the wait or the connection
// ends.
func TestGather(t *testing.T) {
	g, to := pair(t)
	g.want = 32 << 10 // the least that the kernel keeps, whatever overhead each piece has
	const piece, pieces, most = 1000, 2000, 100
	sent := make([]byte, piece*pieces)
	for i := range sent {
		sent[i] = byte(i * i >> 8)
	}
	if err := g.setGathering(true); err != nil {
		t.Fatal(err)
	}
	go func() {
		for b := sent; len(b) > 0; b = b[piece:] {
			if _, err := to.Write(b[:piece]); err != nil {
				return // the test has ended
			}
		}
		_ = to.Close()
	}()
	buf := make([]byte, len(sent)+gatherBytes)
	n, reads := 0, 0
	for ; n < len(sent)/2; reads++ { // more than the wanted amount is still to come
		k, err := g.Read(buf[n : n+gatherBytes])
		if err != nil || k == 0 || !g.waiting {
			t.Fatalf("%d bytes, waiting %v: %v", k, g.waiting, err)
		}
		n += k
	}
	if reads > most {
		t.Errorf("%d reads for %d pieces", reads, n/piece)
	}
	g.wait = time.Nanosecond // less arrives in time than wanted
	for g.waiting {
		k, err := g.Read(buf[n:])
		if err != nil {
			t.Fatal(err)
		}
		n += k
	}
	if g.pause != 1 {
		t.Errorf("after a failure the next %d reads are plain, want 1", g.pause)
	}
	for { // it waits again while the connection is busy, until the end
		k, err := g.Read(buf[n:])
		n += k
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(buf[:n], sent) {
		t.Error("other bytes than were sent")
	}
}

// TestDeadlinesOfTheHandshake: until the gatherer is started, its user's deadlines end reads, however fast the node
// sends.
func TestDeadlinesOfTheHandshake(t *testing.T) {
	g, to := unstarted(t)
	g.wait = time.Minute
	if _, err := to.Write(make([]byte, 4*gatherFrom)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := io.ReadFull(g, make([]byte, gatherFrom)); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.SetDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if n, err := g.Read(make([]byte, 4*gatherFrom)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a read of %d bytes after the deadline: %v", n, err)
	}
}

// TestGatherEndsWithClose: closing this side ends the wait, too.
func TestGatherEndsWithClose(t *testing.T) {
	g, _ := pair(t)
	if err := g.setGathering(true); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() {
		_, err := g.Read(make([]byte, gatherBytes))
		ended <- err
	}()
	_ = g.Conn.Close()
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("the read ended with %v", err)
	}
}

// refusing is a system without support for the wait.
type refusing struct{ syscall.RawConn }

func (refusing) Control(func(uintptr)) error { return errors.ErrUnsupported }

// TestGatherWhereTheSystemRefuses: plain reads are used, and the connection stays.
func TestGatherWhereTheSystemRefuses(t *testing.T) {
	g, to := pair(t)
	g.socket.raw = refusing{g.socket.raw}
	if err := g.setGathering(true); err != nil || g.waiting || g.wakeup != nil {
		t.Fatalf("waiting %v, %+v: %v", g.waiting, g.wakeup, err)
	}
	if _, err := to.Write([]byte("abc")); err != nil {
		t.Fatal(err)
	}
	var got [3]byte
	if n, err := g.Read(got[:]); err != nil || string(got[:n]) != "abc" {
		t.Errorf("%q %v", got[:n], err)
	}
}

// TestGatherOnlyWhereItIsBusy: when the kernel is requested to wait, by what a read brought and how long it took.
func TestGatherOnlyWhereItIsBusy(t *testing.T) {
	for _, tt := range []struct {
		name string
		n    int
		took time.Duration
		want bool
	}{
		{"a document now and then", 1 << 10, time.Microsecond, false},
		{"10 KiB each 10 µs", 10 << 10, 10 * time.Microsecond, true},
		{"64 KiB each 100 µs", 64 << 10, 100 * time.Microsecond, true},
		{"64 KiB each ms", 64 << 10, time.Millisecond, false},
		{"all of it at once", gatherBytes, time.Microsecond, false},
	} {
		if got := busy(tt.n, tt.took, gatherBytes, gatherWait); got != tt.want {
			t.Errorf("%s: waiting %v, want %v", tt.name, got, tt.want)
		}
	}
	a, b := net.Pipe()
	defer b.Close()
	g := newGatherer(a, DefaultBufferBytes)
	if g.start(nil, false); g.wakeup != nil {
		t.Error("what is no TCP connection is to be read plainly")
	}
	_ = a.Close()
	if g := newGatherer(a, MinBufferBytes); g.want >= MinBufferBytes/ackFraction {
		t.Errorf("of a window of %d bytes %d are waited for: the node may send no more before some are acknowledged",
			MinBufferBytes, g.want)
	}
}
