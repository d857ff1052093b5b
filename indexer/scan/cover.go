package scan

import (
	"tidemark/index"
	"tidemark/wire"
)

// fewRows is the number of rows up to which reading them costs a node no more than being queried, some 0.1 ms.
const fewRows = 200

// small reports whether a scan needs few rows of each node, and reads no others to find them. Then each further node
// costs more than it helps; nodes that read long runs of entries share the work. Scans with stability query and pages
// are not small, because later requests read what the nodes keep for them.
func (s *Spec) small() bool {
	n := s.nodeLimit()
	return n > 0 && n <= fewRows && s.Page == nil && s.At == nil && s.Stability != QueryStability && s.Distinct == 0 &&
		len(s.Where) == 0 && s.Groups == nil
}

// nodeSet has a value for each node.
type nodeSet[T any] [1 << 8]T // index.NodeID has 8 bits

// cover chooses one of the equally good copies of each slice so that few nodes are queried.
type cover struct {
	slices []coverSlice
	can    nodeSet[uint16] // how many of the slices without a choice the node can read
	left   int             // slices without a choice
}

// coverSlice is one slice of a cover.
type coverSlice struct {
	equal  []candidate
	choice int // position in equal; -1: none yet
}

// together changes which of its equally good copies each slice is read from, so that fewer other nodes are queried:
// first this node (here), which costs no request, and the nodes that alone can read a slice; then one by turn; then
// always the one that can read most of the remaining slices. Without the one by turn, no scan would read from a node
// that has a copy less than others. The choice stays as it is if it has fewer nodes, as the greedy one is not always
// best.
func (p *plan) together(turn uint64, here func(index.NodeID) bool, busier func(a, b index.NodeID) bool) {
	c := newCover(p, busier)
	first := func(*coverSlice) int { return 0 }
	before := c.others(here, first)
	if before == 0 {
		return
	}
	c.must(here)
	for at := c.byTurn(turn); c.left > 0; at = c.most(at) {
		c.assign(at)
	}
	if c.others(here, func(s *coverSlice) int { return s.choice }) > before {
		return
	}
	for _, s := range c.slices {
		if s.choice > 0 { // the only copy of a slice belongs to the view
			s.equal[0], s.equal[s.choice] = s.equal[s.choice], s.equal[0]
		}
	}
}

func newCover(p *plan, busier func(a, b index.NodeID) bool) *cover {
	c := &cover{slices: make([]coverSlice, len(p.slices)), left: len(p.slices)}
	for i := range p.slices {
		equal := p.slices[i].equal(p.ref, busier)
		c.slices[i] = coverSlice{equal: equal, choice: -1}
		for _, one := range equal {
			c.can[one.node]++
		}
	}
	return c
}

// equal returns the candidates, from the first on, that are as good as the first: they are of its rank, and their
// nodes are not busier than its node. order has sorted them.
func (s *sliceplan) equal(ref wire.StabilityRef, busier func(a, b index.NodeID) bool) []candidate {
	first, newest, n := s.candidates[0], newestHeld(s.candidates), 1
	for _, c := range s.candidates[1:] {
		if c.rank(ref, newest) != first.rank(ref, newest) || busier(c.node, first.node) {
			break
		}
		n++
	}
	return s.candidates[:n]
}

// others returns how many nodes other than this one are queried by a choice.
func (c *cover) others(here func(index.NodeID) bool, choice func(*coverSlice) int) (n int) {
	var used nodeSet[bool]
	for i := range c.slices {
		s := &c.slices[i]
		node := s.equal[choice(s)].node
		if !used[node] && !here(node) {
			n++
		}
		used[node] = true
	}
	return n
}

// must assigns slices to this node, and then to the nodes that alone can read a slice.
func (c *cover) must(here func(index.NodeID) bool) {
	for n, can := range &c.can {
		if node := index.NodeID(n); can > 0 && here(node) {
			c.assign(node)
		}
	}
	for _, s := range c.slices {
		if s.choice < 0 && len(s.equal) == 1 {
			c.assign(s.equal[0].node)
		}
	}
}

// assign assigns to a node all slices without a choice that it can read.
func (c *cover) assign(node index.NodeID) {
	for i := range c.slices {
		s := &c.slices[i]
		if s.choice >= 0 {
			continue
		}
		for at, one := range s.equal {
			if one.node == node {
				s.choice = at
			}
		}
		if s.choice < 0 {
			continue
		}
		c.left--
		for _, one := range s.equal {
			c.can[one.node]--
		}
	}
}

// byTurn returns one of the nodes that can read a slice without a choice; 0 if there is none.
func (c *cover) byTurn(turn uint64) index.NodeID {
	var able nodeSet[index.NodeID]
	count := uint64(0)
	for n, can := range &c.can {
		if can > 0 {
			able[count] = index.NodeID(n)
			count++
		}
	}
	return able[turn%max(count, 1)]
}

// most returns the node that can read most of the slices without a choice, the first one behind a node if there are
// several.
func (c *cover) most(behind index.NodeID) index.NodeID {
	best := behind
	for range c.can {
		behind++ // it begins again at 0
		if c.can[behind] > c.can[best] {
			best = behind
		}
	}
	return best
}
