package streams

import (
	"maps"
	"slices"

	"tidemark/index"
)

// taker is an indexer that takes part, and what it has said of the streams that it is to receive.
type taker struct {
	// sinceMS is per vbucket since when it has not accepted the owner's stream; 0: it does. Nil: it has said nothing.
	sinceMS []int64
	// shut marks the vbuckets of which it did not accept the owner's stream for so long that it was asked for again, and
	// has accepted none since: a restart does not go back for it. Nil: none.
	shut []bool
	// fullMS is when it last said that its queue has no room; 0: never.
	fullMS int64
}

// takers are the indexers that take part: those that host a copy of the bucket and are neither in bootstrap nor
// offline.
type takers map[index.NodeID]*taker

// set makes them these; what those have said that stay counts.
func (t takers) set(ids []index.NodeID) {
	maps.DeleteFunc(t, func(n index.NodeID, _ *taker) bool { return !slices.Contains(ids, n) })
	for _, n := range ids {
		if t[n] == nil {
			t[n] = &taker{}
		}
	}
}

// pause takes a time in which nobody was heard out of what they have been silent for.
func (t takers) pause(ms int64) {
	for _, n := range t {
		for v, since := range n.sinceMS {
			if since > 0 {
				n.sinceMS[v] = since + ms
			}
		}
		if n.fullMS > 0 {
			n.fullMS += ms
		}
	}
}

// nodes lists them, ascending.
func (t takers) nodes() []index.NodeID { return slices.Sorted(maps.Keys(t)) }

// begun notes that a vbucket has a stream that nobody can have refused yet.
func (t takers) begun(v int) {
	for _, n := range t {
		if n.sinceMS != nil {
			n.sinceMS[v] = 0
		}
	}
}

// full reports whether any has said since a time that its queue has no room.
func (t takers) full(sinceMS int64) bool {
	for _, n := range t {
		if n.fullMS > 0 && n.fullMS > sinceMS {
			return true
		}
	}
	return false
}

// shut reports whether any is marked for a vbucket.
func (t takers) shut(v int) bool {
	for _, n := range t {
		if n.shut != nil && n.shut[v] {
			return true
		}
	}
	return false
}

// anyShut reports whether any has been marked.
func (t takers) anyShut() bool {
	for _, n := range t {
		if n.shut != nil {
			return true
		}
	}
	return false
}

// lacks reports whether an indexer is marked for a vbucket; one that takes part no more is not.
func (t takers) lacks(node index.NodeID, vb uint16) bool {
	n := t[node]
	return n != nil && n.shut != nil && n.shut[vb]
}

// accepts notes that it accepts the owner's stream of a vbucket.
func (n *taker) accepts(v int) {
	n.sinceMS[v] = 0
	if n.shut != nil {
		n.shut[v] = false
	}
}

// shutOut notes that it has not received a vbucket's stream for long, and another one is asked for.
func (n *taker) shutOut(v int) {
	if n.shut == nil {
		n.shut = make([]bool, len(n.sinceMS))
	}
	n.sinceMS[v], n.shut[v] = 0, true
}
