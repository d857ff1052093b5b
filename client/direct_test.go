package client

import (
	"bufio"
	"context"
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"

	"tidemark/collate"
	"tidemark/errcode"
	"tidemark/indexer/scanport"
	"tidemark/internal/testing/ports"
	"tidemark/manager/api/v1"
	"tidemark/wire"
)

// TestClosedDirectScanReturnsErrors: requesting a row after Close is an error, whatever had arrived by then.
func TestClosedDirectScanReturnsErrors(t *testing.T) {
	head := scanport.AppendHead(nil, nil)
	for _, tail := range []byte{scanport.More, scanport.End, scanport.Failure} {
		s := &directScan{}
		if err := s.answer.Read(scanport.Finish(append([]byte{}, head...), len(head), tail, nil)); err != nil {
			t.Fatal(err)
		}
		rows := &Rows{source: s}
		if err := rows.Close(); err != nil {
			t.Fatal(err)
		}
		if rows.Next() || !errors.Is(rows.Err(), ErrCut) {
			t.Errorf("tail %d: %v", tail, rows.Err())
		}
	}
}

// fakePort is an indexer's scan port with a list of answers, one message for each request.
type fakePort struct {
	addr     string
	dials    atomic.Int64
	requests atomic.Int64
	answers  []func() (tail byte, text string)
}

func newFakePort(t *testing.T, answers ...func() (byte, string)) *fakePort {
	f := &fakePort{answers: answers}
	up := websocket.Upgrader{Subprotocols: []string{scanport.Protocol}}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := up.Upgrade(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		f.dials.Add(1)
		for {
			if _, _, err := conn.ReadMessage(); err != nil {
				return
			}
			tail, text := f.answers[min(int(f.requests.Add(1)), len(f.answers))-1]()
			head := scanport.AppendHead(nil, []bool{false})
			body := scanport.AppendRow(append([]byte{}, head...), collate.AppendInt64(nil, 7), []byte("doc"))
			if tail == scanport.Failure {
				body = head
			}
			if err := conn.WriteMessage(websocket.BinaryMessage, scanport.Finish(body, len(head), tail,
				[]byte(text))); err != nil {
				return
			}
		}
	}))
	t.Cleanup(srv.Close)
	f.addr = srv.Listener.Addr().String()
	return f
}

func problem(code errcode.Code) func() (byte, string) {
	return func() (byte, string) { return scanport.Failure, `{"code":"` + string(code) + `","detail":"no"}` }
}

func whole() (byte, string) { return scanport.End, `{"end":true,"rows":1}` }

// TestDirectConnections: which answers keep a connection for the next request, and how often a request is sent.
func TestDirectConnections(t *testing.T) {
	for _, c := range []struct {
		name            string
		answers         []func() (byte, string)
		read            bool // the scans are read to their end
		wants           []errcode.Code
		requests, dials int64
	}{
		{"whole", []func() (byte, string){whole}, true, []errcode.Code{"", "", ""}, 3, 1},
		{"closed after the whole answer has come", []func() (byte, string){whole}, false, []errcode.Code{"", "", ""}, 3, 1},
		{"a refused request is sent once", []func() (byte, string){problem(errcode.BadRequest)}, true,
			[]errcode.Code{errcode.BadRequest, errcode.BadRequest}, 2, 1},
		{"too busy for one", []func() (byte, string){whole, problem(errcode.Busy), whole}, true,
			[]errcode.Code{"", "detour", ""}, 3, 1},
		{"stopping", []func() (byte, string){whole, problem(errcode.Unavailable), whole}, true,
			[]errcode.Code{"", "detour", "detour"}, 2, 1},
		{"an old ticket on a kept connection", []func() (byte, string){whole, problem(errcode.Unauthenticated), whole}, true,
			[]errcode.Code{"", "", ""}, 4, 2},
		{"a ticket that is no longer valid", []func() (byte, string){whole, problem(errcode.Unauthenticated)}, true,
			[]errcode.Code{"", "detour", "detour"}, 3, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFakePort(t, c.answers...)
			cl := New("127.0.0.1:1") // no server listens there, so lost routes stay lost
			defer cl.Close()
			silent(cl)
			d := cl.direct
			// The duration of a connection is irrelevant here.
			d.dialer.NetDialContext, d.dialer.HandshakeTimeout = new(net.Dialer).DialContext, time.Minute
			d.routes["b/i"] = &routeState{route: &v1.ScanRoute{Index: 1, ScanPorts: []string{f.addr}, Ticket: "t",
				TicketMS: 60_000},
				at: time.Now(), detour: time.Minute}
			for n, want := range c.wants {
				s, err := d.begin(t.Context(), operation{op: scanport.Scan, of: "b/i"}, []byte("{}"))
				var p *wire.Problem
				switch {
				case errors.Is(err, errDetour):
					if want != "detour" {
						t.Fatalf("request %d: a detour, want %q", n, want)
					}
					continue
				case errors.As(err, &p):
					if p.Code != want {
						t.Fatalf("request %d: %v, want %q", n, err, want)
					}
					continue
				case err != nil || want != "":
					t.Fatalf("request %d: %v, want %q", n, err, want)
				}
				rows := &Rows{source: s}
				if !rows.Next() {
					t.Fatalf("request %d: no row: %v", n, rows.Err())
				}
				if c.read && (rows.Next() || rows.Err() != nil) {
					t.Fatalf("request %d: %v", n, rows.Err())
				}
				if err := rows.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if f.requests.Load() != c.requests || f.dials.Load() != c.dials {
				t.Errorf("%d requests on %d connections, want %d on %d", f.requests.Load(), f.dials.Load(), c.requests, c.dials)
			}
		})
	}
}

