package router

import (
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/partition"
	"tidemark/projector/core"
)

// ViewConfig is the input of NewView.
type ViewConfig struct {
	// Revision is the definitions revision, which orders the views of a topic. Addresses are those of the newest view.
	Revision uint64
	// Endpoints holds each indexer's address (host:port) for the topic's class.
	Endpoints map[index.NodeID]string
	// Topologies are in the order of the program's sources: Doc.Keys has one entry for each.
	Topologies []partition.Topology
	// Collections are the collections of the indexes, by topology; nil means that all are on the default one. A document
	// is routed only to indexes on its own collection.
	Collections []uint32
	// Only limits a side stream to these copies, in any state; nil means all copies in state Allocated.
	Only []index.CopyID
}

// View maps documents to endpoints, for one topic at one revision of the definitions (RT-2, RT-3). It is immutable
// and optimized for routing: per document one hash and one look-up per index, plus one per key where an index is
// partitioned by key. Copies on a node without an address are left out; they join with a later view.
type View struct {
	revision  uint64
	endpoints []endpoint // ascending by node, each with at least one copy
	layouts   []spread   // distinct layouts of indexes that are not partitioned by key
	sources   []source
	// rests are created on first use, one for each combination of slices, one slice per layout, that a document can lie
	// in. It is empty if there would be too many combinations.
	rests []atomic.Pointer[rests]
	// members are the views of indexes on other collections than the default one, with the same endpoints.
	members map[uint32]*View
	// everywhere is set if every document concerns an endpoint. On most side streams it is not.
	everywhere bool
}

const (
	// mostCombinations bounds the number of lists, because a frame of some dozens of events should contain few different
	// ones.
	mostCombinations = 64
	// mostRests bounds the size of a view's rests: combinations of slices × indexes.
	mostRests = 1 << 17
)

// rests are the places in which documents of one combination of slices may have no keys, by endpoint.
type rests struct {
	touched []uint16             // endpoints that host one of these slices
	of      []*keyversion.Places // nil for an endpoint that hosts none
	keyed   []bool               // all its places are of indexes that are partitioned by key
}

type endpoint struct {
	node   index.NodeID
	addr   string
	copies []index.CopyID // ascending
}

// spread is a layout that distributes by document instead of by key, and its provider.
type spread struct {
	layout   *partition.Layout
	provider partition.TopologyProvider
	fed      []bool // per slice: it has an endpoint
}

// source is one index of the program.
type source struct {
	id     index.ID
	layout int                        // in View.layouts; -1 if partitioned by key
	byKey  partition.TopologyProvider // provider of an index that is partitioned by key
	hosts  [][]uint16                 // per slice: its endpoints, as positions in View.endpoints
	at     []hosted                   // all its endpoints; used if partitioned by key
}

// hosted is how many slices of an index an endpoint has.
type hosted struct {
	endpoint uint16
	slices   int
}

// host records that an endpoint has a slice.
func (s *source) host(slice index.SliceID, endpoint uint16) {
	if slices.Contains(s.hosts[slice], endpoint) {
		return
	}
	s.hosts[slice] = append(s.hosts[slice], endpoint)
	i := slices.IndexFunc(s.at, func(h hosted) bool { return h.endpoint == endpoint })
	if i < 0 {
		i = len(s.at)
		s.at = append(s.at, hosted{endpoint: endpoint})
	}
	s.at[i].slices++
}

// of returns the view of a collection's documents; nil if it has no index.
func (v *View) of(collection uint32) *View {
	if collection == 0 {
		return v
	}
	return v.members[collection]
}

// Concerns reports whether an endpoint hosts a slice in which a document may have, or may have had, keys. Otherwise it
// is not routed, whatever its keys are.
func (v *View) Concerns(collection uint32, docID []byte) bool {
	m := v.of(collection)
	if m == nil || m.everywhere {
		return m != nil
	}
	for i := range m.layouts {
		if l := &m.layouts[i]; l.fed[l.provider.Slice(partition.KeyVersion{DocID: docID})] {
			return true
		}
	}
	return false
}

