package transport

import (
	"context"
	"net"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"
)

// guard counts a server's connections, refuses those above the limit, and names in the log those that ended without a
// valid hello: a stranger on the port, or a client of another version.
type guard struct {
	log      hclog.Logger
	stopping atomic.Bool // the server ends its connections by itself

	mu    sync.Mutex
	most  int
	conns map[string]*guarded // by remote address
}

func newGuard(log hclog.Logger, most int) *guard {
	return &guard{log: log, most: most, conns: make(map[string]*guarded)}
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

// add registers a connection; false when there are the most that there may be.
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

// find returns the connection that a stream's context belongs to; one without a socket when it is already gone.
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
		l.guard.log.Warn("connection refused: too many connections", "remote", c.addr, "limit", most)
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
	left   atomic.Bool // its peer went; nothing more comes
	closed atomic.Bool
}

// Read counts what comes in.
func (c *guarded) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.bytes.Add(int64(n))
	if err != nil && !c.closed.Load() {
		c.left.Store(true)
	}
	return n, err
}

// level returns how much it matters that the connection ended before its hello: nothing when the server itself was
// stopping, and little when its peer went, as a router does whose projector stops; a stranger is worth a warning.
func (c *guarded) level() hclog.Level {
	switch {
	case c.guard.stopping.Load():
		return hclog.Debug
	case c.left.Load():
		return hclog.Info
	}
	return hclog.Warn
}

// Close closes the socket and takes it out of the count.
func (c *guarded) Close() error {
	if !c.closed.Swap(true) {
		c.guard.remove(c)
		if n := c.bytes.Load(); !c.hello.Load() && n > 0 {
			c.guard.log.Log(c.level(), "connection closed: it never said a valid hello; only routers of the same version "+
				"belong on this port", "remote", c.addr, "bytes", n)
		}
	}
	return c.Conn.Close()
}

// abort cuts the connection, whatever it is doing.
func (c *guarded) abort() {
	if c.Conn != nil {
		c.Close()
	}
}
