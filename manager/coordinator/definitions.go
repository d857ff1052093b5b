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

// definitions makes the messages that projectors and indexers work from, once per revision: the whole list, and what
// has changed since revisions of this term.
type definitions struct {
	consensus Consensus

	mu      sync.Mutex
	former  []*described      // one of each revision, ascending
	whole   *wire.Definitions // of the newest; nil until somebody needs it
	changes map[uint64]*wire.DefinitionsChange
}

// described is what components are told of one state. It keeps nothing else of the state alive: a leader has many of
// them for its whole term.
type described struct {
	statecontext.Placements
	rest wire.DefinitionsRest
}

func describe(s *statecontext.State) *described { return &described{s.Placements(), describeRest(s)} }

// formerRevisions bounds the revisions since which changes can be told; who works with an older one is told the whole.
const formerRevisions = 64

// note remembers a state, so that what changes after it can be told to who works with its revision already.
func (d *definitions) note(s *statecontext.State) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.take(s)
}

// take returns the newest of the states that lists are made of, s if it is a newer one.
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

// newest returns the list of the newest state, without a fence. It must not be changed.
func (d *definitions) newest() *wire.Definitions {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.take(d.consensus.State())
	if d.whole == nil {
		d.whole = define(s)
	}
	return d.whole
}

// since returns what has changed in it since a revision, without a fence; nil when the whole has to be told. It must
// not be changed.
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
		if i == 0 { // perhaps told by the leader before, since when managers may have come or moved: they raise no revision
			c.Rest = &s.rest
		}
		d.changes[revision] = c
	}
	return c
}

// changed tells the difference of what define gives of two states. Objects of the state are never changed in place, so
// that those of the same address are the same.
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
		if id := x.Definition.ID; told(x) && was.Index(id) != x {
			c.Indexes, c.Topologies = append(c.Indexes, x.Definition), append(c.Topologies, x.Topology)
		}
	}
	for x := range was.Indexes() {
		if y := is.Index(x.Definition.ID); told(x) && (y == nil || !told(y)) {
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

// define is the whole list that components are told.
func define(s *described) *wire.Definitions {
	d := &wire.Definitions{Revision: s.Revision(), Buckets: s.rest.Buckets, Projectors: s.rest.Projectors,
		Managers: s.rest.Managers}
	d.Indexes = make([]index.Definition, 0, s.IndexCount())
	d.Topologies = make([]partition.Topology, 0, s.IndexCount())
	for x := range s.Indexes() {
		if told(x) {
			d.Indexes = append(d.Indexes, x.Definition)
			d.Topologies = append(d.Topologies, x.Topology)
		}
	}
	for i := range s.Indexers() {
		d.Indexers = append(d.Indexers, describeIndexer(i))
	}
	return d
}

// told reports whether components are told of an index: of others hosts have nothing, or are to have nothing.
func told(x *statecontext.Index) bool { return !x.Waits() && x.Definition.State != index.Dropping }

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
