package router_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"

	"tidemark/index"
	"tidemark/indexer/transport"
	"tidemark/internal/testing/families"
	"tidemark/internal/testing/ports"
	"tidemark/keyversion"
	"tidemark/partition"
	"tidemark/timestamp"
)

// change is one mutation in the KV store.
type change struct {
	seqno  uint64
	doc    string
	keys   map[index.ID]string // one key per index; missing: no entry
	delete bool
}

// truth is the history of every vbucket, recorded before the router gets it.
type truth struct {
	mu       sync.Mutex
	vbuckets [][]change
}

func newTruth(n int) *truth { return &truth{vbuckets: make([][]change, n)} }

func (tr *truth) add(vb uint16, c change) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.vbuckets[vb] = append(tr.vbuckets[vb], c)
}

func (tr *truth) last(vb uint16) uint64 {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if h := tr.vbuckets[vb]; len(h) > 0 {
		return h[len(h)-1].seqno
	}
	return 0
}

// rows returns a slice's rows of one vbucket as of seqno: what a build or a catchup would deliver.
func (tr *truth) rows(vb uint16, c *copyModel, seqno uint64) map[string]string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	rows := make(map[string]string)
	for _, m := range tr.vbuckets[vb] {
		if m.seqno <= seqno && c.receives(m.doc) {
			c.apply(rows, m)
		}
	}
	return rows
}

// between returns the first change of the slice's documents after a and before b.
func (tr *truth) between(vb uint16, c *copyModel, a, b uint64) (uint64, bool) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for _, m := range tr.vbuckets[vb] {
		if m.seqno > a && m.seqno < b && c.receives(m.doc) {
			return m.seqno, true
		}
	}
	return 0, false
}

func (tr *truth) at(vb uint16, seqno uint64) (change, bool) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for _, m := range tr.vbuckets[vb] {
		if m.seqno == seqno {
			return m, true
		}
	}
	return change{}, false
}

// copyModel is one copy of a slice, for one vbucket.
type copyModel struct {
	index index.ID
	slice index.SliceID
	at    partition.TopologyProvider
	fed   bool
	main  uint64
	rows  map[string]string
	fills int // number of gaps filled from the truth
}

// receives reports whether the copy gets every version of a document: each slice does if the index is partitioned by
// key.
func (c *copyModel) receives(doc string) bool {
	return c.at.ByKey() || c.at.Slice(partition.KeyVersion{DocID: []byte(doc)}) == c.slice
}

// entry returns the key that a version of a document has in the copy.
func (c *copyModel) entry(m change) (key string, has bool) {
	key, has = m.keys[c.index]
	return key, has && !m.delete && c.at.Slice(partition.KeyVersion{DocID: []byte(m.doc), Key: []byte(key)}) == c.slice
}

func (c *copyModel) apply(rows map[string]string, m change) {
	if key, ok := c.entry(m); ok {
		rows[m.doc] = key
	} else {
		delete(rows, m.doc)
	}
}

// nodeVB is one vbucket at an endpoint.
type nodeVB struct {
	inc      index.Incarnation
	owner    *nodeSink
	dropping bool
	copies   map[index.CopyID]*copyModel
}

// node is an endpoint that follows the receiver's rules and nothing else: it accepts events from the owner of the
// newest StreamBegin, skips what its position covers, and fills from the truth exactly the gaps that StreamBegin and
// Activate state. Any unannounced gap is an error.
type node struct {
	id    index.NodeID
	truth *truth
	// placed holds the properties of copies.
	placed map[index.CopyID]copyModel

	mu     sync.Mutex
	vbs    map[uint16]*nodeVB
	errs   []string
	begins int
	drops  int
	gate   chan struct{} // unless nil: batches wait until it is closed
	srv    *transport.Server
	served chan error
	addr   string
}

func newNode(id index.NodeID, tr *truth, topologies []partition.Topology) *node {
	n := &node{id: id, truth: tr, placed: make(map[index.CopyID]copyModel), vbs: make(map[uint16]*nodeVB)}
	n.learn(topologies)
	return n
}

// learn adds the copies of these topologies.
func (n *node) learn(topologies []partition.Topology) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, t := range topologies {
		for _, c := range t.Copies {
			if c.Node == n.id {
				n.placed[c.ID] = copyModel{index: t.Index, slice: c.Slice, at: families.Provider(&t.Layout)}
			}
		}
	}
}

