package feed

import (
	"sync"
	"time"
)

// A node sends each document when it is written, and waking up the reader, the goroutine that takes its blocks and
// the workers costs more than processing one document. So while no one needs documents within some tens of
// milliseconds, the reader rests before it waits for more, and what arrives meanwhile is read at once.
const (
	// restMost bounds a rest, and so the delay of a document.
	restMost = 25 * time.Millisecond
	// restBytes is how much may arrive during a rest: it waits in the socket's buffers, and more would hold up the node.
	// They have room for twice as much (quiet); if the node sends faster than before, the next rest is shorter.
	restBytes = 128 << 10
	// restBytesUnknown is the same where the system does not report the room.
	restBytesUnknown = 32 << 10
	// restLeast is the shortest worthwhile rest. A connection on which more than restBytes arrive in that time never
	// rests.
	restLeast = 2 * time.Millisecond
	// restWindow is the time over which the rate of a connection that does not rest is measured.
	restWindow = 100 * time.Millisecond
)

// Calm lets the readers of a bucket's connections rest while no caller is in a hurry.
type Calm struct {
	least time.Duration // shortest rest; set by tests

	mu      sync.Mutex
	callers int           // in a hurry
	hurried chan struct{} // closed while there are any
}

// NewCalm returns a Calm without a caller in a hurry.
func NewCalm() *Calm { return &Calm{hurried: make(chan struct{})} }

// Hurry ends all rests and prevents further ones until the returned function is called.
func (k *Calm) Hurry() (enough func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.callers++
	if k.callers == 1 {
		close(k.hurried)
	}
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.callers--
		if k.callers == 0 {
			k.hurried = make(chan struct{})
		}
	}
}

// inHurry returns a channel that is closed while a caller is in a hurry.
func (k *Calm) inHurry() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.hurried
}

// restful measures what arrives on a connection, in a window of time.
type restful struct {
	most  int // bytes that may arrive during a rest
	since time.Time
	bytes int
}

// read records the n bytes of one or several reads, the last of which left nothing unread, and returns how long to rest
// now; 0 means not at all.
func (r *restful) read(n int, now time.Time) time.Duration {
	r.bytes += n
	took := max(now.Sub(r.since), time.Microsecond)
	if took > restWindow {
		defer r.begin(now)
	}
	if n >= r.most {
		return 0
	}
	pause := time.Duration(float64(took) * float64(r.most) / float64(max(r.bytes, 1)))
	if pause < restLeast {
		return 0
	}
	r.begin(now) // what arrives during a rest is read at once after it
	return min(pause, restMost)
}

// begin starts a window.
func (r *restful) begin(now time.Time) { r.since, r.bytes = now, 0 }

// rests returns how a connection rests: after each read that left nothing unread, n bytes after the previous one,
// unless a request waits for its answer or a caller is in a hurry. It returns nil for a connection that never rests.
func (c *Conn) rests(in *gatherer) func(n int) {
	k := c.conf.Calm
	if k == nil {
		return nil
	}
	r := restful{most: in.room(), since: time.Now()}
	timer := time.NewTimer(0)
	timer.Stop()
	return func(n int) {
		pause := r.read(n, time.Now())
		hurried := k.inHurry()
		if pause == 0 || isClosed(hurried) || c.awaits() {
			return
		}
		in.quiet(2 * r.most)
		defer in.quiet(1)
		timer.Reset(max(pause, k.least))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-hurried:
		case <-c.written:
		case <-c.done:
		}
	}
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// awaits reports whether a request waits for its answer.
func (c *Conn) awaits() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.requests.pending) > 0
}
