package clustermap

import (
	"fmt"
	"slices"
)

// Promise is a node's word, given to Maker, to take no map of an epoch before RevEpoch any more. Maker plans the first
// map of that epoch from the newest one that those who promised have. A promise is met by a map of its epoch or a later
// one; else it holds until Maker takes it back, which it does only when it has made no map of that epoch.
type Promise struct {
	RevEpoch int64  `json:"rev_epoch"`
	Maker    string `json:"maker"`
}

// Promises are those of one node that are not met, ascending by epoch. A node must not forget one.
type Promises []Promise

// Against is a promise that a map of this epoch would break.
func (p Promises) Against(epoch int64) (Promise, bool) {
	if n := len(p); n > 0 && p[n-1].RevEpoch > epoch {
		return p[n-1], true
	}
	return Promise{}, false
}

// Beyond leaves out what a map of this epoch meets.
func (p Promises) Beyond(epoch int64) Promises {
	return slices.DeleteFunc(slices.Clone(p), func(x Promise) bool { return x.RevEpoch <= epoch })
}

// With adds a promise; the node's map is of epoch have. An epoch is promised to one maker only, and none before one
// that is promised: ErrMap.
func (p Promises) With(q Promise, have int64) (Promises, error) {
	if q.RevEpoch <= have {
		return p, fmt.Errorf("%w: epoch %d is not after %d, which has begun", ErrMap, q.RevEpoch, have)
	}
	switch n := len(p); {
	case n == 0 || p[n-1].RevEpoch < q.RevEpoch:
		return append(slices.Clone(p), q), nil
	case p[n-1] == q:
		return p, nil
	default:
		return p, fmt.Errorf("%w: epoch %d is promised to %s, which epoch %d would pass over", ErrMap, p[n-1].RevEpoch,
			p[n-1].Maker, q.RevEpoch)
	}
}

// Without is what is left when the maker takes a promise back.
func (p Promises) Without(q Promise) Promises {
	return slices.DeleteFunc(slices.Clone(p), func(x Promise) bool { return x == q })
}

// Next is the first epoch that a node with these promises and a map of epoch have can promise anew. unused is a promise
// that whoever asks was given before and has made no map for: it can be given again.
func (p Promises) Next(have int64, unused Promise) int64 {
	last, ok := p.Against(have)
	switch {
	case !ok:
		return have + 1
	case last == unused:
		return last.RevEpoch
	}
	return last.RevEpoch + 1
}
