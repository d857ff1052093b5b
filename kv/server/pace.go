package server

import (
	"errors"
	"fmt"
	"time"
)

var (
	// errStalled ends a connection whose large frame arrives too slowly.
	errStalled = errors.New("an unfinished frame")
	// errMakeRoom ends a connection whose slow frame keeps others waiting.
	errMakeRoom = errors.New("a slow frame is dropped to make room for others")
)

// pace monitors the progress of a large frame. A slow frame is fine as long as it progresses and no other frame waits
// for its memory.
type pace struct {
	frame time.Duration // time for the whole frame if others wait
	whole int
	began time.Time
	end   time.Time // end of the present window
	had   int       // bytes at the beginning of the window
}

func newPace(frame time.Duration, whole, have int, now time.Time) pace {
	return pace{frame: frame, whole: whole, began: now, end: now.Add(frame / progressPart), had: have}
}

// look checks at the end of each window whether the frame may continue: enough bytes must have arrived in the window
// and, if other frames wait, the whole frame must be expected within its time at the speed so far.
func (p *pace) look(now time.Time, have int, queued bool) error {
	if have >= p.whole || now.Before(p.end) {
		return nil
	}
	if came := have - p.had; came < readBufferBytes/progressPart {
		return fmt.Errorf("%w: %d bytes within %v, want %d", errStalled, came, p.frame/progressPart,
			readBufferBytes/progressPart)
	}
	if took := now.Sub(p.began); queued && float64(have)*float64(p.frame) < float64(p.whole)*float64(took) {
		return fmt.Errorf("%w: %d of %d bytes within %v", errMakeRoom, have, p.whole, took)
	}
	p.end, p.had = now.Add(p.frame/progressPart), have
	return nil
}