// openPorts counts the connections to scan ports, which are pipes in a bubble (testing/synctest), by address.
type openPorts struct {
	mu   sync.Mutex
	open map[string]int
}

func (o *openPorts) count(addr string, more int) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.open[addr] += more
	return o.open[addr]
}

// dial implements the NetDialContext of a websocket.Dialer. The port accepts the connection and sends nothing.
func (o *openPorts) dial(_ context.Context, _, addr string) (net.Conn, error) {
	ours, port := net.Pipe()
	o.count(addr, 1)
	go func() {
		defer o.count(addr, -1)
		defer port.Close()
		in := bufio.NewReader(port)
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		key := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) // RFC 6455
		fmt.Fprintf(port, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
			"Sec-WebSocket-Accept: %s\r\n\r\n", base64.StdEncoding.EncodeToString(key[:]))
		_, _ = io.Copy(io.Discard, in)
	}()
	return ours, nil
}

// TestIdleConnectionsAreClosed: idle connections are closed after a while, even besides one in use, and those of an
// indexer that has left.
func TestIdleConnectionsAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		scanPorts := &openPorts{open: map[string]int{}}
		cl := New("127.0.0.1:1")
		defer cl.Close()
		silent(cl)
		d := cl.direct
		d.dialer.NetDialContext = scanPorts.dial
		route := &v1.ScanRoute{Index: 1, Ticket: "t", TicketMS: time.Hour.Milliseconds()}
		var all []*directConn
		for _, addr := range []string{"here:1", "here:1", "here:1", "left:1", "left:1"} {
			dc, err := d.conn(t.Context(), route, addr, true)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, dc)
		}
		for _, dc := range all {
			d.give(dc)
		}
		expect := func(here, left int) {
			t.Helper()
			synctest.Wait()
			if h, l := scanPorts.count("here:1", 0), scanPorts.count("left:1", 0); h != here || l != left {
				t.Errorf("%d and %d connections are open, want %d and %d", h, l, here, left)
			}
		}
		for spent := time.Duration(0); spent < connIdle+tidyEvery; spent += time.Second {
			if spent == connIdle-time.Second {
				expect(3, 2)
			}
			dc := d.take("here:1")
			if dc == nil {
				t.Fatalf("after %v there is none to be used", spent)
			}
			d.give(dc)
			time.Sleep(time.Second)
		}
		expect(1, 0)
		time.Sleep(connIdle + tidyEvery)
		expect(0, 0)
		if len(d.idle) != 0 || d.tidyTimer != nil {
			t.Errorf("%d addresses are kept", len(d.idle))
		}
	})
}

