// Package loglimit limits the log lines that can be caused again and again by any sender that reaches a port, so that
// such lines do not fill the disk: each message of a host is logged once a minute, with the number of those that were
// left out before it.
package loglimit

import (
	"cmp"
	"strings"
	"time"
)

const (
	every = time.Minute
	// maxLines limits the messages and hosts that are counted apart. When all are in use, others share a line.
	maxLines = 256
)

// Limiter counts events and decides which of them are logged. The zero value is ready for use; it is not safe for
// concurrent use.
type Limiter struct {
	of map[line]*logged
	// forgotten is the number of events without a line of hosts that are not counted apart any more.
	forgotten int
}

type line struct{ message, host string }

type logged struct {
	at   time.Time
	left int // events since then
}

// Due counts an event and reports whether it is to be logged. leftOut is the number of earlier ones that were not: of
// this message from this host, and of hosts that have stayed away since. addr is the sender's, with its port.
func (l *Limiter) Due(message, addr string, now time.Time) (leftOut int, due bool) {
	of := line{message, host(addr)}
	t := l.of[of]
	if t == nil && len(l.of) >= maxLines {
		if l.forget(now); len(l.of) >= maxLines {
			of = line{}
			t = l.of[of]
		}
	}
	if t == nil {
		t = &logged{}
		if l.of == nil {
			l.of = map[line]*logged{}
		}
		l.of[of] = t
	} else if age := now.Sub(t.at); age >= 0 && age < every {
		t.left++
		return 0, false
	}
	leftOut = t.left + l.forgotten
	*t, l.forgotten = logged{at: now}, 0
	return leftOut, true
}

// forget makes room: it forgets hosts whose next event would be logged anyway.
func (l *Limiter) forget(now time.Time) {
	for of, t := range l.of {
		if age := now.Sub(t.at); age < 0 || age >= every {
			l.forgotten += t.left
			delete(l.of, of)
		}
	}
}

// host returns the address without its port.
func host(addr string) string {
	name, _, _ := strings.Cut(addr, "]") // of IPv6, in brackets
	if i := strings.LastIndexByte(addr, ':'); name == addr && i > 0 {
		name = addr[:i]
	}
	return cmp.Or(strings.TrimPrefix(name, "["), addr)
}
