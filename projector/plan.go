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

// plan is what is done with the documents of a bucket at one revision of the definitions: what is evaluated, and where
// it goes. It is immutable.
type plan struct {
	revision uint64
	ids      []index.ID // of the indexes, whatever they are on
	part                // of the default collection
	members  map[uint32]*part
	view     *router.View
	placed   router.ViewConfig // what view was made of
	joined   uint64            // of maintenance streams: the joins that there are by it (core.Joins)
	alike    *alike
}

// alike is what plans share that do the same, but for the revision. It has an address of its own.
type alike struct{ _ byte }

// part is what is done with documents of one collection.
type part struct {
	sources    []index.ID // of the program
	program    *expression.Program
	faults     []*fault   // by source
	promised   []promised // by source, of side streams to copies
	topologies []partition.Topology
	parsed     []*expression.Parsed
}

// of returns what is done with documents of a collection; nil when no index is on it.
func (pl *plan) of(collection uint32) *part {
	switch {
	case collection != 0:
		return pl.members[collection]
	case len(pl.sources) == 0:
		return nil
	}
	return &pl.part
}

// member is of, made when there is none.
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

// each calls f for what is done with documents of each collection.
func (pl *plan) each(f func(m *part)) {
	f(&pl.part)
	for _, m := range pl.members {
		f(m)
	}
}

// xattrs reports whether any index needs extended attributes.
func (pl *plan) xattrs() (need bool) {
	pl.each(func(m *part) { need = need || m.program.Xattrs() })
	return need
}

// countFaults makes the counters of documents that have no entry because of an error.
func (pl *plan) countFaults(f *faults) { pl.each(func(m *part) { m.faults = f.of(m.sources) }) }

// plan makes the plan of a bucket's stream. only limits a side stream to these copies; nil takes every active index.
// Indexes that cannot be evaluated or placed are left out and given back; the coordinator hears of them as well. Of the
// plan before (nil: none) everything is kept that has not changed.
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

// compile makes the programs. kept: all are those of the plan before.
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

// keep takes over the program of the plan before, if it is of the same expressions.
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

// hasAll returns which of some indexes the plan does not have; bad says why some were left out.
func (pl *plan) hasAll(ids []index.ID, bad []error) error {
	lacks := slices.DeleteFunc(slices.Clone(ids), func(id index.ID) bool { return slices.Contains(pl.ids, id) })
	switch {
	case len(lacks) == 0:
		return nil
	case len(bad) == 0:
		return fmt.Errorf("indexes %v are not active", lacks)
	}
	why := strings.Fields(errors.Join(bad...).Error())
	return fmt.Errorf("indexes %v cannot be streamed here: %s", lacks, wire.Cut(strings.Join(why, " "), maxFaultText))
}

// maintenanceEndpoints lists where each indexer takes maintenance streams.
func maintenanceEndpoints(d *wire.Definitions) map[index.NodeID]string {
	m := make(map[index.NodeID]string, len(d.Indexers))
	for _, e := range d.Indexers {
		m[e.Node] = e.Maintenance
	}
	return m
}

// finish compiles what the part is made of; only is the plan's.
func (m *part) finish(only []index.CopyID) (err error) {
	if m.program, err = expression.Together(m.parsed); err == nil && only != nil {
		m.promised, err = promises(m.sources, m.topologies, only)
	}
	m.topologies = nil
	return err
}
