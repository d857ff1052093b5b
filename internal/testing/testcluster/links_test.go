package testcluster

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tidemark/internal/testing/need"
)

// echoed returns a link from "a" to "b", which answers each line, a function that connects over it, and b's listener.
func echoed(t *testing.T) (*Links, func() *bufio.ReadWriter, net.Listener) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			served.Go(func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			})
		}
	})
	l := newLinks(t.TempDir(), func(*net.TCPConn) string { return "a" })
	if err := l.open("b", listener.Addr().String()); err != nil {
		t.Fatal(err)
	}
	var open []net.Conn
	t.Cleanup(func() {
		for _, c := range open {
			_ = c.Close()
		}
		_ = listener.Close()
		l.Close()
		served.Wait()
		goleak.VerifyNone(t)
	})
	return l, func() *bufio.ReadWriter {
		c, err := net.Dial("tcp", before(l, listener))
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
		return bufio.NewReadWriter(bufio.NewReader(c), bufio.NewWriter(c))
	}, listener
}

// before returns the address of the proxy before a listener.
func before(l *Links, listener net.Listener) string {
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	return net.JoinHostPort(l.host, port)
}

// ask sends a line; the channel receives the result once the answer has arrived.
func ask(c *bufio.ReadWriter, text string) <-chan error {
	answer := make(chan error, 1)
	_, err := c.WriteString(text + "\n")
	if err = errors.Join(err, c.Flush()); err != nil {
		answer <- err
		return answer
	}
	go func() {
		line, err := c.ReadString('\n')
		if err == nil && line != text+"\n" {
			err = errors.New(line)
		}
		answer <- err
	}()
	return answer
}

const silence = 150 * time.Millisecond

func silent(t *testing.T, what string, answer <-chan error) {
	t.Helper()
	select {
	case err := <-answer:
		t.Fatalf("%s: answered (%v), want silence", what, err)
	case <-time.After(silence):
	}
}

func answered(t *testing.T, what string, answer <-chan error) {
	t.Helper()
	select {
	case err := <-answer:
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	case <-time.After(time.Minute):
		t.Fatalf("%s: no answer", what)
	}
}

// TestCutLinks checks that a cut silences its direction, that healing delivers what was sent meanwhile, that a new
// connection needs both directions, that a refused link resets, and that a delayed link delays each direction.
func TestCutLinks(t *testing.T) {
	l, dial, listener := echoed(t)
	old := dial()
	answered(t, "before", ask(old, "1"))
	l.Cut("a", "c") // another link
	answered(t, "another link is cut", ask(old, "2"))

	for _, cut := range []struct {
		name string
		f    func()
	}{{"both ways", func() { l.Cut("b", "a") }}, {"a to b", func() { l.CutOneWay("a", "b") }},
		{"b to a", func() { l.CutOneWay("b", "a") }},
		{"a partition", func() { l.Partition([]string{"a", "c"}, []string{"b"}) }}} {
		cut.f()
		before := ask(old, cut.name)
		silent(t, cut.name, before)
		fresh := dial()
		after := ask(fresh, "new")
		silent(t, cut.name+", new connection", after)
		l.Heal("a", "b")
		answered(t, cut.name+", healed", before)
		answered(t, cut.name+", new connection, healed", after)
	}

	const d = 60 * time.Millisecond
	l.Delay("a", "b", d)
	began := time.Now()
	answered(t, "delayed", ask(old, "3"))
	if took := time.Since(began); took < 2*d || took > time.Minute {
		t.Errorf("a delay of %s each way: answered after %s", d, took)
	}
	l.Refuse("a", "b")
	if err := <-ask(old, "4"); err == nil {
		t.Error("a refused link answers")
	}
	if c, err := net.Dial("tcp", before(l, listener)); err == nil { // it may be reset this early
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("a refused link takes a new connection")
		}
		_ = c.Close()
	}
	l.HealAll()
	answered(t, "all healed", ask(dial(), "6"))
}

// TestShutAddressResetsConnections checks that an address that is shut resets its connections and that nothing
// listens there until it is open again, and that others are not affected.
func TestShutAddressResetsConnections(t *testing.T) {
	l, dial, listener := echoed(t)
	old := dial()
	answered(t, "before", ask(old, "1"))
	l.Shut("127.0.0.1:1")
	answered(t, "another address is shut", ask(old, "2"))
	l.Shut(listener.Addr().String())
	if err := <-ask(old, "3"); err == nil {
		t.Error("a connection to an address that is shut answers")
	}
	if c, err := net.Dial("tcp", before(l, listener)); !errors.Is(err, syscall.ECONNREFUSED) {
		if err == nil {
			_ = c.Close()
		}
		t.Errorf("a new connection to an address that is shut: %v, want that it is refused", err)
	}
	l.Reopen(t, "b", listener.Addr().String())
	answered(t, "open again", ask(dial(), "4"))
}

// TestEndsOfStreamsAreForwarded checks that one side's end of stream arrives at the other, and that a stopped server
// is a refused connection, not silence.
func TestEndsOfStreamsAreForwarded(t *testing.T) {
	l, _, listener := echoed(t)
	c, err := net.Dial("tcp", before(l, listener))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Write([]byte("abc"))
	if err = errors.Join(err, c.(*net.TCPConn).CloseWrite()); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(c); err != nil || string(b) != "abc" {
		t.Errorf("%q %v", b, err)
	}
	_ = listener.Close()
	gone, err := net.Dial("tcp", before(l, listener))
	if err != nil {
		return // reset this early
	}
	defer gone.Close()
	if err := gone.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := gone.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("nothing listens: %v", err)
	}
}

// TestCallers checks that the caller of a connection is identified by the open files of the parent's children; here
// no caller is a child.
func TestCallers(t *testing.T) {
	k := &callers{}
	if err := k.usable(); err != nil {
		need.Missing(t, "%v", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	c, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	k.parent.Store(int64(os.Getpid()))
	if name := k.who(c.(*net.TCPConn)); name != "" {
		t.Errorf("%q is no child", name)
	}
	inode, err := inodeOf(c.LocalAddr(), c.RemoteAddr())
	if err != nil {
		t.Fatal(err)
	}
	file, err := c.(*net.TCPConn).File() // a second descriptor of the same socket
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if to, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", file.Fd())); err != nil || to != "socket:["+inode+"]" {
		t.Errorf("the socket is %s, %v; found was %s", to, err, inode)
	}
	if inode, err := inodeOf(c.RemoteAddr(), &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}); err == nil {
		t.Errorf("a connection that no process has: %s", inode)
	}
}
