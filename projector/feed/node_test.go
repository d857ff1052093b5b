package feed_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tidemark/internal/testing/atonce"
	"tidemark/internal/testing/garbage"
	"tidemark/kv/kvclient/kvclienttest"
	"tidemark/kv/mcbp"
	"tidemark/projector/feed"
	"tidemark/timestamp"
)

func TestMain(m *testing.M) {
	switchedOff()
	if blastIfAsked() || preloadIfAsked() {
		return
	}
	atonce.Tests(8)  // most of their time is waiting
	garbage.Rarely() // each connection has a megabyte of its own
	goleak.VerifyTestMain(m)
}

// node is a scripted DCP producer.
type node struct {
	kvclienttest.Server
	refuse  map[string]bool // controls that it does not know
	request func(p *kvclienttest.Peer, f mcbp.Frame) bool

	mu       sync.Mutex
	ops      []mcbp.Opcode
	controls map[string]string
	name     string
	flags    mcbp.OpenFlags
	acks     []uint32
	noops    chan uint32 // opaques of answered noops
	peer     *kvclienttest.Peer
}

// startNode runs a node; request (may be nil) gets requests first and returns true if it handled one.
func startNode(t testing.TB, request func(p *kvclienttest.Peer, f mcbp.Frame) bool) *node {
	t.Helper()
	n := newNode(request)
	n.start(t)
	return n
}

// newNode returns a node that does not listen yet.
func newNode(request func(p *kvclienttest.Peer, f mcbp.Frame) bool) *node {
	n := &node{request: request, controls: map[string]string{}, refuse: map[string]bool{}, noops: make(chan uint32, 1000)}
	n.User, n.Password, n.Bucket = "u", "p", "b"
	n.Handle = n.handle
	return n
}

func (n *node) start(t testing.TB) {
	t.Helper()
	if err := n.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Stop)
}

func (n *node) handle(p *kvclienttest.Peer, f mcbp.Frame) bool {
	n.mu.Lock()
	n.ops = append(n.ops, f.Op)
	n.peer = p
	n.mu.Unlock()
	if f.Magic.IsResponse() {
		if f.Op == mcbp.OpDCPNoop {
			n.noops <- f.Opaque
		}
		return true
	}
	if n.request != nil && n.request(p, f) {
		return true
	}
	switch f.Op {
	case mcbp.OpDCPOpen:
		open, err := mcbp.DecodeOpen(f.Extras)
		n.mu.Lock()
		n.name, n.flags = string(f.Key), open.Flags
		n.mu.Unlock()
		if err != nil {
			return false
		}
		p.Reply(f, mcbp.StatusOK, mcbp.Frame{})
	case mcbp.OpDCPControl:
		n.mu.Lock()
		known := !n.refuse[string(f.Key)]
		if known {
			n.controls[string(f.Key)] = string(f.Value)
		}
		n.mu.Unlock()
		if !known {
			p.Reply(f, mcbp.StatusInvalid, mcbp.Frame{})
			return true
		}
		p.Reply(f, mcbp.StatusOK, mcbp.Frame{})
	case mcbp.OpDCPBufferAck:
		v, err := mcbp.DecodeBufferAck(f.Extras)
		if err != nil {
			return false
		}
		n.mu.Lock()
		n.acks = append(n.acks, v)
		n.mu.Unlock()
	case mcbp.OpDCPStreamReq, mcbp.OpDCPFailoverLog:
		p.Reply(f, mcbp.StatusOK, mcbp.Frame{Value: mcbp.AppendFailoverLog(nil, timestamp.FailoverLog{{VBUUID: 77, Seqno: 3},
			{VBUUID: 66, Seqno: 0}})})
	case mcbp.OpDCPCloseStream:
		p.Reply(f, mcbp.StatusOK, mcbp.Frame{})
	default:
		p.Reply(f, mcbp.StatusUnknownCommand, mcbp.Frame{})
	}
	return true
}

// acked returns the sum and the list of acknowledgements.
func (n *node) acked() (sum int, each []uint32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range n.acks {
		sum += int(a)
	}
	return sum, append([]uint32(nil), n.acks...)
}

// seen returns the number of requests of one kind.
func (n *node) seen(op mcbp.Opcode) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := 0
	for _, o := range n.ops {
		if o == op {
			c++
		}
	}
	return c
}

// brief is a request timeout for tests in which one request runs into it and others do not.
const brief = 4 * time.Second

func config(n *node) feed.Config {
	return feed.Config{Addr: n.Addr(), Bucket: "b", User: "u", Password: "p", Name: "test", RequestTimeout: time.Minute}
}

func dial(t testing.TB, conf feed.Config) *feed.Conn {
	t.Helper()
	c, err := feed.Dial(within(t, time.Minute), conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// eventually waits for a condition that another goroutine brings about.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
	}
}

// take collects n events, releasing nothing.
func take(t testing.TB, c *feed.Conn, n int) ([]feed.Event, []*feed.Block) {
	t.Helper()
	var events []feed.Event
	var blocks []*feed.Block
	for len(events) < n {
		b, err := c.Next(within(t, time.Minute))
		if err != nil {
			t.Fatalf("after %d of %d events: %v", len(events), n, err)
		}
		events = append(events, b.Events...)
		blocks = append(blocks, b)
	}
	return events, blocks
}

func releaseAll(blocks []*feed.Block) {
	for _, b := range blocks {
		b.Release()
	}
}

// The frames a producer sends. Keys of documents have the prefix of the default collection, because the node grants
// collections.

func request(op mcbp.Opcode, vb uint16, opaque uint32) mcbp.Header {
	return mcbp.Request(op, vb, opaque)
}

func marker(vb uint16, opaque uint32, start, end uint64) mcbp.Frame {
	return mcbp.Frame{Header: request(mcbp.OpDCPSnapshotMarker, vb, opaque), Extras: mcbp.SnapshotMarker{Start: start,
		End: end, Flags: mcbp.SnapshotMemory}.AppendExtras(nil)}
}

func mutation(vb uint16, opaque uint32, seqno uint64, key, value string) mcbp.Frame {
	return mcbp.Frame{Header: request(mcbp.OpDCPMutation, vb, opaque),
		Extras: mcbp.Mutation{Seqno: seqno, RevSeqno: 1}.AppendExtras(nil),
		Key:    mcbp.AppendCollectionKey(nil, 0, []byte(key)), Value: []byte(value)}
}

func streamEnd(vb uint16, opaque uint32, r mcbp.EndReason) mcbp.Frame {
	return mcbp.Frame{Header: request(mcbp.OpDCPStreamEnd, vb, opaque), Extras: mcbp.AppendStreamEnd(nil, r)}
}

func noop(opaque uint32) mcbp.Frame {
	return mcbp.Frame{Header: request(mcbp.OpDCPNoop, 0, opaque)}
}

func size(frames ...mcbp.Frame) int {
	n := 0
	for _, f := range frames {
		n += mcbp.HeaderSize + len(f.FrameExtras) + len(f.Extras) + len(f.Key) + len(f.Value)
	}
	return n
}

// describe shortens an event for comparison.
func describe(e feed.Event) string {
	return fmt.Sprintf("%v vb=%d stream=%d seqno=%d key=%s value=%s", e.Kind, e.VBucket, e.Stream, e.Seqno, e.Key, e.Value)
}

// to is the consumer's connection, from the node's side.
func (n *node) to() *kvclienttest.Peer {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.peer
}
