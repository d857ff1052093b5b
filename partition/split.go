package partition

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"tidemark/collate"
)

// With returns the values between which the slices of a range lie, and further ones, ascending. Errors wrap
// ErrDefinition: a value that is there already, or stands twice.
func With(values, further []json.RawMessage) ([]json.RawMessage, error) {
	all, err := collated(values)
	if err != nil {
		return nil, err
	}
	more, err := collated(further)
	if err != nil {
		return nil, err
	}
	for _, v := range more {
		at, there := slices.BinarySearchFunc(all, v, cut.compare)
		if there {
			return nil, fmt.Errorf("%w: it is cut at %s already, or that stands here twice", ErrDefinition, v.text)
		}
		all = slices.Insert(all, at, v)
	}
	return texts(all), nil
}

// Without returns the values between which the slices of a range lie when some are no more. Errors wrap ErrDefinition:
// a value that is not among them, or stands twice.
func Without(values, gone []json.RawMessage) ([]json.RawMessage, error) {
	all, err := collated(values)
	if err != nil {
		return nil, err
	}
	less, err := collated(gone)
	if err != nil {
		return nil, err
	}
	for _, v := range less {
		at, there := slices.BinarySearchFunc(all, v, cut.compare)
		if !there {
			return nil, fmt.Errorf("%w: it is not cut at %s, but at %s", ErrDefinition, v.text, shown(values))
		}
		all = slices.Delete(all, at, at+1)
	}
	return texts(all), nil
}

// shown lists values for people, the first ones of many.
func shown(values []json.RawMessage) string {
	const most = 8
	if len(values) <= most {
		return string(bytes.Join(toBytes(values), []byte(", ")))
	}
	return fmt.Sprintf("%s and %d further values", bytes.Join(toBytes(values[:most]), []byte(", ")), len(values)-most)
}

func toBytes(values []json.RawMessage) [][]byte {
	all := make([][]byte, len(values))
	for i, v := range values {
		all[i] = v
	}
	return all
}

// cut is a value with what it is ordered by.
type cut struct {
	text json.RawMessage
	key  []byte
}

func (c cut) compare(o cut) int { return bytes.Compare(c.key, o.key) }

// collated orders values as an ascending index has them.
func collated(values []json.RawMessage) ([]cut, error) {
	all := make([]cut, len(values))
	for i, v := range values {
		key, err := collate.AppendComposite(nil, [][]byte{v}, []bool{false})
		if err != nil {
			return nil, fmt.Errorf("%w: the value %s: %w", ErrDefinition, v, err)
		}
		all[i] = cut{v, key}
	}
	slices.SortStableFunc(all, cut.compare)
	return all, nil
}

func texts(all []cut) []json.RawMessage {
	values := make([]json.RawMessage, len(all))
	for i, c := range all {
		values[i] = c.text
	}
	return values
}

// Samples takes the rows of an index in its order and keeps evenly spread ones of them, however many come: at most
// MaxSamples, each standing for as many rows as any other.
type Samples struct {
	kept   [][]byte
	stride int // rows for each one that is kept
	passed int // since the last one
}

// MaxSamples bounds what Samples keeps.
const MaxSamples = 8192

// Next counts a row, and reports whether it is to be kept.
func (s *Samples) Next() bool {
	s.stride = max(s.stride, 1)
	if s.passed++; s.passed < s.stride {
		return false
	}
	s.passed = 0
	return true
}

// Keep takes the leading component of the key of the row that Next has counted, which it copies.
func (s *Samples) Keep(leading []byte) {
	s.kept = append(s.kept, bytes.Clone(leading))
	if len(s.kept) < MaxSamples {
		return
	}
	for i := range len(s.kept) / 2 {
		s.kept[i] = s.kept[2*i+1]
	}
	clear(s.kept[len(s.kept)/2:])
	s.kept, s.stride = s.kept[:len(s.kept)/2], 2*s.stride
}

// Cuts are values to cut a range at, and which part of the rows the largest slice has then, 0 to 1.
type Cuts struct {
	Values  []json.RawMessage
	Largest float64
}

// Quantiles returns the values that cut what has come into n parts of as many rows, ascending and each once: fewer than
// n-1 where one value has more rows than a part, which is cut off from what follows it. None of them is the lowest,
// before which no row would be; desc tells that the rows came in descending order.
func (s *Samples) Quantiles(n int, desc bool) (c Cuts, err error) {
	all := make([]cut, 0, len(s.kept))
	for _, v := range s.kept {
		key, err := collate.AppendComposite(nil, [][]byte{v}, []bool{false})
		if err != nil {
			return Cuts{}, fmt.Errorf("%w: the value %s: %w", ErrDefinition, v, err)
		}
		all = append(all, cut{v, key})
	}
	if desc {
		slices.Reverse(all)
	}
	last, first, most := 0, 0, 0
	for i := 1; i < n && len(all) > 0; i++ {
		at := i * len(all) / n
		for at < len(all) && (all[at].compare(all[last]) == 0 || len(all[at].key) >= MaxBound) { // too long to be a bound
			at++
		}
		if at < len(all) && all[at].compare(all[last]) > 0 { // else it lies before where the last cut was moved to
			c.Values, last = append(c.Values, all[at].text), at
			from, _ := slices.BinarySearchFunc(all, all[at], cut.compare)
			most, first = max(most, from-first), from
		}
	}
	if most = max(most, len(all)-first); len(all) > 0 {
		c.Largest = float64(most) / float64(len(all))
	}
	return c, nil
}
