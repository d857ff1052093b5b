package coordinator

import (
	"reflect"
	"slices"
	"sync"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/statecontext"
	"tidemark/wire"
)

// definitions makes the lists from which projectors and indexers work, once per revision: full lists, and changes
// since revisions of this term.
type definitions struct {
	consensus Consensus

	mu      sync.Mutex
	former  []*described      // one per revision, ascending
	whole   *wire.Definitions // of the newest; nil until it is needed
	changes map[uint64]*wire.DefinitionsChange
}

// described is the part of one state that is sent to components. It keeps the rest of the state collectable: a leader
// holds many of them for its whole term.
type described struct {
	statecontext.Placements
	rest wire.DefinitionsRest
}

func describe(s *statecontext.State) *described { return &described{s.Placements(), describeRest(s)} }

// formerRevisions limits the revisions since which changes can be sent; a component with an older one gets the full
// list.
const formerRevisions = 64

// note stores a state, so that later changes can be sent to components that have its revision.
func (d *definitions) note(s *statecontext.State) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.take(s)
}

// take returns the newest stored state, after storing s if it is newer.
func (d *definitions) take(s *statecontext.State) *described {
	if n := len(d.former); n > 0 && d.former[n-1].Revision() >= s.DefinitionsRevision() {
		return d.former[n-1]
	}
	newest := describe(s)
	d.former = append(d.former, newest)
	if more := len(d.former) - formerRevisions; more > 0 {
		d.former = slices.Delete(d.former, 0, more)
	}
	d.whole, d.changes = nil, map[uint64]*wire.DefinitionsChange{}
	return newest
}

// newest returns the full list of the newest state, without a fence. The caller must not modify it.
func (d *definitions) newest() *wire.Definitions {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.take(d.consensus.State())
	if d.whole == nil {
		d.whole = define(s)
	}
	return d.whole
}

// since returns the changes since a revision, without a fence; nil if the full list must be sent. The caller must not
// modify it.
func (d *definitions) since(revision uint64) *wire.DefinitionsChange {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.take(d.consensus.State())
	c := d.changes[revision]
	if c == nil {
		i := slices.IndexFunc(d.former, func(f *described) bool { return f.Revision() == revision })
		if i < 0 || d.former[i] == s {
			return nil
		}
		c = changed(d.former[i], s)
		if i == 0 { // the previous leader may have sent it before managers joined or moved, which raises no revision
			c.Rest = &s.rest
		}
		d.changes[revision] = c
	}
	return c
}

// changed returns the difference between the lists of two states. Objects of the state are never modified in place,
// so equal pointers mean equal objects.
func changed(was, is *described) *wire.DefinitionsChange {
	c := &wire.DefinitionsChange{Base: was.Revision(), Revision: is.Revision()}
	changedIndexes(c, was, is)
	changedIndexers(c, was, is)
	if !reflect.DeepEqual(is.rest, was.rest) {
		c.Rest = &is.rest
	}
	return c
}

func changedIndexes(c *wire.DefinitionsChange, was, is *described) {
	for x := range is.Indexes() {
		if id := x.Definition.ID; isListed(x) && was.Index(id) != x {
			c.Indexes, c.Topologies = append(c.Indexes, x.Definition), append(c.Topologies, x.Topology)
		}
	}
	for x := range was.Indexes() {
		if y := is.Index(x.Definition.ID); isListed(x) && (y == nil || !isListed(y)) {
			c.GoneIndexes = append(c.GoneIndexes, x.Definition.ID)
		}
	}
}

func changedIndexers(c *wire.DefinitionsChange, was, is *described) {
	for i := range is.Indexers() {
		if was.Indexer(i.Node) != i {
			c.Indexers = append(c.Indexers, describeIndexer(i))
		}
	}
	for i := range was.Indexers() {
		if is.Indexer(i.Node) == nil {
			c.GoneIndexers = append(c.GoneIndexers, i.Node)
		}
	}
}

// define returns the full list for components.
func define(s *described) *wire.Definitions {
	d := &wire.Definitions{Revision: s.Revision(), Buckets: s.rest.Buckets, Projectors: s.rest.Projectors,
		Managers: s.rest.Managers}
	d.Indexes = make([]index.Definition, 0, s.IndexCount())
	d.Topologies = make([]partition.Topology, 0, s.IndexCount())
	for x := range s.Indexes() {
		if isListed(x) {
			d.Indexes = append(d.Indexes, x.Definition)
			d.Topologies = append(d.Topologies, x.Topology)
		}
	}
	for i := range s.Indexers() {
		d.Indexers = append(d.Indexers, describeIndexer(i))
	}
	return d
}

// isListed reports whether an index is in the lists: hosts have nothing of other indexes, or must drop what they have.
func isListed(x *statecontext.Index) bool { return !x.Waits() && x.Definition.State != index.Dropping }

func describeIndexer(i *statecontext.Indexer) wire.Endpoint {
	return wire.Endpoint{Node: i.Node, UUID: i.UUID, BootID: i.BootID, Name: i.Name, Zone: i.Zone, Capacity: i.Capacity,
		Admin: i.Admin, Scan: i.Scan,
		Maintenance: i.Data.Maintenance, Backfill: i.Data.Backfill, Catchup: i.Data.Catchup}
}

func describeRest(s *statecontext.State) (r wire.DefinitionsRest) {
	for b := range s.Buckets() {
		if !b.Gone {
			r.Buckets = append(r.Buckets, describeBucket(b))
		}
	}
	for p := range s.Projectors() {
		r.Projectors = append(r.Projectors, wire.ProjectorEndpoint{ID: p.ID, BootID: p.BootID, Admin: p.Admin})
	}
	for m := range s.Managers() {
		r.Managers = append(r.Managers, wire.ManagerEndpoint{ID: m.ID, REST: m.REST})
	}
	return r
}

func describeBucket(b *statecontext.Bucket) wire.Bucket {
	w := wire.Bucket{Name: b.Name, UUID: b.UUID, VBuckets: b.VBuckets, Generation: b.Generation,
		RollbackID: b.Stability.RollbackID}
	if b.Rollback != nil {
		w.RollbackID, w.InRollback = b.Rollback.ID, true
	}
	return w
}
