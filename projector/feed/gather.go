package feed

import (
	"errors"
	"io"
	"net"
	"os"
	"time"
)

// A node that sends fast wakes its consumer for each of its writes, and a wake-up costs more than reading the one or
// two documents that it brings. So while data arrives fast enough to fill gatherBytes within gatherWait, the reader
// requests that the kernel wake it only when that much is there; network cards coalesce interrupts in the same way.
const (
	// gatherBytes is the amount that the reader waits for.
	gatherBytes = 256 << 10
	// gatherWait bounds the wait, and so the delay of a document, which only occurs on connections that are this busy.
	gatherWait = time.Millisecond
	// gatherFrom is the least that a read must bring for gathering to be worthwhile.
	gatherFrom = 8 << 10
	// gatherPause bounds the number of plain reads after less arrived than expected.
	gatherPause = 1024
)

// gatherer is a TCP connection that is read in large pieces. TLS, if used, is above it.
type gatherer struct {
	net.Conn
	socket  *socket   // nil if not supported
	rest    func(int) // called before a read after one that left nothing unread; may be nil
	drained bool      // the last read left nothing unread
	fresh   int       // bytes read since rest was last called, which is told of them
	wakeup  *wakeup   // nil if not supported, and below TLS, which reads a record at a time
	want    int
	wait    time.Duration
	waiting bool // SO_RCVLOWAT is set
	skip    int  // plain reads left before the next attempt
	pause   int  // number of plain reads after the last failure; doubles each time
	last    time.Time
}

// newGatherer returns a reader of conn; window is the flow-control window, in bytes.
func newGatherer(conn net.Conn, window int) *gatherer {
	return &gatherer{Conn: conn, socket: newSocket(conn), want: min(gatherBytes, window/(2*ackFraction)), wait: gatherWait}
}

// start lets the reader wait as it sees fit from now on: the read deadline is its own. Before, it is that of the
// handshake, which ends by it.
func (g *gatherer) start(rest func(int), secured bool) {
	g.rest, g.last = rest, time.Now()
	if g.socket != nil && !secured {
		g.wakeup = newWakeup(g.socket)
	}
}

// Read implements io.Reader. It must not be called concurrently.
func (g *gatherer) Read(buf []byte) (int, error) {
	if g.drained && g.rest != nil && !g.waiting {
		g.rest(g.fresh)
		g.fresh = 0
	}
	n, err := g.read(buf)
	g.drained = err == nil && n < len(buf)
	g.fresh += n
	return n, err
}

// quiet makes the system wake nobody before that many bytes have arrived, and have room for them. Otherwise the
// runtime's poller wakes up for each piece that arrives, even if no goroutine waits for it. 1 ends it.
func (g *gatherer) quiet(least int) {
	if g.socket == nil {
		return
	}
	if err := g.socket.wakeAt(least); err != nil {
		g.socket, g.wakeup = nil, nil // closed, or unsupported
	}
}

// room returns how many bytes may arrive while the connection rests: half of what the system has room for when it is
// asked by quiet, since a full buffer holds up the node without showing that it would send more.
func (g *gatherer) room() int {
	most := min(restBytes, g.want/2)
	g.quiet(2 * most)
	defer g.quiet(1)
	if g.socket == nil {
		return min(most, restBytesUnknown)
	}
	granted, err := g.socket.wakesAt()
	if err != nil || granted <= 1 { // accepted, and ignored
		return min(most, restBytesUnknown)
	}
	return min(most, granted/2)
}

func (g *gatherer) read(buf []byte) (int, error) {
	if g.waiting {
		n, err := g.gathered(buf)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		g.pause = min(2*g.pause+1, gatherPause)
		g.skip = g.pause
		if err := g.setGathering(false); err != nil {
			return 0, err
		}
	}
	n, err := g.Conn.Read(buf)
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
		return n, g.setGathering(true)
	}
	return n, nil
}

// busy reports whether reads of n bytes each, took apart, bring the wanted amount within the wait; false if a single
// one does.
func busy(n int, took time.Duration, want int, wait time.Duration) bool {
	return n >= gatherFrom && n < want && time.Duration(want/n)*took < wait
}

// gathered reads when enough is there or the connection has ended; it returns os.ErrDeadlineExceeded if neither
// happens in time.
func (g *gatherer) gathered(buf []byte) (int, error) {
	if err := g.Conn.SetReadDeadline(time.Now().Add(g.wait)); err != nil {
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

// setGathering sets the amount at which the kernel wakes the reader. If the system refuses, plain reads are used from
// then on.
func (g *gatherer) setGathering(waiting bool) error {
	least := 1
	if waiting {
		least = g.want
	} else if err := g.Conn.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	err := g.socket.wakeAt(least)
	if err != nil && waiting {
		g.wakeup = nil
		return nil
	}
	g.waiting = waiting
	return err
}
