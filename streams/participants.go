package streams

import (
	"maps"
	"slices"

	"tidemark/index"
)

// participant is a participating indexer, and what it has reported about the streams for it.
type participant struct {
	// sinceMS is, per vbucket, since when it has not accepted the owner's stream; 0: it does. Nil: no report yet.
	sinceMS []int64
	// shut marks the vbuckets in which it did not accept the owner's stream for so long that the stream was requested
	// again, and has accepted none since. A restart does not take its position into account. Nil: none.
	shut []bool
	// fullMS is when it last reported a full queue; 0: never.
	fullMS int64
}

// participants are the participating indexers: those that host a copy of the bucket and are neither in bootstrap nor
// offline.
type participants map[index.NodeID]*participant

// set sets the participating indexers. The state of those that stay is kept.
func (t participants) set(ids []index.NodeID) {
	maps.DeleteFunc(t, func(n index.NodeID, _ *participant) bool { return !slices.Contains(ids, n) })
	for _, n := range ids {
		if t[n] == nil {
			t[n] = &participant{}
		}
	}
}

// pause excludes a time in which nothing was received from the silence of the indexers.
func (t participants) pause(ms int64) {
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

// nodes returns the indexers, ascending.
func (t participants) nodes() []index.NodeID { return slices.Sorted(maps.Keys(t)) }

// begun records that a vbucket has a new stream, which no indexer can have refused yet.
func (t participants) begun(v int) {
	for _, n := range t {
		if n.sinceMS != nil {
			n.sinceMS[v] = 0
		}
	}
}

// full reports whether any indexer has reported a full queue since a time.
func (t participants) full(sinceMS int64) bool {
	for _, n := range t {
		if n.fullMS > 0 && n.fullMS > sinceMS {
			return true
		}
	}
	return false
}

// shut reports whether any indexer is marked for a vbucket.
func (t participants) shut(v int) bool {
	for _, n := range t {
		if n.shut != nil && n.shut[v] {
			return true
		}
	}
	return false
}

// anyShut reports whether any indexer was ever marked.
func (t participants) anyShut() bool {
	for _, n := range t {
		if n.shut != nil {
			return true
		}
	}
	return false
}

// lacks reports whether an indexer is marked for a vbucket. It is false for one that does not participate any more.
func (t participants) lacks(node index.NodeID, vb uint16) bool {
	n := t[node]
	return n != nil && n.shut != nil && n.shut[vb]
}

// accepts records that the indexer accepts the owner's stream of a vbucket.
func (n *participant) accepts(v int) {
	n.sinceMS[v] = 0
	if n.shut != nil {
		n.shut[v] = false
	}
}

// shutOut marks a vbucket whose stream the indexer has not received for long, and for which another one is requested.
func (n *participant) shutOut(v int) {
	if n.shut == nil {
		n.shut = make([]bool, len(n.sinceMS))
	}
	n.sinceMS[v], n.shut[v] = 0, true
}
