package indexer

import (
	"cmp"
	"encoding/json"
	"slices"

	"tidemark/index"
	"tidemark/indexer/jsonfile"
	"tidemark/partition"
	"tidemark/wire"
)

// keptList is the list of definitions that is stored for the next start, as a whole list followed by changes. Callers
// hold the lock under which lists are taken over.
type keptList struct {
	log *jsonfile.Log
	// fence and revision of what is stored; revision 0: unknown
	fence    wire.Fence
	revision uint64
}

func newKeptList(dir string) *keptList { return &keptList{log: jsonfile.NewLog(dir, definitionsFile)} }

// store stores d. c is the change that d was derived from, or nil. Only c is written if the list that it is based on
// is what is stored.
func (k *keptList) store(d *wire.Definitions, c *wire.DefinitionsChange) error {
	follows := c != nil && k.revision > 0 && c.Base == k.revision && c.Fence.Epoch == k.fence.Epoch &&
		c.Fence.ClusterID == k.fence.ClusterID
	k.revision = 0
	var change any
	if follows {
		change = c
	}
	err := k.log.Write(func() any { return d }, change)
	if err == nil {
		k.same(d)
	}
	return err
}

// same records that the stored content equals d.
func (k *keptList) same(d *wire.Definitions) { k.fence, k.revision = d.Fence, d.Revision }

// load reads the stored list. cut reports that a crash left the newest change incomplete; the list is then as it was
// before that change. The error wraps fs.ErrNotExist if nothing is stored.
func (k *keptList) load() (d *wire.Definitions, cut bool, err error) {
	var read readList
	cut, err = k.log.Read(read.whole, read.change)
	return read.list(), cut, err
}

// readList is a list while it is being read. Applying a change costs only what it changes.
type readList struct {
	d          wire.Definitions
	indexes    map[index.ID]index.Definition
	topologies map[index.ID]partition.Topology
	indexers   map[index.NodeID]wire.Endpoint
}

func (r *readList) whole(b []byte) error {
	if err := json.Unmarshal(b, &r.d); err != nil {
		return err
	}
	r.indexes, r.topologies, r.indexers = map[index.ID]index.Definition{}, map[index.ID]partition.Topology{},
		map[index.NodeID]wire.Endpoint{}
	r.put(r.d.Indexes, r.d.Topologies, r.d.Indexers)
	return nil
}

func (r *readList) change(b []byte) error {
	var c wire.DefinitionsChange
	if err := json.Unmarshal(b, &c); err != nil {
		return err
	}
	for _, id := range c.GoneIndexes {
		delete(r.indexes, id)
		delete(r.topologies, id)
	}
	for _, n := range c.GoneIndexers {
		delete(r.indexers, n)
	}
	r.put(c.Indexes, c.Topologies, c.Indexers)
	r.d.Fence, r.d.Revision = c.Fence, c.Revision
	if c.Rest != nil {
		r.d.Buckets, r.d.Projectors, r.d.Managers = c.Rest.Buckets, c.Rest.Projectors, c.Rest.Managers
	}
	return nil
}

func (r *readList) put(indexes []index.Definition, topologies []partition.Topology, indexers []wire.Endpoint) {
	for _, d := range indexes {
		r.indexes[d.ID] = d
	}
	for _, t := range topologies {
		r.topologies[t.Index] = t
	}
	for _, e := range indexers {
		r.indexers[e.Node] = e
	}
}

func (r *readList) list() *wire.Definitions {
	r.d.Indexes, r.d.Topologies, r.d.Indexers = ascending(r.indexes), ascending(r.topologies), ascending(r.indexers)
	return &r.d
}

// ascending returns the values of a map, sorted by key.
func ascending[K cmp.Ordered, V any](m map[K]V) []V {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	all := make([]V, len(keys))
	for i, k := range keys {
		all[i] = m[k]
	}
	return all
}
