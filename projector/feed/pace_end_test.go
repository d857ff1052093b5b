package feed

import (
	"testing"

	"tidemark/kv/mcbp"
)

// TestEndFollowsBlockBeingMade: a user may close a stopped stream while the reader holds events of it in a block that
// is not in the queue yet. The generated end comes after them.
func TestEndFollowsBlockBeingMade(t *testing.T) {
	for name, making := range map[string]bool{"a block is being made": true, "none is": false} {
		t.Run(name, func(t *testing.T) {
			c := &Conn{conf: Config{BufferBytes: MinBufferBytes}, ready: make(chan struct{}, 1), wake: make(chan struct{}, 1),
				done: make(chan struct{}), requests: requests{pending: map[uint32]*request{}}, streams: map[uint16]StreamID{}}
			c.released = c.acknowledge
			p := newPacer(c)
			c.pacer.Store(p)
			p.begin(1, 7, mcbp.StreamRequest{End: mcbp.EndOfTime}, nil)
			b := newBlock(c.released)
			if making {
				c.begun()
			}
			b.Events = append(b.Events, Event{Kind: Mutation, VBucket: 1, Stream: 7, Seqno: 1})
			if !making {
				c.push(b)
			}
			p.byVB[1].state = stopping
			if err := c.CloseStream(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			if making {
				c.push(b)
			}
			want := []Kind{Mutation, StreamEnd}
			for len(want) > 0 {
				next, err := c.Next(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range next.Events {
					if len(want) == 0 || e.Kind != want[0] || e.Stream != 7 {
						t.Fatalf("event %v of stream %d, then should come %v", e.Kind, e.Stream, want)
					}
					want = want[1:]
				}
				next.Release()
			}
		})
	}
}
