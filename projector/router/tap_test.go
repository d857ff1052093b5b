package router_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tidemark/index"
	"tidemark/indexer/transport"
	"tidemark/keyversion"
	"tidemark/partition"
	"tidemark/projector/router"
)

// wireTap is a Dial whose connections only record. Frames are acknowledged at once unless held.
type wireTap struct {
	mu      sync.Mutex
	refuse  map[string]bool // unreachable addresses
	deny    map[string]bool // addresses that answer a hello with a refusal
	hold    map[string]bool // addresses that acknowledge nothing
	block   map[string]bool // addresses whose Send blocks until the connection ends
	conns   []*tapConn
	dials   map[string]int
	arrived chan struct{} // signalled at every frame and dial
}

func newTap() *wireTap {
	return &wireTap{refuse: map[string]bool{}, deny: map[string]bool{}, hold: map[string]bool{}, block: map[string]bool{},
		dials: map[string]int{}, arrived: make(chan struct{}, 1)}
}

type tapConn struct {
	tap     *wireTap
	addr    string
	hello   keyversion.Hello
	onAck   func(uint64)
	done    chan struct{}
	once    sync.Once
	batches []keyversion.Batch // guarded by tap.mu
}

func (w *wireTap) set(m map[string]bool, addr string, on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	m[addr] = on
}

func (w *wireTap) signal() {
	select {
	case w.arrived <- struct{}{}:
	default:
	}
}

func (w *wireTap) dial(_ context.Context, addr string, hello keyversion.Hello, onAck func(uint64)) (router.Conn,
	error) {
	defer w.signal()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dials[addr]++
	if w.refuse[addr] {
		return nil, errors.New("no route")
	}
	if w.deny[addr] {
		return nil, fmt.Errorf("connect to %s: %w: try again", addr, transport.ErrRefused)
	}
	c := &tapConn{tap: w, addr: addr, hello: hello, onAck: onAck, done: make(chan struct{})}
	w.conns = append(w.conns, c)
	return c, nil
}

func (c *tapConn) Send(frame []byte) error {
	select {
	case <-c.done:
		return c.Err()
	default:
	}
	var b keyversion.Batch
	if err := keyversion.Decode(bytes.Clone(frame), &b); err != nil {
		return err
	}
	c.tap.mu.Lock()
	hold, block := c.tap.hold[c.addr], c.tap.block[c.addr]
	if !block {
		c.batches = append(c.batches, b)
	}
	c.tap.mu.Unlock()
	c.tap.signal()
	if block {
		<-c.done
		return c.Err()
	}
	if !hold {
		c.onAck(b.Number)
	}
	return nil
}

func (c *tapConn) Done() <-chan struct{} { return c.done }

func (c *tapConn) Err() error { return errors.New("cut") }

func (c *tapConn) Close() error {
	c.once.Do(func() { close(c.done) })
	return nil
}

// ackAll acknowledges everything that arrived at addr, and from now on at once.
func (w *wireTap) ackAll(addr string) {
	w.set(w.hold, addr, false)
	for _, c := range w.at(addr) {
		w.mu.Lock()
		var last uint64
		for i := range c.batches {
			last = max(last, c.batches[i].Number)
		}
		w.mu.Unlock()
		c.onAck(last)
	}
}

func (w *wireTap) at(addr string) (conns []*tapConn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		if c.addr == addr {
			conns = append(conns, c)
		}
	}
	return conns
}

// script describes the events of the connections to addr, oldest connection first, one per line.
func (w *wireTap) script(addr string) string {
	var out strings.Builder
	for i, c := range w.at(addr) {
		if i > 0 {
			out.WriteString("-- again\n")
		}
		w.mu.Lock()
		for j := range c.batches {
			for k := range c.batches[j].Events {
				out.WriteString(draw(&c.batches[j].Events[k]) + "\n")
			}
		}
		w.mu.Unlock()
	}
	return out.String()
}

