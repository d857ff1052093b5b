package loglimit

import (
	"fmt"
	"testing"
	"time"
)

// TestLines checks that each host gets a line of each message a minute, and that the lines count what is left out.
func TestLines(t *testing.T) {
	var l Limiter
	now := time.Unix(1000, 0)
	for i, s := range []struct {
		after         time.Duration
		message, addr string
		due           bool
		leftOut       int
	}{
		{0, "half sent", "10.0.0.1:1", true, 0},
		{0, "half sent", "10.0.0.1:2", false, 0},
		{0, "half sent", "10.0.0.2:1", true, 0},
		{0, "no hello", "10.0.0.1:3", true, 0},
		{every - 1, "half sent", "10.0.0.1:4", false, 0},
		{1, "half sent", "10.0.0.1:5", true, 2},
		{1, "half sent", "10.0.0.1:6", false, 0},
		{0, "half sent", "[fe80::1]:6", true, 0},
		{0, "half sent", "[fe80::1]:7", false, 0},
		{0, "half sent", "[fe80::2]:7", true, 0},
		{0, "half sent", "pipe", true, 0},
		{-time.Hour, "half sent", "pipe", true, 0}, // the clock was set back
	} {
		now = now.Add(s.after)
		if leftOut, due := l.Due(s.message, s.addr, now); due != s.due || leftOut != s.leftOut {
			t.Errorf("event %d: a line is due %t with %d left out, want %t with %d", i, due, leftOut, s.due, s.leftOut)
		}
	}
}

// TestManyHosts checks that more hosts than are counted apart cause a bounded number of lines, and that each event is
// counted in one of them at last.
func TestManyHosts(t *testing.T) {
	var l Limiter
	const hosts, rounds = 10 * maxLines, 3
	now, events, counted := time.Unix(1000, 0), 0, 0
	for round := range rounds {
		lines := 0
		for h := range hosts {
			for range 2 {
				events++
				if leftOut, due := l.Due("half sent", fmt.Sprintf("10.0.%d.%d:%d", h/256, h%256, round), now); due {
					lines++
					counted += 1 + leftOut
				}
			}
		}
		if lines > maxLines+1 || len(l.of) > maxLines+1 {
			t.Errorf("round %d: %d lines of %d hosts, and %d are kept", round, lines, hosts, len(l.of))
		}
		now = now.Add(every)
	}
	l.forget(now)
	if counted += l.forgotten; counted != events {
		t.Errorf("%d events, and %d are counted", events, counted)
	}
}
