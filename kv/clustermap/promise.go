package clustermap

import (
	"fmt"
	"slices"
)

// Promise is a node's promise to Maker that it accepts no more maps of epochs before RevEpoch. Maker plans the first
// map of that epoch from the newest map of all nodes that promised. A map of that epoch or a later one fulfils the
// promise. Until then it holds, unless Maker withdraws it, which it does only if it has made no map of that epoch.
type Promise struct {
	RevEpoch int64  `json:"rev_epoch"`
	Maker    string `json:"maker"`
}

// Promises are the unfulfilled promises of one node, ascending by epoch. The node must store them durably.
type Promises []Promise

// Against returns a promise that accepting a map of this epoch would break.
func (p Promises) Against(epoch int64) (Promise, bool) {
	if n := len(p); n > 0 && p[n-1].RevEpoch > epoch {
		return p[n-1], true
	}
	return Promise{}, false
}

// Beyond returns the promises that a map of this epoch does not fulfil.
func (p Promises) Beyond(epoch int64) Promises {
	return slices.DeleteFunc(slices.Clone(p), func(x Promise) bool { return x.RevEpoch <= epoch })
}

// With adds a promise; have is the epoch of the node's map. An epoch is promised to one maker only, and after a
// promise no lower epoch can be promised: ErrMap.
func (p Promises) With(q Promise, have int64) (Promises, error) {
	if q.RevEpoch <= have {
		return p, fmt.Errorf("%w: epoch %d is not after the present epoch %d", ErrMap, q.RevEpoch, have)
	}
	switch n := len(p); {
	case n == 0 || p[n-1].RevEpoch < q.RevEpoch:
		return append(slices.Clone(p), q), nil
	case p[n-1] == q:
		return p, nil
	default:
		return p, fmt.Errorf("%w: epoch %d is promised to %s, and epoch %d would skip it", ErrMap, p[n-1].RevEpoch,
			p[n-1].Maker, q.RevEpoch)
	}
}

// Without returns the promises that remain when the maker withdraws q.
func (p Promises) Without(q Promise) Promises {
	return slices.DeleteFunc(slices.Clone(p), func(x Promise) bool { return x == q })
}

// Next returns the first epoch that a node with these promises and a map of epoch have can promise. unused is an
// earlier promise to the caller for which it has made no map: it can be given again.
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
