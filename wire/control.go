package wire

import (
	"tidemark/index"
	"tidemark/partition"
	"tidemark/timestamp"
)

// Endpoint is an indexer as others reach it. Data addresses are host:port per stream type (RT-3).
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

// Bounds of what an indexer says about where it is and how much it takes.
const (
	MaxZone     = 64 // bytes
	MaxCapacity = 1000
)

// ProjectorEndpoint is a projector as others reach it.
type ProjectorEndpoint struct {
	ID     index.ProjectorID `json:"id"`
	BootID string            `json:"boot_id"`
	Admin  string            `json:"admin"` // base URL
}

// ProjectorProcess is what a process says that runs a projector for each KV node of a cluster. GET /v1/projectors.
type ProjectorProcess struct {
	Projectors []ProjectorEndpoint `json:"projectors"`
	Unserved   []UnservedNode      `json:"unserved,omitempty"`
}

// UnservedNode is a KV node that has no projector in that process.
type UnservedNode struct {
	Node  string `json:"node"`
	Error string `json:"error"`
}

// ManagerEndpoint is a manager as others reach it.
type ManagerEndpoint struct {
	ID   string `json:"id"`
	REST string `json:"rest"` // base URL
}

// Bucket is a bucket as the StateContext knows it.
type Bucket struct {
	Name       string `json:"name"`
	UUID       string `json:"uuid"`
	VBuckets   int    `json:"vbuckets"`
	Generation uint64 `json:"generation"` // rises when the bucket is re-created or rebuilt
	RollbackID uint64 `json:"rollback_id"`
	InRollback bool   `json:"in_rollback,omitempty"`
}

// HelloRequest begins a leader's conversation with a component (IM-7, IM-8). PUT /v1/hello.
type HelloRequest struct {
	Fence    Fence             `json:"fence"`
	Leader   Leader            `json:"leader"`
	Managers []ManagerEndpoint `json:"managers"`
}

// Definitions is everything that projectors and indexers must know of the StateContext, as of a definitions revision
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

// DefinitionsReply says what the component has taken over.
type DefinitionsReply struct {
	Revision uint64 `json:"revision"`
	// Missing: nothing was taken over, because the list that was to be changed is not here; it is to be told whole.
	Missing bool `json:"missing,omitempty"`
}

// BucketRequest asks a projector about a bucket of its KV nodes. POST /v1/bucket. An unknown bucket is code
// BUCKET_NOT_IN_KV (404), a KV cluster that cannot be asked KV_UNAVAILABLE (503).
type BucketRequest struct {
	Bucket string `json:"bucket"`
	// Collections asks for the bucket's collections, too.
	Collections bool `json:"collections,omitempty"`
}

// BucketReply describes a bucket.
type BucketReply struct {
	Name     string                `json:"name"`
	UUID     string                `json:"uuid"`
	VBuckets int                   `json:"vbuckets"`
	Revision timestamp.MapRevision `json:"revision"`
	// Collections, when asked for; nil where KV has none.
	Collections *Collections `json:"collections,omitempty"`
}

// Collections are the collections of a bucket as of a manifest.
type Collections struct {
	UID uint64       `json:"uid"`
	All []Collection `json:"all"`
}

// Collection is one of them.
type Collection struct {
	Scope string `json:"scope"`
	Name  string `json:"name"`
	ID    uint32 `json:"id"`
	// Flushed is the uid of the manifest that emptied it last, 0 for never.
	Flushed uint64 `json:"flushed,omitempty"`
}

// FailoverLogsRequest asks a projector for the logs of the vbuckets that its KV nodes host as active; none listed
// means all. POST /v1/failoverlogs.
type FailoverLogsRequest struct {
	Fence    Fence    `json:"fence"`
	Bucket   string   `json:"bucket"`
	VBuckets []uint16 `json:"vbuckets,omitempty"`
}

// VBucketHistory is what KV says of one vbucket: its failover log, and between which seqnos it has its history.
type VBucketHistory struct {
	VBucket  uint16                `json:"vbucket"`
	Log      timestamp.FailoverLog `json:"log"`
	High     uint64                `json:"high"`  // seqno
	Purge    uint64                `json:"purge"` // deletions at or below are forgotten
	Revision timestamp.MapRevision `json:"revision"`
}

// FailoverLogsReply lists only the vbuckets that are hosted here.
type FailoverLogsReply struct {
	Logs []VBucketHistory `json:"logs"`
}

// SeqnosRequest asks a projector for KV's present high seqnos of the vbuckets hosted here, for session consistency.
// POST /v1/seqnos.
type SeqnosRequest struct {
	Bucket string `json:"bucket"`
	// Map: also the revision of the vbucket map that the KV node has now. It tells which of two that claim a vbucket is
	// right.
	Map bool `json:"map,omitempty"`
}

