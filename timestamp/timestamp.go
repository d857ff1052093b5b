// Package timestamp is the arithmetic of vbucket vectors: order, minimum, mean, hashes and deltas, and the branch rule
// that says how far a position is valid on a failover log (docs/timestamps.md).
//
// It promises that every operation is pure, works for any number of vbuckets, and never assumes that two vectors of
// different branches can be compared by their sequence numbers alone.
package timestamp

import (
	"errors"
	"fmt"
	"math"
)

// MaxVBuckets is the most vbuckets a bucket may have; longer vectors are refused by every decoder.
const MaxVBuckets = 4096

// Infinity stands for "no limit" among sequence numbers: no KV store counts that far.
const Infinity = math.MaxUint64

var (
	// ErrLength is wrapped when two vectors have different numbers of vbuckets.
	ErrLength = errors.New("timestamps have different numbers of vbuckets")
	// ErrCorrupt is wrapped when encoded bytes are not a timestamp.
	ErrCorrupt = errors.New("corrupt timestamp encoding")
)

// Position is a place in one vbucket's history: everything up to Seqno (included) on the branch VBUUID. {0, 0} is the
// beginning.
type Position struct {
	VBUUID uint64 `json:"vbuuid,string"`
	Seqno  uint64 `json:"seqno"`
}

// Window is a DCP snapshot: the sequence numbers (Start, End]. DCP de-duplicates inside it, so that only End is a state
// the KV store really had.
type Window struct {
	Start uint64 `json:"start"`
	End   uint64 `json:"end"`
}

// MapRevision orders vbucket maps: (epoch, revision). It tells a stale producer from the present one.
type MapRevision struct {
	Epoch uint64 `json:"epoch"`
	Rev   uint64 `json:"rev"`
}

// Compare is negative, zero or positive as r is older than, equal to or newer than o.
func (r MapRevision) Compare(o MapRevision) int {
	switch {
	case r == o:
		return 0
	case r.Epoch < o.Epoch, r.Epoch == o.Epoch && r.Rev < o.Rev:
		return -1
	}
	return 1
}

// Vector is a timestamp of a bucket: per vbucket a vbuuid and a sequence number, as two flat slices of equal length so
// that an operation over 1024 vbuckets costs about a microsecond. An empty vbucket is {0, 0}.
type Vector struct {
	VBUUIDs []uint64 `json:"vbuuids"`
	Seqnos  []uint64 `json:"seqnos"`
}

// New returns the vector of n vbuckets in which each is {0, 0}.
func New(n int) Vector {
	flat := make([]uint64, 2*n)
	return Vector{VBUUIDs: flat[:n:n], Seqnos: flat[n:]}
}

// Len is the number of vbuckets.
func (t Vector) Len() int { return len(t.Seqnos) }

// At gives vbucket v's position. It panics when there is no such vbucket, as an index of a slice does.
func (t Vector) At(v int) Position { return Position{VBUUID: t.VBUUIDs[v], Seqno: t.Seqnos[v]} }

// Set changes vbucket v's position in place, also in every copy of t that is not a Clone. It panics as At does.
func (t Vector) Set(v int, p Position) { t.VBUUIDs[v], t.Seqnos[v] = p.VBUUID, p.Seqno }

// Clone returns a copy that shares no memory with t.
func (t Vector) Clone() Vector {
	c := New(t.Len())
	copy(c.VBUUIDs, t.VBUUIDs)
	copy(c.Seqnos, t.Seqnos)
	return c
}

// Check returns an error wrapping ErrLength unless the vector is well formed and has n vbuckets.
func (t Vector) Check(n int) error {
	if len(t.Seqnos) != n || len(t.VBUUIDs) != n {
		return fmt.Errorf("%w: %d seqnos and %d vbuuids, want %d", ErrLength, len(t.Seqnos), len(t.VBUUIDs), n)
	}
	return nil
}

// Equal reports whether all positions, vbuuids included, are the same. Vectors of different lengths never are.
func (t Vector) Equal(o Vector) bool {
	if t.Len() != o.Len() {
		return false
	}
	for v := range t.Seqnos {
		if t.Seqnos[v] != o.Seqnos[v] || t.VBUUIDs[v] != o.VBUUIDs[v] {
			return false
		}
	}
	return true
}

// Covers reports whether every sequence number of o is at or below ours (o <= t, by sequence numbers only; positions of
// different branches need the failover log, see FailoverLog.Valid). Vectors of different lengths never cover.
func (t Vector) Covers(o Vector) bool {
	if t.Len() != o.Len() {
		return false
	}
	for v, s := range o.Seqnos {
		if s > t.Seqnos[v] {
			return false
		}
	}
	return true
}

