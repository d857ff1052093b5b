package route

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// connLimit bounds the open connections of a server, so that clients that only connect cannot use up the files that the
// process needs for its disk and for other clients. Beyond the bound a connection without a call is closed: the oldest
// of the host that has the most of them, so that a client that connects again and again only closes its own. Clients
// reconnect. A connection has freshFor to send a request and for the rest of a response, and Accept waits for that
// long, so that a client among many others still gets an answer. If all others have calls, the newest is closed.
type connLimit struct {
	net.Listener
	most int
	log  hclog.Logger

	left chan struct{} // signals that a connection was closed or has become idle; one slot

	mu     sync.Mutex
	all    map[*limitedConn]struct{}
	idle   map[string]int // connections without a call, by host
	awaits string         // host of whose connections Accept waits for one that may be closed; "": any
	closed uint64         // connections closed since the last log line
	logged time.Time      // time of the last log line
}

const (
	// maxConnections is the highest bound: to make room takes time that grows with the number of connections.
	maxConnections = 1 << 14
	// leastConnections is the least bound, however few files the process may have.
	leastConnections = 64
	// connectionsPart divides the files that a process may have open: that many may be connections of one server. A role
	// has at most two servers, and connects to others for scans and commands.
	connectionsPart = 3
	// freshFor is how long a connection without a call is not closed to make room once it was accepted, the header of a
	// request has arrived or its handler returned; a connection whose response was sent has no such time.
	freshFor = time.Second / 2
	// limitLogged is the least time between two log lines about closed connections.
	limitLogged = time.Minute
)

// MostConnections returns how many connections a port may have open at a time in this process: a third of the files
// that it may have open, within bounds.
func MostConnections() int {
	files, known := openFiles()
	if !known {
		return maxConnections
	}
	return int(min(max(files/connectionsPart, leastConnections), maxConnections))
}

// limitedConn is a connection of a connLimit. Its fields are guarded by the connLimit's mu.
type limitedConn struct {
	net.Conn
	limit *connLimit
	host  string
	since time.Time // when it was accepted, the header of its last request arrived, or that request ended
	calls int       // calls in progress
	quiet bool      // its last response was sent, and no header of a further request has arrived
}

// connKey is the context key of a request's connection.
type connKey struct{}

func newConnLimit(l net.Listener, most int, log hclog.Logger) *connLimit {
	return &connLimit{Listener: l, most: most, log: log, left: make(chan struct{}, 1), all: map[*limitedConn]struct{}{},
		idle: map[string]int{}}
}

// Accept implements net.Listener.
func (c *connLimit) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	n := &limitedConn{Conn: conn, limit: c}
	if n.host, _, err = net.SplitHostPort(conn.RemoteAddr().String()); err != nil {
		n.host = conn.RemoteAddr().String()
	}
	c.enter(n)
	for {
		gone, wait := c.excess(n)
		if gone != nil {
			c.logClosed(gone)
			_ = gone.Close() // its server goroutine sees the error
			return n, nil
		}
		if wait <= 0 {
			return n, nil
		}
		ripe := time.NewTimer(wait)
		select {
		case <-ripe.C:
		case <-c.left:
		}
		ripe.Stop()
	}
}

// enter adds a connection.
func (c *connLimit) enter(n *limitedConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n.since = time.Now()
	c.all[n] = struct{}{}
	c.idle[n.host]++
}

// excess returns the connection to close for the newest one, or how long to wait until one may be closed; neither if
// there is room.
func (c *connLimit) excess(newest *limitedConn) (gone *limitedConn, wait time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.all) <= c.most {
		return nil, 0
	}
	now := time.Now()
	for x := range c.all {
		if x.calls == 0 && x != newest && (gone == nil || c.before(x, gone, now)) {
			gone = x
		}
	}
	if gone != nil {
		c.awaits = gone.host
	} else {
		gone, c.awaits = newest, "" // a call of any host may end before the newest one is closed
	}
	if wait = gone.fresh(now); wait > 0 {
		return nil, wait
	}
	return gone, 0
}

