package feed_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"tidemark/kv/kvclient/kvclienttest"
	"tidemark/kv/mcbp"
	"tidemark/projector/feed"
	"tidemark/timestamp"
)

// floodNode is an engine without flow control: it sends a vbucket's whole history at once, from the requested start.
type floodNode struct {
	*node
	mu      sync.Mutex
	docs    uint64
	value   string
	opens   map[uint16]int
	stopped map[uint32]bool // opaques of closed streams
	opaque  map[uint16]uint32
	answer  func(vb uint16, opens int) (mcbp.Status, []byte) // of repeated stream requests
	uuid    uint64
}

func startFlood(t *testing.T, docs uint64, size int) *floodNode {
	n := &floodNode{docs: docs, value: strings.Repeat("x", size), opens: map[uint16]int{}, stopped: map[uint32]bool{},
		opaque: map[uint16]uint32{}, uuid: 77}
	n.node = startNode(t, n.requests)
	n.refuse[mcbp.ControlBufferSize] = true
	return n
}

func (n *floodNode) requests(p *kvclienttest.Peer, f mcbp.Frame) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	vb := f.VBucket()
	switch f.Op {
	case mcbp.OpDCPStreamReq:
		r, err := mcbp.DecodeStreamRequest(f.Extras)
		if err != nil {
			return false
		}
		n.opens[vb]++
		if n.answer != nil && n.opens[vb] > 1 {
			if status, value := n.answer(vb, n.opens[vb]); status != mcbp.StatusOK {
				p.Reply(f, status, mcbp.Frame{Value: value})
				return true
			}
		}
		n.opaque[vb] = f.Opaque
		p.Reply(f, mcbp.StatusOK, mcbp.Frame{Value: mcbp.AppendFailoverLog(nil, timestamp.FailoverLog{{VBUUID: n.uuid}})})
		go n.flood(p, vb, f.Opaque, r.Start)
	case mcbp.OpDCPCloseStream:
		opaque := n.opaque[vb]
		if opaque == 0 {
			p.Reply(f, mcbp.StatusKeyNotFound, mcbp.Frame{})
			return true
		}
		delete(n.opaque, vb)
		n.stopped[opaque] = true
		p.Reply(f, mcbp.StatusOK, mcbp.Frame{})
		p.Send(streamEnd(vb, opaque, mcbp.EndClosed))
	default:
		return false
	}
	return true
}

func (n *floodNode) flood(p *kvclienttest.Peer, vb uint16, opaque uint32, start uint64) {
	send := func(f mcbp.Frame) bool {
		n.mu.Lock()
		over := n.stopped[opaque]
		if !over {
			p.Send(f)
		}
		n.mu.Unlock()
		return !over
	}
	if start < n.docs && !send(marker(vb, opaque, start, n.docs)) {
		return
	}
	for s := start + 1; s <= n.docs; s++ {
		if !send(mutation(vb, opaque, s, "k", n.value)) {
			return
		}
	}
}

func (n *floodNode) reopened() (most int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.opens {
		most = max(most, c)
	}
	return most
}

func pacedFeed(t *testing.T, n *floodNode) *feed.Conn {
	conf := config(n.node)
	conf.BufferBytes = feed.MinBufferBytes
	return dial(t, conf)
}

// With a node without flow control a slow consumer still holds little, and gets each event once and in order; it does
// not notice that streams were closed and reopened.
func TestWithoutFlowControl(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int{"documents of 1 KiB": 1 << 10,
		"documents larger than the window": 3 * feed.MinBufferBytes} {
		t.Run(name, func(t *testing.T) {
			n := startFlood(t, 300, size)
			if size > feed.MinBufferBytes {
				n.docs = 20
			}
			c := pacedFeed(t, n)
			track, begins := map[uint16]*feed.Tracker{}, 0
			ids := map[uint16]feed.StreamID{}
			var reqs []feed.StreamRequest
			for vb := range uint16(3) {
				tr := feed.NewTracker(feed.Position{})
				track[vb], ids[vb] = &tr, c.NewStreamID()
				reqs = append(reqs, feed.StreamRequest{VBucket: vb, ID: ids[vb], End: mcbp.EndOfTime})
			}
			for _, a := range c.OpenStreams(within(t, time.Minute), reqs) {
				if a.Err != nil {
					t.Fatal(a.Err)
				}
			}
			eventually(t, "streams are closed for want of room", func() bool { return n.seen(mcbp.OpDCPCloseStream) > 0 })
			limit := int64(feed.MinBufferBytes + 2*size + 4096)
			for done := false; !done; {
				if h := c.Held(); h > limit {
					t.Fatalf("%d bytes are held, the window is %d", h, feed.MinBufferBytes)
				}
				b, err := c.Next(within(t, 60*time.Second))
				if err != nil {
					t.Fatal(err)
				}
				for i := range b.Events {
					e := &b.Events[i]
					if e.Stream != ids[e.VBucket] || e.Kind == feed.StreamEnd {
						t.Fatalf("unexpected %s", describe(*e))
					}
					if e.Kind == feed.StreamBegin {
						begins++
					}
					before := track[e.VBucket].Progress().Seqno
					p, err := track[e.VBucket].Observe(e)
					if err != nil {
						t.Fatal(err)
					}
					if e.Kind == feed.Mutation && p.Seqno != before+1 {
						t.Fatalf("vbucket %d: seqno %d after %d", e.VBucket, p.Seqno, before)
					}
				}
				b.Release()
				done = true
				for _, tr := range track {
					done = done && tr.Progress().Complete == n.docs
				}
			}
			if begins != 3 || n.reopened() < 2 {
				t.Errorf("%d begins, %d requests for one stream", begins, n.reopened())
			}
			if sum, _ := n.acked(); sum > 0 {
				t.Errorf("%d bytes were acknowledged to a node that knows nothing of it", sum)
			}
		})
	}
}