// start listens, on addr or on any port.
func (n *node) start(t testing.TB, addr string) {
	t.Helper()
	if addr == "" {
		addr = ports.Addr(t)
	}
	lis, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	n.addr = lis.Addr().String()
	n.srv = transport.NewServer(transport.ServerConfig{Logger: hclog.NewNullLogger()},
		func(_ context.Context, h keyversion.Hello) (transport.Sink, error) {
			if h.Node != n.id {
				return nil, fmt.Errorf("this is node %d, not %d", n.id, h.Node)
			}
			return &nodeSink{node: n, hello: h}, nil
		})
	n.served = make(chan error, 1)
	go func(srv *transport.Server, served chan error) { served <- srv.Serve(lis) }(n.srv, n.served)
}

// stop ends the process; its memory's contents stay, as if flushed, unless lose is called.
func (n *node) stop(t testing.TB) {
	t.Helper()
	n.srv.Stop()
	if err := <-n.served; err != nil {
		t.Error(err)
	}
}

// lose resets every copy to its last flush before seqno limit.
func (n *node) lose(limit uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for vb, v := range n.vbs {
		v.owner, v.inc = nil, index.Incarnation{}
		for _, c := range v.copies {
			c.main = min(c.main, limit)
			c.rows = n.truth.rows(vb, c, c.main)
			c.fed = false
		}
	}
}

func (n *node) fail(format string, args ...any) {
	if len(n.errs) < 10 {
		n.errs = append(n.errs, fmt.Sprintf("node %d: ", n.id)+fmt.Sprintf(format, args...))
	}
}

type nodeSink struct {
	node  *node
	hello keyversion.Hello
}

func (s *nodeSink) Closed(error) {}

func (s *nodeSink) Receive(ctx context.Context, b *keyversion.Batch, release func()) error {
	s.node.mu.Lock()
	gate := s.node.gate
	s.node.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	s.node.mu.Lock()
	defer s.node.mu.Unlock()
	for i := range b.Events {
		s.event(&b.Events[i])
	}
	release()
	return nil
}

func (s *nodeSink) event(ev *keyversion.Event) {
	n := s.node
	if ev.VBucket%s.hello.Connections != s.hello.Connection {
		n.fail("vbucket %d on connection %d of %d", ev.VBucket, s.hello.Connection, s.hello.Connections)
	}
	v := n.vbs[ev.VBucket]
	if v == nil {
		v = &nodeVB{copies: make(map[index.CopyID]*copyModel)}
		n.vbs[ev.VBucket] = v
	}
	if ev.Kind == keyversion.StreamBegin {
		s.begin(v, ev)
		return
	}
	if v.owner != s || v.inc != ev.Incarnation {
		return // nothing is accepted before the vbucket's StreamBegin
	}
	if v.dropping {
		return
	}
	switch ev.Kind {
	case keyversion.Insert, keyversion.Delete, keyversion.UpsertDeletion:
		s.data(v, ev)
	case keyversion.Sync:
		for id, c := range v.copies {
			if missing, ok := n.truth.between(ev.VBucket, c, c.main, ev.Seqno+1); c.fed && ok {
				n.fail("vbucket %d copy %d: Sync %d at position %d, without %d", ev.VBucket, id, ev.Seqno, c.main, missing)
			}
			c.main = max(c.main, ev.Seqno)
		}
	case keyversion.DropData:
		n.drops++
		v.dropping = true
	case keyversion.Activate:
		for _, id := range ev.Copies {
			s.join(v, ev.VBucket, id, ev.Seqno)
		}
	case keyversion.Deactivate:
		for _, id := range ev.Copies {
			if c := v.copies[id]; c != nil {
				c.fed = false
			}
		}
	case keyversion.StreamEnd:
		v.owner = nil
	default:
		n.fail("unexpected %s", ev.Kind)
	}
}

func (s *nodeSink) begin(v *nodeVB, ev *keyversion.Event) {
	if ev.Incarnation.Compare(v.inc) < 0 {
		return
	}
	s.node.begins++
	v.inc, v.owner, v.dropping = ev.Incarnation, s, false
	for id, c := range v.copies {
		c.fed = c.fed && slices.Contains(ev.Begin.Copies, id)
	}
	for _, id := range ev.Begin.Copies {
		s.join(v, ev.VBucket, id, ev.Begin.Start)
	}
	if ev.Begin.Log.Newest() != ev.VBUUID || ev.Begin.Purge != 7 || ev.Begin.Revision.Rev != 5 {
		s.node.fail("StreamBegin lost its fields: %+v", ev.Begin)
	}
}

