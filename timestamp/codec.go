package timestamp

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// A vector is encoded in full, or as a difference from another one, which begins with a format byte.
const (
	formatDelta = 1 // changes against a base, vbuckets ascending
	maxLog      = 64
)

// AppendVector appends t in full: its length, and the vbuuid and seqno of each vbucket.
func (t Vector) AppendVector(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(t.Len()))
	for v, s := range t.Seqnos {
		dst = binary.AppendUvarint(binary.AppendUvarint(dst, t.VBUUIDs[v]), s)
	}
	return dst
}

// minPosition is the minimum size in bytes of a vbucket in a full vector.
const minPosition = 2

// DecodeVector decodes what AppendVector appended and returns the remaining bytes. It allocates no more than src can
// describe. Errors wrap ErrCorrupt.
func DecodeVector(src []byte) (t Vector, rest []byte, err error) {
	r := reader{b: src}
	n := r.uvarint()
	if !r.ok() || n > MaxVBuckets || n*minPosition > uint64(len(r.b)) {
		return Vector{}, nil, fmt.Errorf("%w: %d vbuckets in %d bytes, at most %d", ErrCorrupt, n, len(src), MaxVBuckets)
	}
	if n == 0 {
		return Vector{}, r.b, nil
	}
	t = New(int(n))
	for v := range t.Seqnos {
		t.VBUUIDs[v], t.Seqnos[v] = r.uvarint(), r.uvarint()
	}
	if !r.ok() {
		return Vector{}, nil, fmt.Errorf("%w: truncated", ErrCorrupt)
	}
	return t, r.b, nil
}

// AppendDelta appends the difference of t from base: only the vbuckets that changed, as varints; a vbuuid only if it
// changed, a seqno as a signed difference. Lengths must be equal.
func (t Vector) AppendDelta(dst []byte, base Vector) ([]byte, error) {
	if t.Len() != base.Len() {
		return dst, fmt.Errorf("%w: %d and %d", ErrLength, t.Len(), base.Len())
	}
	dst = append(dst, formatDelta)
	dst = binary.AppendUvarint(dst, uint64(t.Len()))
	count := 0
	for v := range t.Seqnos {
		if t.Seqnos[v] != base.Seqnos[v] || t.VBUUIDs[v] != base.VBUUIDs[v] {
			count++
		}
	}
	dst = binary.AppendUvarint(dst, uint64(count))
	last := 0
	for v := range t.Seqnos {
		newBranch := t.VBUUIDs[v] != base.VBUUIDs[v]
		if t.Seqnos[v] == base.Seqnos[v] && !newBranch {
			continue
		}
		gap := uint64(v-last) << 1
		if newBranch {
			gap |= 1
		}
		dst = binary.AppendUvarint(dst, gap)
		if newBranch {
			dst = binary.LittleEndian.AppendUint64(dst, t.VBUUIDs[v])
		}
		dst = binary.AppendVarint(dst, int64(t.Seqnos[v]-base.Seqnos[v]))
		last = v
	}
	return dst, nil
}

// ApplyDelta decodes what AppendDelta appended. It returns base with the changes applied, and the remaining bytes. It
// does not modify base. Errors wrap ErrCorrupt or ErrLength.
func ApplyDelta(src []byte, base Vector) (t Vector, rest []byte, err error) {
	return applyDelta(src, base, false)
}

// ApplyDeltaShared is ApplyDelta for vectors that are never modified: if no vbuuid differs, the result shares base's
// vbuuids, so that a step forward takes half the memory.
func ApplyDeltaShared(src []byte, base Vector) (t Vector, rest []byte, err error) {
	return applyDelta(src, base, true)
}

func applyDelta(src []byte, base Vector, share bool) (t Vector, rest []byte, err error) {
	r := reader{b: src}
	n, count, err := r.deltaHead(base.Len())
	if err != nil {
		return Vector{}, nil, err
	}
	if share {
		t = Vector{VBUUIDs: base.VBUUIDs, Seqnos: slices.Clone(base.Seqnos)}
	} else {
		t = base.Clone()
	}
	v := uint64(0)
	for i := range count {
		gap := r.uvarint()
		v += gap >> 1
		if !r.ok() || v >= n || i > 0 && gap>>1 == 0 {
			return Vector{}, nil, fmt.Errorf("%w: vbucket %d of %d", ErrCorrupt, v, n)
		}
		if gap&1 == 1 {
			if share {
				t.VBUUIDs, share = slices.Clone(base.VBUUIDs), false
			}
			t.VBUUIDs[v] = r.uint64()
		}
		t.Seqnos[v] += uint64(r.varint())
	}
	if !r.ok() {
		return Vector{}, nil, fmt.Errorf("%w: truncated", ErrCorrupt)
	}
	return t, r.b, nil
}

// AppendLog appends a failover log: its length and (vbuuid, seqno) pairs. Of a log with more than 64 entries, the
// limit of DecodeLog, it appends the newest 64. A position on a branch that is left out counts as diverged.
func AppendLog(dst []byte, l FailoverLog) []byte {
	l = l[:min(len(l), maxLog)]
	dst = binary.AppendUvarint(dst, uint64(len(l)))
	for _, e := range l {
		dst = binary.LittleEndian.AppendUint64(dst, e.VBUUID)
		dst = binary.AppendUvarint(dst, e.Seqno)
	}
	return dst
}

// DecodeLog decodes what AppendLog appended and returns the remaining bytes. It refuses logs of more than 64 entries.
func DecodeLog(src []byte) (l FailoverLog, rest []byte, err error) {
	r := reader{b: src}
	n := r.uvarint()
	if !r.ok() || n > maxLog {
		return nil, nil, fmt.Errorf("%w: failover log of %d entries", ErrCorrupt, n)
	}
	for range n {
		l = append(l, LogEntry{VBUUID: r.uint64(), Seqno: r.uvarint()})
	}
	if !r.ok() {
		return nil, nil, fmt.Errorf("%w: truncated failover log", ErrCorrupt)
	}
	return l, r.b, nil
}

// reader decodes numbers from a slice and records whether the slice was too short.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) ok() bool { return !r.bad }

// deltaHead reads the header of a delta on a base of that many vbuckets: the number of vbuckets, and of those that
// differ.
func (r *reader) deltaHead(base int) (n, count uint64, err error) {
	if f := r.byte(); r.ok() && f != formatDelta {
		return 0, 0, fmt.Errorf("%w: format %d, want %d", ErrCorrupt, f, formatDelta)
	}
	n, count = r.uvarint(), r.uvarint()
	if !r.ok() || n > MaxVBuckets || count > n {
		return 0, 0, fmt.Errorf("%w: %d of %d vbuckets", ErrCorrupt, count, n)
	}
	if int(n) != base {
		return 0, 0, fmt.Errorf("%w: delta of %d vbuckets on a base of %d", ErrLength, n, base)
	}
	return n, count, nil
}

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.bad = true
		return 0
	}
	c := r.b[0]
	r.b = r.b[1:]
	return c
}

func (r *reader) uint64() uint64 {
	if len(r.b) < 8 {
		r.bad = true
		return 0
	}
	u := binary.LittleEndian.Uint64(r.b)
	r.b = r.b[8:]
	return u
}

func (r *reader) uvarint() uint64 {
	u, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return u
}

func (r *reader) varint() int64 {
	i, n := binary.Varint(r.b)
	if n <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return i
}
