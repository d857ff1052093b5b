package feed

import (
	"errors"
	"io"
	"net"
	"os"
	"time"
)

// A node that sends fast wakes its consumer for each of its writes, and a wake-up costs more than reading the document
// or two that it brings. So while data comes so fast that a chunk's worth of it is there in no time, the reader asks
// the kernel to be woken only when there is some; network cards coalesce interrupts in the same way.
const (
	// gatherBytes is what the reader waits for.
	gatherBytes = 256 << 10
	// gatherWait is how long it does at most: by so much a document can come later, on connections that are this busy
	// only.
	gatherWait = time.Millisecond
	// gatherFrom is the least that a read brings where it is worth while.
	gatherFrom = 8 << 10
	// gatherPause is for how many reads nothing is tried at most after less came than was expected.
	gatherPause = 1024
)

// gatherer reads a connection.
type gatherer struct {
	conn    net.Conn
	wakeup  *wakeup // nil where the system has no such thing
	want    int
	wait    time.Duration
	waiting bool // the kernel has been told
	skip    int  // reads before it is tried again
	pause   int  // of that, after the next failure half
	last    time.Time
}

// newGatherer reads conn, of which the node sends so many bytes ahead of the releases.
func newGatherer(conn net.Conn, window int) *gatherer {
	return &gatherer{conn: conn, wakeup: newWakeup(conn), want: min(gatherBytes, window/(2*ackFraction)), wait: gatherWait,
		last: time.Now()}
}

// Read implements io.Reader. One goroutine may call it.
func (g *gatherer) Read(buf []byte) (int, error) {
	if g.waiting {
		n, err := g.gathered(buf)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		g.pause = min(2*g.pause+1, gatherPause)
		g.skip = g.pause
		if err := g.tell(false); err != nil {
			return 0, err
		}
	}
	n, err := g.conn.Read(buf)
	if g.wakeup == nil || err != nil {
		return n, err
	}
	now := time.Now()
	took := now.Sub(g.last)
	g.last = now
	switch {
	case g.skip > 0:
		g.skip--
	case busy(n, took, g.want, g.wait):
		return n, g.tell(true)
	}
	return n, nil
}

// busy reports whether reads that bring n bytes each, after so long, bring what is wanted within the wait; not when one
// does.
func busy(n int, took time.Duration, want int, wait time.Duration) bool {
	return n >= gatherFrom && n < want && time.Duration(want/n)*took < wait
}

// gathered reads when enough is there or the connection has ended; os.ErrDeadlineExceeded: neither in time.
func (g *gatherer) gathered(buf []byte) (int, error) {
	if err := g.conn.SetReadDeadline(time.Now().Add(g.wait)); err != nil {
		return 0, err
	}
	n, err := g.wakeup.read(buf, min(g.want, len(buf)))
	if err != nil {
		return 0, err
	}
	g.pause = 0
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// tell says to the kernel for how much to wake the reader. A system that does not take it is read plainly.
func (g *gatherer) tell(waiting bool) error {
	least := 1
	if waiting {
		least = g.want
	} else if err := g.conn.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	err := g.wakeup.set(least)
	if err != nil && waiting {
		g.wakeup = nil
		return nil
	}
	g.waiting = waiting
	return err
}