func draw(ev *keyversion.Event) string {
	s := fmt.Sprintf("%s vb%d i%d %d", ev.Kind, ev.VBucket, ev.Incarnation.Counter, ev.Seqno)
	if ev.Kind.Data() {
		s += " " + string(ev.DocID)
		all := ev.Explicit(nil)
		slices.SortStableFunc(all, func(a, b keyversion.Statement) int { return cmp.Compare(a.Index, b.Index) })
		for _, st := range all {
			s += fmt.Sprintf(" %d/%d=%s", st.Index, st.Slice, bytes.Join(st.Keys, []byte(",")))
		}
	}
	if ev.Copies != nil {
		s += fmt.Sprint(" ", ev.Copies)
	}
	if ev.Begin != nil {
		s += fmt.Sprint(" after ", ev.Begin.Start, " ", ev.Begin.Copies)
	}
	return s
}

// expect waits until the script at addr is the wanted one.
func (w *wireTap) expect(t *testing.T, addr string, lines ...string) {
	t.Helper()
	want := strings.Join(lines, "\n") + "\n"
	if len(lines) == 0 {
		want = ""
	}
	w.await(t, func() bool { return w.script(addr) == want }, func() string {
		return fmt.Sprintf("%s got\n%swant\n%s", addr, w.script(addr), want)
	})
}

func (w *wireTap) await(t *testing.T, ok func() bool, what func() string) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-w.arrived:
		case <-tick.C:
		case <-deadline:
			t.Fatal(what())
		}
	}
}

// fixture is a topic over a tap. Node n's address is "n<n>".
type fixture struct {
	t     *testing.T
	tap   *wireTap
	r     *router.Router
	topic *router.Topic
}

func newFixture(t *testing.T, cfg router.Config, tc router.TopicConfig) *fixture {
	tap := newTap()
	cfg.Dial = tap.dial
	if cfg.Connections == 0 {
		cfg.Connections = 1
	}
	f := &fixture{t: t, tap: tap, r: newRouter(t, cfg)}
	topic, err := f.r.Open(tc)
	if err != nil {
		t.Fatal(err)
	}
	f.topic = topic
	return f
}

func view(t testing.TB, revision uint64, topologies ...partition.Topology) *router.View {
	t.Helper()
	cfg := router.ViewConfig{Revision: revision, Endpoints: map[index.NodeID]string{}, Topologies: topologies}
	for _, top := range topologies {
		for _, c := range top.Copies {
			cfg.Endpoints[c.Node] = fmt.Sprintf("n%d", c.Node)
		}
	}
	v, err := router.NewView(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// one returns an index of one slice with copies on nodes; copy ids are index*10 + node.
func one(id index.ID, nodes ...index.NodeID) partition.Topology {
	t := partition.Topology{Index: id, Layout: partition.Layout{Scheme: partition.HashDocID, Partitions: 1}}
	for r, n := range nodes {
		t.Copies = append(t.Copies, partition.Copy{ID: index.CopyID(uint64(id)*10 + uint64(n)), Replica: partition.Replica(r),
			Node:  n,
			State: partition.Allocated})
	}
	return t
}

func (f *fixture) begin(vb uint16, n uint64, v *router.View, start uint64) {
	f.t.Helper()
	f.must(f.topic.Begin(f.t.Context(), v, streamAt(vb, inc(n), start)))
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func doc(seqno uint64, id string, keys ...string) *router.Doc {
	d := &router.Doc{VBUUID: 77, Seqno: seqno, Window: windowOf(seqno), DocID: []byte(id)}
	for _, k := range keys {
		if k == "" {
			d.Keys = append(d.Keys, nil)
		} else {
			d.Keys = append(d.Keys, [][]byte{[]byte(k)})
		}
	}
	return d
}

func (w *wireTap) ended(addr string) bool {
	for _, c := range w.at(addr) {
		select {
		case <-c.done:
		default:
			return false
		}
	}
	return true
}
