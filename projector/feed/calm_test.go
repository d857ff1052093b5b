package feed_test

import (
	"testing"
	"time"

	"tidemark/kv/kvclient/kvclienttest"
	"tidemark/kv/mcbp"
	"tidemark/projector/feed"
)

// resting returns a connection whose reader rests after the begin of its stream, and sends documents to it.
func resting(t *testing.T, calm *feed.Calm) (c *feed.Conn, send func(seqno uint64)) {
	t.Helper()
	opaque := make(chan uint32, 1)
	n := startNode(t, func(_ *kvclienttest.Peer, f mcbp.Frame) bool {
		if f.Op == mcbp.OpDCPStreamReq {
			opaque <- f.Opaque
		}
		return false
	})
	conf := config(n)
	conf.Calm = calm
	c = dial(t, conf)
	if _, err := c.OpenStream(within(t, time.Minute), feed.StreamRequest{VBucket: 9, End: mcbp.EndOfTime}); err != nil {
		t.Fatal(err)
	}
	id := <-opaque
	take(t, c, 1) // BEGIN
	return c, func(seqno uint64) { n.to().Send(mutation(9, id, seqno, "k", "v")) }
}

// TestARestEnds: a reader that would rest for an hour continues when a request waits for its answer, and while a
// caller is in a hurry.
func TestARestEnds(t *testing.T) {
	calm := feed.EndlessCalm()
	c, send := resting(t, calm)
	read := func() {
		t.Helper()
		_, blocks := take(t, c, 1)
		releaseAll(blocks)
	}
	for seqno := uint64(1); seqno <= 3; seqno++ {
		send(seqno)
		if _, err := c.FailoverLog(within(t, time.Minute), 9); err != nil {
			t.Fatalf("an answer during a rest: %v", err)
		}
		read()
	}
	send(4)
	defer calm.Hurry()()
	read()
	for seqno := uint64(5); seqno <= 7; seqno++ {
		send(seqno)
		read()
	}
}

// TestHurryEndsAllRests: a bucket's connections to several nodes share a Calm, and a hurried caller waits for none.
func TestHurryEndsAllRests(t *testing.T) {
	calm := feed.EndlessCalm()
	var conns []*feed.Conn
	for range 3 {
		c, send := resting(t, calm)
		send(1)
		conns = append(conns, c)
	}
	defer calm.Hurry()()
	for _, c := range conns {
		take(t, c, 1)
	}
}

// TestRests: how long the reader rests if reads bring few bytes; with many it never rests.
func TestRests(t *testing.T) {
	at := time.Unix(1_700_000_000, 0)
	for _, c := range []struct {
		name  string
		bytes int           // of each read
		every time.Duration // between the end of a rest and the read
		want  time.Duration
	}{
		{"a document now and then", 300, 10 * time.Millisecond, 25 * time.Millisecond},
		{"after a long silence", 300, time.Hour, 25 * time.Millisecond},
		{"a megabyte a second", 1000, time.Millisecond, 25 * time.Millisecond},
		{"five megabytes a second", 5000, time.Millisecond, 25 * time.Millisecond},
		{"ten megabytes a second", 10_000, time.Millisecond, 13107 * time.Microsecond},
		{"a hundred megabytes a second", 100_000, time.Millisecond, 0},
		{"a large read", 128 << 10, time.Second, 0},
	} {
		if got := feed.RestOf(at, c.every, c.bytes).Truncate(time.Microsecond); got != c.want {
			t.Errorf("%s: rests for %v, want %v", c.name, got, c.want)
		}
	}
}

// TestReadsAreShared: from a few documents a second on, reads bring what has arrived in the longest rest. The read
// right after a rest, which brings much at once, is not mistaken for a high rate.
func TestReadsAreShared(t *testing.T) {
	for _, c := range []struct{ rate, most int }{{30, 300}, {100, 410}, {1000, 410}, {3000, 410}, {10_000, 410},
		{30_000, 1400}, {100_000, 4600}} {
		if got := feed.ReadsOf(c.rate, 300); got > c.most {
			t.Errorf("%d documents a second: %d reads in ten seconds, want %d at most", c.rate, got, c.most)
		}
	}
}
