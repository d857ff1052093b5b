package statecontext

import (
	"iter"
	"slices"

	"github.com/tidwall/btree"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/partition"
)

// DifferingCopy is a copy that its indexer has compared with the KV data and found to differ.
type DifferingCopy struct {
	Index   index.ID          `json:"index"`
	Copy    index.CopyID      `json:"copy"`
	Slice   index.SliceID     `json:"slice"`
	Replica partition.Replica `json:"replica"`
	Node    index.NodeID      `json:"node"`
	Indexer string            `json:"indexer"` // its name
	// Documents is the number of documents that the copy holds wrongly according to the newest comparison, which records
	// a few thousand at most. 0: the copy is right again.
	Documents uint32 `json:"documents"`
	Kind      string `json:"kind"` // how the first of them differs
	// TakenAnew reports whether the vbuckets of these documents are streamed again, which is done only where it can
	// help.
	TakenAnew   bool   `json:"taken_anew"`
	SinceMS     int64  `json:"since_ms"` // by the leader's wall clock at that time, unix milliseconds
	ModifiedCAS uint64 `json:"modified_cas"`
}

const (
	// MaxDifferences bounds the number of copies in a cluster that are recorded as differing.
	MaxDifferences = 4096
	// maxDifferenceKind bounds the length of Kind in bytes.
	maxDifferenceKind = 40
)

// NoteDifference records what an indexer has found about one of its copies: how many documents differ from the KV
// data or, with Documents 0, that none differs any more or that the copy no longer exists. If nothing changes, it is
// not an update. Rejections: UnknownCopy, InvalidArgument, LimitExceeded.
type NoteDifference struct {
	Index     index.ID
	Copy      index.CopyID
	Node      index.NodeID // node that has the copy; ignored if Documents is 0
	Documents uint32
	Kind      string
	TakenAnew bool
}

func (*NoteDifference) kind() kind { return kindNoteDifference }

func (c *NoteDifference) append(dst []byte) []byte {
	dst = append(appendUint(appendUint(dst, uint64(c.Index)), uint64(c.Copy)), byte(c.Node))
	return appendBool(appendString(appendUint(dst, uint64(c.Documents)), c.Kind), c.TakenAnew)
}

func decodeDifferenceBody(k kind, d *decoder) Body {
	if k != kindNoteDifference {
		return nil
	}
	return &NoteDifference{Index: index.ID(d.uint()), Copy: index.CopyID(d.uint()), Node: index.NodeID(d.byte()),
		Documents: d.uint32(), Kind: d.string(), TakenAnew: d.bool()}
}

// Differences returns the copies recorded as differing, in the order of their ids.
func (s *State) Differences() iter.Seq[*DifferingCopy] { return values(s.differences) }

// Difference returns the recorded difference of a copy, or nil if it is not recorded as differing.
func (s *State) Difference(id index.CopyID) *DifferingCopy { d, _ := s.differences.Get(id); return d }

func newDifferences() *btree.Map[index.CopyID, *DifferingCopy] {
	return btree.NewMap[index.CopyID, *DifferingCopy](0)
}

func (c *NoteDifference) apply(t *tx) *Rejection {
	was := t.s.Difference(c.Copy)
	if c.Documents == 0 {
		if was != nil {
			gone := *was
			gone.Documents, gone.TakenAnew, gone.ModifiedCAS = 0, false, t.cas
			own(&t.s.differences, &t.owned.differences).Delete(c.Copy)
			t.emitDifference(&gone)
		}
		return nil
	}
	x, rejection := t.index(c.Index)
	if rejection != nil {
		return rejection
	}
	i := slices.IndexFunc(x.Topology.Copies, func(y partition.Copy) bool { return y.ID == c.Copy && y.Node == c.Node })
	node := t.s.Indexer(c.Node)
	switch {
	case i < 0 || node == nil:
		return reject(errcode.UnknownCopy, "index %d has no copy %d on node %d", c.Index, c.Copy, c.Node)
	case c.Kind == "" || len(c.Kind) > maxDifferenceKind:
		return reject(errcode.InvalidArgument, "a kind of difference of %d bytes, want 1 to %d",
			len(c.Kind), maxDifferenceKind)
	case was == nil && t.s.differences.Len() >= MaxDifferences:
		return reject(errcode.LimitExceeded, "%d differing copies are stored, which is the limit", MaxDifferences)
	}
	y := x.Topology.Copies[i]
	d := &DifferingCopy{Index: c.Index, Copy: c.Copy, Slice: y.Slice, Replica: y.Replica, Node: c.Node, Indexer: node.Name,
		Documents: c.Documents, Kind: c.Kind, TakenAnew: c.TakenAnew, SinceMS: t.s.wallMS, ModifiedCAS: t.cas}
	if was != nil {
		d.SinceMS = was.SinceMS
		if c.Matches(was) {
			return nil
		}
	}
	own(&t.s.differences, &t.owned.differences).Set(d.Copy, d)
	t.emitDifference(d)
	return nil
}

// Matches reports whether d already records the command's contents.
func (c *NoteDifference) Matches(d *DifferingCopy) bool {
	return d.Documents == c.Documents && d.Kind == c.Kind && d.TakenAnew == c.TakenAnew && d.Node == c.Node
}

func (t *tx) emitDifference(d *DifferingCopy) {
	t.changed = true
	e := Event{Kind: EventDifference, Index: d.Index, Node: d.Node, Removed: d.Documents == 0, Difference: d}
	if x := t.s.Index(d.Index); x != nil {
		e.Name, e.Bucket = x.Definition.Name, x.Definition.Bucket
	}
	t.emit(e)
}

func (rw *recordWriter) differences(s *State, p []byte) []byte {
	for d := range s.Differences() {
		p = appendUint(appendUint(appendUint(p[:0], uint64(d.Index)), uint64(d.Copy)), uint64(d.Slice))
		p = appendString(append(p, byte(d.Replica), byte(d.Node)), d.Indexer)
		p = appendBool(appendString(appendUint(p, uint64(d.Documents)), d.Kind), d.TakenAnew)
		p = appendUint(appendInt(p, d.SinceMS), d.ModifiedCAS)
		rw.write(recordDiffers, p)
	}
	return p
}

// loadDifference loads a record that differences has written; it returns false for other records.
func (s *State) loadDifference(kind byte, d *decoder) bool {
	if kind != recordDiffers {
		return false
	}
	x := &DifferingCopy{Index: index.ID(d.uint()), Copy: index.CopyID(d.uint()),
		Slice: d.slice(), Replica: partition.Replica(d.byte()), Node: index.NodeID(d.byte()), Indexer: d.string(),
		Documents: d.uint32(), Kind: d.string(), TakenAnew: d.bool(), SinceMS: d.int(), ModifiedCAS: d.uint()}
	s.differences.Set(x.Copy, x)
	return true
}

func checkDifferences(s *State) error {
	if n := s.differences.Len(); n > MaxDifferences {
		return broken("%d copies differ, at most %d", n, MaxDifferences)
	}
	for d := range s.Differences() {
		if d.Documents == 0 || d.Kind == "" || len(d.Kind) > maxDifferenceKind || d.ModifiedCAS > s.cas {
			return broken("copy %d differs in %d documents (%q), noted at %d", d.Copy, d.Documents, d.Kind, d.ModifiedCAS)
		}
	}
	return nil
}
