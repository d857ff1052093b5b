package wire

import (
	"cmp"
	"slices"
	"sort"

	"tidemark/index"
	"tidemark/partition"
)

// DefinitionsChange is Definitions told by what has changed since a revision that the same leader has handed to the
// receiver. POST /v1/definitions:change; the answer is DefinitionsReply. It has a path of its own, so that who does not
// know it cannot take it for a list.
type DefinitionsChange struct {
	Fence    Fence  `json:"fence"`
	Base     uint64 `json:"base"` // revision of the list that it changes
	Revision uint64 `json:"revision"`

	Indexes      []index.Definition   `json:"indexes,omitempty"`    // new or changed, ascending by id
	Topologies   []partition.Topology `json:"topologies,omitempty"` // of those indexes, ascending by index
	GoneIndexes  []index.ID           `json:"gone_indexes,omitempty"`
	Indexers     []Endpoint           `json:"indexers,omitempty"` // new or changed, ascending by node
	GoneIndexers []index.NodeID       `json:"gone_indexers,omitempty"`
	// Rest is what is told whole when anything of it has changed.
	Rest *DefinitionsRest `json:"rest,omitempty"`
}

// DefinitionsRest is what of Definitions is short.
type DefinitionsRest struct {
	Buckets    []Bucket            `json:"buckets"`
	Projectors []ProjectorEndpoint `json:"projectors"`
	Managers   []ManagerEndpoint   `json:"managers"`
}

// Apply returns the whole list. base is not changed, but shares what stays the same. Errors wrap ErrBase: base, which
// may be nil, is not the list that c changes; the whole list has to be told.
func (c *DefinitionsChange) Apply(base *Definitions) (*Definitions, error) {
	var have uint64
	if base != nil && base.Fence.Epoch == c.Fence.Epoch && base.Fence.ClusterID == c.Fence.ClusterID {
		have = base.Revision // those of another epoch name other lists
	}
	if err := onBase(c.Base, have); err != nil {
		return nil, err
	}
	d := *base
	d.Fence, d.Revision = c.Fence, c.Revision
	idOf, indexOf := func(x *index.Definition) index.ID { return x.ID },
		func(t *partition.Topology) index.ID { return t.Index }
	d.Indexes = merge(base.Indexes, c.Indexes, c.GoneIndexes, idOf)
	d.Topologies = merge(base.Topologies, c.Topologies, c.GoneIndexes, indexOf)
	d.Indexers = merge(base.Indexers, c.Indexers, c.GoneIndexers, func(e *Endpoint) index.NodeID { return e.Node })
	if c.Rest != nil {
		d.Buckets, d.Projectors, d.Managers = c.Rest.Buckets, c.Rest.Projectors, c.Rest.Managers
	}
	return &d, nil
}

// merge gives was without what is gone, with what is new or changed. Both are ascending by key, and so is what it
// gives.
func merge[T any, K cmp.Ordered](was, changed []T, gone []K, key func(*T) K) []T {
	if len(changed) == 0 && len(gone) == 0 {
		return was
	}
	touched := append(make([]K, 0, len(changed)+len(gone)), gone...)
	for i := range changed {
		touched = append(touched, key(&changed[i]))
	}
	slices.Sort(touched)
	all := make([]T, 0, len(was)+len(changed))
	for _, k := range touched {
		at := sort.Search(len(was), func(i int) bool { return key(&was[i]) >= k })
		all = append(all, was[:at]...)
		if was = was[at:]; len(was) > 0 && key(&was[0]) == k {
			was = was[1:]
		}
		if len(changed) > 0 && key(&changed[0]) == k {
			all, changed = append(all, changed[0]), changed[1:]
		}
	}
	return append(all, was...)
}
