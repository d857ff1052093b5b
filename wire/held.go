package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"

	"tidemark/index"
	"tidemark/timestamp"
)

// ErrHeld is wrapped when bytes are no packed list of Held.
var ErrHeld = errors.New("packed list of held timestamps")

const (
	heldFormat  = 1
	maxHeldRefs = 1 << 20
)

// PackHeld packs a list ascending by copy, in a few bytes for each: every indexer is told what every other one holds,
// and most hold the same few timestamps.
func PackHeld(all []Held) []byte {
	dst := []byte{heldFormat}
	numbers := map[StabilityRef]uint64{}
	var refs []byte
	for i := range all {
		r := &all[i].Ref
		if _, known := numbers[*r]; known {
			continue
		}
		numbers[*r] = uint64(len(numbers))
		refs = binary.AppendUvarint(refs, uint64(len(r.Bucket)))
		refs = append(refs, r.Bucket...)
		refs = binary.AppendUvarint(refs, r.Generation)
		refs = binary.AppendUvarint(refs, r.RollbackID)
		refs = binary.AppendUvarint(refs, r.Number)
		refs = binary.LittleEndian.AppendUint64(refs, r.Hash)
	}
	dst = binary.AppendUvarint(dst, uint64(len(numbers)))
	dst = append(dst, refs...)
	dst = binary.AppendUvarint(dst, uint64(len(all)))
	last := uint64(0)
	for i := range all {
		h := &all[i]
		dst = binary.AppendUvarint(dst, uint64(h.Copy)-last)
		last = uint64(h.Copy)
		dst = append(dst, byte(h.Node))
		ok := uint64(0)
		if h.OK {
			ok = 1
		}
		dst = binary.AppendUvarint(dst, numbers[h.Ref]<<1|ok)
	}
	return dst
}

// HeldHash names a packed list, so that one that the receiver has need not be sent again. It is never 0.
func HeldHash(packed []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(packed) // never fails
	return max(h.Sum64(), 1)
}

// UnpackHeld reads what PackHeld wrote. Errors wrap ErrHeld.
func UnpackHeld(src []byte) ([]Held, error) {
	r := unpacker{b: src}
	if f := r.byte(); f != heldFormat {
		return nil, fmt.Errorf("%w: format %d, want %d", ErrHeld, f, heldFormat)
	}
	n := r.uvarint()
	if n > maxHeldRefs || n > uint64(len(r.b)) {
		return nil, fmt.Errorf("%w: %d timestamps in %d bytes", ErrHeld, n, len(r.b))
	}
	refs := make([]StabilityRef, n)
	for i := range refs {
		refs[i] = StabilityRef{Bucket: string(r.take(r.uvarint())), Ref: timestamp.Ref{Generation: r.uvarint(),
			RollbackID: r.uvarint(), Number: r.uvarint()}}
		if hash := r.take(8); hash != nil {
			refs[i].Hash = binary.LittleEndian.Uint64(hash)
		}
	}
	n = r.uvarint()
	if n > uint64(len(r.b)) {
		return nil, fmt.Errorf("%w: %d copies in %d bytes", ErrHeld, n, len(r.b))
	}
	all := make([]Held, n)
	last := uint64(0)
	for i := range all {
		last += r.uvarint()
		all[i].Copy, all[i].Node = index.CopyID(last), index.NodeID(r.byte())
		ref := r.uvarint()
		if ref>>1 >= uint64(len(refs)) {
			return nil, fmt.Errorf("%w: copy %d names timestamp %d of %d", ErrHeld, last, ref>>1, len(refs))
		}
		all[i].Ref, all[i].OK = refs[ref>>1], ref&1 == 1
	}
	if r.bad || len(r.b) > 0 {
		return nil, fmt.Errorf("%w: cut short or too long", ErrHeld)
	}
	return all, nil
}
