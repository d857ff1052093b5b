package core

import (
	"time"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/wire"
)

// Reading is what KV is asked for by several side streams together: one stream of each vbucket that any of them wants.
type Reading struct {
	starts map[uint16]wire.StreamStart
	nodes  map[index.NodeID]bool // that have joined
	awaits map[index.NodeID]bool // that are to come
}

// NewReading returns one that nobody has joined.
func NewReading() *Reading {
	return &Reading{starts: map[uint16]wire.StreamStart{}, nodes: map[index.NodeID]bool{}, awaits: map[index.NodeID]bool{}}
}

// Shareable reports whether others may read with a side stream: it goes to copies, it has an end, and who takes it does
// so at the pace of an indexer.
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

// Join adds what a side stream wants. It is refused, and nothing is changed, where a vbucket begins elsewhere for those
// that have joined: at another seqno or on another branch. Ends may differ: KV is asked for the highest, and each side
// stream ends at its own.
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

// Whole reports whether all that are awaited have joined.
func (r *Reading) Whole() bool {
	for n := range r.awaits {
		if !r.nodes[n] {
			return false
		}
	}
	return true
}

// Starts are what KV is to be asked for, by vbucket.
func (r *Reading) Starts() map[uint16]wire.StreamStart { return r.starts }

// beingBuilt is the set of indexes that are being built.
func beingBuilt(d *wire.Definitions) map[index.ID]bool {
	built := map[index.ID]bool{}
	for i := range d.Indexes {
		if d.Indexes[i].State == index.Backfill {
			built[d.Indexes[i].ID] = true
		}
	}
	return built
}

// Awaited returns the other nodes that will ask for what a side stream is for: they have copies of indexes of which it
// builds some, and an index is built at once everywhere. A node that has what it needs, or is down, does not come.
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
	// holdPatience is how long one side stream may hold up the others that read with it, in all.
	holdPatience = 500 * time.Millisecond
	// holdForgiven is which part of the time that it does not hold them up is taken off that.
	holdForgiven = 4
)

// Hold is for how long a side stream has held up the others that read with it: its queue has filled the window of the
// connection, while another one waits for something to come.
type Hold struct{ held time.Duration }

// Look takes over whether it has held them up since the last look, and reports whether it is to leave: it has its
// vbuckets streamed alone then, from where it is. One that holds them up for more than a fifth of the time leaves in
// the end.
func (h *Hold) Look(holds bool, since time.Duration) (leaves bool) {
	if !holds {
		h.held = max(0, h.held-since/holdForgiven)
		return false
	}
	h.held += since
	return h.held > holdPatience
}

// Take makes a stream one that shares another one's consent of KV.
func (s *Start) Take(of *Start) { s.KV, s.Asked, s.Log = of.KV, of.Asked, of.Log }
