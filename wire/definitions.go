package wire

import (
	"cmp"
	"slices"
	"sort"

	"tidemark/index"
	"tidemark/partition"
)

// DefinitionsChange encodes Definitions as the changes since a revision that the same leader has sent to the
// receiver. POST /v1/definitions:change; the answer is DefinitionsReply. It has a path of its own, so that a receiver
// that does not support it cannot mistake it for a full list.
type DefinitionsChange struct {
	Fence    Fence  `json:"fence"`
	Base     uint64 `json:"base"` // revision of the list that it is based on
	Revision uint64 `json:"revision"`

	Indexes      []index.Definition   `json:"indexes,omitempty"`    // new or changed, ascending by id
	Topologies   []partition.Topology `json:"topologies,omitempty"` // of those indexes, ascending by index
	GoneIndexes  []index.ID           `json:"gone_indexes,omitempty"`
	Indexers     []Endpoint           `json:"indexers,omitempty"` // new or changed, ascending by node
	GoneIndexers []index.NodeID       `json:"gone_indexers,omitempty"`
	// Rest has the short lists. It is sent in full if any of them has changed.
	Rest *DefinitionsRest `json:"rest,omitempty"`
}

// DefinitionsRest holds the short lists of Definitions.
type DefinitionsRest struct {
	Buckets    []Bucket            `json:"buckets"`
	Projectors []ProjectorEndpoint `json:"projectors"`
	Managers   []ManagerEndpoint   `json:"managers"`
}

// Apply returns the full list. It does not modify base, but the result shares what did not change. base may be nil.
// Errors wrap ErrBase: base is not the list that c is based on, and the sender has to send the full list.
func (c *DefinitionsChange) Apply(base *Definitions) (*Definitions, error) {
	var have uint64
	if base != nil && base.Fence.Epoch == c.Fence.Epoch && base.Fence.ClusterID == c.Fence.ClusterID {
		have = base.Revision // revisions of another epoch name other lists
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

// merge returns was without the items in gone, and with those in changed added or replaced. Both inputs are ascending
// by key, and so is the result.
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
