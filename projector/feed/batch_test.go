package feed_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tidemark/kv/kvclient/kvclienttest"
	"tidemark/kv/mcbp"
	"tidemark/projector/feed"
	"tidemark/projector/feed/gocb"
	"tidemark/timestamp"
)

// Each of many requests gets its own answer, in the order of the requests; a refusal does not affect the others.
func TestOpenStreams(t *testing.T) {
	either(t, func(t *testing.T, dial feed.Dialer) {
		n := startNode(t, func(p *kvclienttest.Peer, f mcbp.Frame) bool {
			if f.Op != mcbp.OpDCPStreamReq {
				return false
			}
			switch f.VBucket() {
			case 1:
				p.Reply(f, mcbp.StatusRollback, mcbp.Frame{Value: mcbp.AppendRollback(nil, 4)})
			case 2:
				p.Reply(f, mcbp.StatusRange, mcbp.Frame{})
			default:
				return false
			}
			return true
		})
		c := dialWith(t, dial, config(n))
		ids := map[uint16]feed.StreamID{}
		var reqs []feed.StreamRequest
		for _, vb := range []uint16{3, 2, 0, 1} {
			ids[vb] = c.NewStreamID()
			reqs = append(reqs, feed.StreamRequest{VBucket: vb, ID: ids[vb], Start: 9, SnapStart: 9, SnapEnd: 9, VBUUID: 5,
				End: mcbp.EndOfTime})
		}
		answers := c.OpenStreams(within(t, time.Minute), reqs)
		want := timestamp.FailoverLog{{VBUUID: 77, Seqno: 3}, {VBUUID: 66, Seqno: 0}}
		for i, vb := range []uint16{3, 2, 0, 1} {
			a := answers[i]
			var rollback *feed.RollbackError
			switch vb {
			case 1:
				if !errors.As(a.Err, &rollback) || *rollback != (feed.RollbackError{VBucket: 1, Seqno: 4}) {
					t.Errorf("vbucket 1: %+v", a)
				}
			case 2:
				if !errors.Is(a.Err, feed.ErrRange) || a.Log != nil {
					t.Errorf("vbucket 2: %+v", a)
				}
			default:
				if a.Err != nil || !reflect.DeepEqual(a.Log, want) {
					t.Errorf("vbucket %d: %+v", vb, a)
				}
			}
		}
		begun := map[uint16]bool{}
		until(t, c, "two streams begin", func(e *feed.Event) bool {
			if e.Kind != feed.StreamBegin || e.Stream != ids[e.VBucket] || begun[e.VBucket] {
				t.Errorf("unexpected %s", describe(*e))
			}
			begun[e.VBucket] = true
			return len(begun) == 2
		})
		if !begun[0] || !begun[3] {
			t.Errorf("begun: %v", begun)
		}
		if again := c.OpenStreams(within(t, time.Minute), nil); len(again) != 0 {
			t.Errorf("answers to nothing: %v", again)
		}
	})
}

