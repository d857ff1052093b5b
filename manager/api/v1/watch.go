package v1

import (
	"tidemark/index"
	"tidemark/partition"
	"tidemark/statecontext"
)

// Change is the effect of one update on one object, as shown by GET /v1/events.
type Change = statecontext.Event

// WatchSnapshot is the data of an event snapshot of GET /v1/events.
type WatchSnapshot struct {
	// Reason is start, not_held, other_cluster, epoch, future, restored or overrun.
	Reason string `json:"reason"`
	Detail string `json:"detail"` // the same in words
	WatchState
}

// WatchChange is the data of an event change of GET /v1/events: all changes of one update.
type WatchChange struct {
	CAS    uint64   `json:"cas"`
	Events []Change `json:"events"`
}

// WatchEnd is the data of an event end of GET /v1/events, the last one of a stream that ends on purpose.
type WatchEnd struct {
	Reason  string `json:"reason"`   // slow, busy, age, stopping or refused
	LastCAS uint64 `json:"last_cas"` // everything up to it was sent
	Detail  string `json:"detail"`
}

// WatchState is the replicated state in a snapshot event: the objects of the requested kinds, all at one cas. Other
// kinds are nil.
type WatchState struct {
	CAS       uint64 `json:"cas"`
	ClusterID string `json:"cluster_id"`
	// of the newest command, by the wall clock of its leader, unix milliseconds
	TimeMS     int64                     `json:"time_ms"`
	Cluster    *statecontext.Cluster     `json:"cluster,omitempty"`
	Leader     *WatchLeader              `json:"leader,omitempty"`
	Managers   []*statecontext.Manager   `json:"managers,omitzero"`
	Projectors []*statecontext.Projector `json:"projectors,omitzero"`
	Indexers   []*statecontext.Indexer   `json:"indexers,omitzero"`
	Buckets    []WatchBucket             `json:"buckets,omitzero"`
	Indexes    []*index.Definition       `json:"indexes,omitzero"`
	Topologies []*partition.Topology     `json:"topologies,omitzero"`
	Stability  []WatchStability          `json:"stability,omitzero"`
	Backfills  []WatchBackfill           `json:"backfills,omitzero"`
	Rollbacks  []WatchRollback           `json:"rollbacks,omitzero"`
	// Rebalances holds the newest rebalances, Moves the steps of the running one.
	Rebalances []*statecontext.RebalanceJob `json:"rebalances,omitzero"`
	// Differences holds the copies that differ from the KV data.
	Differences []*statecontext.DifferingCopy `json:"differences,omitzero"`
	Moves       []*partition.Rebalance        `json:"moves,omitzero"`
}

// WatchLeader is the leader of the newest term.
type WatchLeader struct {
	ID   string `json:"id"` // Raft server id
	Term uint64 `json:"term"`
}

// WatchBucket is a bucket without its vectors.
type WatchBucket struct {
	Name       string `json:"name"`
	UUID       string `json:"uuid"`
	VBuckets   int    `json:"vbuckets"`
	Generation uint64 `json:"generation"`
	Gone       bool   `json:"gone,omitempty"`
	// StabilitySource is the bucket's setting; absent if the managers' configuration applies.
	StabilitySource string `json:"stability_source,omitempty"`
}

// WatchStability names a bucket's stability timestamp; its vector is in GET /v1/buckets/{b}/timestamps.
type WatchStability struct {
	Bucket     string `json:"bucket"`
	Number     uint64 `json:"number"`
	RollbackID uint64 `json:"rollback_id"`
	Total      uint64 `json:"total"` // sum of the seqnos
	Hash       string `json:"hash"`
}

// WatchBackfill is the backfill timestamp of a bucket with builds.
type WatchBackfill struct {
	Bucket string `json:"bucket"`
	Total  uint64 `json:"total"`
	Hash   string `json:"hash"`
}

// WatchRollback is a running rollback.
type WatchRollback struct {
	Bucket string                    `json:"bucket"`
	ID     uint64                    `json:"id"`
	Step   statecontext.RollbackStep `json:"step"`
}
