package rpc

import (
	"fmt"
	"sync"

	"tidemark/errcode"
)

// ownShare times the number of free places is the most that one principal may hold.
const ownShare = 3

// Places limits the calls in progress, in total and per principal, so that a principal that takes all it can get
// leaves places for others. A principal is admitted while it holds less than three times the number of free places
// (dynamic thresholds, as switches share their buffers; Choudhury and Hahne 1998): one alone gets three quarters, two
// get three sevenths each, and one that holds nothing gets what is left. Anonymous is no single principal, and is
// limited only by the total.
type Places struct {
	most int
	what string // for errors, in the plural

	mu    sync.Mutex
	taken int
	by    map[string]int // by principal
}

// NewPlaces returns the given number of places; what names the calls in errors, in the plural.
func NewPlaces(most int, what string) *Places {
	return &Places{most: most, what: what, by: map[string]int{}}
}

// Enter takes a place for a principal, to be returned by Leave. The error, a *Problem with code BUSY, means that all
// places are taken, or that the principal already holds its share.
func (p *Places) Enter(who string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	held, free := p.by[who], p.most-p.taken
	switch {
	case free == 0:
		return busy("%d %s are in progress on this node, which is the limit: try again", p.most, p.what)
	case who != Anonymous && held >= ownShare*free:
		return busy("%d of the %d %s in progress on this node belong to %s, and the %d free places are reserved for others: "+
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

// Leave returns a place.
func (p *Places) Leave(who string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	if p.by[who]--; p.by[who] <= 0 {
		delete(p.by, who)
	}
}

// Most returns the number of places.
func (p *Places) Most() int { return p.most }

// Taken returns the number of places taken.
func (p *Places) Taken() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken
}
