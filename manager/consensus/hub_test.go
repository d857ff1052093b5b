package consensus_test

import (
	"fmt"
	"net"
	"sync"
	"time"
)

// hub connects servers by pipes, so that a cluster runs in virtual time, and can cut the links.
type hub struct {
	mu        sync.Mutex
	listeners map[string]*pipeListener
	cut       map[[2]string]bool
	conns     map[[2]string][]net.Conn
	gates     map[string]*gate
}

// gate blocks what one server reads from, or writes to, the servers that it calls; nothing is lost. A nil channel is
// open.
type gate struct{ reads, writes chan struct{} }

// gated is a connection that a server has dialled.
type gated struct {
	net.Conn
	hub  *hub
	from string
}

func (g gated) Read(b []byte) (int, error) {
	n, err := g.Conn.Read(b)
	g.hub.pass(g.from, func(g *gate) chan struct{} { return g.reads })
	return n, err
}

func (g gated) Write(b []byte) (int, error) {
	g.hub.pass(g.from, func(g *gate) chan struct{} { return g.writes })
	return g.Conn.Write(b)
}

func (h *hub) pass(from string, which func(*gate) chan struct{}) {
	h.mu.Lock()
	var closed chan struct{}
	if g := h.gates[from]; g != nil {
		closed = which(g)
	}
	h.mu.Unlock()
	if closed != nil {
		<-closed
	}
}

// hold closes the gates of a server for its reads and its writes. The returned functions open them.
func (h *hub) hold(name string) (read, write func()) {
	g := &gate{reads: make(chan struct{}), writes: make(chan struct{})}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gates[name] = g
	return func() { close(g.reads) }, func() { close(g.writes) }
}

func newHub() *hub {
	return &hub{listeners: map[string]*pipeListener{}, cut: map[[2]string]bool{}, conns: map[[2]string][]net.Conn{},
		gates: map[string]*gate{}}
}

type pipeListener struct {
	hub  *hub
	name string
	in   chan net.Conn
	done chan struct{}
	once sync.Once
}

type pipeAddr string

func (a pipeAddr) Network() string { return "pipe" }
func (a pipeAddr) String() string  { return string(a) }

func (l *pipeListener) Addr() net.Addr { return pipeAddr(l.name) }

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.in:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() {
		close(l.done)
		l.hub.mu.Lock()
		if l.hub.listeners[l.name] == l {
			delete(l.hub.listeners, l.name)
		}
		l.hub.mu.Unlock()
		l.hub.sever(l.name, "")
	})
	return nil
}

func (h *hub) listen(name string) net.Listener {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := &pipeListener{hub: h, name: name, in: make(chan net.Conn), done: make(chan struct{})}
	h.listeners[name] = l
	return l
}

func (h *hub) dial(from, to string, timeout time.Duration) (net.Conn, error) {
	h.mu.Lock()
	l, cut := h.listeners[to], h.cut[[2]string{from, to}]
	h.mu.Unlock()
	if cut { // packets are lost
		time.Sleep(timeout)
		return nil, fmt.Errorf("dial %s from %s: timeout", to, from)
	}
	if l == nil {
		return nil, fmt.Errorf("dial %s from %s: connection refused", to, from)
	}
	a, b := net.Pipe()
	h.mu.Lock()
	link := [2]string{from, to}
	h.conns[link] = append(h.conns[link], a, b)
	h.mu.Unlock()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case l.in <- b:
		return gated{Conn: a, hub: h, from: from}, nil
	case <-l.done:
		return nil, fmt.Errorf("dial %s from %s: connection refused", to, from)
	case <-timer.C:
		return nil, fmt.Errorf("dial %s from %s: timeout", to, from)
	}
}

// sever closes the connections between two servers; with to "" those to all servers.
func (h *hub) sever(from, to string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for link, conns := range h.conns {
		if to == "" && (link[0] == from || link[1] == from) || link == [2]string{from, to} || link == [2]string{to, from} {
			for _, c := range conns {
				c.Close()
			}
			delete(h.conns, link)
		}
	}
}

// isolate cuts a server off from all others or, with cut false, reconnects it.
func (h *hub) isolate(name string, cut bool, others ...string) {
	h.mu.Lock()
	for _, o := range others {
		h.cut[[2]string{name, o}], h.cut[[2]string{o, name}] = cut, cut
	}
	h.mu.Unlock()
	h.sever(name, "")
}

// oneWay cuts the traffic from one server to another.
func (h *hub) oneWay(from, to string, cut bool) {
	h.mu.Lock()
	h.cut[[2]string{from, to}] = cut
	h.mu.Unlock()
	h.sever(from, to)
}
