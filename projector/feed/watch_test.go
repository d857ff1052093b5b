package feed_test

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"tidemark/kv/kvclient/kvclienttest"
	"tidemark/kv/mcbp"
	"tidemark/projector/feed"
)

// An engine sends no noops before it has granted a stream: until then it is probed, and any answer counts. From the
// first stream on, only its own noops count.
func TestNoNoopsBeforeTheFirstStream(t *testing.T) {
	t.Parallel()           // it waits most of the time
	n := startNode(t, nil) // which knows no NOOP
	conf := config(n)
	conf.DeadAfter = brief
	c := dial(t, conf)
	eventually(t, "queries continue for as long as it would have been given up after",
		func() bool { return n.seen(mcbp.OpNoop) >= 4 })
	if err := c.Err(); err != nil {
		t.Fatalf("a node without streams was given up: %v", err)
	}
	if _, err := c.OpenStream(within(t, time.Minute), feed.StreamRequest{VBucket: 1, End: mcbp.EndOfTime}); err != nil {
		t.Fatal(err)
	}
	asked := n.seen(mcbp.OpNoop)
	<-c.Done()
	if err := c.Err(); !errors.Is(err, feed.ErrDead) || n.seen(mcbp.OpNoop) > asked+1 { // one may have been in flight
		t.Fatalf("%v; %d queries, %d before the stream", err, n.seen(mcbp.OpNoop), asked)
	}
}

// Engines accept different intervals of noops: one of 3.x requires at least 20 s, later ones a multiple of a setting.
// The connection uses what is granted, and waits accordingly.
func TestNoopIntervals(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		takes   func(seconds int) bool
		granted string // empty: none
	}{
		{"any", func(int) bool { return true }, "1"},
		{"20 s and more", func(s int) bool { return s >= 20 }, "20"},
		{"multiples of 30 s", func(s int) bool { return s%30 == 0 }, "120"},
		{"none", func(int) bool { return false }, ""},
	} {
		n := startNode(t, nil)
		n.request = func(p *kvclienttest.Peer, f mcbp.Frame) bool {
			if f.Op != mcbp.OpDCPControl || string(f.Key) != mcbp.ControlNoopInterval {
				return f.Op == mcbp.OpNoop // no sign of life besides noops
			}
			if s, err := strconv.Atoi(string(f.Value)); err != nil || !tt.takes(s) {
				p.Reply(f, mcbp.StatusInvalid, mcbp.Frame{Value: []byte(`{"error":{"context":"not a multiple"}}`)})
				return true
			}
			return false
		}
		conf := config(n)
		conf.NoopInterval, conf.DeadAfter = time.Second, 400*time.Millisecond
		c, err := feed.Dial(within(t, time.Minute), conf)
		if tt.granted == "" {
			if !errors.Is(err, feed.ErrNotSupported) {
				t.Errorf("%s: %v", tt.name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		n.mu.Lock()
		granted := n.controls[mcbp.ControlNoopInterval]
		n.mu.Unlock()
		if granted != tt.granted {
			t.Errorf("%s: granted %q, want %q", tt.name, granted, tt.granted)
		}
		// The configured silence counts if the interval was granted; otherwise twice the granted one.
		patience := 4 * conf.DeadAfter
		if tt.granted == "1" {
			patience = time.Minute
		}
		select {
		case <-c.Done():
			err = c.Err()
		case <-time.After(patience):
		}
		if dead := errors.Is(err, feed.ErrDead); dead != (tt.granted == "1") {
			t.Errorf("%s: after %v: %v", tt.name, patience, err)
		}
		_ = c.Close()
	}
}
