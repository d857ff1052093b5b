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
// process needs for its disk and for other clients. Beyond the bound the oldest connection without a call is closed, of
// the host that has the most; clients reconnect. A new connection has freshFor to send a request, and Accept waits for
// that long, so that a client among many others still gets an answer. If all others have calls, the newest is closed.
type connLimit struct {
	net.Listener
	most int
	log  hclog.Logger

	left chan struct{} // signals that a connection was closed; one slot

	mu     sync.Mutex
	all    map[*limitedConn]struct{}
	hosts  map[string]int
	closed uint64    // connections closed since the last log line
	said   time.Time // time of the last log line
}

const (
	// maxConnections is the highest bound: to make room takes time that grows with the number of connections.
	maxConnections = 1 << 14
	// leastConnections is the least bound, however few files the process may have.
	leastConnections = 64
	// connectionsPart divides the files that a process may have open: that many may be connections of one server. A role
	// has at most two servers, and connects to others for scans and commands.
	connectionsPart = 3
	// freshFor is how long a connection without a call yet is not closed to make room.
	freshFor = time.Second / 2
	// limitLogged is the least time between two log lines about closed connections.
	limitLogged = time.Minute
)

// mostConnections returns the bound for a server that has none of its own.
func mostConnections() int {
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
	since time.Time // when it was accepted, or its last call began or ended
	calls int       // calls in progress
	asked bool      // it has had a call
}

// connKey is the context key of a request's connection.
type connKey struct{}

func newConnLimit(l net.Listener, most int, log hclog.Logger) *connLimit {
	return &connLimit{Listener: l, most: most, log: log, left: make(chan struct{}, 1), all: map[*limitedConn]struct{}{},
		hosts: map[string]int{}}
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
		switch {
		case gone != nil:
			_ = gone.Close() // its server goroutine sees the error
			return n, nil
		case wait <= 0:
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
	c.hosts[n.host]++
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
		if x.calls > 0 || x == newest {
			continue
		}
		if left := freshFor - now.Sub(x.since); left > 0 && !x.asked {
			if wait == 0 || left < wait {
				wait = left
			}
		} else if gone == nil || c.before(x, gone) {
			gone = x
		}
	}
	if gone == nil && wait == 0 {
		gone = newest
	}
	if gone != nil {
		c.logClosed(gone.host)
	}
	return gone, wait
}

// before reports whether a is to be closed rather than b.
func (c *connLimit) before(a, b *limitedConn) bool {
	if of, than := c.hosts[a.host], c.hosts[b.host]; of != than {
		return of > than
	}
	return a.since.Before(b.since)
}

// logClosed logs that connections were closed, at most once in limitLogged. The caller holds mu.
func (c *connLimit) logClosed(host string) {
	c.closed++
	now := time.Now()
	if now.Sub(c.said) < limitLogged {
		return
	}
	c.log.Warn("more connections than this process has files for: the oldest without a call is closed, of the host that "+
		"has the most; allow it more files (ulimit -n, LimitNOFILE=), or see who connects", "listens", c.Addr().String(),
		"limit", c.most, "host", host, "of_it", c.hosts[host], "closed", c.closed)
	c.said, c.closed = now, 0
}

// Close implements net.Conn.
func (n *limitedConn) Close() error {
	c := n.limit
	c.mu.Lock()
	if _, is := c.all[n]; is {
		delete(c.all, n)
		if c.hosts[n.host]--; c.hosts[n.host] == 0 {
			delete(c.hosts, n.host)
		}
	}
	c.mu.Unlock()
	select {
	case c.left <- struct{}{}:
	default:
	}
	return n.Conn.Close()
}

// CloseWrite closes the sending side, if the connection supports that: net/http does so before it closes, so that a
// response arrives completely.
func (n *limitedConn) CloseWrite() error {
	if half, can := n.Conn.(interface{ CloseWrite() error }); can {
		return half.CloseWrite()
	}
	return nil
}

// noted returns the context of a connection's requests, in which serving finds it. conn may be a TLS connection.
func (c *connLimit) noted(ctx context.Context, conn net.Conn) context.Context {
	if inner, is := conn.(interface{ NetConn() net.Conn }); is {
		conn = inner.NetConn()
	}
	return context.WithValue(ctx, connKey{}, conn)
}

// serving tracks which connections have calls.
func (c *connLimit) serving(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n, is := r.Context().Value(connKey{}).(*limitedConn); is {
			n.call(1)
			defer n.call(-1)
		}
		h.ServeHTTP(w, r)
	})
}

// call counts a call that begins or ends.
func (n *limitedConn) call(more int) {
	n.limit.mu.Lock()
	defer n.limit.mu.Unlock()
	n.calls += more
	n.since, n.asked = time.Now(), true
}
