package route

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/internal/tlsconf"
)

// from is a connection from an address. callers returns such connections.
type from struct {
	net.Conn
	addr string
	gone atomic.Bool
}

func (f *from) Close() error         { f.gone.Store(true); return nil }
func (f *from) RemoteAddr() net.Addr { return f }
func (f *from) Network() string      { return "tcp" }
func (f *from) String() string       { return f.addr }

// callers is a listener.
type callers struct {
	net.Listener
	next *from
}

func (c *callers) Accept() (net.Conn, error) { return c.next, nil }
func (c *callers) Addr() net.Addr            { return &from{addr: "127.0.0.1:9520"} }

// TestConnectionLimitClosesIdle checks that beyond the bound the oldest connection without a call is closed, of the
// host that has the most, and that Accept waits for a new connection to become old enough, unless another one is
// closed.
func TestConnectionLimitClosesIdle(t *testing.T) { synctest.Test(t, connectionLimitClosesIdle) }

func connectionLimitClosesIdle(t *testing.T) {
	var log bytes.Buffer
	in := &callers{}
	c := newConnLimit(in, 4, hclog.New(&hclog.LoggerOptions{Output: &log}))
	var all []*from
	var conns []*limitedConn
	connect := func(addr string) {
		t.Helper()
		in.next = &from{addr: addr}
		conn, err := c.Accept()
		if err != nil {
			t.Fatal(err)
		}
		all, conns = append(all, in.next), append(conns, conn.(*limitedConn))
		time.Sleep(time.Nanosecond) // makes it older than the next
	}
	later := func() { time.Sleep(2 * freshFor) }
	closed := func(when string, want ...int) {
		t.Helper()
		for i, f := range all {
			is := false
			for _, w := range want {
				is = is || w == i
			}
			if f.gone.Load() != is {
				t.Errorf("%s: connection %d from %s is closed: %t", when, i, f.addr, !is)
			}
		}
	}
	wait := func(when string, from time.Time, want time.Duration) {
		t.Helper()
		if took := time.Since(from).Round(time.Microsecond); took != want {
			t.Errorf("%s: Accept returned after %v, not %v", when, took, want)
		}
	}
	for _, addr := range []string{"10.0.0.9:1", "10.0.0.1:1", "10.0.0.1:2", "[fe80::1]:3"} {
		connect(addr)
	}
	closed("as many as may be")
	conns[1].call(1)
	began := time.Now()
	connect("10.0.0.9:2")
	wait("all are fresh", began, freshFor)
	closed("the host with two without a call", 0)
	later()
	conns[1].call(-1)
	began = time.Now()
	connect("10.0.0.1:3")
	wait("one of three is old", began, 0)
	closed("the oldest of the host with three", 0, 2)
	later()
	if err := conns[3].Close(); err != nil || c.idle["fe80::1"] != 0 {
		t.Errorf("%v, %v", err, c.idle)
	}
	connect("10.0.0.2:1")
	closed("there is room again", 0, 2, 3)

	later()
	for i := range 3 { // they are 1 and 5 of 10.0.0.1, 4 of 10.0.0.9 and 6 of 10.0.0.2 so far
		began = time.Now()
		connect("10.0.0.1:9")
		wait("the first finds old ones of its host, others wait for those before them", began, []time.Duration{0, 0,
			freshFor}[i])
	}
	closed("a host that connects again and again closes its own", 0, 1, 2, 3, 5, 7)
	c.changed(conns[9], http.StateActive) // it is the older one of two
	c.changed(conns[8], http.StateActive)
	c.changed(conns[8], http.StateIdle)
	began = time.Now()
	connect("10.0.0.1:9")
	wait("the response of one is sent", began, 0)
	closed("the one whose response is sent", 0, 1, 2, 3, 5, 7, 8)
	c.changed(conns[9], http.StateActive)
	conns[9].call(1)
	conns[9].call(-1)
	time.AfterFunc(freshFor/2, func() { c.changed(conns[9], http.StateIdle) })
	began = time.Now()
	connect("10.0.0.1:9")
	wait("a response is sent soon", began, freshFor/2)
	closed("the one whose response was sent", 0, 1, 2, 3, 5, 7, 8, 9)

	for _, i := range []int{4, 6, 10, 11} {
		conns[i].call(1)
	}
	began = time.Now()
	connect("10.0.0.3:1")
	wait("all have calls", began, freshFor)
	closed("all have calls", 0, 1, 2, 3, 5, 7, 8, 9, 12)
	_ = conns[4].Close()
	conns[4].call(-1)
	connect("10.0.0.3:2")
	began = time.Now()
	time.AfterFunc(freshFor/2, func() { _ = conns[10].Close() })
	connect("10.0.0.3:3")
	wait("one has closed", began, freshFor/2)
	closed("one has closed", 0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 12)
	sum := 0
	for _, n := range c.idle {
		sum += n
	}
	if sum != 2 {
		t.Errorf("%v, not two connections without a call", c.idle)
	}
	if n := strings.Count(log.String(), "connection limit reached"); n != 1 || len(c.all) != 4 {
		t.Errorf("the limit is logged %d times, %d connections are open:\n%s", n, len(c.all), log.String())
	}
}

// TestServerBoundsConnections checks that clients that connect and send nothing keep no others out, with and
// without TLS, and that responses arrive completely.
func TestServerBoundsConnections(t *testing.T) {
	ca, err := tlsconf.CreateCA(t.TempDir(), "test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	files, err := ca.Issue(t.TempDir(), "x", tlsconf.Request{Peer: tlsconf.Peer{Role: tlsconf.Manager, ID: "m1"},
		Hosts: []string{"127.0.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
	secure, err := tlsconf.OpenNode(files, tlsconf.Manager, "m1", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, source := range []*tlsconf.Source{nil, secure} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		began, goOn := make(chan struct{}), make(chan struct{})
		s := &Server{TLS: source, Log: hclog.NewNullLogger(), Grace: time.Minute, Connections: 3, Handler: http.HandlerFunc(
			func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/long" {
					close(began)
					<-goOn
				}
				_, _ = io.WriteString(w, "whole")
			})}
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- s.Serve(ctx, l) }()
		ask := func(path string) error {
			c := &http.Client{Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: source.UserClient(),
				DisableKeepAlives: true}}
			resp, err := c.Get(source.BaseURL(l.Addr().String()) + path)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "whole" {
				return errors.Join(err, errors.New(string(b)))
			}
			return nil
		}
		long := make(chan error, 1)
		go func() { long <- ask("/long") }()
		<-began
		var idle []net.Conn
		for range 4 {
			conn, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			if source != nil {
				conf := source.UserClient()
				conf.ServerName = "127.0.0.1"
				conn = tls.Client(conn, conf)
			}
			idle = append(idle, conn)
			if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			if resp, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || resp.ContentLength != 5 {
				t.Errorf("beside %d idle connections: %v", len(idle)-1, err)
			}
			if err := ask("/"); err != nil {
				t.Errorf("beside %d idle connections: %v", len(idle), err)
			}
		}
		_ = idle[0].SetReadDeadline(time.Now().Add(time.Minute)) // an idle one lasts for two
		rest, err := io.Copy(io.Discard, idle[0])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the oldest idle connection is open, %d bytes have come", rest)
		}
		close(goOn)
		if err := <-long; err != nil {
			t.Errorf("a call was under way: %v", err)
		}
		for _, c := range idle {
			_ = c.Close()
		}
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
}
