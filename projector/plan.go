package projector

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"tidemark/expression"
	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/partition"
	"tidemark/projector/core"
	"tidemark/projector/router"
	"tidemark/wire"
)

// plan determines how the documents of a bucket are processed at one revision of the definitions: what is evaluated,
// and where the keys go. It is immutable.
type plan struct {
	revision uint64
	ids      []index.ID // of all indexes, in any collection
	part                // for the default collection
	members  map[uint32]*part
	view     *router.View
	placed   router.ViewConfig // what view was built from
	joined   uint64            // of maintenance streams: the number of this plan in core.Joins
	alike    *alike
}

// alike identifies plans that differ in nothing but their revision: they share one. It is not empty, so that each has
// its own address.
type alike struct{ _ byte }

// part is the plan for documents of one collection.
type part struct {
	sources    []index.ID // in the program's order
	program    *expression.Program
	faults     []*fault   // by source
	promised   []promised // by source; only of side streams to copies
	topologies []partition.Topology
	parsed     []*expression.Parsed
}

// of returns the part for a collection; nil if it has no index.
func (pl *plan) of(collection uint32) *part {
	switch {
	case collection != 0:
		return pl.members[collection]
	case len(pl.sources) == 0:
		return nil
	}
	return &pl.part
}

// member returns the part for a collection, and creates it if necessary.
func (pl *plan) member(collection uint32) *part {
	if collection == 0 {
		return &pl.part
	}
	m := pl.members[collection]
	if m == nil {
		if m = new(part); pl.members == nil {
			pl.members = map[uint32]*part{}
		}
		pl.members[collection] = m
	}
	return m
}

// each calls f for the part of each collection.
func (pl *plan) each(f func(m *part)) {
	f(&pl.part)
	for _, m := range pl.members {
		f(m)
	}
}

// xattrs reports whether any index needs documents' extended attributes.
func (pl *plan) xattrs() (need bool) {
	pl.each(func(m *part) { need = need || m.program.Xattrs() })
	return need
}

// countFaults attaches the counters of documents that have no entry because of an error.
func (pl *plan) countFaults(f *faults) { pl.each(func(m *part) { m.faults = f.of(m.sources) }) }

// plan makes the plan of a bucket's stream. only limits a side stream to these copies; with nil, all active indexes
// are included. Indexes that cannot be evaluated or placed are left out and returned as errors; the coordinator
// gets them by assess as well. Unchanged parts of the previous plan, was (nil: none), are reused.
func (a *assessor) plan(was *plan, d *wire.Definitions, bucket string, class keyversion.Class,
	endpoints map[index.NodeID]string, only []index.CopyID) (*plan, []error, error) {
	pl := &plan{revision: d.Revision,
		placed: router.ViewConfig{Revision: d.Revision, Endpoints: endpoints, Only: only}}
	config := &pl.placed
	var bad []error
	for _, fed := range core.FedBy(d, bucket, only) {
		def, place := fed.Index, fed.Topology
		parsed, err := a.parsed(def)
		switch {
		case err != nil:
		case len(pl.ids) == expression.MaxSources:
			err = tooMany(bucket)
		default:
			_, err = config.Check(place)
		}
		if err != nil {
			bad = append(bad, fmt.Errorf("index %s (%s): %w", def.Name, def.ID, err))
			continue
		}
		collection := def.Member.ID
		m := pl.member(collection)
		pl.ids, m.sources = append(pl.ids, def.ID), append(m.sources, def.ID)
		m.parsed, m.topologies = append(m.parsed, parsed), append(m.topologies, *place)
		config.Topologies, config.Collections = append(config.Topologies, *place), append(config.Collections, collection)
	}
	kept, err := pl.compile(was)
	if err != nil {
		return nil, bad, fmt.Errorf("bucket %s: %w", bucket, err)
	}
	if was != nil && config.Same(&was.placed) {
		pl.view = was.view.At(d.Revision)
	} else if pl.view, err = router.NewView(*config); err != nil {
		return nil, bad, fmt.Errorf("bucket %s, %s stream: %w", bucket, class, err)
	} else {
		kept = false
	}
	if pl.alike = new(alike); kept {
		pl.alike = was.alike
	}
	return pl, bad, nil
}

// compile makes the programs. kept is true if all of them are those of the previous plan.
func (pl *plan) compile(was *plan) (kept bool, err error) {
	kept = was != nil
	one := func(collection uint32, m *part) {
		if m.keep(was, collection) {
			return
		}
		kept = false
		if wrong := m.finish(pl.placed.Only); wrong != nil {
			err = wrong
		}
	}
	one(0, &pl.part)
	for collection, m := range pl.members {
		one(collection, m)
	}
	return kept, err
}

// keep reuses the program of the previous plan, if its expressions are the same.
func (m *part) keep(was *plan, collection uint32) bool {
	if was == nil {
		return false
	}
	before := &was.part
	if collection != 0 {
		before = was.members[collection]
	}
	if before == nil || !slices.Equal(m.parsed, before.parsed) {
		return false
	}
	m.program, m.topologies = before.program, nil
	return true
}

// hasAll returns an error that names those of ids that the plan lacks; bad are the reasons why indexes were left out.
func (pl *plan) hasAll(ids []index.ID, bad []error) error {
	lacks := slices.DeleteFunc(slices.Clone(ids), func(id index.ID) bool { return slices.Contains(pl.ids, id) })
	switch {
	case len(lacks) == 0:
		return nil
	case len(bad) == 0:
		return fmt.Errorf("indexes %v are not active", lacks)
	}
	why := strings.Fields(errors.Join(bad...).Error())
	return fmt.Errorf("this projector cannot stream indexes %v: %s", lacks, wire.Cut(strings.Join(why, " "), maxFaultText))
}

// maintenanceEndpoints returns the address at which each indexer accepts maintenance streams.
func maintenanceEndpoints(d *wire.Definitions) map[index.NodeID]string {
	m := make(map[index.NodeID]string, len(d.Indexers))
	for _, e := range d.Indexers {
		m[e.Node] = e.Maintenance
	}
	return m
}

// finish compiles the part's program; only is that of the plan.
func (m *part) finish(only []index.CopyID) (err error) {
	if m.program, err = expression.Together(m.parsed); err == nil && only != nil {
		m.promised, err = promises(m.sources, m.topologies, only)
	}
	m.topologies = nil
	return err
}