// noteFed fills in what Concerns needs.
func (v *View) noteFed() {
	for i := range v.layouts {
		v.layouts[i].fed = make([]bool, v.layouts[i].layout.Partitions)
	}
	for i := range v.sources {
		src := &v.sources[i]
		if src.byKey != nil {
			v.everywhere = v.everywhere || len(src.at) > 0
			continue
		}
		for slice, hosts := range src.hosts {
			if len(hosts) > 0 {
				v.layouts[src.layout].fed[slice] = true
			}
		}
	}
	for i := range v.layouts {
		v.everywhere = v.everywhere || !slices.Contains(v.layouts[i].fed, false)
	}
}

// member returns the view of topology i's collection, and creates it if necessary.
func (v *View) member(cfg *ViewConfig, i int) *View {
	if len(cfg.Collections) == 0 || cfg.Collections[i] == 0 {
		return v
	}
	m := v.members[cfg.Collections[i]]
	if m == nil {
		m = &View{revision: v.revision, endpoints: v.endpoints}
		if v.members == nil {
			v.members = map[uint32]*View{}
		}
		v.members[cfg.Collections[i]] = m
	}
	return m
}

// wants reports whether the view feeds a copy.
func (cfg *ViewConfig) wants(c *partition.Copy) bool {
	return cfg.Endpoints[c.Node] != "" && core.Feeds(c, cfg.Only)
}

// Check returns the provider of an index's layout, or why no view can contain the index. Errors wrap ErrView or
// partition.ErrLayout.
func (cfg *ViewConfig) Check(t *partition.Topology) (partition.TopologyProvider, error) {
	provider, err := t.Layout.Provider()
	if err != nil {
		return nil, fmt.Errorf("index %d: %w", t.Index, err)
	}
	for i := range t.Copies {
		if c := &t.Copies[i]; int(c.Slice) >= int(t.Layout.Partitions) && cfg.wants(c) {
			return nil, fmt.Errorf("%w: index %d: copy %d of slice %d, but the index has %d "+
				"slices", ErrView, t.Index, c.ID, c.Slice,
				t.Layout.Partitions)
		}
	}
	return provider, nil
}

// Same reports whether both make the same view except for its revision.
func (cfg *ViewConfig) Same(o *ViewConfig) bool {
	return maps.Equal(cfg.Endpoints, o.Endpoints) && slices.Equal(cfg.Only, o.Only) &&
		slices.Equal(cfg.Collections, o.Collections) &&
		slices.EqualFunc(cfg.Topologies, o.Topologies, func(a, b partition.Topology) bool {
			return a.Index == b.Index && a.Layout.Equal(&b.Layout) && slices.Equal(a.Copies, b.Copies)
		})
}

// At returns the view at another revision of the definitions in which nothing relevant to it has changed.
func (v *View) At(revision uint64) *View {
	same := *v
	same.revision = revision
	return &same
}

// NewView builds a view. Errors wrap ErrView or partition.ErrLayout.
func NewView(cfg ViewConfig) (*View, error) {
	v := &View{revision: cfg.Revision}
	place := v.placeEndpoints(&cfg)
	for i := range cfg.Topologies {
		t := &cfg.Topologies[i]
		provider, err := cfg.Check(t)
		if err != nil {
			return nil, err
		}
		m := v.member(&cfg, i)
		s := source{id: t.Index, layout: -1, hosts: make([][]uint16, t.Layout.Partitions)}
		if provider.ByKey() {
			s.byKey = provider
		} else {
			s.layout = m.layout(spread{layout: &t.Layout, provider: provider})
		}
		for _, c := range t.Copies {
			if !cfg.wants(&c) {
				continue
			}
			p := place[c.Node]
			s.host(c.Slice, p)
			v.endpoints[p].copies = append(v.endpoints[p].copies, c.ID)
		}
		m.sources = append(m.sources, s)
	}
	for i := range v.endpoints {
		slices.Sort(v.endpoints[i].copies)
	}
	v.roomForRests()
	v.noteFed()
	for _, m := range v.members {
		m.roomForRests()
		m.noteFed()
	}
	return v, nil
}

