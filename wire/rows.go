package wire

import (
	"encoding/binary"
	"errors"
	"fmt"

	"tidemark/index"
)

// ErrRows is wrapped if bytes are not valid packed rows.
var ErrRows = errors.New("packed rows")

const rowsFormat = 2

// rowWriter packs a table in a few bytes per row. A row has a key; a kind, which many rows share and which is written
// once; and up to two numbers of its own, the same count in each row. A row may also state that its key has been
// removed. The zero value with put set is ready for use. Keys must be strictly ascending; a reader refuses anything
// else. Each key is written as the distance from the previous one, at least 1, and a 0 follows the last row, so that
// a truncated table is detected wherever it is cut.
type rowWriter[K comparable] struct {
	b   []byte
	put func(dst []byte, kind K) []byte

	numbers map[K]uint64 // number of each kind, from 1
	least   uint64       // lowest key that the next row may have
	kind    K            // kind, number and values are those of the previous row
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

// none writes that a key has been removed.
func (w *rowWriter[K]) none(key uint64) {
	w.next(key)
	w.b = append(w.b, 0)
}

func (w *rowWriter[K]) next(key uint64) {
	if w.b == nil {
		w.b = []byte{rowsFormat}
	}
	w.b = binary.AppendUvarint(w.b, key-w.least+1)
	w.least = key + 1
}

// packed returns the bytes for a rowReader. They are valid until the next call of row or none.
func (w *rowWriter[K]) packed() []byte {
	if w.b == nil {
		w.b = []byte{rowsFormat}
	}
	return append(w.b, 0)
}

// rowReader has the parameters for reading rows: keys must be below keys, and each row has the given number of
// values.
type rowReader[K any] struct {
	keys   uint64
	most   uint64 // limit of rows; 0: one for each key
	gone   bool   // rows may state that their key has been removed
	values int
	take   func(*unpacker) K
}

// read calls each for every row that a rowWriter wrote, by key ascending, until each fails. kind is nil if the key
// has been removed. Errors wrap ErrRows; each has been called for the rows before the error.
func (t rowReader[K]) read(src []byte, each func(key uint64, kind *K, values [2]uint64) error) error {
	r := unpacker{b: src}
	if f := r.byte(); f != rowsFormat {
		return fmt.Errorf("%w: format %d, want %d", ErrRows, f, rowsFormat)
	}
	var kinds []K
	var least, rows uint64
	var values [2]uint64
	for {
		gap := r.uvarint()
		switch {
		case r.bad:
			return fmt.Errorf("%w: truncated after %d rows", ErrRows, rows)
		case gap == 0 && len(r.b) > 0:
			return fmt.Errorf("%w: %d bytes after the end of %d rows", ErrRows, len(r.b), rows)
		case gap == 0:
			return nil
		case gap > t.keys-least:
			return fmt.Errorf("%w: row %d is %d above key %d, want keys up to %d", ErrRows, rows+1, gap-1, least, t.keys-1)
		case t.most > 0 && rows == t.most:
			return fmt.Errorf("%w: more than %d rows", ErrRows, t.most)
		}
		key := least + gap - 1
		least, rows = key+1, rows+1
		kind, err := t.kind(&r, &kinds, key)
		if err != nil {
			return err
		}
		if kind != nil {
			for i := range t.values {
				values[i] += uint64(r.varint())
			}
		}
		if r.bad {
			return fmt.Errorf("%w: truncated or damaged in the row of key %d", ErrRows, key)
		}
		if err := each(key, kind, values); err != nil {
			return fmt.Errorf("%w: key %d: %w", ErrRows, key, err)
		}
	}
}

// kind reads a row's kind; nil if the key has been removed.
func (t rowReader[K]) kind(r *unpacker, kinds *[]K, key uint64) (*K, error) {
	number, known := r.uvarint(), uint64(len(*kinds))
	switch {
	case number > known+1:
		return nil, fmt.Errorf("%w: key %d has kind %d after kind %d", ErrRows, key, number, known)
	case number == 0 && !t.gone && !r.bad:
		return nil, fmt.Errorf("%w: key %d has no row in a table of everything", ErrRows, key)
	case number == 0:
		return nil, nil
	case number > known:
		*kinds = append(*kinds, t.take(r))
	}
	return &(*kinds)[number-1], nil
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

// flag reads what appendFlag wrote.
func (r *unpacker) flag() bool {
	b := r.byte()
	r.bad = r.bad || b > 1
	return b == 1
}
