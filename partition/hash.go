package partition

import (
	"bytes"
	"fmt"
	"slices"

	"tidemark/collate"
	"tidemark/index"
)

// HashDocID assigns a document's entries to a slice by a hash of its id: permanently the same slice, one endpoint per
// replica.
const HashDocID Scheme = 1

// HashKey assigns an entry to a slice by a hash of components of its key.
const HashKey Scheme = 2

var (
	_ = Register(Kind{Scheme: HashDocID, Name: "hash(docid)", Folds: true,
		LayOut:   func(*Layout, *index.Definition) error { return nil },
		Provider: newDocIDHash})
	_ = Register(Kind{Scheme: HashKey, Name: "hash(key)", By: index.PartitionHash, Folds: true,
		LayOut:   layOutHash,
		Provider: newKeyHash})
)

// docIDHash is the provider of hash(docid).
type docIDHash struct{ partitions uint64 }

func newDocIDHash(l *Layout) (TopologyProvider, error) {
	return docIDHash{partitions: uint64(l.Partitions)}, l.has(false, false)
}

func (docIDHash) ByKey() bool   { return false }
func (docIDHash) Ordered() bool { return false }

func (p docIDHash) Slice(kv KeyVersion) index.SliceID {
	return index.SliceID(finish(hashMore(hashStart, kv.DocID)) % p.partitions)
}

func (docIDHash) MayHold(marked []bool, _, _ []byte) {
	for i := range marked {
		marked[i] = true
	}
}

// keyHash is the provider of hash(key).
type keyHash struct{ l *Layout }

// layOutHash sets the components of the layout.
func layOutHash(l *Layout, d *index.Definition) error {
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

func newKeyHash(l *Layout) (TopologyProvider, error) {
	if err := l.has(true, false); err != nil {
		return nil, err
	}
	for i, c := range l.Components {
		if i > 0 && c <= l.Components[i-1] {
			return nil, fmt.Errorf("%w: components %v must be ascending and unique", ErrLayout, l.Components)
		}
	}
	if n := len(l.Components); n == 0 || len(l.Desc) != int(l.Components[n-1])+1 {
		return nil, fmt.Errorf("%w: components %v with the directions of %d", ErrLayout, l.Components, len(l.Desc))
	}
	return keyHash{l}, nil
}

func (keyHash) ByKey() bool   { return true }
func (keyHash) Ordered() bool { return false }

func (p keyHash) Slice(kv KeyVersion) index.SliceID {
	slice, _, _ := p.hash(kv.Key)
	return slice
}

// hash returns the slice by a hash of the components. length is the size of the prefix of key that ends with the last
// hashed component; whole is false if the key ends before that.
func (p keyHash) hash(key []byte) (slice index.SliceID, length int, whole bool) {
	l := p.l
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

// MayHold marks a single slice if the range fixes the value of every hashed component.
func (p keyHash) MayHold(marked []bool, low, high []byte) {
	if slice, n, whole := p.hash(low); whole && high != nil && int(slice) < len(marked) {
		// All keys that begin with these components are below the end of this prefix.
		if end := collate.PrefixEnd(low[:n]); end == nil || bytes.Compare(high, end) <= 0 {
			marked[slice] = true
			return
		}
	}
	for i := range marked {
		marked[i] = true
	}
}

// hashStart, hashMore and finish are FNV-1a with a final mix, which distributes the low bits of short, similar ids.
// They are part of the stored format.
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
