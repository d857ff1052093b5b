package projector

import (
	"fmt"
	"slices"

	"tidemark/expression"
	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/partition"
	"tidemark/projector/router"
	"tidemark/wire"
)

// plan is what is done with the documents of a bucket at one revision of the definitions: what is evaluated, and where
// it goes. It is immutable.
type plan struct {
	revision uint64
	ids      []index.ID // of the program's sources
	program  *expression.Program
	view     *router.View
	faults   []*fault   // by source
	joins    []*join    // of maintenance streams
	promised []promised // by source, of side streams to copies
}

// newPlan makes the plan of a bucket's stream. only limits a side stream to these copies; nil takes every active index.
// Indexes that cannot be evaluated or placed are left out and given back; the coordinator hears of them by the
// assessor.
func newPlan(d *wire.Definitions, bucket string, class keyversion.Class, endpoints map[index.NodeID]string,
	only []index.CopyID) (*plan, []error, error) {
	places := make(map[index.ID]*partition.Topology, len(d.Topologies))
	for i := range d.Topologies {
		places[d.Topologies[i].Index] = &d.Topologies[i]
	}
	var sources []expression.Source
	var topologies []partition.Topology
	var ids []index.ID
	var bad []error
	for i := range d.Indexes {
		def := &d.Indexes[i]
		if def.Bucket != bucket || !def.State.Active() {
			continue
		}
		place := places[def.ID]
		if place == nil || only != nil && !hasAny(place.Copies, only) {
			continue
		}
		source := expression.SourceOf(def)
		_, err := expression.Compile([]expression.Source{source})
		switch {
		case err != nil:
		case len(sources) == expression.MaxSources:
			err = tooMany(bucket)
		default:
			err = placeable(place, endpoints, only)
		}
		if err != nil {
			bad = append(bad, fmt.Errorf("index %s (%s): %w", def.Name, def.ID, err))
			continue
		}
		ids = append(ids, def.ID)
		sources, topologies = append(sources, source), append(topologies, *place)
	}
	program, err := expression.Compile(sources)
	if err != nil {
		return nil, bad, fmt.Errorf("bucket %s: %w", bucket, err)
	}
	view, err := router.NewView(router.ViewConfig{Revision: d.Revision, Endpoints: endpoints, Topologies: topologies,
		Only: only})
	if err != nil {
		return nil, bad, fmt.Errorf("bucket %s, %s stream: %w", bucket, class, err)
	}
	pl := &plan{revision: d.Revision, ids: ids, program: program, view: view}
	if only != nil {
		pl.promised = promises(ids, topologies, only)
	}
	return pl, bad, nil
}

func hasAny(copies []partition.Copy, ids []index.CopyID) bool {
	return slices.ContainsFunc(copies, func(c partition.Copy) bool { return slices.Contains(ids, c.ID) })
}

// maintenanceEndpoints lists where each indexer takes maintenance streams.
func maintenanceEndpoints(d *wire.Definitions) map[index.NodeID]string {
	m := make(map[index.NodeID]string, len(d.Indexers))
	for _, e := range d.Indexers {
		m[e.Node] = e.Maintenance
	}
	return m
}