// join feeds a copy from seqno on; its gap below is filled as by a side stream.
func (s *nodeSink) join(v *nodeVB, vb uint16, id index.CopyID, seqno uint64) {
	c := v.copies[id]
	if c == nil {
		placed, ok := s.node.placed[id]
		if !ok {
			s.node.fail("vbucket %d: copy %d is not here", vb, id)
			return
		}
		c = &placed
		c.rows = make(map[string]string)
		v.copies[id] = c
	}
	c.fed = true
	if c.main < seqno {
		if _, gap := s.node.truth.between(vb, c, c.main, seqno+1); gap {
			c.fills++
		}
		c.main, c.rows = seqno, s.node.truth.rows(vb, c, seqno)
	}
}

func (s *nodeSink) data(v *nodeVB, ev *keyversion.Event) {
	n := s.node
	m, ok := n.truth.at(ev.VBucket, ev.Seqno)
	if !ok || m.doc != string(ev.DocID) || m.delete != (ev.Kind == keyversion.Delete) || ev.Window != windowOf(ev.Seqno) {
		n.fail("vbucket %d: %s %d of %q was never made", ev.VBucket, ev.Kind, ev.Seqno, ev.DocID)
		return
	}
	named, all := make(map[int]bool), ev.Explicit(nil)
	for id, c := range v.copies {
		if !c.fed || !c.receives(m.doc) {
			continue
		}
		i := slices.IndexFunc(all, func(s keyversion.Statement) bool {
			return s.Index == c.index && (s.Slice == c.slice || s.Slice == index.AllSlices)
		})
		if i < 0 {
			n.fail("vbucket %d seqno %d: no statement for copy %d", ev.VBucket, ev.Seqno, id)
			continue
		}
		named[i] = true
		if ev.Kind == keyversion.UpsertDeletion && len(all[i].Keys) > 0 {
			n.fail("vbucket %d seqno %d: an UpsertDeletion with keys", ev.VBucket, ev.Seqno)
		}
		s.statement(v, ev, id, c, m, all[i])
	}
	for i, st := range all {
		// A statement that all other slices have nothing may find nothing to remove.
		if !named[i] && (i < len(ev.Statements) || st.Slice != index.AllSlices) {
			n.fail("vbucket %d seqno %d: index %d slice %d is about no copy here that is fed",
				ev.VBucket, ev.Seqno, st.Index, st.Slice)
		}
	}
}

func (s *nodeSink) statement(_ *nodeVB, ev *keyversion.Event, id index.CopyID, c *copyModel, m change,
	st keyversion.Statement) {
	n := s.node
	key, has := c.entry(m)
	if has != (len(st.Keys) == 1) || has && string(st.Keys[0]) != key {
		n.fail("vbucket %d seqno %d index %d: keys %q, want %q", ev.VBucket, ev.Seqno, c.index, st.Keys, key)
	}
	if ev.Seqno <= c.main {
		return
	}
	if missing, gap := n.truth.between(ev.VBucket, c, c.main, ev.Seqno); gap {
		n.fail("vbucket %d copy %d: %d follows %d without %d", ev.VBucket, id, ev.Seqno, c.main, missing)
	}
	c.apply(c.rows, m)
	c.main = ev.Seqno
}

// check compares every copy that the topologies place here with the truth.
func (n *node) check(topologies []partition.Topology) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	errs := slices.Clone(n.errs)
	for _, t := range topologies {
		for _, p := range t.Copies {
			if p.Node != n.id || p.State != partition.Allocated {
				continue
			}
			for vb := range n.truth.vbuckets {
				vb := uint16(vb)
				v := n.vbs[vb]
				if v == nil || v.copies[p.ID] == nil || !v.copies[p.ID].fed || v.dropping || v.owner == nil {
					errs = append(errs, fmt.Sprintf("node %d vbucket %d: copy %d is not fed", n.id, vb, p.ID))
					continue
				}
				c := v.copies[p.ID]
				if last := n.truth.last(vb); c.main < last {
					errs = append(errs, fmt.Sprintf("node %d vbucket %d: copy %d at %d, want %d", n.id, vb, p.ID, c.main, last))
				} else if want := n.truth.rows(vb, c, last); !maps.Equal(c.rows, want) {
					errs = append(errs, fmt.Sprintf("node %d vbucket %d: copy %d has %d rows, want %d", n.id, vb, p.ID, len(c.rows),
						len(want)))
				}
			}
		}
	}
	return errs
}

// windowOf returns the DCP snapshot that contains a seqno.
func windowOf(seqno uint64) timestamp.Window {
	return timestamp.Window{Start: seqno - 1 - (seqno-1)%10, End: seqno + 9 - (seqno-1)%10}
}
