package feed

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/kv/mcbp"
	"tidemark/timestamp"
)

// A node without flow control may leave the pacer's own requests unanswered, to close a stream or to open it again,
// or send no END of what it has closed, while it sends everything else. The stream ends for its user within the
// request timeout, not earlier, and is not lost for good; what still arrives of it is dropped.
func TestPacedStreamIsGivenUp(t *testing.T) {
	consent := mcbp.AppendFailoverLog(nil, timestamp.FailoverLog{{VBUUID: 77}})
	for name, tt := range map[string]struct {
		reopened bool // it was closed, and is to be opened again
		closed   bool // the node has answered that it closes it
		late     []byte
	}{
		"closing is not answered":        {},
		"it is closed, and no END comes": {closed: true},
		"opening is not answered":        {reopened: true, late: consent},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, p := pacedConn()
				go func() { _ = c.watchLoop() }()
				defer close(c.done)
				p.begin(1, 7, mcbp.StreamRequest{End: mcbp.EndOfTime}, timestamp.FailoverLog{{VBUUID: 77}})
				c.mu.Lock()
				c.held.Store(MinBufferBytes)
				if p.admit(&Event{Kind: Mutation, VBucket: 1, Stream: 7, Seqno: 1}, MinBufferBytes, 100) {
					t.Error("a document is taken for which there is no room")
				}
				c.mu.Unlock()
				if tt.closed || tt.reopened {
					answerPaced(t, c, mcbp.OpDCPCloseStream, nil)
				}
				if tt.reopened {
					end := Event{Kind: StreamEnd, VBucket: 1, Stream: 7, EndReason: mcbp.EndClosed}
					c.mu.Lock()
					if p.admit(&end, MinBufferBytes, 0) {
						t.Error("the requested end is delivered")
					}
					c.mu.Unlock()
					time.Sleep(10 * c.conf.RequestTimeout) // if only room is missing, it may wait as long as the user likes
					c.acknowledge(MinBufferBytes)
				}
				time.Sleep(c.conf.RequestTimeout - time.Millisecond)
				synctest.Wait()
				if queued(c) != 0 {
					t.Fatal("it was given up too soon")
				}
				time.Sleep(c.watchStep() + time.Millisecond)
				synctest.Wait()
				if n := queued(c); n != 1 {
					t.Fatalf("%d blocks, want one with the end", n)
				}
				b, err := c.Next(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if e := b.Events[0]; len(b.Events) != 1 || e.Kind != StreamEnd || e.VBucket != 1 || e.Stream != 7 {
					t.Errorf("%+v", b.Events)
				}
				b.Release()
				if tt.late != nil {
					answerPaced(t, c, mcbp.OpDCPStreamReq, tt.late)
				}
				c.mu.Lock()
				defer c.mu.Unlock() // the watchdog runs concurrently
				if c.pausedStream(1) {
					t.Error("its user cannot request it again")
				}
				if n := len(c.requests.pending); tt.late != nil && n != 1 {
					t.Errorf("%d requests, want one: to close what was opened late", n)
				}
				for wire := range p.byWire {
					if p.admit(&Event{Kind: Mutation, VBucket: 1, Stream: wire, Seqno: 1}, 0, 100) {
						t.Error("a late document is taken")
					}
					if p.admit(&Event{Kind: StreamEnd, VBucket: 1, Stream: wire}, 0, 0) {
						t.Error("a late end is delivered")
					}
				}
				if len(p.byWire) != 0 || len(p.byVB) != 0 {
					t.Errorf("%d and %d streams are still known", len(p.byWire), len(p.byVB))
				}
			})
		})
	}
}

// pacedConn returns a connection to a node that reads everything and is never silent, with its pacer.
func pacedConn() (*Conn, *pacer) {
	c := &Conn{conf: Config{BufferBytes: MinBufferBytes, RequestTimeout: DefaultRequestTimeout,
		DeadAfter: DefaultNoopInterval, Logger: hclog.NewNullLogger()}, ready: make(chan struct{}, 1),
		wake: make(chan struct{}, 1), done: make(chan struct{}), requests: requests{pending: map[uint32]*request{}},
		streams: map[uint16]StreamID{}, endOnClose: true}
	c.released = c.acknowledge
	c.watchLimit.Store(math.MaxInt64)
	p := newPacer(c)
	c.pacer.Store(p)
	return c, p
}

func queued(c *Conn) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.queue)
}

// answerPaced answers the pacer's only request.
func answerPaced(t *testing.T, c *Conn, op mcbp.Opcode, value []byte) {
	t.Helper()
	if len(c.requests.pending) != 1 {
		t.Fatalf("%d requests are pending, want one", len(c.requests.pending))
	}
	for opaque := range c.requests.pending {
		h := mcbp.Response(mcbp.Request(op, 1, opaque), mcbp.StatusOK)
		if err := c.response(newBlock(c.released), &mcbp.Frame{Header: h, Value: value}); err != nil {
			t.Fatal(err)
		}
	}
}
