package partition

import (
	"bytes"
	"fmt"
	"slices"

	"tidemark/collate"
	"tidemark/index"
)

// RangeKey assigns an entry to a slice by the range of bounds that contains its key, in the order of the index.
const RangeKey Scheme = 3

var _ = Register(Kind{Scheme: RangeKey, Name: "range(key)", By: index.PartitionRange, Leading: true, Values: true,
	LayOut: layOutRange, Provider: newKeyRange})

// keyRange is the provider of range(key).
type keyRange struct{ bounds [][]byte }

// layOutRange converts the values, which ascend, to bounds in the order of the index. If the key is descending the
// slices are in the reverse order of the values, and a bound is above the keys that begin with its value.
func layOutRange(l *Layout, d *index.Definition) error {
	desc := d.Desc()[0]
	for _, v := range d.PartitionBy.Values {
		b, err := collate.AppendComposite(nil, [][]byte{v}, []bool{desc})
		if err != nil {
			return fmt.Errorf("%w: the value %s: %w", ErrDefinition, v, err)
		}
		if desc {
			b = collate.PrefixEnd(b)
		}
		l.Bounds = append(l.Bounds, b)
	}
	if desc {
		slices.Reverse(l.Bounds)
	}
	return nil
}

func newKeyRange(l *Layout) (TopologyProvider, error) {
	if err := l.has(false, true); err != nil {
		return nil, err
	}
	if len(l.Bounds) != int(l.Partitions)-1 {
		return nil, fmt.Errorf("%w: %d bounds make %d partitions, not %d", ErrLayout, len(l.Bounds), len(l.Bounds)+1,
			l.Partitions)
	}
	for i, b := range l.Bounds {
		if len(b) == 0 || len(b) > MaxBound {
			return nil, fmt.Errorf("%w: bound %d has %d bytes, want 1 to %d", ErrLayout, i, len(b), MaxBound)
		}
		if i > 0 && bytes.Compare(l.Bounds[i-1], b) >= 0 {
			return nil, fmt.Errorf("%w: bound %d is not above the previous one", ErrLayout, i)
		}
	}
	return keyRange{l.Bounds}, nil
}

func (keyRange) ByKey() bool   { return true }
func (keyRange) Ordered() bool { return true }

func (p keyRange) Slice(kv KeyVersion) index.SliceID {
	i, found := slices.BinarySearchFunc(p.bounds, kv.Key, bytes.Compare)
	if found {
		i++
	}
	return index.SliceID(i)
}

func (p keyRange) MayHold(marked []bool, low, high []byte) {
	first, last := 0, len(marked)-1
	if low != nil {
		first = int(p.Slice(KeyVersion{Key: low}))
	}
	if high != nil { // exclusive
		last, _ = slices.BinarySearchFunc(p.bounds, high, bytes.Compare)
	}
	for i := first; i <= last && i < len(marked); i++ {
		marked[i] = true
	}
}
