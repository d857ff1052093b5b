package wire

import (
	"tidemark/index"
	"tidemark/partition"
	"tidemark/timestamp"
)

// Endpoint is how other components reach an indexer. Data addresses are host:port per stream type (RT-3).
type Endpoint struct {
	Node        index.NodeID `json:"node"`
	UUID        string       `json:"uuid"`
	BootID      string       `json:"boot_id"`
	Name        string       `json:"name"`
	Zone        string       `json:"zone,omitempty"`
	Capacity    uint32       `json:"capacity,omitempty"` // 0 counts as 1
	Admin       string       `json:"admin"`              // base URL
	Scan        string       `json:"scan"`               // host:port
	Maintenance string       `json:"maintenance"`
	Backfill    string       `json:"backfill"`
	Catchup     string       `json:"catchup"`
}

// Bounds of an indexer's zone and capacity.
const (
	MaxZone     = 64 // bytes
	MaxCapacity = 1000
)

// ProjectorEndpoint is how other components reach a projector.
type ProjectorEndpoint struct {
	ID     index.ProjectorID `json:"id"`
	BootID string            `json:"boot_id"`
	Admin  string            `json:"admin"` // base URL
}

// ProjectorProcess lists the projectors of a process that runs one for each KV node of a cluster. GET /v1/projectors.
type ProjectorProcess struct {
	Projectors []ProjectorEndpoint `json:"projectors"`
	Unserved   []UnservedNode      `json:"unserved,omitempty"`
}

// UnservedNode is a KV node that has no projector in that process.
type UnservedNode struct {
	Node  string `json:"node"`
	Error string `json:"error"`
}

// ManagerEndpoint is how other components reach a manager.
type ManagerEndpoint struct {
	ID   string `json:"id"`
	REST string `json:"rest"` // base URL
}

// Bucket is a bucket as recorded in the StateContext.
type Bucket struct {
	Name       string `json:"name"`
	UUID       string `json:"uuid"`
	VBuckets   int    `json:"vbuckets"`
	Generation uint64 `json:"generation"` // rises when the bucket is re-created or rebuilt
	RollbackID uint64 `json:"rollback_id"`
	InRollback bool   `json:"in_rollback,omitempty"`
}

// HelloRequest is the first message of a new leader to a component (IM-7, IM-8). PUT /v1/hello.
type HelloRequest struct {
	Fence    Fence             `json:"fence"`
	Leader   Leader            `json:"leader"`
	Managers []ManagerEndpoint `json:"managers"`
}

// Definitions is the part of the StateContext that projectors and indexers need, as of a definitions revision
// (IM-11). PUT /v1/definitions; the answer is DefinitionsReply. A lower revision is refused, an equal one is a retry.
type Definitions struct {
	Fence      Fence                `json:"fence"`
	Revision   uint64               `json:"revision"`
	Buckets    []Bucket             `json:"buckets"`
	Indexes    []index.Definition   `json:"indexes"`    // every state but gone, ascending by id
	Topologies []partition.Topology `json:"topologies"` // of those indexes, ascending by index
	Indexers   []Endpoint           `json:"indexers"`   // ascending by node
	Projectors []ProjectorEndpoint  `json:"projectors"`
	Managers   []ManagerEndpoint    `json:"managers"`
}

// DefinitionsReply reports the revision that the component has in force.
type DefinitionsReply struct {
	Revision uint64 `json:"revision"`
	// Missing is set if the component does not have the list that the change is based on. Nothing was applied; the
	// sender has to send the full list.
	Missing bool `json:"missing,omitempty"`
}

// BucketRequest asks a projector about a bucket of its KV nodes. POST /v1/bucket. Errors: BUCKET_NOT_IN_KV (404) for
// an unknown bucket, KV_UNAVAILABLE (503) if the KV cluster does not answer, ANOTHER_PROCESS.
type BucketRequest struct {
	Bucket string `json:"bucket"`
	Boot   string `json:"boot,omitempty"` // boot id of the process that is asked; "": of any
	// Collections requests the bucket's collections, too.
	Collections bool `json:"collections,omitempty"`
}

// BucketReply describes a bucket.
type BucketReply struct {
	Name     string                `json:"name"`
	UUID     string                `json:"uuid"`
	VBuckets int                   `json:"vbuckets"`
	Revision timestamp.MapRevision `json:"revision"`
	// Collections is set if it was requested. It is nil if KV does not have collections.
	Collections *Collections `json:"collections,omitempty"`
}

// Collections are the collections of a bucket as of a manifest.
type Collections struct {
	UID uint64       `json:"uid"`
	All []Collection `json:"all"`
}

// Collection is one collection of a bucket.
type Collection struct {
	Scope string `json:"scope"`
	Name  string `json:"name"`
	ID    uint32 `json:"id"`
	// Flushed is the uid of the manifest that last emptied the collection, 0 for never.
	Flushed uint64 `json:"flushed,omitempty"`
}

// FailoverLogsRequest asks a projector for the failover logs of the vbuckets that its KV nodes host as active. An
// empty list means all of them. POST /v1/failoverlogs.
type FailoverLogsRequest struct {
	Fence    Fence    `json:"fence"`
	Bucket   string   `json:"bucket"`
	VBuckets []uint16 `json:"vbuckets,omitempty"`
}

// VBucketHistory is KV's history of one vbucket: its failover log, and the range of seqnos that KV still has.
type VBucketHistory struct {
	VBucket  uint16                `json:"vbucket"`
	Log      timestamp.FailoverLog `json:"log"`
	High     uint64                `json:"high"`  // seqno
	Purge    uint64                `json:"purge"` // KV has purged deletions at or below it
	Revision timestamp.MapRevision `json:"revision"`
}

