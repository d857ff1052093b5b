package feed_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"tidemark/kv/kvclient/kvclienttest"
	"tidemark/kv/mcbp"
	"tidemark/projector/feed"
	"tidemark/timestamp"
)

func TestSilentNodeIsDead(t *testing.T) {
	t.Parallel() // it waits most of the time
	n := startNode(t, func(p *kvclienttest.Peer, f mcbp.Frame) bool {
		return f.Op == mcbp.OpDCPFailoverLog || f.Op == mcbp.OpNoop
	})
	conf := config(n)
	conf.DeadAfter = brief
	c := dial(t, conf)
	failed := make(chan error, 1)
	go func() { _, err := c.FailoverLog(context.Background(), 0); failed <- err }()
	// While it sends noops it is alive.
	for i, began := 0, time.Now(); time.Since(began) < brief*3/2; i++ {
		n.to().Send(noop(uint32(i)))
		time.Sleep(10 * time.Millisecond)
	}
	if err := c.Err(); err != nil {
		t.Fatalf("a node that sends noops was given up: %v", err)
	}
	if err := <-failed; !errors.Is(err, feed.ErrDead) {
		t.Fatalf("the waiting request got %v", err)
	}
	if _, err := c.Next(within(t, time.Minute)); !errors.Is(err, feed.ErrDead) ||
		!strings.Contains(err.Error(), n.Addr()) {
		t.Fatal(err)
	}
}

func TestCloseFailsEverything(t *testing.T) {
	for _, who := range []string{"us", "the node"} {
		t.Run(who, func(t *testing.T) {
			n := startNode(t, func(p *kvclienttest.Peer, f mcbp.Frame) bool {
				return f.Op == mcbp.OpDCPFailoverLog || f.Op == mcbp.OpStat || f.Op == mcbp.OpGetAllVBSeqnos
			})
			c := dial(t, config(n))
			errs := make(chan error, 4)
			ctx := context.Background()
			go func() { _, err := c.FailoverLog(ctx, 0); errs <- err }()
			go func() { _, err := c.Details(ctx); errs <- err }()
			go func() { _, err := c.HighSeqnos(ctx); errs <- err }()
			go func() { _, err := c.Next(ctx); errs <- err }()
			eventually(t, "three requests", func() bool {
				return n.seen(mcbp.OpDCPFailoverLog)+n.seen(mcbp.OpStat)+n.seen(mcbp.OpGetAllVBSeqnos) == 3
			})
			if who == "us" {
				_ = c.Close()
			} else {
				n.DropAll()
			}
			for range 4 {
				if err := <-errs; !errors.Is(err, feed.ErrClosed) {
					t.Fatal(err)
				}
			}
			if _, err := c.OpenStream(ctx, feed.StreamRequest{}); !errors.Is(err, feed.ErrClosed) {
				t.Fatal(err)
			}
			_ = c.Close()
			_ = c.Close()
		})
	}
}

// A stream that is granted after the caller gave up is closed again, and never announced.
func TestLateConsent(t *testing.T) {
	t.Parallel()
	held := make(chan mcbp.Frame, 1)
	n := startNode(t, func(p *kvclienttest.Peer, f mcbp.Frame) bool {
		if f.Op == mcbp.OpDCPStreamReq && f.VBucket() == 4 {
			held <- f
			return true
		}
		return false
	})
	conf := config(n)
	conf.RequestTimeout = brief
	c := dial(t, conf)
	_, err := c.OpenStream(within(t, time.Minute), feed.StreamRequest{VBucket: 4, End: mcbp.EndOfTime})
	if !errors.Is(err, feed.ErrTimeout) {
		t.Fatal(err)
	}
	n.to().Reply(<-held, mcbp.StatusOK, mcbp.Frame{Value: mcbp.AppendFailoverLog(nil, timestamp.FailoverLog{{VBUUID: 1}})})
	eventually(t, "the stream is closed", func() bool { return n.seen(mcbp.OpDCPCloseStream) == 1 })
	if _, err := c.OpenStream(within(t, time.Minute), feed.StreamRequest{VBucket: 5, End: mcbp.EndOfTime}); err != nil {
		t.Fatal(err)
	}
	events, blocks := take(t, c, 1)
	if events[0].Kind != feed.StreamBegin || events[0].VBucket != 5 {
		t.Fatalf("got %s", describe(events[0]))
	}
	releaseAll(blocks)
	short, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if _, err := c.OpenStream(short, feed.StreamRequest{VBucket: 4}); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
}

