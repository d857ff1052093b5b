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
	// Verdict is ready; degraded: it serves, but something is missing; or not ready: it cannot serve all. Reasons say why.
	Verdict     string              `json:"verdict"`
	Reasons     []string            `json:"reasons"`
	Term        uint64              `json:"term"`
	CAS         uint64              `json:"cas"`
	FormatLevel uint64              `json:"format_level"` // what the cluster's versions have in common
	Limits      statecontext.Limits `json:"limits"`
	Restored    *Restored           `json:"restored,omitempty"`  // the newest restore of a backup
	Restoring   bool                `json:"restoring,omitempty"` // a backup is being restored: writes are refused
	// step of the start sequence, "active" at its end; "" on followers
	Coordinator string            `json:"coordinator"`
	Managers    []ManagerStatus   `json:"managers"`
	Projectors  []ProjectorStatus `json:"projectors"`
	Indexers    []IndexerStatus   `json:"indexers"` // by name
	Buckets     []BucketStatus    `json:"buckets"`
	// Indexes counts them; absent when no leader was asked.
	Indexes *IndexSummary `json:"indexes,omitempty"`
}

// Verdicts on a cluster.
const (
	VerdictReady    = "ready"
	VerdictDegraded = "degraded"  // it serves, but something is missing
	VerdictNotReady = "not ready" // it cannot serve all
)

// IndexSummary counts the indexes by what they are good for.
type IndexSummary struct {
	Available   int `json:"available"`   // ready, with all copies
	Degraded    int `json:"degraded"`    // ready, with fewer copies than were asked for
	Unavailable int `json:"unavailable"` // ready, and some slice cannot be scanned
	Failed      int `json:"failed"`      // in state error
	Others      int `json:"others"`      // being built, or not yet
	// Lacking are ready ones that are not available: unavailable ones first, at most 16.
	Lacking []LackingIndex `json:"lacking,omitempty"`
}

// LackingIndex is an index with fewer copies than were asked for.
type LackingIndex struct {
	ID     index.ID `json:"id"`
	Name   string   `json:"name"`
	Bucket string   `json:"bucket"`
	Availability
}

// Restored tells of the newest restore of a backup.
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
	// NotReady is what keeps it from being ready, as a full disk; empty when it is ready, or does not answer.
	NotReady []wire.Reason `json:"not_ready,omitempty"`
	// ServerID is its Raft id: the name and a random suffix that goes with its data folder.
	ServerID string `json:"server_id"`
	// Lag is how many log entries it lacks, as the leader sees it.
	Lag uint64 `json:"lag,omitempty"`
	// Problem says what is wrong with it, and the way out.
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
	// Mutations, Deletions and Errors count since its process began: documents evaluated, deletions routed, index entries
	// left out because of an error.
	Mutations uint64 `json:"mutations"`
	Deletions uint64 `json:"deletions"`
	Errors    uint64 `json:"errors"`
	// Unreachable is why it does not answer the leader at Admin, for more than 5 s, although it may report; empty:
	// it does.
	Unreachable string `json:"unreachable,omitempty"`
	// KV are the buckets about which it cannot ask its KV node.
	KV []KVTrouble `json:"kv,omitempty"`
}

// KVTrouble is that a projector cannot reach its KV node, or is not let in.
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
	Role     string       `json:"role"`     // serving; leaving: it is to hold nothing in the end; lost: it is away
	Bytes    uint64       `json:"bytes"`    // on disk, of its copies
	Capacity uint32       `json:"capacity"` // share of copies that it is to have beside the others
	Admin    string       `json:"admin"`
	Scan     string       `json:"scan"`
	State    string       `json:"state"` // active, suspect, offline
	// OfflineSinceMS is since when it has been offline, unix milliseconds, by the wall clock of the leader then;
	// OfflineForMS is for how long, which no change of the leader and no step of a clock moves. RepairInMS is after how
	// long what it has is made anew elsewhere if it stays away, 0: it is time; absent: it is not to be.
	OfflineSinceMS int64  `json:"offline_since_ms,omitempty"`
	OfflineForMS   int64  `json:"offline_for_ms,omitempty"`
	RepairInMS     *int64 `json:"repair_in_ms,omitempty"`

	Copies int `json:"copies"` // that it has, as it has told this leader
	Placed int `json:"placed"` // copies that have their place on it
	// Unreachable is why it does not answer the leader at Admin, for more than 5 s, although it may report; empty:
	// it does.
	Unreachable string `json:"unreachable,omitempty"`
	Health      string `json:"health,omitempty"`
	Revision    uint64 `json:"revision"`
	// QueueBytes is what waits to be written, over all buckets; QueueLimit the most that may.
	QueueBytes uint64 `json:"queue_bytes"`
	QueueLimit uint64 `json:"queue_limit"`
	// Orphans are slices in its folder that the cluster does not know: the oldest 64 of OrphanCount.
	Orphans     []Orphan `json:"orphans,omitempty"`
	OrphanCount int      `json:"orphan_count,omitempty"`
	// DifferingCopies counts its copies that it has found to differ from the KV data and not to agree since. Of those that
	// DifferingOmitted counts, beyond the first 64 by number, there are no events of kind difference yet.
	DifferingCopies  int `json:"differing_copies,omitempty"`
	DifferingOmitted int `json:"differing_omitted,omitempty"`
	// Evicting: it is being removed, and EvictionWaits says why it does not go on.
	Evicting      bool   `json:"evicting,omitempty"`
	EvictionWaits string `json:"eviction_waits,omitempty"`
}

// Orphan is a slice in an indexer's folder that the cluster does not know. It is kept until it is known again, as after
// a restore, or dropped when its grace is over.
type Orphan struct {
	Copy    index.CopyID  `json:"copy"`
	Index   index.ID      `json:"index"` // 0: the folder is damaged
	Slice   index.SliceID `json:"slice"`
	Bucket  string        `json:"bucket"`
	Bytes   uint64        `json:"bytes"`    // on disk
	SinceMS int64         `json:"since_ms"` // Unix time
	LeftMS  int64         `json:"left_ms"`  // of its grace; 0: over, -1: it is kept for ever
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
	StreamsMissing  int    `json:"streams_missing"` // vbuckets that nobody streams now
	// Stuck are those of them that have had no stream for longer than 10 s although one is wanted, at most 16.
	Stuck []StuckVBucket `json:"stuck,omitempty"`
	// StabilityAgeMS is how long ago the newest stability timestamp was promoted, as long as some manager led; absent
	// before the first one, and where the leader does not answer.
	StabilityAgeMS *int64 `json:"stability_age_ms,omitempty"`
	Lag            uint64 `json:"lag"`           // complete seqnos above it, over all vbuckets
	ScansWaiting   int    `json:"scans_waiting"` // for a newer one
	Rollback       string `json:"rollback,omitempty"`
	// RollbackForMS is for how long the leader has seen the rollback's present step under way; 0 without one.
	RollbackForMS int64 `json:"rollback_for_ms,omitempty"`
}
