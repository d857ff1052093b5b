package wire

import (
	"fmt"
	"hash/fnv"
	"math"

	"tidemark/index"
	"tidemark/timestamp"
)

// heldKind is the part of a Held that many copies share.
type heldKind struct {
	ref StabilityRef
	ok  bool
}

// MaxHeld bounds the copies of a packed list. A body of rpc.MaxControlBody bytes has room for several times as many.
const MaxHeld = 1 << 20

// PackHeld packs a list, ascending by copy without duplicates, in a few bytes per copy. Every indexer receives what
// all others hold, and most copies hold the same few timestamps.
func PackHeld(all []Held) []byte {
	w := rowWriter[heldKind]{put: func(dst []byte, k heldKind) []byte {
		return appendFlag(appendNumbers(appendText(dst, k.ref.Bucket), k.ref.Generation, k.ref.RollbackID, k.ref.Number,
			k.ref.Hash), k.ok)
	}}
	for i := range all {
		w.row(uint64(all[i].Copy), heldKind{all[i].Ref, all[i].OK}, uint64(all[i].Node))
	}
	return w.packed()
}

// HeldHash returns a hash that identifies a packed list, so that it is not sent again to a receiver that has it. It
// is never 0.
func HeldHash(packed []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(packed) // never fails
	return max(h.Sum64(), 1)
}

// UnpackHeld decodes a list that PackHeld encoded. It is ascending by copy. Errors wrap ErrRows.
func UnpackHeld(src []byte) (all []Held, err error) {
	t := rowReader[heldKind]{keys: math.MaxUint64, most: MaxHeld, values: 1, take: func(r *unpacker) heldKind {
		return heldKind{StabilityRef{Bucket: r.text(), Ref: timestamp.Ref{Generation: r.uvarint(), RollbackID: r.uvarint(),
			Number: r.uvarint(), Hash: r.uvarint()}}, r.flag()}
	}}
	all = make([]Held, 0, len(src)/4) // most take four bytes
	err = t.read(src, func(copied uint64, kind *heldKind, values [2]uint64) error {
		if values[0] > math.MaxUint8 {
			return fmt.Errorf("node %d, want at most %d", values[0], math.MaxUint8)
		}
		all = append(all, Held{Copy: index.CopyID(copied), Node: index.NodeID(values[0]), Ref: kind.ref, OK: kind.ok})
		return nil
	})
	return all, err
}
