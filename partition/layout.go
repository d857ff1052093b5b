package partition

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"tidemark/collate"
	"tidemark/index"
)

// MaxBound is the most bytes of one bound of a range.
const MaxBound = 4096

// ErrDefinition is wrapped when a definition says something about partitions that no layout can do.
var ErrDefinition = errors.New("bad partition definition")

// Layout is the concrete, replicated type behind a TopologyProvider. Two layouts are compared by Equal.
type Layout struct {
	Scheme     Scheme `json:"scheme"`
	Partitions uint16 `json:"partitions"`
	// Components are the components of the key that hash(key) hashes, ascending from 0.
	Components []uint16 `json:"components,omitempty"`
	// Desc returns the direction of each component of the key up to the last one that is hashed.
	Desc []bool `json:"desc,omitempty"`
	// Bounds cut the keys of range(key), in the order of the index and ascending: slice 0 holds the keys below the first
	// one, slice i those from Bounds[i-1] (included) to Bounds[i] (excluded), the last one all others.
	Bounds [][]byte `json:"bounds,omitempty"`
}

// LayoutOf returns the layout that a definition asks for. Its expressions are canonical. Errors wrap ErrDefinition or
// ErrLayout.
func LayoutOf(d *index.Definition) (Layout, error) {
	l := Layout{Scheme: HashDocID, Partitions: d.Partitions}
	by := &d.PartitionBy
	var err error
	switch by.Scheme {
	case "":
	case index.PartitionHash:
		l.Scheme = HashKey
		err = l.hashed(d)
	case index.PartitionRange:
		l.Scheme = RangeKey
		err = l.ranges(d)
	default:
		err = fmt.Errorf("%w: scheme %q, known: %q and %q", ErrDefinition, by.Scheme, index.PartitionHash,
			index.PartitionRange)
	}
	if err == nil {
		err = l.Check()
	}
	return l, err
}

// hashed finds the components.
func (l *Layout) hashed(d *index.Definition) error {
	for _, x := range d.PartitionBy.Exprs {
		i := slices.IndexFunc(d.Keys, func(k index.KeyExpr) bool { return k.Expr == x })
		if i < 0 {
			return fmt.Errorf("%w: %s is not among the key expressions of the index", ErrDefinition, x)
		}
		l.Components = append(l.Components, uint16(i))
	}
	slices.Sort(l.Components)
	if len(l.Components) > 0 {
		last := int(l.Components[len(l.Components)-1])
		l.Desc = slices.Clone(d.Desc()[:last+1])
	}
	return nil
}

