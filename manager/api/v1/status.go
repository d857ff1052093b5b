package v1

import (
	"tidemark/index"
	"tidemark/statecontext"
	"tidemark/wire"
)

// Status is the answer of GET /v1/status.
type Status struct {
	ClusterID string `json:"cluster_id"`
	Version   string `json:"version"`
	Node      struct {
		ID   string `json:"id"`
		Role string `json:"role"` // leader, follower, candidate
	} `json:"node"`
	Leader struct {
		ID   string `json:"id"`
		REST string `json:"rest"`
	} `json:"leader"`
	// Verdict is ready; degraded: it serves, but something is missing; or not ready: it cannot serve everything. Reasons
	// lists why.
	Verdict     string              `json:"verdict"`
	Reasons     []string            `json:"reasons"`
	Term        uint64              `json:"term"`
	CAS         uint64              `json:"cas"`
	FormatLevel uint64              `json:"format_level"` // in force: understood by all versions in the cluster
	Limits      statecontext.Limits `json:"limits"`
	Restored    *Restored           `json:"restored,omitempty"`  // the newest restore of a backup
	Restoring   bool                `json:"restoring,omitempty"` // a backup is being restored: writes are refused
	// step of the start sequence, "active" at its end; "" on followers
	Coordinator string            `json:"coordinator"`
	Managers    []ManagerStatus   `json:"managers"`
	Projectors  []ProjectorStatus `json:"projectors"`
	Indexers    []IndexerStatus   `json:"indexers"` // by name
	Buckets     []BucketStatus    `json:"buckets"`
	// Indexes counts them; absent when no leader was asked, and while the leader takes over.
	Indexes *IndexSummary `json:"indexes,omitempty"`
}

// Values of Status.Verdict.
const (
	VerdictReady    = "ready"
	VerdictDegraded = "degraded"  // it serves, but something is missing
	VerdictNotReady = "not ready" // it cannot serve everything
)

// IndexSummary counts the indexes by availability and state.
type IndexSummary struct {
	Available   int `json:"available"`   // ready, with all copies
	Degraded    int `json:"degraded"`    // ready, with fewer copies than requested
	Unavailable int `json:"unavailable"` // ready, and some slice cannot be scanned
	Failed      int `json:"failed"`      // in state error
	Others      int `json:"others"`      // being built, or not begun
	// Lacking lists ready indexes that are not available: unavailable ones first, at most 16.
	Lacking []LackingIndex `json:"lacking,omitempty"`
}

// LackingIndex is an index with fewer copies than requested.
type LackingIndex struct {
	ID     index.ID `json:"id"`
	Name   string   `json:"name"`
	Bucket string   `json:"bucket"`
	Availability
}

// Restored is the newest restore of a backup.
type Restored struct {
	Mode    string `json:"mode"` // in-place, new-cluster
	CAS     uint64 `json:"cas"`  // of the switch
	TimeMS  int64  `json:"time_ms"`
	FromID  string `json:"from_cluster_id"`
	FromCAS uint64 `json:"from_cas"`
}

// ManagerStatus is a manager in Status.
type ManagerStatus struct {
	ID    string `json:"id"`
	REST  string `json:"rest"`
	Raft  string `json:"raft"`
	Role  string `json:"role"` // leader, voter, nonvoter
	Alive bool   `json:"alive"`
	// NotReady holds the reasons why it is not ready, such as a full disk; empty if it is ready, or does not answer.
	NotReady []wire.Reason `json:"not_ready,omitempty"`
	// ServerID is its Raft id: the name and a random suffix that belongs to its data folder.
	ServerID string `json:"server_id"`
	// Lag is the number of log entries that it lacks, as seen by the leader.
	Lag uint64 `json:"lag,omitempty"`
	// Problem is what is wrong with it, and the remedy.
	Problem string `json:"problem,omitempty"`
}

// ProjectorStatus is a projector in Status.
type ProjectorStatus struct {
	ID       index.ProjectorID `json:"id"`
	Admin    string            `json:"admin"`
	BootID   string            `json:"boot_id"`
	State    string            `json:"state"` // active, suspect, offline
	Streams  int               `json:"streams"`
	Revision uint64            `json:"revision"`
	// Mutations, Deletions and Errors are counted since its process started: documents evaluated, deletions routed,
	// index entries left out because of an error.
	Mutations uint64 `json:"mutations"`
	Deletions uint64 `json:"deletions"`
	Errors    uint64 `json:"errors"`
	// Unreachable is why it has not answered the leader at Admin for more than 5 s, although it may report; empty: it
	// answers.
	Unreachable string `json:"unreachable,omitempty"`
	// KV lists the buckets about which it cannot query its KV node.
	KV []KVTrouble `json:"kv,omitempty"`
	// Unreached lists the data ports of indexers, of those that are active, that it has not been able to reach for 5 s or
	// more, or that refuse its streams. UnreachedOmitted counts such ports that are left out.
	Unreached        []UnreachedPort `json:"unreached,omitempty"`
	UnreachedOmitted int             `json:"unreached_omitted,omitempty"`
}