// With more requests than may be in flight, and invalid ids, every request gets its answer.
func TestOpenManyStreams(t *testing.T) {
	n := startNode(t, nil)
	c := dial(t, config(n))
	const all = 2500
	reqs := make([]feed.StreamRequest, all)
	for i := range reqs {
		reqs[i] = feed.StreamRequest{VBucket: uint16(i), End: mcbp.EndOfTime}
	}
	taken := c.NewStreamID()
	reqs[7].ID, reqs[8].ID, reqs[9].ID = taken, taken, 1<<31
	for i, a := range c.OpenStreams(within(t, time.Minute), reqs) {
		want := map[int]string{8: "in use", 9: "NewStreamID"}[i]
		if want == "" && (a.Err != nil || len(a.Log) != 2) || want != "" &&
			(a.Err == nil || !strings.Contains(a.Err.Error(), want)) {
			t.Fatalf("request %d: %+v, want an error with %q", i, a, want)
		}
	}
	if got := n.seen(mcbp.OpDCPStreamReq); got != all-2 {
		t.Errorf("the node got %d requests", got)
	}
	begun := map[uint16]bool{}
	for len(begun) < all-2 {
		b, err := c.Next(within(t, time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		for i := range b.Events {
			if e := &b.Events[i]; e.Kind != feed.StreamBegin || begun[e.VBucket] {
				t.Fatalf("unexpected %s", describe(*e))
			}
			begun[b.Events[i].VBucket] = true
		}
		b.Release()
	}
}

// A caller that gives up keeps the answers that have come; a stream that is granted later is closed again and never
// announced.
func TestOpenStreamsGivenUp(t *testing.T) {
	t.Parallel()
	for _, why := range []error{context.Canceled, feed.ErrTimeout, feed.ErrClosed} {
		t.Run(why.Error(), func(t *testing.T) {
			t.Parallel()
			openStreamsGivenUp(t, why)
		})
	}
}

func openStreamsGivenUp(t *testing.T, why error) {
	held := make(chan mcbp.Frame, 1)
	n := startNode(t, func(p *kvclienttest.Peer, f mcbp.Frame) bool {
		if f.Op == mcbp.OpDCPStreamReq && f.VBucket() == 4 {
			held <- f
			return true
		}
		return false
	})
	conf := config(n)
	if errors.Is(why, feed.ErrTimeout) {
		conf.RequestTimeout = brief
	}
	c := dial(t, conf)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	answers := make(chan []feed.StreamAnswer, 1)
	go func() {
		answers <- c.OpenStreams(ctx, []feed.StreamRequest{{VBucket: 4, End: mcbp.EndOfTime},
			{VBucket: 3, End: mcbp.EndOfTime}})
	}()
	events, blocks := take(t, c, 1)
	if events[0].Kind != feed.StreamBegin || events[0].VBucket != 3 {
		t.Fatalf("got %s", describe(events[0]))
	}
	releaseAll(blocks)
	late := <-held
	switch {
	case errors.Is(why, context.Canceled):
		cancel()
	case errors.Is(why, feed.ErrClosed):
		n.DropAll()
	}
	got := <-answers
	if !errors.Is(got[0].Err, why) || !strings.Contains(fmt.Sprint(got[0].Err), "vbucket 4") || got[1].Err != nil ||
		len(got[1].Log) != 2 {
		t.Fatalf("%v: %+v", why, got)
	}
	if errors.Is(why, feed.ErrClosed) {
		if a := c.OpenStreams(t.Context(), []feed.StreamRequest{{VBucket: 5}}); !errors.Is(a[0].Err, feed.ErrClosed) {
			t.Errorf("after the end: %+v", a)
		}
		return
	}
	n.to().Reply(late, mcbp.StatusOK, mcbp.Frame{Value: mcbp.AppendFailoverLog(nil, timestamp.FailoverLog{{VBUUID: 1}})})
	eventually(t, "the stream is closed", func() bool { return n.seen(mcbp.OpDCPCloseStream) == 1 })
	if err := c.Err(); err != nil {
		t.Error(err)
	}
}

// A malformed consent ends the connection, and with it all waiting callers at once, including its own.
func TestMalformedConsentEndsTheConnection(t *testing.T) {
	for _, many := range []bool{false, true} {
		n := startNode(t, func(p *kvclienttest.Peer, f mcbp.Frame) bool {
			if f.Op == mcbp.OpDCPStreamReq {
				p.Reply(f, mcbp.StatusOK, mcbp.Frame{Value: []byte("short")})
				return true
			}
			return false
		})
		conf := config(n)
		conf.RequestTimeout = time.Hour
		c := dial(t, conf)
		ctx := within(t, time.Minute) // hang guard
		req := feed.StreamRequest{VBucket: 4, End: mcbp.EndOfTime}
		var err error
		if many {
			err = c.OpenStreams(ctx, []feed.StreamRequest{req})[0].Err
		} else {
			_, err = c.OpenStream(ctx, req)
		}
		if !errors.Is(err, feed.ErrProtocol) || !errors.Is(c.Err(), feed.ErrProtocol) {
			t.Errorf("many %v: %v, the connection: %v", many, err, c.Err())
		}
	}
}

// A node that is not silent, but leaves requests unanswered, is given up before the records of these requests grow
// without bound.
func TestNodeWithTooManyUnansweredRequests(t *testing.T) {
	n := startNode(t, func(_ *kvclienttest.Peer, f mcbp.Frame) bool { return f.Op == mcbp.OpDCPFailoverLog })
	c := dial(t, config(n))
	vbuckets := make([]uint16, 1024)
	for i := range vbuckets {
		vbuckets[i] = uint16(i)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel() // the caller does not wait
	for rounds := 1; rounds <= 20; rounds++ {
		for i, a := range c.FailoverLogs(gone, vbuckets) {
			if a.Err == nil {
				t.Fatalf("vbucket %d has an answer", i)
			}
		}
		if err := c.Err(); (rounds > 16) != errors.Is(err, feed.ErrDead) {
			t.Fatalf("after %d rounds: %v", rounds, err)
		}
	}
	if _, err := c.FailoverLog(t.Context(), 0); !errors.Is(err, feed.ErrDead) {
		t.Errorf("a query after that: %v", err)
	}
}

// Many concurrent requests that need the node's map, which it does not send, all end: they do not wait for each
// other's queries one by one.
func TestMapQueriesAreShared(t *testing.T) {
	t.Parallel()
	const many = 64
	var silent atomic.Bool
	n := newNode(nil)
	n.Before = func(_ *kvclienttest.Peer, f mcbp.Frame) bool {
		return silent.Load() && f.Op == mcbp.OpGetClusterConfig
	}
	n.start(t)
	conf := config(n)
	conf.RequestTimeout = 3 * time.Second // for all of them in sequence it would be more than three minutes
	c := dialWith(t, gocb.Dial, conf)
	silent.Store(true)
	time.Sleep(1100 * time.Millisecond) // the age up to which a map is used
	ended := make(chan error, many)
	for vb := range uint16(many) {
		go func() {
			_, err := c.OpenStream(t.Context(), feed.StreamRequest{VBucket: vb, End: mcbp.EndOfTime})
			ended <- err
		}()
	}
	deadline := time.After(time.Minute)
	for i := range many {
		select {
		case err := <-ended:
			if err == nil {
				t.Error("a stream is opened without a map")
			}
		case <-deadline:
			t.Fatalf("%d of %d requests have ended after a minute", i, many)
		}
	}
}