// Reaches reports whether t is at or above need in every vbucket, and there on need's own branch. Nothing on one branch
// is nothing on another; but nothing on need's branch is below what t has on another one: the vbucket may have been
// made anew since.
func (t Vector) Reaches(need Vector) bool { return t.coversOn(need, false) }

// Meets is Reaches where a vbuuid of 0 in need stands for any branch.
func (t Vector) Meets(need Vector) bool { return t.coversOn(need, true) }

// coversOn is Covers on need's branches; 0 is any of them, or one that nobody is on.
func (t Vector) coversOn(need Vector, zeroIsAny bool) bool {
	if !t.Covers(need) {
		return false
	}
	for v, branch := range need.VBUUIDs {
		if t.Seqnos[v] > 0 && t.VBUUIDs[v] != branch && (branch != 0 || !zeroIsAny) {
			return false
		}
	}
	return true
}

// Both returns the least need that nothing meets which does not meet t and o as well. It reports false where there is
// none: they name different branches of a vbucket, or differ in length.
func (t Vector) Both(o Vector) (need Vector, ok bool) {
	if t.Len() != o.Len() {
		return need, false
	}
	need = t.Clone()
	for v, branch := range o.VBUUIDs {
		switch {
		case need.VBUUIDs[v] == 0:
			need.VBUUIDs[v] = branch
		case branch != 0 && branch != need.VBUUIDs[v]:
			return Vector{}, false
		}
		need.Seqnos[v] = max(need.Seqnos[v], o.Seqnos[v])
	}
	return need, true
}

// Order is the result of comparing two vectors.
type Order int8

// The possible orders. Vectors are Incomparable when each is ahead somewhere, when vbuuids differ at a vbucket of which
// neither seqno is 0, or when their lengths differ.
const (
	Less         Order = -1
	Same         Order = 0
	Greater      Order = 1
	Incomparable Order = 2
)

// Compare places t against o in the partial order of vectors (docs/timestamps.md, "Vectors").
func (t Vector) Compare(o Vector) Order {
	if t.Len() != o.Len() {
		return Incomparable
	}
	less, more := false, false
	for v := range t.Seqnos {
		a, b := t.Seqnos[v], o.Seqnos[v]
		if t.VBUUIDs[v] != o.VBUUIDs[v] && a > 0 && b > 0 {
			return Incomparable
		}
		less, more = less || a < b, more || a > b
	}
	return orderOf(less, more)
}

// orderOf is the order of vectors of which the first is less somewhere, or more.
func orderOf(less, more bool) Order {
	switch {
	case less && more:
		return Incomparable
	case less:
		return Less
	case more:
		return Greater
	}
	return Same
}

// Min lowers t, in place, to the smaller sequence number per vbucket, with the vbuuid that belongs to it. The error
// wraps ErrLength; t is then unchanged.
func (t Vector) Min(o Vector) error {
	if t.Len() != o.Len() {
		return fmt.Errorf("%w: %d and %d", ErrLength, t.Len(), o.Len())
	}
	for v, s := range o.Seqnos {
		if s < t.Seqnos[v] {
			t.Seqnos[v], t.VBUUIDs[v] = s, o.VBUUIDs[v]
		}
	}
	return nil
}

// Max raises t, in place, to the larger sequence number per vbucket, with the vbuuid that belongs to it. The error
// wraps ErrLength; t is then unchanged.
func (t Vector) Max(o Vector) error {
	if t.Len() != o.Len() {
		return fmt.Errorf("%w: %d and %d", ErrLength, t.Len(), o.Len())
	}
	for v, s := range o.Seqnos {
		if s > t.Seqnos[v] {
			t.Seqnos[v], t.VBUUIDs[v] = s, o.VBUUIDs[v]
		}
	}
	return nil
}

// Total is the sum of all sequence numbers: a measure of work for progress bars, never of order.
func (t Vector) Total() uint64 {
	var sum uint64
	for _, s := range t.Seqnos {
		sum += s
	}
	return sum
}

// Hash identifies a vector in heartbeats, acknowledgements and scans (IM-16, IM-17). It is the same in every version: a
// multiplying hash over seqno and vbuuid of each vbucket in order, a word at a time. It is no checksum against malice.
func (t Vector) Hash() uint64 {
	const prime, offset = 0x100000001b3, 0xcbf29ce484222325
	h := uint64(offset)
	for v, s := range t.Seqnos {
		h = (h ^ s) * prime
		h ^= h >> 29
		h = (h ^ t.VBUUIDs[v]) * prime
		h ^= h >> 32
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	return h ^ h>>33
}