// FailoverLogsReply lists only the vbuckets that the projector's KV nodes host.
type FailoverLogsReply struct {
	Logs []VBucketHistory `json:"logs"`
}

// SeqnosRequest asks a projector for KV's current high seqnos of the vbuckets hosted there, for session consistency.
// POST /v1/seqnos.
type SeqnosRequest struct {
	Bucket string `json:"bucket"`
	// Map requests the current revision of the KV node's vbucket map, too. If two nodes claim a vbucket, the revision
	// decides which one is right.
	Map bool `json:"map,omitempty"`
}

// SeqnosReply lists hosted vbuckets only, in parallel slices. Each vbuuid is that of KV's current branch.
type SeqnosReply struct {
	VBuckets []uint16              `json:"vbuckets"`
	VBUUIDs  []uint64              `json:"vbuuids"`
	Seqnos   []uint64              `json:"seqnos"`
	Revision timestamp.MapRevision `json:"revision,omitzero"` // if requested
}

// SyncRequest asks a projector for a fresh report on one bucket, at once, so that the next stability timestamp can be
// promoted without waiting. If Want is set (a seqno per vbucket), the projector answers as soon as its streams have
// reached it, at the latest after WaitMS. POST /v1/sync; the answer is a ProjectorReport of that bucket.
type SyncRequest struct {
	Fence  Fence    `json:"fence"`
	Bucket string   `json:"bucket"`
	Want   []uint64 `json:"want,omitempty"`
	WaitMS int64    `json:"wait_ms,omitempty"`
}

// PollRequest asks an indexer for its positions in some vbuckets and fences incarnations older than the given one
// (IM-21). POST /v1/poll.
type PollRequest struct {
	Fence       Fence             `json:"fence"`
	Bucket      string            `json:"bucket"`
	VBuckets    []uint16          `json:"vbuckets"`
	Incarnation index.Incarnation `json:"incarnation"`
}

// PollPosition is an indexer's position in one vbucket. Participant is false where the indexer recovers by itself.
type PollPosition struct {
	VBucket     uint16                `json:"vbucket"`
	Participant bool                  `json:"participant"`
	HW          uint64                `json:"hw"`    // smallest position of its whole slices, including queued events
	Reach       uint64                `json:"reach"` // highest seqno, window end or floor it may reflect
	Log         timestamp.FailoverLog `json:"log"`
	Revision    timestamp.MapRevision `json:"revision"`
}

// PollReply has the requested positions in packed form. AnswerPoll encodes it, Positions decodes it.
type PollReply struct {
	Packed []byte `json:"packed"`
}

// StabilityRequest publishes the newest stability timestamps of all buckets that concern the indexer in one message
// (IM-15), in full or as deltas against those sent before. PUT /v1/stability.
type StabilityRequest struct {
	Fence       Fence             `json:"fence"`
	Stabilities []BucketStability `json:"stabilities"`
	Deltas      []StabilityDelta  `json:"deltas,omitempty"`
	// Base is not sent. It holds the timestamps that the receiver probably has from another leader. A sender that has
	// nothing newer encodes deltas against them.
	Base []BucketStability `json:"-"`
}

// StabilityReply names the buckets for which an indexer lacks the base of a delta. The sender has to send them in
// full.
type StabilityReply struct {
	Missing []string `json:"missing,omitempty"`
}

// RollbackRequest orders a rollback step of an indexer (IM-23). PUT /v1/rollback. Step is "prepare" (report what
// would be restored) or "rollback" (restore it).
type RollbackRequest struct {
	Fence       Fence                   `json:"fence"`
	Bucket      string                  `json:"bucket"`
	Generation  uint64                  `json:"generation"`
	RollbackID  uint64                  `json:"rollback_id"`
	Step        string                  `json:"step"`
	Logs        []timestamp.FailoverLog `json:"logs"`
	Incarnation index.Incarnation       `json:"incarnation"` // of the next streams; a newer one already accepted wins
}

// RollbackReply is the indexer's answer. The answer to "prepare" has the timestamp that the indexer would restore.
type RollbackReply struct {
	RollbackID uint64 `json:"rollback_id"`
	Stale      bool   `json:"stale"` // the indexer has a newer failover log: start again
	// Restart is by vbucket. It is timestamp.Infinity where the indexer does not participate, and empty if the indexer
	// has nothing of the bucket.
	Restart []uint64 `json:"restart,omitempty"`
}

// DropOrphans informs an indexer that the StateContext does not place these copies on it. The indexer drops those
// that are orphans and whose grace period has ended, and keeps the others (IM-8). POST /v1/orphans:drop.
type DropOrphans struct {
	Fence  Fence       `json:"fence"`
	Copies []OrphanRef `json:"copies"`
}

// OrphanRef identifies an orphan. The same copy id with another index id is another orphan.
type OrphanRef struct {
	Copy  index.CopyID `json:"copy"`
	Index index.ID     `json:"index"`
}

// DropOrphansReply lists the orphans that were dropped.
type DropOrphansReply struct {
	Dropped []OrphanRef `json:"dropped"`
}

// OK is the empty answer.
type OK struct{}

// RegisterManager registers a manager with the leader: to be added to the cluster (New), or to update its addresses.
// The leader answers OK, or NODE_REMOVED if the manager was removed from the cluster.
type RegisterManager struct {
	ClusterID   string `json:"cluster_id,omitempty"` // "" when it has none
	ID          string `json:"id"`                   // Raft server id
	Name        string `json:"name"`
	REST        string `json:"rest"` // base URL
	Raft        string `json:"raft"` // host:port
	FormatLevel uint64 `json:"format_level"`
	New         bool   `json:"new,omitempty"`   // it is no member yet, as far as it knows, and asks to be added
	Epoch       uint64 `json:"epoch,omitempty"` // of its state; the leader does not add one of another epoch
}
