package testcluster

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tidemark/internal/localcluster"
)

// Limits of the proxies.
const (
	chunkBytes  = 32 << 10
	chunksAhead = 16 // chunks in flight in one direction of a connection
	dialTarget  = 2 * time.Second
	planPoll    = 5 * time.Millisecond
)

// Links are the network between the processes of a cluster: a proxy in this process stands in front of every address
// that they publish to each other, identifies the caller, and forwards bytes as the rules say. Names are those of the
// manifest (m1, p1, kv1, i1).
//
// A cut link is silent: bytes in flight are held, as TCP would retransmit them, and neither side sees a closed
// connection before the link is healed; a new connection needs both directions. Callers outside the cluster use the
// addresses of the manifest, which have no proxy; a proxy resets a caller that is not, or no longer, a process of the
// cluster.
type Links struct {
	host      string
	who       func(c *net.TCPConn) string // returns the caller's name, empty if it is no process of the cluster
	rules     atomic.Pointer[rules]
	changing  sync.Mutex // serializes changes of the rules
	closed    chan struct{}
	ending    sync.Once
	tasks     sync.WaitGroup
	passed    atomic.Int64 // connections forwarded
	mu        sync.Mutex
	listeners map[string]net.Listener // by the address that each stands before; a shut one is not there
	pipes     map[*pipe]struct{}
}

type link struct{ from, to string }

// rule is what happens to bytes from one process to another.
type rule struct {
	cut    bool
	refuse bool // connections are reset
	delay  time.Duration
}

// rules is an immutable set of rules; a change replaces it as a whole.
type rules struct {
	by      map[link]rule
	changed chan struct{} // closed when newer rules replace these
}

// newLinks makes links on a loopback host of their own. The host depends on dir alone, because the members in dir
// keep their addresses.
func newLinks(dir string, who func(c *net.TCPConn) string) *Links {
	h := fnv.New32a()
	_, _ = h.Write([]byte(dir)) // never fails
	l := &Links{host: fmt.Sprintf("127.77.%d.%d", h.Sum32()>>8&0xff, 1+h.Sum32()%254), who: who,
		closed: make(chan struct{}), listeners: map[string]net.Listener{}, pipes: map[*pipe]struct{}{}}
	l.rules.Store(&rules{by: map[link]rule{}, changed: make(chan struct{})})
	return l
}

// change replaces the rules by a changed copy.
func (l *Links) change(f func(by map[link]rule)) {
	l.changing.Lock()
	defer l.changing.Unlock()
	old := l.rules.Load()
	next := &rules{by: maps.Clone(old.by), changed: make(chan struct{})}
	f(next.by)
	l.rules.Store(next)
	close(old.changed)
}

func (l *Links) both(a, b string, f func(r *rule)) {
	l.change(func(by map[link]rule) {
		for _, k := range []link{{a, b}, {b, a}} {
			r := by[k]
			f(&r)
			by[k] = r
		}
	})
}

// Cut silences the link between two processes in both directions.
func (l *Links) Cut(a, b string) { l.both(a, b, func(r *rule) { r.cut = true }) }

// CutOneWay silences the link from one process to another in that direction only.
func (l *Links) CutOneWay(from, to string) {
	l.change(func(by map[link]rule) {
		r := by[link{from, to}]
		r.cut = true
		by[link{from, to}] = r
	})
}

// Refuse resets the existing and all new connections between two processes.
func (l *Links) Refuse(a, b string) {
	l.both(a, b, func(r *rule) { r.refuse = true })
	l.mu.Lock()
	defer l.mu.Unlock()
	for p := range l.pipes {
		if p.caller == a && p.callee == b || p.caller == b && p.callee == a {
			p.reset()
		}
	}
}

// Delay delays bytes between two processes by d in each direction.
func (l *Links) Delay(a, b string, d time.Duration) { l.both(a, b, func(r *rule) { r.delay = d }) }

// Partition cuts every link between members of different groups.
func (l *Links) Partition(groups ...[]string) {
	l.change(func(by map[link]rule) {
		for i, g := range groups {
			for j, other := range groups {
				for _, a := range g {
					for _, b := range other {
						if i != j {
							by[link{a, b}] = rule{cut: true}
						}
					}
				}
			}
		}
	})
}

// Heal removes all rules of the link between two processes.
func (l *Links) Heal(a, b string) { l.both(a, b, func(r *rule) { *r = rule{} }) }

// HealAll removes all rules.
func (l *Links) HealAll() { l.change(func(by map[link]rule) { clear(by) }) }

// Passed returns how many connections between processes were forwarded.
func (l *Links) Passed() int64 { return l.passed.Load() }

// open puts a proxy in front of an address.
func (l *Links) open(callee, address string) error {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(l.host, port))
	if err != nil {
		return fmt.Errorf("a proxy before %s: %w", callee, err)
	}
	l.mu.Lock()
	l.listeners[address] = listener
	l.mu.Unlock()
	l.tasks.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return // closed
			}
			l.tasks.Go(func() { l.serve(c.(*net.TCPConn), callee, address) })
		}
	})
	return nil
}

// Shut closes one address of a process for all others: connections there are reset, and nothing listens there
// until Reopen.
func (l *Links) Shut(address string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if listener := l.listeners[address]; listener != nil {
		_ = listener.Close()
		delete(l.listeners, address)
	}
	for p := range l.pipes {
		if p.address == address {
			p.reset()
		}
	}
}

