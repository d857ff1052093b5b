package feed

import (
	"sync/atomic"
	"time"
)

// A node sends each document as it is written, and a wake-up of the reader, of who takes its blocks and of workers
// costs more than the document that it brings. So where nobody waits for documents before some tens of milliseconds
// are over, the reader rests after a read that brought little, and what comes meanwhile shares the next one.
const (
	// restMost is how long the reader rests at most: by so much a document comes later.
	restMost = 25 * time.Millisecond
	// restBytes is how much may come during a rest: it stands in the socket's buffers, and more would hold up the node.
	restBytes = 32 << 10
	// restLeast is the shortest rest that is worth while. A connection that brings more than restBytes in it never rests.
	restLeast = 5 * time.Millisecond
	// restWindow is over how long the rate is taken of a connection that does not rest.
	restWindow = 100 * time.Millisecond
)

// Calm lets the reader of one connection at a time rest while nobody is in a hurry.
type Calm struct {
	hurried atomic.Int32
	wake    chan struct{} // capacity 1: the rest is over
	least   time.Duration // of a rest, for tests
}

// NewCalm returns one with nobody in a hurry.
func NewCalm() *Calm { return &Calm{wake: make(chan struct{}, 1)} }

// Hurry ends the reader's rest, and lets there be none until the function that it returns is called.
func (k *Calm) Hurry() (enough func()) {
	k.hurried.Add(1)
	poke(k.wake)
	return func() { k.hurried.Add(-1) }
}

// restful is what comes over a connection, in a window of time.
type restful struct {
	since time.Time
	bytes int
}

// read takes n bytes that were read, and returns how long to rest now; 0: not at all.
func (r *restful) read(n int, now time.Time) time.Duration {
	r.bytes += n
	took := max(now.Sub(r.since), time.Microsecond)
	if took > restWindow {
		defer r.begin(now)
	}
	if n >= restBytes {
		return 0
	}
	pause := time.Duration(float64(took) * restBytes / float64(max(r.bytes, 1)))
	if pause < restLeast {
		return 0
	}
	r.begin(now) // what comes during a rest is read at once behind it
	return min(pause, restMost)
}

// begin begins a window.
func (r *restful) begin(now time.Time) { r.since, r.bytes = now, 0 }

// rest lets the reader rest after a read of n bytes, unless somebody waits for an answer or is in a hurry.
func (c *Conn) rest(r *restful, timer *time.Timer, n int) {
	k := c.conf.Calm
	if k == nil {
		return
	}
	pause := r.read(n, time.Now())
	if pause == 0 || k.hurried.Load() > 0 || c.asks() {
		return
	}
	timer.Reset(max(pause, k.least))
	select {
	case <-timer.C:
	case <-k.wake:
	case <-c.done:
	}
}

// asks reports whether an answer of the node is waited for.
func (c *Conn) asks() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.requests.pending) > 0
}