// UnreachedPort is a data port of an indexer that a projector cannot connect to although it has data for it, or that
// refuses its streams.
type UnreachedPort struct {
	Indexer string       `json:"indexer"` // its name
	Node    index.NodeID `json:"node"`
	Port    string       `json:"port"`    // maintenance, backfill or catchup
	Address string       `json:"address"` // host:port
	// Error is why; empty if the projector has too many such ports to report the errors of all. Its log has them.
	Error string `json:"error,omitempty"`
	// Refused is set if the indexer answers there and refuses; Error is its reason.
	Refused bool  `json:"refused,omitempty"`
	SinceMS int64 `json:"since_ms"` // unix milliseconds, of the projector's clock
}

// KVTrouble is a failure of a projector to reach its KV node, or to log in there.
type KVTrouble struct {
	Bucket  string `json:"bucket"`
	Node    string `json:"node"` // host:port
	Error   string `json:"error"`
	SinceMS int64  `json:"since_ms"` // unix milliseconds, of the projector's clock
}

// IndexerStatus is an indexer in Status.
type IndexerStatus struct {
	ID       string       `json:"id"` // its name
	Node     index.NodeID `json:"node"`
	UUID     string       `json:"uuid"`
	Zone     string       `json:"zone,omitempty"`
	Role     string       `json:"role"`     // serving; leaving: it is to give up all its copies; lost: it is offline
	Bytes    uint64       `json:"bytes"`    // on disk, of its copies
	Capacity uint32       `json:"capacity"` // weight in the distribution of copies
	Admin    string       `json:"admin"`
	Scan     string       `json:"scan"`
	State    string       `json:"state"` // active, suspect, offline
	// OfflineSinceMS is when it went offline, in unix milliseconds by the wall clock of the leader at that time.
	// OfflineForMS is for how long it has been offline, independent of changes of the leader and of clock steps.
	// RepairInMS is the time until its copies are made anew elsewhere if it stays away; 0: now; absent: never.
	OfflineSinceMS int64  `json:"offline_since_ms,omitempty"`
	OfflineForMS   int64  `json:"offline_for_ms,omitempty"`
	RepairInMS     *int64 `json:"repair_in_ms,omitempty"`

	Copies int `json:"copies"` // on the indexer, as it has reported to this leader
	Placed int `json:"placed"` // copies placed on it
	// Unreachable is why it has not answered the leader at Admin for more than 5 s, although it may report; empty: it
	// answers.
	Unreachable string `json:"unreachable,omitempty"`
	Health      string `json:"health,omitempty"`
	Revision    uint64 `json:"revision"`
	// QueueBytes is the size of the data waiting to be written, over all buckets; QueueLimit is its limit.
	QueueBytes uint64 `json:"queue_bytes"`
	QueueLimit uint64 `json:"queue_limit"`
	// Orphans holds slices in its folder that the cluster does not know: the oldest 64 of OrphanCount.
	Orphans     []Orphan `json:"orphans,omitempty"`
	OrphanCount int      `json:"orphan_count,omitempty"`
	// DifferingCopies counts its copies that differ from the KV data, as it has found and not refuted since.
	// DifferingOmitted counts those beyond the first 64 by number: there are no events of kind difference for them yet.
	DifferingCopies  int `json:"differing_copies,omitempty"`
	DifferingOmitted int `json:"differing_omitted,omitempty"`
	// Evicting is set while it is being removed; EvictionWaits is why the removal is stuck.
	Evicting      bool   `json:"evicting,omitempty"`
	EvictionWaits string `json:"eviction_waits,omitempty"`
}

// Orphan is a slice in an indexer's folder that the cluster does not know. It is kept until it is known again, as
// after a restore, or dropped when its grace period is over.
type Orphan struct {
	Copy    index.CopyID  `json:"copy"`
	Index   index.ID      `json:"index"` // 0: the folder is damaged
	Slice   index.SliceID `json:"slice"`
	Bucket  string        `json:"bucket"`
	Bytes   uint64        `json:"bytes"`    // on disk
	SinceMS int64         `json:"since_ms"` // Unix time
	LeftMS  int64         `json:"left_ms"`  // remaining grace period; 0: over, -1: it is kept forever
}

// BucketStatus is a bucket in Status.
type BucketStatus struct {
	Name            string `json:"name"`
	UUID            string `json:"uuid"`
	VBuckets        int    `json:"vbuckets"`
	Generation      uint64 `json:"generation"`
	Wanted          bool   `json:"wanted"` // an index needs its streams
	StabilityNumber uint64 `json:"stability_number"`
	StabilityHash   string `json:"stability_hash"`
	StreamsBegun    int    `json:"streams_begun"`
	StreamsMissing  int    `json:"streams_missing"` // vbuckets without a running stream
	// Stuck lists those of them that have had no stream for longer than 10 s although one is wanted, at most 16.
	Stuck []StuckVBucket `json:"stuck,omitempty"`
	// StabilityAgeMS is how long ago the newest stability timestamp was promoted, counting only time with a leader;
	// absent before the first one, and if the leader does not answer.
	StabilityAgeMS *int64 `json:"stability_age_ms,omitempty"`
	Lag            uint64 `json:"lag"`           // complete seqnos above the newest stability timestamp, over all vbuckets
	ScansWaiting   int    `json:"scans_waiting"` // for a newer stability timestamp
	Rollback       string `json:"rollback,omitempty"`
	// RollbackForMS is for how long the leader has seen the rollback in its present step; 0 without a rollback.
	RollbackForMS int64 `json:"rollback_for_ms,omitempty"`
}
