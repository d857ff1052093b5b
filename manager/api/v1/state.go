package v1

import (
	"tidemark/index"
	"tidemark/partition"
	"tidemark/statecontext"
)

// StateView is the StateContext as JSON (IM-1), the answer of GET /v1/state. Lists are never null.
type StateView struct {
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
	Buckets     []BucketView              `json:"buckets"`
	Indexes     []index.Definition        `json:"indexes"`
	Topologies  []partition.Topology      `json:"topologies"`
	Ledger      int                       `json:"ledger_entries"`
}

// VectorView is a vector with a position for each vbucket, encoded as ["vbuuid", seqno]: vbuuids may exceed 2^53.
type VectorView []VBucketPosition

// StabilityView is a stability timestamp.
type StabilityView struct {
	Number     uint64     `json:"number"`
	RollbackID uint64     `json:"rollback_id"`
	Vector     VectorView `json:"vector"`
}

// RollbackView is a running rollback.
type RollbackView struct {
	ID       uint64     `json:"id"`
	Step     string     `json:"step"`
	Failover VectorView `json:"failover"`
	Restart  VectorView `json:"restart"`
}

// BucketView is a bucket with its timestamps.
type BucketView struct {
	Name              string        `json:"name"`
	UUID              string        `json:"uuid"`
	VBuckets          int           `json:"vbuckets"`
	Generation        uint64        `json:"generation"`
	Gone              bool          `json:"gone,omitempty"`
	Stability         StabilityView `json:"stability"`
	MutationTimestamp VectorView    `json:"mutation_timestamp"`
	BackfillTimestamp VectorView    `json:"backfill_timestamp"`
	Rollback          *RollbackView `json:"rollback,omitempty"`
	ModifiedCAS       uint64        `json:"modified_cas"`
}
