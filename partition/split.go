package partition

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"tidemark/collate"
	"tidemark/index"
)

// With returns the values that divide a range, with further ones added, ascending. Errors wrap ErrDefinition: a value
// is already there, or is listed twice.
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
			return nil, fmt.Errorf("%w: %s is already a split value, or is given twice", ErrDefinition, v.text)
		}
		all = slices.Insert(all, at, v)
	}
	return texts(all), nil
}

// Without returns the values that divide a range, with some removed. Errors wrap ErrDefinition: a value is not there,
// or is listed twice.
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
			return nil, fmt.Errorf("%w: %s is not a split value; the split values are %s", ErrDefinition, v.text, shown(values))
		}
		all = slices.Delete(all, at, at+1)
	}
	return texts(all), nil
}

// shown returns values for people, the first ones if there are many.
func shown(values []json.RawMessage) string {
	const most = 8
	if len(values) <= most {
		return string(bytes.Join(toBytes(values), []byte(", ")))
	}
	return fmt.Sprintf("%s and %d more values", bytes.Join(toBytes(values[:most]), []byte(", ")), len(values)-most)
}

func toBytes(values []json.RawMessage) [][]byte {
	all := make([][]byte, len(values))
	for i, v := range values {
		all[i] = v
	}
	return all
}

// cut is a value with its collated key.
type cut struct {
	text json.RawMessage
	key  []byte
}

func (c cut) compare(o cut) int { return bytes.Compare(c.key, o.key) }

// collated sorts values in the order of an ascending index.
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

// Joined returns the values that divide a range after each of the given slices, ascending in the order of the index,
// was merged with its predecessor. Errors wrap ErrDefinition.
func Joined(d *index.Definition, joins []index.SliceID) ([]json.RawMessage, error) {
	values, n := d.PartitionBy.Values, len(d.PartitionBy.Values)
	gone := make([]json.RawMessage, 0, len(joins))
	for i, slice := range joins {
		if slice == 0 || int(slice) > n || i > 0 && slice <= joins[i-1] {
			return nil, fmt.Errorf("%w: %d slices, of which %v are to be merged with the previous slice", ErrDefinition, n+1,
				joins)
		}
		at := int(slice) - 1
		if d.Desc()[0] { // the slices are in the reverse order of the values
			at = n - int(slice)
		}
		gone = append(gone, values[at])
	}
	return Without(values, gone)
}