// fresh returns for how long n may not be closed yet.
func (n *limitedConn) fresh(now time.Time) time.Duration {
	if n.quiet {
		return 0
	}
	return max(0, freshFor-now.Sub(n.since))
}

// before reports whether a is to be closed rather than b.
func (c *connLimit) before(a, b *limitedConn, now time.Time) bool {
	if of, than := c.idle[a.host], c.idle[b.host]; of != than {
		return of > than
	}
	if of, than := a.fresh(now) > 0, b.fresh(now) > 0; of != than {
		return than
	}
	return a.since.Before(b.since)
}

// logClosed logs that connections are closed, at most once in limitLogged.
func (c *connLimit) logClosed(gone *limitedConn) {
	c.mu.Lock()
	c.closed++
	now, count, idle := time.Now(), c.closed, c.idle[gone.host]
	due := now.Sub(c.logged) >= limitLogged
	if due {
		c.logged, c.closed = now, 0
	}
	c.mu.Unlock()
	if due {
		c.log.Warn("connection limit reached, a third of the open files: closing the oldest idle connection of the host "+
			"that has the most; raise the limit of files (ulimit -n, LimitNOFILE=), or find out what connects", "address",
			c.Addr().String(), "limit", c.most, "host", gone.host, "idle_of_host", idle, "closed", count)
	}
}

// Close implements net.Conn.
func (n *limitedConn) Close() error {
	c := n.limit
	c.mu.Lock()
	if _, is := c.all[n]; is {
		delete(c.all, n)
		if n.calls == 0 {
			c.without(n.host, -1)
		}
	}
	c.mu.Unlock()
	c.wake()
	return n.Conn.Close()
}

// without adds more to the connections of host without a call. The caller holds mu.
func (c *connLimit) without(host string, more int) {
	if c.idle[host] += more; c.idle[host] == 0 {
		delete(c.idle, host)
	}
}

// wake lets Accept look again.
func (c *connLimit) wake() {
	select {
	case c.left <- struct{}{}:
	default:
	}
}

// CloseWrite closes the sending side, if the connection supports that: net/http does so before it closes, so that a
// response arrives completely.
func (n *limitedConn) CloseWrite() error {
	if half, can := n.Conn.(interface{ CloseWrite() error }); can {
		return half.CloseWrite()
	}
	return nil
}

// limited returns the connLimit's part of conn, which may be a TLS connection; nil: none.
func limited(conn net.Conn) *limitedConn {
	if inner, is := conn.(interface{ NetConn() net.Conn }); is {
		conn = inner.NetConn()
	}
	n, _ := conn.(*limitedConn)
	return n
}

// noted returns the context of a connection's requests, in which serving finds it.
func (c *connLimit) noted(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, limited(conn))
}

// serving tracks which connections have calls.
func (c *connLimit) serving(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n, is := r.Context().Value(connKey{}).(*limitedConn); is && n != nil {
			n.call(1)
			defer n.call(-1)
		}
		h.ServeHTTP(w, r)
	})
}

// call counts a call that begins or ends. A call may end after its connection was closed.
func (n *limitedConn) call(more int) {
	c := n.limit
	c.mu.Lock()
	defer c.mu.Unlock()
	had := n.calls > 0
	n.calls += more
	n.since = time.Now()
	if _, is := c.all[n]; !is || had == (n.calls > 0) {
		return
	}
	if had {
		c.without(n.host, 1)
	} else {
		c.without(n.host, -1)
	}
}

// changed is the ConnState of the server: it tracks which connections have sent their response, and whose request's
// header has arrived: only then does net/http report that a connection is active.
func (c *connLimit) changed(conn net.Conn, state http.ConnState) {
	n := limited(conn)
	if n == nil || state != http.StateActive && state != http.StateIdle {
		return
	}
	c.mu.Lock()
	n.quiet, n.since = state == http.StateIdle, time.Now()
	awaited := n.quiet && (c.awaits == "" || c.awaits == n.host)
	c.mu.Unlock()
	if awaited {
		c.wake()
	}
}
