package server

import (
	"errors"
	"fmt"
	"time"
)

var (
	// errStalled ends a connection of whose large frame too little comes.
	errStalled = errors.New("an unfinished frame")
	// errMakeRoom ends a connection whose slow frame keeps others out.
	errMakeRoom = errors.New("a slow frame makes room for others")
)

// pace judges by its progress how a large frame comes. Slowly is well as long as it goes on and nobody waits for its
// memory.
type pace struct {
	frame time.Duration // time for the whole, when others wait
	whole int
	began time.Time
	end   time.Time // of the present window
	had   int       // bytes when it began
}

func newPace(frame time.Duration, whole, have int, now time.Time) pace {
	return pace{frame: frame, whole: whole, began: now, end: now.Add(frame / progressPart), had: have}
}

// look says at the end of each window whether the frame may go on: if enough has come in the window and, when others
// wait for room, if all of it comes within the time for a frame at the speed that it has had.
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
