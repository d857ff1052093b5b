package wire

import (
	"encoding/binary"
	"errors"
	"fmt"

	"tidemark/index"
)

// ErrRows is wrapped when bytes are no packed rows.
var ErrRows = errors.New("packed rows")

const rowsFormat = 1

// rowWriter packs a table, in a few bytes for each row. A row has a key; a kind, which many rows have in common and
// which is written once; and up to two numbers of its own, as many in each row. A key may also have no row any more.
// The zero value with put is ready; rows come by key ascending.
type rowWriter[K comparable] struct {
	b   []byte
	put func(dst []byte, kind K) []byte

	numbers map[K]uint64 // of kinds, from 1
	key     uint64       // this and what follows are those of the row before
	kind    K
	number  uint64
	values  [2]uint64
}

func (w *rowWriter[K]) row(key uint64, kind K, values ...uint64) {
	w.next(key)
	known := true
	if w.number == 0 || kind != w.kind {
		if w.kind = kind; w.numbers == nil {
			w.numbers = map[K]uint64{}
		}
		if w.number, known = w.numbers[kind]; !known {
			w.number = uint64(len(w.numbers)) + 1
			w.numbers[kind] = w.number
		}
	}
	if w.b = binary.AppendUvarint(w.b, w.number); !known {
		w.b = w.put(w.b, kind)
	}
	for i, v := range values {
		w.b = binary.AppendVarint(w.b, int64(v-w.values[i]))
		w.values[i] = v
	}
}

// none says that a key has no row any more.
func (w *rowWriter[K]) none(key uint64) {
	w.next(key)
	w.b = append(w.b, 0)
}

func (w *rowWriter[K]) next(key uint64) {
	w.b = binary.AppendUvarint(w.packed(), key-w.key)
	w.key = key
}

// packed is what readRows reads.
func (w *rowWriter[K]) packed() []byte {
	if w.b == nil {
		w.b = []byte{rowsFormat}
	}
	return w.b
}

// rowReader says what rows to read: their keys are below keys, and each has so many values.
type rowReader[K any] struct {
	keys   uint64
	values int
	take   func(*unpacker) K
}

// read calls each for what a rowWriter wrote, by key ascending; of a key that has no row any more kind is nil. Errors
// wrap ErrRows; what came before the fault has been given then.
func (t rowReader[K]) read(src []byte, each func(key uint64, kind *K, values [2]uint64)) error {
	r := unpacker{b: src}
	if f := r.byte(); f != rowsFormat {
		return fmt.Errorf("%w: format %d, want %d", ErrRows, f, rowsFormat)
	}
	var kinds []K
	var key uint64
	var values [2]uint64
	for len(r.b) > 0 {
		gap, number := r.uvarint(), r.uvarint()
		known := uint64(len(kinds))
		if gap >= t.keys-key || number > known+1 {
			return fmt.Errorf("%w: %d above key %d of %d, kind %d of %d", ErrRows, gap, key, t.keys, number, known)
		}
		if number > known {
			kinds = append(kinds, t.take(&r))
		}
		var kind *K
		if number > 0 {
			kind = &kinds[number-1]
			for i := range t.values {
				values[i] += uint64(r.varint())
			}
		}
		if key += gap; r.bad {
			return fmt.Errorf("%w: cut short at key %d", ErrRows, key)
		}
		each(key, kind, values)
	}
	return nil
}

func appendText(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

func (r *unpacker) text() string { return string(r.take(r.uvarint())) }

func appendNumbers(dst []byte, all ...uint64) []byte {
	for _, u := range all {
		dst = binary.AppendUvarint(dst, u)
	}
	return dst
}

func appendIncarnation(dst []byte, i index.Incarnation) []byte {
	return appendNumbers(dst, i.Epoch, i.Term, i.Counter)
}

func (r *unpacker) incarnation() index.Incarnation {
	return index.Incarnation{Epoch: r.uvarint(), Term: r.uvarint(), Counter: r.uvarint()}
}

func appendFlag(dst []byte, is bool) []byte {
	if is {
		return append(dst, 1)
	}
	return append(dst, 0)
}
