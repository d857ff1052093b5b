package feed

import (
	"sync/atomic"
	"time"
)

// A node sends each document when it is written, and waking up the reader, the goroutine that takes its blocks and
// the workers costs more than processing one document. So while no one needs documents within some tens of
// milliseconds, the reader rests after a read that brought little, and what arrives meanwhile is read at once.
const (
	// restMost bounds a rest, and so the delay of a document.
	restMost = 25 * time.Millisecond
	// restBytes is how much may arrive during a rest: it waits in the socket's buffers, and more would hold up the node.
	restBytes = 32 << 10
	// restLeast is the shortest worthwhile rest. A connection on which more than restBytes arrive in that time never
	// rests.
	restLeast = 5 * time.Millisecond
	// restWindow is the time over which the rate of a connection that does not rest is measured.
	restWindow = 100 * time.Millisecond
)

// Calm lets the reader of one connection rest while no caller is in a hurry.
type Calm struct {
	hurried atomic.Int32
	wake    chan struct{} // capacity 1: ends a rest
	least   time.Duration // shortest rest; set by tests
}

// NewCalm returns a Calm without a caller in a hurry.
func NewCalm() *Calm { return &Calm{wake: make(chan struct{}, 1)} }

// Hurry ends the reader's rest and prevents further ones until the returned function is called.
func (k *Calm) Hurry() (enough func()) {
	k.hurried.Add(1)
	poke(k.wake)
	return func() { k.hurried.Add(-1) }
}

// restful measures what arrives on a connection, in a window of time.
type restful struct {
	since time.Time
	bytes int
}

// read records a read of n bytes, and returns how long to rest now; 0 means not at all.
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
	r.begin(now) // what arrives during a rest is read at once after it
	return min(pause, restMost)
}

// begin starts a window.
func (r *restful) begin(now time.Time) { r.since, r.bytes = now, 0 }

// rest lets the reader rest after a read of n bytes, unless a request waits for its answer or a caller is in a hurry.
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

// asks reports whether a request waits for its answer.
func (c *Conn) asks() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.requests.pending) > 0
}
