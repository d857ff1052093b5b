// Package timestamp implements vbucket vectors: order, minimum, maximum, hashes and deltas, and the branch rule,
// which determines how far a position is valid on a failover log (docs/timestamps.md).
//
// Every operation is pure, and works for any number of vbuckets. None assumes that vectors of different branches can
// be compared by their sequence numbers alone.
package timestamp

import (
	"errors"
	"fmt"
	"math"
)

// MaxVBuckets is the most vbuckets a bucket may have; longer vectors are refused by every decoder.
const MaxVBuckets = 4096

// Infinity stands for "no limit" among sequence numbers: no KV store reaches it.
const Infinity = math.MaxUint64

var (
	// ErrLength is wrapped if two vectors have different numbers of vbuckets.
	ErrLength = errors.New("timestamps have different numbers of vbuckets")
	// ErrCorrupt is wrapped if encoded bytes are not a timestamp.
	ErrCorrupt = errors.New("corrupt timestamp encoding")
)

// Position is a point in one vbucket's history: everything up to Seqno (inclusive) on the branch VBUUID. {0, 0} is
// the beginning.
type Position struct {
	VBUUID uint64 `json:"vbuuid,string"`
	Seqno  uint64 `json:"seqno"`
}

// Window is a DCP snapshot: the sequence numbers (Start, End]. DCP de-duplicates inside it, so that only End is a
// state that the KV store really had.
type Window struct {
	Start uint64 `json:"start"`
	End   uint64 `json:"end"`
}

// MapRevision orders vbucket maps: (epoch, revision). It distinguishes a stale producer from the current one.
type MapRevision struct {
	Epoch uint64 `json:"epoch"`
	Rev   uint64 `json:"rev"`
}

// Compare returns a negative number, 0 or a positive number if r is older than, equal to or newer than o.
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

// New returns a vector of n vbuckets, each of which is {0, 0}.
func New(n int) Vector {
	flat := make([]uint64, 2*n)
	return Vector{VBUUIDs: flat[:n:n], Seqnos: flat[n:]}
}

// Len returns the number of vbuckets.
func (t Vector) Len() int { return len(t.Seqnos) }

// At returns the position of vbucket v. It panics if v is out of range.
func (t Vector) At(v int) Position { return Position{VBUUID: t.VBUUIDs[v], Seqno: t.Seqnos[v]} }

// Set modifies the position of vbucket v in place, also in every copy of t that is not a Clone. It panics like At.
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

// Covers reports whether no sequence number of o is above that of t (o <= t, by sequence numbers only; for positions
// of different branches see FailoverLog.Valid). It is false for vectors of different lengths.
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

// Reaches reports whether t is at or above need in every vbucket, and there on the same branch as need. A vbucket in
// which t has seqno 0 is compatible with any branch. The reverse is not true: where need has seqno 0, t must still be
// on the branch of need if its seqno is above 0, because the vbucket may have been re-created since.
func (t Vector) Reaches(need Vector) bool { return t.coversOn(need, false) }

// Meets is Reaches, except that a vbuuid of 0 in need stands for any branch.
func (t Vector) Meets(need Vector) bool { return t.coversOn(need, true) }

// coversOn is Covers with the branches of need. A vbuuid of 0 is any branch if zeroIsAny, else one that no vector is
// on.
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

// Both returns the minimal need such that every vector that meets it meets t and o, too. ok is false if there is
// none: t and o have different branches of a vbucket, or differ in length.
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

// Order is the result of the comparison of two vectors.
type Order int8

// The possible orders. Vectors are Incomparable if each is ahead in some vbucket, if vbuuids differ at a vbucket in
// which neither seqno is 0, or if their lengths differ.
const (
	Less         Order = -1
	Same         Order = 0
	Greater      Order = 1
	Incomparable Order = 2
)

// Compare returns the order of t relative to o in the partial order of vectors (docs/timestamps.md, "Vectors").
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

// orderOf returns the order of vectors of which the first is less in some vbucket, or more in some vbucket.
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

// Min lowers t, in place, to the smaller sequence number per vbucket, with its vbuuid. The error wraps ErrLength; t
// is unchanged then.
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

// Max raises t, in place, to the larger sequence number per vbucket, with its vbuuid. The error wraps ErrLength; t is
// unchanged then.
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

// Total returns the sum of all sequence numbers. It measures work for progress bars, not order.
func (t Vector) Total() uint64 {
	var sum uint64
	for _, s := range t.Seqnos {
		sum += s
	}
	return sum
}

// Hash returns a hash that identifies a vector in heartbeats, acknowledgements and scans (IM-16, IM-17). It is the
// same in every version: a multiplicative hash over seqno and vbuuid of each vbucket in order, a word at a time. It
// does not protect against deliberate collisions.
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
