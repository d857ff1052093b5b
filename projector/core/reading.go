package core

import (
	"time"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/wire"
)

// Reading is one read of KV shared by several side streams: one stream of each vbucket that any of them wants.
type Reading struct {
	starts map[uint16]wire.StreamStart
	nodes  map[index.NodeID]bool // that have joined
	awaits map[index.NodeID]bool // expected to join
}

// NewReading returns a reading that no side stream has joined.
func NewReading() *Reading {
	return &Reading{starts: map[uint16]wire.StreamStart{}, nodes: map[index.NodeID]bool{}, awaits: map[index.NodeID]bool{}}
}

// Shareable reports whether a side stream may share a read with others: it feeds copies, it has an end, and its
// receiver keeps an indexer's pace.
func Shareable(t *wire.SideTarget, want *wire.RestartTimestamp) bool {
	if len(t.Copies) == 0 || t.Sums || t.RetryForever {
		return false
	}
	for i := range want.Len() {
		if end := want.At(i).End; end == 0 || end == wire.NoEnd {
			return false
		}
	}
	return true
}

// Join adds what a side stream wants. It returns false and changes nothing if a vbucket's start differs from that of
// the side streams that have joined: another seqno, or another branch. Ends may differ: the highest is requested from
// KV, and each side stream ends at its own.
func (r *Reading) Join(node index.NodeID, want *wire.RestartTimestamp, awaits []index.NodeID) bool {
	for i := range want.Len() {
		start := want.At(i)
		have, ok := r.starts[start.VBucket]
		have.End = start.End
		if ok && have != start {
			return false
		}
	}
	for i := range want.Len() {
		start := want.At(i)
		start.End = max(start.End, r.starts[start.VBucket].End)
		r.starts[start.VBucket] = start
	}
	r.nodes[node] = true
	for _, n := range awaits {
		r.awaits[n] = true
	}
	return true
}

// Whole reports whether all awaited nodes have joined.
func (r *Reading) Whole() bool {
	for n := range r.awaits {
		if !r.nodes[n] {
			return false
		}
	}
	return true
}

// Starts returns the streams to request from KV, by vbucket.
func (r *Reading) Starts() map[uint16]wire.StreamStart { return r.starts }

// beingBuilt returns the set of indexes in state Backfill.
func beingBuilt(d *wire.Definitions) map[index.ID]bool {
	built := map[index.ID]bool{}
	for i := range d.Indexes {
		if d.Indexes[i].State == index.Backfill {
			built[d.Indexes[i].ID] = true
		}
	}
	return built
}

// Awaited returns the other nodes that are expected to request the same data as side stream t: those with allocated
// copies of an index that t builds, because an index is built on all nodes at once. A node that needs nothing, or is
// down, does not come.
func Awaited(d *wire.Definitions, t *wire.SideTarget) (nodes []index.NodeID) {
	built := beingBuilt(d)
	if len(built) == 0 {
		return nil
	}
	wanted, seen := map[index.CopyID]bool{}, map[index.NodeID]bool{t.Node: true}
	for _, id := range t.Copies {
		wanted[id] = true
	}
	for i := range d.Topologies {
		if topology := &d.Topologies[i]; built[topology.Index] && hasAny(topology.Copies, wanted) {
			for _, c := range topology.Copies {
				if c.State == partition.Allocated && !seen[c.Node] {
					seen[c.Node], nodes = true, append(nodes, c.Node)
				}
			}
		}
	}
	return nodes
}

func hasAny(copies []partition.Copy, wanted map[index.CopyID]bool) bool {
	for _, c := range copies {
		if wanted[c.ID] {
			return true
		}
	}
	return false
}

const (
	// holdLimit is how long one side stream may hold up the others that read with it, in total.
	holdLimit = 500 * time.Millisecond
	// holdForgiven is the divisor for time in which it does not hold them up: a quarter of that time is subtracted from
	// the total.
	holdForgiven = 4
)

// Hold tracks for how long a side stream has held up the others that read with it: its queue fills the connection's
// window while another one is idle.
type Hold struct{ held time.Duration }

// Look adds the time since the last look, during which the side stream has held the others up or has not. It reports
// whether the side stream has to leave; its vbuckets are then streamed alone, from where it is. A side stream that
// holds the others up for more than a fifth of the time leaves in the end.
func (h *Hold) Look(holds bool, since time.Duration) (leaves bool) {
	if !holds {
		h.held = max(0, h.held-since/holdForgiven)
		return false
	}
	h.held += since
	return h.held > holdLimit
}

// Take copies KV's consent from the start that was requested on behalf of several side streams.
func (s *Start) Take(of *Start) { s.KV, s.Branch, s.Log = of.KV, of.Branch, of.Log }
