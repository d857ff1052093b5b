package rpc

import (
	"fmt"
	"sync"

	"tidemark/errcode"
)

// ownShare is how many times what is free one principal may hold of Places.
const ownShare = 3

// Places bounds what is under way at a time, for all and for each principal, so that one that takes all it can get
// leaves places for others. A principal is let in while it holds less than three times what is free (dynamic
// thresholds, as switches share their buffers out; Choudhury and Hahne 1998): alone it gets three quarters, two of them
// three sevenths each, and one that holds nothing gets what is left. Anonymous stands for nobody in particular, and is
// bounded by the whole only.
type Places struct {
	most int
	what string // in errors

	mu    sync.Mutex
	taken int
	by    map[string]int // of principals that hold some
}

// NewPlaces returns most places for what, a plural.
func NewPlaces(most int, what string) *Places {
	return &Places{most: most, what: what, by: map[string]int{}}
}

// Enter takes a place for a principal, who gives it back by Leave. The error, a *Problem, is BUSY: all are taken,
// or who takes the greatest part already.
func (p *Places) Enter(who string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	held, free := p.by[who], p.most-p.taken
	switch {
	case free == 0:
		return busy("%d %s are under way on this node, the most it takes: try again", p.most, p.what)
	case who != Anonymous && held >= ownShare*free:
		return busy("%d of the %d %s that are under way on this node are of %s, and the %d free places are for others: "+
			"try again, with fewer at a time", held, p.taken, p.what, who, free)
	}
	p.taken++
	p.by[who]++
	return nil
}

func busy(format string, args ...any) error {
	p := Refuse(errcode.Busy, "%s", fmt.Sprintf(format, args...))
	p.RetryAfterMS = 1000
	return p
}

// Leave gives a place back.
func (p *Places) Leave(who string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	if p.by[who]--; p.by[who] <= 0 {
		delete(p.by, who)
	}
}

// Most is how many places there are.
func (p *Places) Most() int { return p.most }

// Taken is how many places are taken.
func (p *Places) Taken() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken
}
