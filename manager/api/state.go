package api

import (
	"tidemark/client"
	"tidemark/index"
	"tidemark/partition"
	"tidemark/statecontext"
	"tidemark/timestamp"
)

// stateView is the StateContext as JSON, field by field of the seed (IM-1). Lists are never null.
type stateView struct {
	CAS         uint64                    `json:"cas"`
	ClusterID   string                    `json:"cluster_id"`
	Epoch       uint64                    `json:"epoch"`
	Term        uint64                    `json:"term"`
	FormatLevel uint64                    `json:"format_level"`
	Revision    uint64                    `json:"definitions_revision"`
	TimeMS      int64                     `json:"time_ms"`
	Managers    []*statecontext.Manager   `json:"managers"`
	Projectors  []*statecontext.Projector `json:"projectors"`
	Indexers    []*statecontext.Indexer   `json:"indexers"`
	Buckets     []bucketView              `json:"buckets"`
	Indexes     []index.Definition        `json:"indexes"`
	Topologies  []partition.Topology      `json:"topologies"`
	Ledger      int                       `json:"ledger_entries"`
}

// vectorView is a vector with a position for each vbucket, written ["vbuuid", seqno]: vbuuids may pass 2^53.
type vectorView []client.VBucketPosition

func newVectorView(v timestamp.Vector) vectorView {
	view := make(vectorView, v.Len())
	for i := range view {
		view[i] = client.VBucketPosition(v.At(i))
	}
	return view
}

type stabilityView struct {
	Number     uint64     `json:"number"`
	RollbackID uint64     `json:"rollback_id"`
	Vector     vectorView `json:"vector"`
}

type rollbackView struct {
	ID       uint64     `json:"id"`
	Step     string     `json:"step"`
	Failover vectorView `json:"failover"`
	Restart  vectorView `json:"restart"`
}

// bucketView is a bucket with its timestamps.
type bucketView struct {
	Name              string        `json:"name"`
	UUID              string        `json:"uuid"`
	VBuckets          int           `json:"vbuckets"`
	Generation        uint64        `json:"generation"`
	Gone              bool          `json:"gone,omitempty"`
	Stability         stabilityView `json:"stability"`
	MutationTimestamp vectorView    `json:"mutation_timestamp"`
	BackfillTimestamp vectorView    `json:"backfill_timestamp"`
	Rollback          *rollbackView `json:"rollback,omitempty"`
	ModifiedCAS       uint64        `json:"modified_cas"`
}

func newBucketView(b *statecontext.Bucket) bucketView {
	v := bucketView{Name: b.Name, UUID: b.UUID, VBuckets: b.VBuckets, Generation: b.Generation, Gone: b.Gone,
		Stability: stabilityView{Number: b.Stability.Number, RollbackID: b.Stability.RollbackID,
			Vector: newVectorView(b.Stability.Vector)},
		MutationTimestamp: newVectorView(b.MutationTimestamp), BackfillTimestamp: newVectorView(b.BackfillTimestamp),
		ModifiedCAS: b.ModifiedCAS}
	if r := b.Rollback; r != nil {
		v.Rollback = &rollbackView{ID: r.ID, Step: r.Step.String(), Failover: newVectorView(r.Failover),
			Restart: newVectorView(r.Restart)}
	}
	return v
}

func newStateView(s *statecontext.State) stateView {
	v := stateView{CAS: s.CAS(), ClusterID: s.ClusterID(), Epoch: s.Epoch(), Term: s.Term(), FormatLevel: s.FormatLevel(),
		Revision: s.DefinitionsRevision(), TimeMS: s.WallMS(), Ledger: s.LedgerLen(),
		Managers: []*statecontext.Manager{}, Projectors: []*statecontext.Projector{}, Indexers: []*statecontext.Indexer{},
		Buckets: []bucketView{}, Indexes: []index.Definition{}, Topologies: []partition.Topology{}}
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
