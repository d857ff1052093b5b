package api

import (
	"tidemark/index"
	"tidemark/manager/api/v1"
	"tidemark/partition"
	"tidemark/statecontext"
	"tidemark/timestamp"
)

func newVectorView(v timestamp.Vector) v1.VectorView {
	view := make(v1.VectorView, v.Len())
	for i := range view {
		view[i] = v1.VBucketPosition(v.At(i))
	}
	return view
}

func newBucketView(b *statecontext.Bucket) v1.BucketView {
	v := v1.BucketView{Name: b.Name, UUID: b.UUID, VBuckets: b.VBuckets, Generation: b.Generation, Gone: b.Gone,
		Stability: v1.StabilityView{Number: b.Stability.Number, RollbackID: b.Stability.RollbackID,
			Vector: newVectorView(b.Stability.Vector)},
		MutationTimestamp: newVectorView(b.MutationTimestamp), BackfillTimestamp: newVectorView(b.BackfillTimestamp),
		ModifiedCAS: b.ModifiedCAS}
	if r := b.Rollback; r != nil {
		v.Rollback = &v1.RollbackView{ID: r.ID, Step: r.Step.String(), Failover: newVectorView(r.Failover),
			Restart: newVectorView(r.Restart)}
	}
	return v
}

func newStateView(s *statecontext.State) v1.StateView {
	v := v1.StateView{CAS: s.CAS(), ClusterID: s.ClusterID(), Epoch: s.Epoch(), Term: s.Term(),
		FormatLevel: s.FormatLevel(),
		Revision:    s.DefinitionsRevision(), TimeMS: s.WallMS(), Ledger: s.LedgerLen(),
		Managers: []*statecontext.Manager{}, Projectors: []*statecontext.Projector{}, Indexers: []*statecontext.Indexer{},
		Buckets: []v1.BucketView{}, Indexes: []index.Definition{}, Topologies: []partition.Topology{}}
	for m := range s.Managers() {
		v.Managers = append(v.Managers, m)
	}
	for p := range s.Projectors() {
		v.Projectors = append(v.Projectors, p)
	}
	for i := range s.Indexers() {
		v.Indexers = append(v.Indexers, i)
	}
	for b := range s.Buckets() {
		v.Buckets = append(v.Buckets, newBucketView(b))
	}
	for x := range s.Indexes() {
		v.Indexes, v.Topologies = append(v.Indexes, x.Definition), append(v.Topologies, x.Topology)
	}
	return v
}