// ranges turns the values, which ascend, into bounds in the order of the index. Under a descending key the slices come
// in the order of the values turned round, and a bound stands behind the keys that begin with its value.
func (l *Layout) ranges(d *index.Definition) error {
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

// Check returns an error wrapping ErrLayout when the layout is not one this version knows.
func (l *Layout) Check() error {
	if l.Partitions == 0 || l.Partitions > MaxPartitions {
		return fmt.Errorf("%w: %d partitions, want 1 to %d", ErrLayout, l.Partitions, MaxPartitions)
	}
	if l.Scheme != HashKey && len(l.Components)+len(l.Desc) > 0 || l.Scheme != RangeKey && len(l.Bounds) > 0 {
		return fmt.Errorf("%w: %s with %d components, %d directions and %d bounds", ErrLayout, l.Scheme, len(l.Components),
			len(l.Desc), len(l.Bounds))
	}
	switch l.Scheme {
	case HashDocID:
		return nil
	case HashKey:
		return l.checkComponents()
	case RangeKey:
		return l.checkBounds()
	}
	return fmt.Errorf("%w: scheme %d, known: %d (%s), %d (%s), %d (%s)", ErrLayout, l.Scheme, HashDocID, HashDocID,
		HashKey, HashKey, RangeKey, RangeKey)
}

// checkComponents looks at what a hash of the key is made of.
func (l *Layout) checkComponents() error {
	for i, c := range l.Components {
		if i > 0 && c <= l.Components[i-1] {
			return fmt.Errorf("%w: components %v, want each once and ascending", ErrLayout, l.Components)
		}
	}
	if n := len(l.Components); n == 0 || len(l.Desc) != int(l.Components[n-1])+1 {
		return fmt.Errorf("%w: components %v with the directions of %d", ErrLayout, l.Components, len(l.Desc))
	}
	return nil
}

// checkBounds looks at what divides the ranges of the key.
func (l *Layout) checkBounds() error {
	if len(l.Bounds) != int(l.Partitions)-1 {
		return fmt.Errorf("%w: %d bounds make %d partitions, not %d", ErrLayout, len(l.Bounds), len(l.Bounds)+1,
			l.Partitions)
	}
	for i, b := range l.Bounds {
		if len(b) == 0 || len(b) > MaxBound {
			return fmt.Errorf("%w: bound %d has %d bytes, want 1 to %d", ErrLayout, i, len(b), MaxBound)
		}
		if i > 0 && bytes.Compare(l.Bounds[i-1], b) >= 0 {
			return fmt.Errorf("%w: bound %d is not above the one before", ErrLayout, i)
		}
	}
	return nil
}

// Equal reports whether both place everything alike.
func (l *Layout) Equal(o *Layout) bool {
	return l.Scheme == o.Scheme && l.Partitions == o.Partitions && slices.Equal(l.Components, o.Components) &&
		slices.Equal(l.Desc, o.Desc) &&
		slices.EqualFunc(l.Bounds, o.Bounds, bytes.Equal)
}

// ByKey tells that entries of one document may lie in several slices, and move between them when the document changes.
func (l *Layout) ByKey() bool { return l.Scheme != HashDocID }

// Slice returns the slice that holds an entry.
func (l *Layout) Slice(kv KeyVersion) index.SliceID {
	if l.ByKey() {
		return l.SliceOfKey(kv.Key)
	}
	return l.SliceOf(kv.DocID)
}

// SliceOf returns the slice that holds every entry of this document under hash(docid).
func (l *Layout) SliceOf(docID []byte) index.SliceID {
	return index.SliceID(finish(hashMore(hashStart, docID)) % uint64(l.Partitions))
}

// SliceOfKey returns the slice that holds the entries with this collated key under hash(key) and range(key). What is no
// key has a slice, too.
func (l *Layout) SliceOfKey(key []byte) index.SliceID {
	if l.Scheme == RangeKey {
		i, found := slices.BinarySearchFunc(l.Bounds, key, bytes.Compare)
		if found {
			i++
		}
		return index.SliceID(i)
	}
	slice, _, _ := l.hashed64(key)
	return slice
}

// hashed64 hashes the components; length is how many bytes of the key they and those before them take, false when the
// key ends early.
func (l *Layout) hashed64(key []byte) (slice index.SliceID, length int, whole bool) {
	h, rest, next := uint64(hashStart), key, 0
	for i, desc := range l.Desc {
		component, more, err := collate.Next(rest, desc)
		if err != nil {
			return index.SliceID(finish(hashMore(h, rest)) % uint64(l.Partitions)), 0, false
		}
		if l.Components[next] == uint16(i) {
			h = hashMore(h, component)
			next++
		}
		rest = more
	}
	return index.SliceID(finish(h) % uint64(l.Partitions)), len(key) - len(rest), true
}

// MayHold marks in slices, which has one element per partition, those that may hold an entry whose key followed by its
// document id lies in [low, high); nil is open.
func (l *Layout) MayHold(marked []bool, low, high []byte) {
	first, last := 0, len(marked)-1
	switch l.Scheme {
	case RangeKey:
		if low != nil {
			first = int(l.SliceOfKey(low))
		}
		if high != nil { // it does not belong to the range
			last, _ = slices.BinarySearchFunc(l.Bounds, high, bytes.Compare)
		}
	case HashKey:
		if slice, n, whole := l.hashed64(low); whole && high != nil {
			// Whatever begins with these components lies below the end of this prefix.
			if end := collate.PrefixEnd(low[:n]); end == nil || bytes.Compare(high, end) <= 0 {
				first, last = int(slice), int(slice)
			}
		}
	}
	for i := first; i <= last && i < len(marked); i++ {
		marked[i] = true
	}
}

// hashStart, hashMore and finish are FNV-1a with a final mix, so that the low bits of short, similar ids spread. They
// are part of the stored format.
const hashStart = 0xcbf29ce484222325

func hashMore(h uint64, b []byte) uint64 {
	for _, c := range b {
		h = (h ^ uint64(c)) * 0x100000001b3
	}
	return h
}

func finish(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
