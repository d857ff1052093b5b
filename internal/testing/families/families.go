// Package families is a third partitioning scheme, in the way in which an outside package would add one: this file is
// all of it. Documents whose ids are equal up to the first "::" are a family and share a slice. Tests of the users of
// partition.TopologyProvider (the parser, routers, scans, the replicated state) import it and draw it among the other
// schemes.
package families

import (
	"bytes"
	"fmt"
	"hash/fnv"

	"tidemark/index"
	"tidemark/partition"
)

// Scheme is the scheme's number; its text is PARTITION BY FAMILY(META().id).
const Scheme partition.Scheme = 200

// By is the keyword in PARTITION BY.
const By index.PartitionScheme = "family"

var _ = partition.Register(partition.Kind{Scheme: Scheme, Name: "family(docid)", By: By,
	LayOut: func(_ *partition.Layout, d *index.Definition) error {
		if by := d.PartitionBy.Exprs; len(by) != 1 || by[0] != "META().id" {
			return fmt.Errorf("%w: families are of META().id, not of %q", partition.ErrDefinition, by)
		}
		return nil
	},
	Provider: func(l *partition.Layout) (partition.TopologyProvider, error) {
		if len(l.Bounds)+len(l.Components)+len(l.Desc) > 0 {
			return nil, fmt.Errorf("%w: families have nothing but a number of slices", partition.ErrLayout)
		}
		return families(l.Partitions), nil
	}})

// families is the provider for a number of slices.
type families uint16

func (families) ByKey() bool   { return false }
func (families) Ordered() bool { return false }

func (n families) Slice(kv partition.KeyVersion) index.SliceID {
	family, _, _ := bytes.Cut(kv.DocID, []byte("::"))
	h := fnv.New64a()
	h.Write(family)
	return index.SliceID(h.Sum64() % uint64(n))
}

func (families) MayHold(marked []bool, _, _ []byte) {
	for i := range marked {
		marked[i] = true
	}
}

// Provider returns the provider of a layout that a test has made.
func Provider(l *partition.Layout) partition.TopologyProvider {
	p, err := l.Provider()
	if err != nil {
		panic(err)
	}
	return p
}
