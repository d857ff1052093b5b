package partition

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"tidemark/collate"
	"tidemark/index"
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

// Joined returns the values of a range when each of these slices, ascending and in the order of the index, has become
// one with the slice before. Errors wrap ErrDefinition.
func Joined(d *index.Definition, joins []index.SliceID) ([]json.RawMessage, error) {
	values, n := d.PartitionBy.Values, len(d.PartitionBy.Values)
	gone := make([]json.RawMessage, 0, len(joins))
	for i, slice := range joins {
		if slice == 0 || int(slice) > n || i > 0 && slice <= joins[i-1] {
			return nil, fmt.Errorf("%w: %d slices, of which %v are to become one with the one before", ErrDefinition, n+1,
				joins)
		}
		at := int(slice) - 1
		if d.Desc()[0] { // the slices come in the order of the values turned round
			at = n - int(slice)
		}
		gone = append(gone, values[at])
	}
	return Without(values, gone)
}