// TestSilentIndexerIsSkipped: scans that an indexer accepts and never answers are answered by another one, which is
// then tried first; an indexer that cannot be connected to is skipped, too; if there is no other one, the managers
// are called.
func TestSilentIndexerIsSkipped(t *testing.T) {
	over := make(chan struct{})
	hanging := newFakePort(t, func() (byte, string) { <-over; return whole() })
	defer close(over) // before its server is closed
	working := newFakePort(t, whole)
	closed := ports.Addr(t)
	for _, c := range []struct {
		name  string
		ports []string
		want  error
	}{
		{"one hangs", []string{hanging.addr, working.addr}, nil},
		{"one is gone", []string{closed, working.addr}, nil},
		{"one hangs, one is gone", []string{closed, hanging.addr, working.addr}, nil},
		{"all are gone", []string{closed}, errDetour},
	} {
		t.Run(c.name, func(t *testing.T) {
			cl := New("127.0.0.1:1")
			defer cl.Close()
			silent(cl, hanging.addr)
			d := cl.direct
			d.dialer.NetDialContext, d.dialer.HandshakeTimeout = new(net.Dialer).DialContext, time.Minute
			route := &routeState{route: &v1.ScanRoute{Index: 1, ScanPorts: c.ports, Ticket: "t", TicketMS: 60_000},
				detour: time.Minute}
			d.routes["b/i"] = route
			before := working.requests.Load()
			for range 10 { // each begins with a random indexer
				route.at, route.until = time.Now(), time.Time{}
				s, err := d.begin(t.Context(), operation{op: scanport.Scan, of: "b/i"}, []byte("{}"))
				if !errors.Is(err, c.want) {
					t.Fatalf("%v, want %v", err, c.want)
				}
				if err != nil {
					continue
				}
				rows := &Rows{source: s}
				if !rows.Next() || rows.Next() || rows.Err() != nil {
					t.Fatal(rows.Err())
				}
				if err := rows.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if n := working.requests.Load() - before; c.want == nil && n != 10 {
				t.Errorf("%d requests to the working indexer, want 10", n)
			}
			for _, addr := range c.ports[:len(c.ports)-1] {
				if order := d.order(route.route); order[0] == addr && d.alive.Suspect(addr) {
					t.Errorf("%s is tried first", addr)
				}
			}
		})
	}
}

// TestCancelledScanNamesWhatItWaitedFor: the error names what was waited for and the server, and does not claim
// that no server was reachable.
func TestCancelledScanNamesWhatItWaitedFor(t *testing.T) {
	never := make(chan struct{})
	defer close(never)
	f := newFakePort(t, func() (byte, string) { <-never; return whole() })
	cl := New("127.0.0.1:1")
	defer cl.Close()
	silent(cl)
	cl.direct.dialer.NetDialContext, cl.direct.dialer.HandshakeTimeout = new(net.Dialer).DialContext, time.Minute
	for _, count := range []bool{false, true} {
		cl.direct.routes["b/i"] = &routeState{route: &v1.ScanRoute{Index: 1, ScanPorts: []string{f.addr}, Ticket: "t",
			TicketMS: 60_000}, at: time.Now(), detour: time.Minute}
		before := f.requests.Load()
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			for f.requests.Load() == before && t.Context().Err() == nil {
				time.Sleep(time.Millisecond)
			}
			cancel()
		}()
		want := " b/i with consistency session; the last attempt was at indexer " + f.addr + ", which had not answered yet"
		var err error
		if count {
			want = "count" + want
			_, err = cl.Count(ctx, "b/i", v1.ScanRequest{Consistency: "session"})
		} else {
			want = "scan" + want
			_, err = cl.Scan(ctx, "b/i", v1.ScanRequest{Consistency: "session"})
		}
		cancel()
		if !errors.Is(err, ErrUnavailable) || !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestCountIsOneMessage: a count whose answer continues is an error.
func TestCountIsOneMessage(t *testing.T) {
	f := newFakePort(t, func() (byte, string) { return scanport.More, "" })
	cl := New("127.0.0.1:1")
	defer cl.Close()
	silent(cl)
	cl.direct.routes["b/i"] = &routeState{route: &v1.ScanRoute{Index: 1, ScanPorts: []string{f.addr}, Ticket: "t",
		TicketMS: 60_000},
		at: time.Now(), detour: time.Minute}
	if n, err := cl.Count(t.Context(), "b/i", v1.ScanRequest{}); !errors.Is(err, ErrCut) {
		t.Errorf("%+v %v", n, err)
	}
}