// SeqnosReply lists hosted vbuckets only; the slices run in parallel. A vbuuid is that of the branch on which KV is
// now.
type SeqnosReply struct {
	VBuckets []uint16              `json:"vbuckets"`
	VBUUIDs  []uint64              `json:"vbuuids"`
	Seqnos   []uint64              `json:"seqnos"`
	Revision timestamp.MapRevision `json:"revision,omitzero"` // when it was asked for
}

// SyncRequest asks a projector for a fresh report on one bucket, at once, so that the next stability timestamp can be
// promoted without waiting. When Want is given (a seqno per vbucket) it answers as soon as what it streams has reached
// it, at the latest after WaitMS. POST /v1/sync; the answer is a ProjectorReport of that bucket.
type SyncRequest struct {
	Fence  Fence    `json:"fence"`
	Bucket string   `json:"bucket"`
	Want   []uint64 `json:"want,omitempty"`
	WaitMS int64    `json:"wait_ms,omitempty"`
}

// PollRequest asks an indexer for its positions of some vbuckets and fences incarnations older than the one given
// (IM-21). POST /v1/poll.
type PollRequest struct {
	Fence       Fence             `json:"fence"`
	Bucket      string            `json:"bucket"`
	VBuckets    []uint16          `json:"vbuckets"`
	Incarnation index.Incarnation `json:"incarnation"`
}

// PollPosition is an indexer's position in one vbucket. Participant is false where it recovers by itself.
type PollPosition struct {
	VBucket     uint16                `json:"vbucket"`
	Participant bool                  `json:"participant"`
	HW          uint64                `json:"hw"`    // smallest position of its whole slices, queue included
	Reach       uint64                `json:"reach"` // highest seqno, window end or floor it may reflect
	Log         timestamp.FailoverLog `json:"log"`
	Revision    timestamp.MapRevision `json:"revision"`
}

// PollReply has the positions asked for, packed: AnswerPoll makes it, Positions reads it.
type PollReply struct {
	Packed []byte `json:"packed"`
}

// StabilityRequest publishes the newest stability timestamps of all buckets that concern the indexer in one message
// (IM-15), whole or as changes of the ones told before. PUT /v1/stability.
type StabilityRequest struct {
	Fence       Fence             `json:"fence"`
	Stabilities []BucketStability `json:"stabilities"`
	Deltas      []StabilityDelta  `json:"deltas,omitempty"`
	// Base does not travel: what the receiver is believed to have been told by another leader. A sender that knows nothing
	// newer tells changes of it.
	Base []BucketStability `json:"-"`
}

// StabilityReply names the buckets of which an indexer does not have what a delta changes: they are to be sent whole.
type StabilityReply struct {
	Missing []string `json:"missing,omitempty"`
}

// RollbackRequest tells an indexer of a rollback step (IM-23). PUT /v1/rollback. Step is "prepare" (answer with what
// would be restored) or "rollback" (do it).
type RollbackRequest struct {
	Fence       Fence                   `json:"fence"`
	Bucket      string                  `json:"bucket"`
	Generation  uint64                  `json:"generation"`
	RollbackID  uint64                  `json:"rollback_id"`
	Step        string                  `json:"step"`
	Logs        []timestamp.FailoverLog `json:"logs"`
	Incarnation index.Incarnation       `json:"incarnation"` // that follows; a newer one already accepted wins
}

// RollbackReply is the indexer's answer. That to "prepare" has the timestamp that the indexer would restore.
type RollbackReply struct {
	RollbackID uint64 `json:"rollback_id"`
	Stale      bool   `json:"stale"` // it knows a newer failover log: start again
	// Restart is by vbucket; timestamp.Infinity where the indexer takes no part, and empty where it has nothing of the
	// bucket.
	Restart []uint64 `json:"restart,omitempty"`
}

// DropOrphans tells an indexer that the StateContext does not place these copies on it: those that are orphans there
// and whose grace is over are dropped, the others are left alone (IM-8). POST /v1/orphans:drop.
type DropOrphans struct {
	Fence  Fence       `json:"fence"`
	Copies []OrphanRef `json:"copies"`
}

// OrphanRef names an orphan; a copy of another index is another one.
type OrphanRef struct {
	Copy  index.CopyID `json:"copy"`
	Index index.ID     `json:"index"`
}

// DropOrphansReply lists what is gone.
type DropOrphansReply struct {
	Dropped []OrphanRef `json:"dropped"`
}

// OK is the empty answer.
type OK struct{}

// RegisterManager is what a manager says of itself to the leader: to be added to the cluster (New), or to have its
// addresses noted. The leader's answer is OK; a manager that was a member and is none is told NODE_REMOVED.
type RegisterManager struct {
	ClusterID   string `json:"cluster_id,omitempty"` // "" when it has none
	ID          string `json:"id"`                   // Raft server id
	Name        string `json:"name"`
	REST        string `json:"rest"` // base URL
	Raft        string `json:"raft"` // host:port
	FormatLevel uint64 `json:"format_level"`
	New         bool   `json:"new,omitempty"`   // it was no member yet, as far as it knows, and asks to be added
	Epoch       uint64 `json:"epoch,omitempty"` // as far as its state goes; of another one it is not added
}
