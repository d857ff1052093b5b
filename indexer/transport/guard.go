package transport

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/internal/loglimit"
)

// guard counts a server's connections, refuses those above the limit, and logs those that ended without a valid
// hello: foreign programs, or clients of another version.
type guard struct {
	log      hclog.Logger
	now      func() time.Time
	stopping atomic.Bool // the server itself ends its connections

	mu    sync.Mutex
	most  int
	conns map[string]*guarded // by remote address
	lines loglimit.Limiter
}

func newGuard(log hclog.Logger, most int, now func() time.Time) *guard {
	return &guard{log: log, now: now, most: most, conns: make(map[string]*guarded)}
}

// say logs what a connection did before it was admitted: anyone can cause it, see package loglimit.
func (g *guard) say(level hclog.Level, what, addr string, args ...any) {
	g.mu.Lock()
	leftOut, due := g.lines.Due(level.String()+what, addr, g.now())
	g.mu.Unlock()
	if due {
		g.log.Log(level, what, append([]any{"remote", addr, "left_out", leftOut}, args...)...)
	}
}

func (g *guard) listen(lis net.Listener) net.Listener {
	return &guardedListener{Listener: lis, guard: g}
}

func (g *guard) open() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.conns)
}

func (g *guard) allow(most int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.most = most
}

// add registers a connection; it returns false if the limit is reached.
func (g *guard) add(c *guarded) (most int, room bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.conns) >= g.most {
		return g.most, false
	}
	g.conns[c.addr] = c
	return g.most, true
}

func (g *guard) remove(c *guarded) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.conns[c.addr] == c {
		delete(g.conns, c.addr)
	}
}

// find returns the connection of a stream's context, or one without a socket if it is already gone.
func (g *guard) find(ctx context.Context) *guarded {
	addr := remoteAddr(ctx)
	g.mu.Lock()
	defer g.mu.Unlock()
	if c := g.conns[addr]; c != nil {
		return c
	}
	gone := &guarded{addr: addr, guard: g}
	gone.left.Store(true)
	return gone
}

type guardedListener struct {
	net.Listener
	guard *guard
}

// Accept returns the next connection within the limit.
func (l *guardedListener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &guarded{Conn: raw, addr: raw.RemoteAddr().String(), guard: l.guard}
		most, room := l.guard.add(c)
		if room {
			return c, nil
		}
		l.guard.say(hclog.Warn, "connection refused: too many connections", c.addr, "limit", most)
		raw.Close()
	}
}

// guarded is one accepted connection.
type guarded struct {
	net.Conn
	addr   string
	guard  *guard
	bytes  atomic.Int64
	hello  atomic.Bool
	left   atomic.Bool // the peer has closed the connection
	closed atomic.Bool
}

// Read counts the bytes received.
func (c *guarded) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.bytes.Add(int64(n))
	if err != nil && !c.closed.Load() {
		c.left.Store(true)
	}
	return n, err
}

// level returns the log level for a connection that ended before its hello: debug while the server itself is
// stopping, info if the peer closed it, as a router does when its projector stops, otherwise a warning, because the
// peer does not speak this protocol.
func (c *guarded) level() hclog.Level {
	switch {
	case c.guard.stopping.Load():
		return hclog.Debug
	case c.left.Load():
		return hclog.Info
	}
	return hclog.Warn
}

// Close closes the socket and unregisters the connection.
func (c *guarded) Close() error {
	if !c.closed.Swap(true) {
		c.guard.remove(c)
		if n := c.bytes.Load(); !c.hello.Load() && n > 0 {
			c.guard.say(c.level(), "connection closed: it never sent a valid hello; only routers of the same version "+
				"may use this port", c.addr, "bytes", n)
		}
	}
	return c.Conn.Close()
}

// abort closes the connection, whatever it is doing.
func (c *guarded) abort() {
	if c.Conn != nil {
		c.Close()
	}
}
