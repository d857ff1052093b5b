package server

import (
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"tidemark/kv/store"
)

// A stream that begins while its connection ends, before or after it, does not stay subscribed to its vbucket.
func TestStreamThatBeginsAtTheEnd(t *testing.T) {
	t.Parallel()
	b, _, err := store.Open(store.Options{Dir: t.TempDir(), Name: "b", UUID: "u", VBuckets: 1, Random: rand.Uint64,
		Now: time.Now, Quota: store.NewQuota(0)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Abandon() }()
	srv, vb := newTestServer(), b.VBucket(0)
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	var asking sync.WaitGroup
	over := make(chan struct{})
	asking.Go(func() { // other users of the vbucket, which make the two wait for each other
		for {
			select {
			case <-over:
				return
			default:
				vb.Status()
			}
		}
	})
	defer asking.Wait()
	defer close(over)
	for range 2000 {
		p := newProducer(newConn(srv, far, 1), "consumer", 0)
		st := &stream{p: p, vb: vb}
		var both sync.WaitGroup
		both.Go(func() { p.begin(st) })
		both.Go(p.releaseAll)
		both.Wait()
		if n := vb.Listeners(); n > 0 {
			t.Fatalf("%d streams are subscribed, the connection has ended", n)
		}
	}
	if n := srv.counters.Streams.Load(); n != 0 {
		t.Fatalf("%d streams are counted", n)
	}
}

// A NOOP is sent each interval, none while one is unanswered, and a NOOP unanswered for longer than patience ends the
// connection.
func TestNoops(t *testing.T) {
	t.Parallel()
	const interval, patience = 20 * time.Second, time.Minute
	began := time.Unix(1e9, 0)
	for _, tt := range []struct {
		name string
		n    noops
		at   time.Duration
		due  bool
		wait time.Duration
		err  error
	}{
		{name: "off", at: time.Hour, wait: patience},
		{name: "not yet", n: noops{on: true}, at: 5 * time.Second, wait: 15 * time.Second},
		{name: "almost", n: noops{on: true}, at: interval - time.Millisecond, wait: minNoopInterval},
		{name: "due", n: noops{on: true}, at: interval, due: true, wait: minNoopInterval},
		{name: "owed", n: noops{on: true, owed: true}, at: 50 * time.Second, wait: 10 * time.Second},
		{name: "owed for too long", n: noops{on: true, owed: true}, at: patience, err: errNoNoop},
	} {
		n := tt.n
		n.interval, n.last = interval, began
		due, wait, err := n.next(began.Add(tt.at), patience)
		if due != tt.due || wait != tt.wait || !errors.Is(err, tt.err) {
			t.Errorf("%s: %v, %v, %v; want %v, %v, %v", tt.name, due, wait, err, tt.due, tt.wait, tt.err)
		}
		if tt.due && (!n.owed || !n.last.Equal(began.Add(tt.at))) {
			t.Errorf("%s: %+v", tt.name, n)
		}
	}
}

// The last message may begin at the last byte of the window, and one more with the mood Overshoot.
func TestFlow(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		f    flow
		full bool
		room int64
	}{
		{f: flow{unacked: 1000}, room: 500},
		{f: flow{window: 1000}, room: 500},
		{f: flow{window: 1000, unacked: 900}, room: 100},
		{f: flow{window: 1000, unacked: 1000}, full: true},
		{f: flow{window: 1000, unacked: 1000, overshoot: 1}, room: 1},
		{f: flow{window: 1000, unacked: 1001, overshoot: 1}, full: true},
	} {
		if full, room := tt.f.full(), tt.f.room(500); full != tt.full || room != tt.room {
			t.Errorf("%+v: full %v, room %d; want %v, %d", tt.f, full, room, tt.full, tt.room)
		}
		tt.f.acknowledged(5000)
		if tt.f.unacked != 0 {
			t.Errorf("%d are not acknowledged of fewer than were", tt.f.unacked)
		}
	}
}
