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
	chunksAhead = 16 // on their way in one direction of a connection
	dialTarget  = 2 * time.Second
	planPoll    = 5 * time.Millisecond
)

// Links are the network between the processes of a cluster: a proxy in this process stands before every address that
// they tell each other, finds out who calls, and passes bytes on as the rules say. Names are those of the manifest
// (m1, p1, kv1, i1).
//
// A cut link is silent: what is on its way is held, as TCP would send it again, and nobody sees a closed connection
// before it is healed; a new connection needs both directions. Callers outside the cluster use the addresses of the
// manifest, which no proxy stands before; here a caller that is no process of the cluster (any more) is reset.
type Links struct {
	host      string
	who       func(c *net.TCPConn) string // the caller's name, empty for one that is none of the cluster's
	rules     atomic.Pointer[rules]
	changing  sync.Mutex // one change of the rules at a time
	closed    chan struct{}
	ending    sync.Once
	tasks     sync.WaitGroup
	passed    atomic.Int64 // connections
	mu        sync.Mutex
	listeners []net.Listener
	pipes     map[*pipe]struct{}
}

type link struct{ from, to string }

// rule is what happens on the way from one to another.
type rule struct {
	cut    bool
	refuse bool // connections are reset
	delay  time.Duration
}

// rules are replaced as a whole.
type rules struct {
	by      map[link]rule
	changed chan struct{} // closed when these do not hold any more
}

// newLinks makes links on a loopback host of their own; the same for the same folder, whose members keep their
// addresses.
func newLinks(dir string, who func(c *net.TCPConn) string) *Links {
	h := fnv.New32a()
	_, _ = h.Write([]byte(dir)) // never fails
	l := &Links{host: fmt.Sprintf("127.77.%d.%d", h.Sum32()>>8&0xff, 1+h.Sum32()%254), who: who,
		closed: make(chan struct{}), pipes: map[*pipe]struct{}{}}
	l.rules.Store(&rules{by: map[link]rule{}, changed: make(chan struct{})})
	return l
}

// change replaces the rules.
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

// CutOneWay silences the way from one process to another.
func (l *Links) CutOneWay(from, to string) {
	l.change(func(by map[link]rule) {
		r := by[link{from, to}]
		r.cut = true
		by[link{from, to}] = r
	})
}

// Refuse resets the connections between two processes, those that are there and new ones.
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

// Delay lets bytes between two processes take longer, in each direction.
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

// Heal makes the link between two processes whole.
func (l *Links) Heal(a, b string) { l.both(a, b, func(r *rule) { *r = rule{} }) }

// HealAll makes all links whole.
func (l *Links) HealAll() { l.change(func(by map[link]rule) { clear(by) }) }

// Passed returns how many connections between processes have gone through.
func (l *Links) Passed() int64 { return l.passed.Load() }

// open puts a proxy before an address.
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
	l.listeners = append(l.listeners, listener)
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

// Close ends all proxies and connections; a second one does nothing. The end of the test does it too.
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

// pipe is a connection that was passed on.
type pipe struct {
	caller, callee string
	near, far      *net.TCPConn
}

// reset ends both halves at once, so that either side sees an error.
func (p *pipe) reset() {
	for _, c := range []*net.TCPConn{p.near, p.far} {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
}

// serve passes one connection on once both directions are whole.
func (l *Links) serve(near *net.TCPConn, callee, address string) {
	caller := l.who(near)
	p := &pipe{caller: caller, callee: callee, near: near}
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
	select {
	case <-l.closed:
		l.mu.Unlock()
		p.reset()
		return
	default:
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

// await returns when the way is open; false when it never will be for this connection.
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

// chunk is what was read at once; err is the end.
type chunk struct {
	data []byte
	due  time.Time
	err  error
}

// pass moves bytes in one direction until that ends.
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

// StartLinked is Start with proxies between all processes. Where callers cannot be told apart the test is skipped.
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

// before puts proxies before all addresses of a plan.
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
