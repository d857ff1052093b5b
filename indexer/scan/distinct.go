package scan

import (
	"bytes"

	"tidemark/collate"
	"tidemark/errcode"
)

// repeats detects consecutive rows that a distinct scan counts as equal.
type repeats struct {
	parts int // leading components that are compared; 0: no row repeats another
	desc  []bool
	last  []byte
	some  bool
}

// seen reports whether a row repeats the previous one, and keeps it for the next call. It returns an error for a
// damaged key.
func (r *repeats) seen(key []byte) (bool, error) {
	if r.parts == 0 {
		return false, nil
	}
	head, err := leadingParts(key, r.parts, r.desc)
	if err != nil {
		return false, err
	}
	if r.some && bytes.Equal(head, r.last) {
		return true, nil
	}
	r.last, r.some = append(r.last[:0], head...), true
	return false, nil
}

// leadingParts returns the first components of a key.
func leadingParts(key []byte, parts int, desc []bool) ([]byte, error) {
	rest := key
	for i := 0; i < parts && len(rest) > 0; i++ {
		var err error
		if _, rest, err = collate.Next(rest, i < len(desc) && desc[i]); err != nil {
			return nil, Errorf(errcode.Damaged, "a stored key: %w", err)
		}
	}
	return key[:len(key)-len(rest)], nil
}