// Reopen ends Shut.
func (l *Links) Reopen(t testing.TB, callee, address string) {
	t.Helper()
	if err := l.open(callee, address); err != nil {
		t.Fatal(err)
	}
}

// Close closes all proxies and connections. It may be called again, and is called at the end of the test.
func (l *Links) Close() {
	l.ending.Do(func() { close(l.closed) })
	l.mu.Lock()
	for _, listener := range l.listeners {
		_ = listener.Close()
	}
	for p := range l.pipes {
		p.reset()
	}
	l.mu.Unlock()
	l.tasks.Wait()
}

func (l *Links) isClosed() bool {
	select {
	case <-l.closed:
		return true
	default:
		return false
	}
}

// pipe is a forwarded connection.
type pipe struct {
	caller, callee string
	address        string
	near, far      *net.TCPConn
}

// reset resets both halves at once, so that either side sees an error.
func (p *pipe) reset() {
	for _, c := range []*net.TCPConn{p.near, p.far} {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
}

// serve forwards one connection once both directions are open.
func (l *Links) serve(near *net.TCPConn, callee, address string) {
	caller := l.who(near)
	p := &pipe{caller: caller, callee: callee, address: address, near: near}
	refused := func() {
		_ = near.SetLinger(0)
		_ = near.Close()
	}
	if caller == "" {
		refused()
		return
	}
	l.passed.Add(1)
	if !l.await(p, caller, callee) || !l.await(p, callee, caller) {
		refused()
		return
	}
	far, err := net.DialTimeout("tcp", address, dialTarget)
	if err != nil {
		refused()
		return
	}
	p.far = far.(*net.TCPConn)
	l.mu.Lock()
	if l.listeners[address] == nil || l.isClosed() {
		l.mu.Unlock()
		p.reset()
		return
	}
	l.pipes[p] = struct{}{}
	l.mu.Unlock()
	var halves sync.WaitGroup
	halves.Go(func() { l.pass(p, p.far, near, caller, callee) })
	halves.Go(func() { l.pass(p, near, p.far, callee, caller) })
	halves.Wait()
	_, _ = near.Close(), p.far.Close()
	l.mu.Lock()
	delete(l.pipes, p)
	l.mu.Unlock()
}

// await waits until the direction is open. It returns false if it never will be for this connection.
func (l *Links) await(p *pipe, from, to string) bool {
	for {
		now := l.rules.Load()
		r := now.by[link{from, to}]
		switch {
		case r.refuse:
			return false
		case !r.cut:
			return true
		}
		select {
		case <-now.changed:
		case <-l.closed:
			return false
		}
	}
}

// chunk is the result of one read; err is set at the end.
type chunk struct {
	data []byte
	due  time.Time
	err  error
}

// pass forwards bytes in one direction until it ends.
func (l *Links) pass(p *pipe, dst, src *net.TCPConn, from, to string) {
	ahead := make(chan chunk, chunksAhead)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	l.tasks.Go(func() {
		for {
			buf := make([]byte, chunkBytes)
			n, err := src.Read(buf)
			c := chunk{data: buf[:n], err: err, due: time.Now().Add(l.rules.Load().by[link{from, to}].delay)}
			select {
			case ahead <- c:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	})
	for {
		var c chunk
		select {
		case c = <-ahead:
		case <-l.closed:
			return
		}
		if d := time.Until(c.due); d > 0 {
			select {
			case <-time.After(d):
			case <-l.closed:
				return
			}
		}
		if !l.await(p, from, to) {
			p.reset()
			return
		}
		if _, err := dst.Write(c.data); err != nil {
			p.reset()
			return
		}
		if errors.Is(c.err, io.EOF) {
			_ = dst.CloseWrite()
			return
		}
		if c.err != nil {
			p.reset()
			return
		}
	}
}

// StartLinked is Start with proxies between all processes. It skips the test where callers cannot be identified.
func StartLinked(t testing.TB, dir string, args ...string) (*Cluster, *Links) {
	t.Helper()
	known := &callers{}
	if err := known.usable(); err != nil {
		t.Skipf("links between processes cannot be cut here: %v", err)
	}
	l := newLinks(dir, known.who)
	t.Cleanup(l.Close)
	c := Launch(t, dir, append([]string{"--advertise-host", l.host}, args...)...)
	known.parent.Store(int64(c.PID()))
	for over := time.After(upTimeout); ; {
		plan, err := localcluster.ReadPlan(dir)
		if err == nil {
			l.before(t, plan)
			break
		}
		select {
		case <-c.ended:
			t.Fatalf("up ended: %v\n%s", c.waitErr, c.out)
		case <-over:
			t.Fatalf("no plan in %s after %s: %v", dir, upTimeout, err)
		case <-time.After(planPoll):
		}
	}
	c.waitManifest()
	return c, l
}

// before puts proxies in front of all addresses of a plan.
func (l *Links) before(t testing.TB, plan *localcluster.Manifest) {
	t.Helper()
	open := func(callee string, addresses ...string) {
		for _, a := range addresses {
			if err := l.open(callee, strings.TrimPrefix(a, "http://")); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, e := range plan.Managers {
		open(e.ID, e.REST, e.Raft)
	}
	for _, e := range plan.KV {
		open(e.ID, e.Memcached)
	}
	for _, e := range plan.Projectors {
		open(e.ID, e.Admin)
	}
	for _, e := range plan.Indexers {
		open(e.ID, e.Admin, e.Scan, e.Data.Maintenance, e.Data.Backfill, e.Data.Catchup)
	}
}
