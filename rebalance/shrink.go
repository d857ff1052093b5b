package rebalance

import (
	"fmt"

	"tidemark/index"
)

// Slices beyond the number that the user requested are merged when they have been small and cold for long. A merge
// never creates a slice that would soon be split: the maxima of the parts over the preceding time, added up, are at
// most a quarter (1/Slack) of the bound of a slice, so that bytes and rates have to grow fourfold between a merge and
// a split. A split is not undone at once either: the parts of a slice that was above its bound are together above it,
// until they fall to a quarter.

const (
	// Slack is how many times the observed maximum of a merged slice must fit into the bounds.
	Slack = 4
	// worthMerging is the number of slices of which at least one must go: a merge builds the whole index again.
	worthMerging = 4
)

// calm holds the maxima of an index's slices since their first observation.
type calm struct {
	sinceMS      int64
	bytes, rates []uint64
}

// Shrink takes the same input as Look and is called beside it. It returns the index whose slices are to be merged
// now, nil for none, and for every other index that could be merged why it is not.
func (g *Growing) Shrink(nowMS int64, bounds GrowthBounds, all []Sizes, busy string) (next *Split,
	waits map[index.ID]string) {
	before := g.calm
	g.calm, waits = map[index.ID]*calm{}, map[index.ID]string{}
	for i := range all {
		s := &all[i]
		c := before[s.Index].look(nowMS, s)
		if c == nil {
			continue
		}
		g.calm[s.Index] = c
		if bytes, rate := bounds.Over(s); nowMS-c.sinceMS < bounds.Calm || max(bytes, rate) > 1 {
			continue // in the latter case it is to be split
		}
		merge := bounds.merged(s, c)
		if merge == nil { // restart the observation
			g.calm[s.Index] = (*calm)(nil).look(nowMS, s)
			continue
		}
		why := bounds.mayMerge(s, busy)
		switch {
		case why != "":
			waits[s.Index] = why
		case next == nil:
			next = merge
		case merge.gone > next.gone:
			waits[next.Index] = merge.before()
			next = merge
		default:
			waits[s.Index] = next.before()
		}
	}
	return next, waits
}

func (s *Split) before() string {
	return fmt.Sprintf("index %d, of which more slices are to be merged, is merged first", s.Index)
}

// look adds an observation; it returns nil if the index cannot be merged or its sizes are unknown.
func (c *calm) look(nowMS int64, s *Sizes) *calm {
	n := len(s.Bytes)
	if !s.Known || n <= int(s.Least) || !s.Ranges && !s.Folds {
		return nil
	}
	if c == nil || len(c.bytes) != n || c.sinceMS > nowMS {
		c = &calm{sinceMS: nowMS, bytes: make([]uint64, n), rates: make([]uint64, n)}
	}
	for i := range n {
		c.bytes[i] = max(c.bytes[i], s.Bytes[i])
		if i < len(s.Rates) {
			c.rates[i] = max(c.rates[i], s.Rates[i])
		}
	}
	return c
}

// fits reports whether a merge may create a slice with these maxima.
func (b *GrowthBounds) fits(bytes, rate uint64) bool {
	return (b.Above == 0 || bytes <= b.Above/Slack) && (b.Rate == 0 || rate <= b.Rate/Slack)
}

// merged returns what an index becomes, nil if it stays as it is.
func (b *GrowthBounds) merged(s *Sizes, c *calm) *Split {
	m := &Split{Index: s.Index, Partitions: uint16(len(c.bytes))}
	if s.Ranges {
		b.join(s, c, m)
	} else {
		b.fold(s, c, m)
	}
	if m.gone = len(s.Bytes) - int(m.Partitions); worthMerging*m.gone < len(s.Bytes) {
		return nil
	}
	_, m.Largest, m.Total = largest(s.Bytes)
	m.Cause = fmt.Sprintf("%d slices are enough instead of %d: for %s no merged slice would have had more "+
		"than a quarter of a slice's bounds", m.Partitions, len(s.Bytes), duration(b.Calm))
	return m
}

// join joins each range with the one before it while the result fits.
func (b *GrowthBounds) join(s *Sizes, c *calm, m *Split) {
	bytes, rate := c.bytes[0], c.rates[0]
	for i := 1; i < len(c.bytes) && m.Partitions > s.Least; i++ {
		if !b.fits(bytes+c.bytes[i], rate+c.rates[i]) {
			bytes, rate = c.bytes[i], c.rates[i]
			continue
		}
		bytes, rate = bytes+c.bytes[i], rate+c.rates[i]
		m.Joins = append(m.Joins, index.SliceID(i))
		m.Partitions--
	}
}

// fold halves the number of hash slices while all results fit: of 2n slices, i and n+i become one.
func (b *GrowthBounds) fold(s *Sizes, c *calm, m *Split) {
	bytes, rates := c.bytes, c.rates
	for len(bytes)%2 == 0 && len(bytes)/2 >= int(s.Least) {
		n := len(bytes) / 2
		half, halfRates := make([]uint64, n), make([]uint64, n)
		for i := range n {
			half[i], halfRates[i] = bytes[i]+bytes[n+i], rates[i]+rates[n+i]
			if !b.fits(half[i], halfRates[i]) {
				return
			}
		}
		bytes, rates, m.Partitions = half, halfRates, uint16(n)
	}
}

// mayMerge returns why slices that could be merged are not, "" if they are.
func (b *GrowthBounds) mayMerge(s *Sizes, busy string) string {
	switch {
	case s.Blocked != "":
		return s.Blocked
	case s.Rests:
		return fmt.Sprintf("its last split or merge failed; the next one starts %s later at the earliest",
			duration(b.Rest))
	case s.AgeMS >= 0 && s.AgeMS < b.Rest:
		return fmt.Sprintf("it was made, split or merged less than %s ago", duration(b.Rest))
	}
	return busy
}