// Close and reopen: late events of the old stream carry its id, and each stream ends with one StreamEnd whether or
// not the node sends it.
func TestCloseAndReopen(t *testing.T) {
	for _, sends := range []bool{true, false} {
		t.Run(fmt.Sprint("node sends the end: ", sends), func(t *testing.T) {
			var first uint32
			n := startNode(t, nil)
			n.refuse[mcbp.ControlEndOnClose] = !sends
			n.request = func(p *kvclienttest.Peer, f mcbp.Frame) bool {
				switch {
				case f.Op == mcbp.OpDCPStreamReq && first == 0:
					first = f.Opaque
				case f.Op == mcbp.OpDCPCloseStream:
					p.Reply(f, mcbp.StatusOK, mcbp.Frame{})
					p.Send(mutation(2, first, 8, "late", "old"))
					if sends {
						p.Send(streamEnd(2, first, mcbp.EndClosed))
					}
					return true
				}
				return false
			}
			c := dial(t, config(n))
			ctx := within(t, time.Minute)
			one, two := c.NewStreamID(), c.NewStreamID()
			for _, id := range []feed.StreamID{one, two} {
				if _, err := c.OpenStream(ctx, feed.StreamRequest{VBucket: 2, ID: id, End: mcbp.EndOfTime}); err != nil {
					t.Fatal(err)
				}
				if id == one {
					if err := c.CloseStream(ctx, 2); err != nil {
						t.Fatal(err)
					}
				}
			}
			n.to().Send(mutation(2, uint32(two), 9, "new", "new"))
			events, blocks := take(t, c, 5)
			ends := 0
			for _, e := range events {
				want := one
				if string(e.Value) == "new" || e.Kind == feed.StreamBegin && ends > 0 {
					want = two
				}
				if e.Stream != want || e.VBucket != 2 {
					t.Fatalf("want stream %d, got %s", want, describe(e))
				}
				if e.Kind == feed.StreamEnd {
					ends++
					if e.EndReason != mcbp.EndClosed {
						t.Fatal(e.EndReason)
					}
				}
			}
			if ends != 1 {
				t.Fatalf("%d ends", ends)
			}
			releaseAll(blocks)
		})
	}
}

func TestNoStream(t *testing.T) {
	n := startNode(t, func(p *kvclienttest.Peer, f mcbp.Frame) bool {
		if f.Op == mcbp.OpDCPCloseStream {
			p.Reply(f, mcbp.StatusKeyNotFound, mcbp.Frame{})
		}
		return f.Op == mcbp.OpDCPCloseStream
	})
	c := dial(t, config(n))
	if err := c.CloseStream(within(t, time.Minute), 7); !errors.Is(err, feed.ErrNoStream) ||
		!strings.Contains(err.Error(), "vbucket 7") {
		t.Fatal(err)
	}
}

func TestQueries(t *testing.T) {
	stats := [][2]string{{"vb_3", "active"}, {"vb_3:uuid", "18446744073709551615"}, {"vb_3:high_seqno", "12"},
		{"vb_3:purge_seqno", "4"}, {"vb_3:topology", "null"}, {"vb_5", "replica"}, {"uptime", "1"}, {"vb_x", "?"}}
	n := startNode(t, func(p *kvclienttest.Peer, f mcbp.Frame) bool {
		switch f.Op {
		case mcbp.OpGetAllVBSeqnos:
			if state, _, err := mcbp.DecodeVBSeqnosRequest(f.Extras); err != nil || state != mcbp.VBucketActive {
				p.Reply(f, mcbp.StatusInvalid, mcbp.Frame{})
				return true
			}
			p.Reply(f, mcbp.StatusOK, mcbp.Frame{Value: mcbp.AppendVBSeqno(nil, mcbp.VBucketSeqno{VBucket: 3, Seqno: 12})})
		case mcbp.OpStat:
			for _, s := range stats {
				p.Reply(f, mcbp.StatusOK, mcbp.Frame{Key: []byte(s[0]), Value: []byte(s[1])})
			}
			p.Reply(f, mcbp.StatusOK, mcbp.Frame{})
		default:
			return false
		}
		return true
	})
	c := dial(t, config(n))
	ctx := within(t, time.Minute)
	if got, err := c.HighSeqnos(ctx); err != nil || !reflect.DeepEqual(got, []mcbp.VBucketSeqno{{VBucket: 3, Seqno: 12}}) {
		t.Fatal(got, err)
	}
	want := map[uint16]feed.VBucketDetails{3: {State: "active", VBUUID: 1<<64 - 1, HighSeqno: 12, PurgeSeqno: 4,
		HasPurge: true}, 5: {State: "replica"}}
	if got, err := c.Details(ctx); err != nil || !reflect.DeepEqual(got, want) {
		t.Fatal(got, err)
	}
	stats = append(stats, [2]string{"vb_3:high_seqno", "many"})
	if _, err := c.Details(ctx); !errors.Is(err, feed.ErrProtocol) {
		t.Fatal(err)
	}
	if m, err := c.ClusterConfig(ctx); err != nil || m.NumVBuckets() != 4 {
		t.Fatal(m, err)
	}
	if l, err := c.FailoverLog(ctx, 0); err != nil || len(l) != 2 || l[0].VBUUID != 77 {
		t.Fatal(l, err)
	}
}