// roomForRests allocates the slots of rests, unless there would be too many.
func (v *View) roomForRests() {
	combinations := 1
	for _, l := range v.layouts {
		combinations *= int(l.layout.Partitions)
		if combinations > mostCombinations || combinations*len(v.sources) > mostRests {
			return
		}
	}
	v.rests = make([]atomic.Pointer[rests], combinations)
}

// restsOf returns the rests of documents in these slices, one of each layout; nil if the view has none.
func (v *View) restsOf(in []index.SliceID) *rests {
	if len(v.rests) == 0 {
		return nil
	}
	n := 0
	for i, l := range v.layouts {
		n = n*int(l.layout.Partitions) + int(in[i])
	}
	r := v.rests[n].Load()
	if r == nil { // concurrent callers compute the same value
		v.rests[n].CompareAndSwap(nil, v.makeRests(in))
		r = v.rests[n].Load()
	}
	return r
}

func (v *View) makeRests(in []index.SliceID) *rests {
	places := make([][]keyversion.Place, len(v.endpoints))
	for i := range v.sources {
		src := &v.sources[i]
		if src.byKey != nil {
			for _, h := range src.at {
				places[h.endpoint] = append(places[h.endpoint], keyversion.Place{Index: src.id, Slice: index.AllSlices})
			}
			continue
		}
		slice := in[src.layout]
		for _, e := range src.hosts[slice] {
			places[e] = append(places[e], keyversion.Place{Index: src.id, Slice: slice})
		}
	}
	r := &rests{of: make([]*keyversion.Places, len(v.endpoints)), keyed: make([]bool, len(v.endpoints))}
	for e, all := range places {
		if len(all) == 0 {
			continue
		}
		r.touched, r.of[e] = append(r.touched, uint16(e)), keyversion.NewPlaces(all)
		r.keyed[e] = !slices.ContainsFunc(all, func(p keyversion.Place) bool { return p.Slice != index.AllSlices })
	}
	return r
}

// layout returns a layout's position in v.layouts, and adds it if necessary.
func (v *View) layout(l spread) int {
	i := slices.IndexFunc(v.layouts, func(o spread) bool { return l.layout.Equal(o.layout) })
	if i < 0 {
		i = len(v.layouts)
		v.layouts = append(v.layouts, l)
	}
	return i
}

// placeEndpoints lists the endpoints that have a copy and returns their positions by node.
func (v *View) placeEndpoints(cfg *ViewConfig) map[index.NodeID]uint16 {
	var nodes []index.NodeID
	for i := range cfg.Topologies {
		for _, c := range cfg.Topologies[i].Copies {
			if cfg.wants(&c) && !slices.Contains(nodes, c.Node) {
				nodes = append(nodes, c.Node)
			}
		}
	}
	slices.Sort(nodes)
	place := make(map[index.NodeID]uint16, len(nodes))
	for i, n := range nodes {
		place[n] = uint16(i)
		v.endpoints = append(v.endpoints, endpoint{node: n, addr: cfg.Endpoints[n]})
	}
	return place
}

// Revision returns the definitions revision of the view.
func (v *View) Revision() uint64 { return v.revision }

// Sources returns the number of indexes on the default collection, the required length of Doc.Keys of a document
// there.
func (v *View) Sources() int { return len(v.sources) }

// Nodes returns the endpoints, ascending.
func (v *View) Nodes() []index.NodeID {
	nodes := make([]index.NodeID, len(v.endpoints))
	for i, e := range v.endpoints {
		nodes[i] = e.node
	}
	return nodes
}

// Copies returns the copies that are fed at a node, ascending. The caller may modify the result.
func (v *View) Copies(n index.NodeID) []index.CopyID {
	if e := v.find(n); e != nil {
		return slices.Clone(e.copies)
	}
	return nil
}

func (v *View) find(n index.NodeID) *endpoint {
	if v == nil {
		return nil
	}
	i, ok := slices.BinarySearchFunc(v.endpoints, n, func(e endpoint, n index.NodeID) int { return int(e.node) - int(n) })
	if !ok {
		return nil
	}
	return &v.endpoints[i]
}