// A closed stream may stay on the node's list for a moment, and the node may be short of memory: the request is
// repeated, and the user sees one stream.
func TestWithoutFlowControlLater(t *testing.T) {
	for name, status := range map[string]mcbp.Status{"exists": mcbp.StatusKeyExists, "temporary": mcbp.StatusTemporary} {
		t.Run(name, func(t *testing.T) {
			n := startFlood(t, 300, 1<<10)
			n.answer = func(_ uint16, opens int) (mcbp.Status, []byte) {
				if opens%3 != 0 {
					return status, nil
				}
				return mcbp.StatusOK, nil
			}
			conf := config(n.node)
			conf.BufferBytes, conf.DeadAfter = feed.MinBufferBytes, time.Second // which determines the interval of the requests
			c := dial(t, conf)
			if _, err := c.OpenStream(within(t, time.Minute), feed.StreamRequest{VBucket: 1, End: mcbp.EndOfTime}); err != nil {
				t.Fatal(err)
			}
			eventually(t, "it is closed", func() bool { return n.seen(mcbp.OpDCPCloseStream) > 0 })
			until(t, c, "the last document", func(e *feed.Event) bool {
				if e.Kind == feed.StreamEnd {
					t.Fatalf("it ended for reason %d", e.EndReason)
				}
				return e.Kind == feed.Mutation && e.Seqno == n.docs
			})
			if n.reopened() < 3 {
				t.Errorf("%d requests for the stream", n.reopened())
			}
		})
	}
}

// A node's answer to reopening a stream may require the user's decision: the stream then ends with a reason.
func TestWithoutFlowControlRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		status mcbp.Status
		value  []byte
		uuid   uint64
		want   mcbp.EndReason
	}{
		"rollback":       {status: mcbp.StatusRollback, value: mcbp.AppendRollback(nil, 0), uuid: 77, want: mcbp.EndRollback},
		"moved":          {status: mcbp.StatusNotMyVBucket, uuid: 77, want: mcbp.EndStateChanged},
		"another branch": {status: mcbp.StatusOK, uuid: 78, want: mcbp.EndStateChanged},
	} {
		t.Run(name, func(t *testing.T) {
			n := startFlood(t, 300, 1<<10)
			n.answer = func(uint16, int) (mcbp.Status, []byte) { n.uuid = tt.uuid; return tt.status, tt.value }
			c := pacedFeed(t, n)
			if _, err := c.OpenStream(within(t, time.Minute), feed.StreamRequest{VBucket: 1, End: mcbp.EndOfTime}); err != nil {
				t.Fatal(err)
			}
			eventually(t, "it is closed", func() bool { return n.seen(mcbp.OpDCPCloseStream) > 0 })
			var reason mcbp.EndReason
			until(t, c, "the end", func(e *feed.Event) bool {
				reason = e.EndReason
				return e.Kind == feed.StreamEnd
			})
			if reason != tt.want {
				t.Errorf("it ended for reason %d, want %d", reason, tt.want)
			}
		})
	}
}

// A stream that its user closes while the node does not have it ends at once, with one end.
func TestWithoutFlowControlClosed(t *testing.T) {
	n := startFlood(t, 300, 1<<10)
	c := pacedFeed(t, n)
	if _, err := c.OpenStream(within(t, time.Minute), feed.StreamRequest{VBucket: 1, End: mcbp.EndOfTime}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is closed", func() bool { return n.seen(mcbp.OpDCPCloseStream) > 0 })
	if err := c.CloseStream(within(t, time.Minute), 1); err != nil {
		t.Fatal(err)
	}
	until(t, c, "the end", isEnd)
	if _, err := c.OpenStream(within(t, time.Minute), feed.StreamRequest{VBucket: 1, Start: 300, SnapStart: 300,
		SnapEnd: 300, VBUUID: 77, End: mcbp.EndOfTime}); err != nil {
		t.Fatal(err)
	}
	if seen := until(t, c, "the begin", func(e *feed.Event) bool { return e.Kind == feed.StreamBegin }); len(seen) != 1 {
		t.Errorf("besides the begin came %v", seen)
	}
}
