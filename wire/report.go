package wire

import (
	"tidemark/index"
	"tidemark/timestamp"
)

// RegisterIndexer makes an indexer known (IM-10). POST /v1/cluster/indexers on any manager. Code BOOT_CONFLICT (409)
// when another process with the same uuid is alive, NODE_REMOVED (410) when it was removed and its folder has to be
// deleted.
type RegisterIndexer struct {
	ClusterID string   `json:"cluster_id"` // "" the first time
	Endpoint  Endpoint `json:"endpoint"`   // Node is ignored
}

// RegisterProjector makes a projector known. POST /v1/cluster/projectors on any manager.
type RegisterProjector struct {
	ClusterID string            `json:"cluster_id"` // "" unless configured
	Endpoint  ProjectorEndpoint `json:"endpoint"`
}

// LeaveProjector takes a projector's registration back: it has ended for good, as its KV node has left. POST
// /v1/cluster/projectors:leave on any manager; the answer is OK, also when it has gone already, or another process has
// registered under its id since.
type LeaveProjector struct {
	ClusterID string            `json:"cluster_id"`
	ID        index.ProjectorID `json:"id"`
	BootID    string            `json:"boot_id"`
}

// RegisterReply tells a component who it is and whom to obey: a projector that starts accepts no fence below this one.
type RegisterReply struct {
	ClusterID string       `json:"cluster_id"`
	Node      index.NodeID `json:"node"` // indexers only
	Fence     Fence        `json:"fence"`
	Leader    Leader       `json:"leader"`
}

// StreamStates is what a projector streams of one bucket, or what of it changed.
type StreamStates struct {
	Bucket     string        `json:"bucket"`
	BucketUUID string        `json:"bucket_uuid"`
	Full       bool          `json:"full"` // everything it streams; vbuckets not listed are not streamed
	Streams    []StreamState `json:"streams"`
	// Moved are streams of which nothing but Complete is news, packed: Move adds one, Expand makes entries of them. Each
	// has its incarnation, so that nothing has to be known of what was told before: who knows a stream of it as the
	// vbucket's owner takes its complete seqno.
	Moved []byte `json:"moved,omitempty"`

	moving *rowWriter[index.Incarnation]
	// Dropping are the indexers that are not sent some of these streams' data, as their queues here are full and smart
	// throttling has given them up, or they cannot be reached (RT-8): all of them, in every report. They do not know so
	// before DropData and BEGIN come, with which it ends.
	Dropping []index.NodeID `json:"dropping,omitempty"`
	// Hosted is what the KV node has; nil: as told before, or it has not been seen yet.
	Hosted *Hosted `json:"hosted,omitempty"`
}

// StreamState is the level state of one vbucket's maintenance stream. In CBOR it is an array.
type StreamState struct {
	_           struct{}              `cbor:",toarray"`
	VBucket     uint16                `json:"vbucket"`
	Incarnation index.Incarnation     `json:"incarnation"`
	Complete    uint64                `json:"complete"` // newest seqno that ends a DCP snapshot
	Ended       bool                  `json:"ended"`    // the stream of that incarnation is over
	Log         timestamp.FailoverLog `json:"log"`      // nil: as told before
	Purge       uint64                `json:"purge"`    // KV has forgotten deletions at or below
	Revision    timestamp.MapRevision `json:"revision"` // of the vbucket map under which it began
}

// Hosted is what a projector's KV node has as active of a bucket, streamed or not, and the vbucket map under which it
// says so. A stream of another node's under an older map is none any more, though that node may hang and never say so.
type Hosted struct {
	Node     string                `json:"node"` // the KV node's own name in the map: several projectors may stand at it
	Revision timestamp.MapRevision `json:"revision"`
	VBuckets []uint16              `json:"vbuckets"` // ascending
}

// ProjectorReport is a projector's level state (SYNC included, PR-18). POST /v1/components/{id}/reports at once on
// begin, end and rollback, else every 100 ms while there is news, and every 400 ms at rest. Sequence rises with every
// report of a boot id.
type ProjectorReport struct {
	ID        index.ProjectorID `json:"id"`
	BootID    string            `json:"boot_id"`
	ClusterID string            `json:"cluster_id"`
	Sequence  uint64            `json:"sequence"`
	Revision  uint64            `json:"revision"` // definitions revision it works with
	Buckets   []StreamStates    `json:"buckets"`
	Counters  ProjectorCounters `json:"counters"`
	// Base is the sequence of the newest report that was answered, of which this one has what has changed since; 0 when
	// it has everything.
	Base uint64 `json:"base,omitempty"`
	// Faults are of the indexes with most of them, when FaultsToo; else they are as told before. FaultsOmitted counts the
	// indexes that they leave out.
	FaultsToo     bool          `json:"faults_too,omitempty"`
	Faults        []IndexFaults `json:"faults,omitempty"`
	FaultsOmitted int           `json:"faults_omitted,omitempty"`
	// Evaluation has the indexes that it cannot evaluate; nil: as told before, or it has no definitions yet.
	Evaluation *Evaluation `json:"evaluation,omitempty"`
	// KV are the buckets about which the KV node cannot be asked, ascending; all of them in every report.
	KV []KVTrouble `json:"kv,omitempty"`
}

// KVTrouble is that a KV node cannot be reached, or does not let its client in.
type KVTrouble struct {
	Bucket  string `json:"bucket"`
	Node    string `json:"node"` // host:port
	Error   string `json:"error"`
	SinceMS int64  `json:"since_ms"` // unix milliseconds, of the projector's clock
}

// Evaluation is what a projector makes of definitions.
type Evaluation struct {
	Revision uint64 `json:"revision"` // of the definitions
	Rules    uint32 `json:"rules"`    // expression.Rules of its version
	// Indexes are those that it cannot evaluate, in whatever state: first those that are not in state error. More: there
	// are more.
	Indexes []Unevaluated `json:"indexes,omitempty"`
	More    bool          `json:"more,omitempty"`
}

// Unevaluated is an index of which a projector makes no entries, and why.
type Unevaluated struct {
	Index index.ID `json:"index"`
	Error string   `json:"error"`
}

// MaxUnevaluated bounds the indexes of one Evaluation.
const MaxUnevaluated = 256

// Whole reports whether r has everything, whatever was taken before.
func (r *ProjectorReport) Whole() bool { return r.Base == 0 }

// HWHeartbeat is what an indexer has of one bucket (IM-16): in its report, or by what has changed (BucketChange).
type HWHeartbeat struct {
	Bucket   string           `json:"bucket"`
	IndexIDs []index.ID       `json:"index_ids"`
	HW       timestamp.Vector `json:"hw"`
	// hash of what a crash would leave: what is written of every copy, the least of them
	LastPersistence uint64 `json:"last_persistence,string"`
	// hash of the newest stability timestamp behind which nothing is under way, for copies that are being built either
	LastStability uint64 `json:"last_stability,string"`
	// its number, which a recovery changes
	LastNumber    uint64 `json:"last_stability_number"`
	MutationQueue uint64 `json:"mutation_queue"` // bytes in the queue
	QueueLimit    uint64 `json:"queue_limit"`    // bytes
}

// Accepted is the stream an indexer accepts per vbucket, beside the heartbeat: parallel slices by entry.
type Accepted struct {
	VBuckets     []uint16            `json:"vbuckets"`
	Incarnations []index.Incarnation `json:"incarnations"`
	Projectors   []index.ProjectorID `json:"projectors"`
	Open         []bool              `json:"open"` // false: nothing is accepted until the next BEGIN
}

// CopyReport is the state of one copy on an indexer.
type CopyReport struct {
	Copy  index.CopyID `json:"copy"`
	Index index.ID     `json:"index"`
	// Ready: it has been exact at a stability timestamp at or above all its floors; Held is the newest such one.
	Ready bool         `json:"ready"`
	Held  StabilityRef `json:"held"`
	Done  uint64       `json:"done"`  // seqnos covered by the side stream, sum over vbuckets
	Total uint64       `json:"total"` // sum of the activation timestamps
	Items uint64       `json:"items"` // entries
	Bytes uint64       `json:"bytes"` // on disk
	// WriteRate is how many entries are written, changed or removed in a second, ReadRate how many scans read; to a
	// sixteenth, over some 15 s.
	WriteRate uint64 `json:"write_rate,omitempty"`
	ReadRate  uint64 `json:"read_rate,omitempty"`
	// Received is how much is here of the files that another indexer sends, Expected how much they are; 0: none are sent.
	Received uint64 `json:"received,omitempty"`
	Expected uint64 `json:"expected,omitempty"`
	Error    string `json:"error,omitempty"`
	// Compared: it was compared with the KV data since the process began. Before that it is not known of one that is not
	// listed as differing whether it does.
	Compared bool `json:"compared,omitempty"`
}

// BucketReport is an indexer's level state of one bucket.
type BucketReport struct {
	Heartbeat  HWHeartbeat      `json:"heartbeat"`
	Generation uint64           `json:"generation"`
	RollbackID uint64           `json:"rollback_id"`
	Accepted   Accepted         `json:"accepted"`
	Persistent timestamp.Vector `json:"persistent"` // would survive a crash now
	Acks       []Ack            `json:"acks"`       // since the last report that was answered, newest last
	// Backfill is the smallest side position of its copies of indexes that are being built; no vbuckets without any.
	Backfill timestamp.Vector `json:"backfill,omitzero"`
}

// MaxDifferingCopies bounds the copies that one indexer tells to differ from the KV data.
const MaxDifferingCopies = 64

// CopyDifference tells that a copy differs from the KV data.
type CopyDifference struct {
	Index index.ID     `json:"index"`
	Copy  index.CopyID `json:"copy"`
	// Documents is how many documents differ, as far as the newest comparison remembers; Kind is that of the first.
	Documents uint32         `json:"documents"`
	Kind      DifferenceKind `json:"kind"`
	TakenAnew bool           `json:"taken_anew"` // their vbuckets are streamed again
}

// IndexerReport is an indexer's level state. POST /v1/components/{id}/reports at once on begin, end, and made or
// skipped stability timestamps, else every 100 ms while there is news, and every 400 ms at rest. With a base, only
// buckets and copies that changed are listed: what is left out is as it was in that one.
type IndexerReport struct {
	Node      index.NodeID `json:"node"`
	UUID      string       `json:"uuid"`
	BootID    string       `json:"boot_id"`
	ClusterID string       `json:"cluster_id"`
	Sequence  uint64       `json:"sequence"`
	Revision  uint64       `json:"revision"`         // definitions revision it has allocated copies for
	Health    string       `json:"health,omitempty"` // "" well, else what is wrong: "disk full: …"
	// Buckets do not travel: ReportSender.Make and Shorten turn them into Changes.
	Buckets []BucketReport `json:"buckets" cbor:"-"`
	Copies  []CopyReport   `json:"copies"`
	// Orphans are copies in its folder that no definitions name, the oldest MaxOrphans of OrphanCount. They are in every
	// report.
	Orphans     []Orphan `json:"orphans,omitempty"`
	OrphanCount int      `json:"orphan_count,omitempty"`
	// Faults are of documents with keys that cannot be stored here, of the indexes with most of them, in every report.
	// FaultsOmitted counts the indexes that they leave out.
	Faults        []IndexFaults `json:"faults,omitempty"`
	FaultsOmitted int           `json:"faults_omitted,omitempty"`
	// Differing are copies that were found to differ from the KV data and not to agree since, the first
	// MaxDifferingCopies of them by number, in every report. DifferingOmitted counts those that they leave out.
	Differing        []CopyDifference `json:"differing,omitempty"`
	DifferingOmitted int              `json:"differing_omitted,omitempty"`
	// HeldHash is that of the newest list of held timestamps it has, 0 none.
	HeldHash uint64 `json:"held_hash,string,omitempty"`
	// Base is the sequence of the newest report that was answered, of which Changes tell the differences; 0 when it has
	// everything. A leader whose newest report is another one takes nothing of them and asks for a full report.
	Base    uint64         `json:"base,omitempty"`
	Changes []BucketChange `json:"changes,omitempty"`
}

// Whole reports whether r has everything, whatever was taken before.
func (r *IndexerReport) Whole() bool { return r.Base == 0 }

// LastAcks is the newest acknowledgement that r tells of each bucket, by bucket: those up to it are told when r was
// taken (ReportReply.Took). It is asked before the buckets become changes.
func (r *IndexerReport) LastAcks() map[string]StabilityRef {
	last := map[string]StabilityRef{}
	for i := range r.Buckets {
		b := &r.Buckets[i]
		if n := len(b.Acks); n > 0 {
			last[b.Heartbeat.Bucket] = b.Acks[n-1].StabilityRef
		}
	}
	return last
}

// MaxOrphans bounds the orphans that one report lists.
const MaxOrphans = 64

// Orphan is a copy in an indexer's folder that definitions do not place there and never did as far as the indexer knows
// (IM-8). It is kept, neither served nor fed.
type Orphan struct {
	Copy   index.CopyID  `json:"copy"`
	Index  index.ID      `json:"index"` // 0: the folder is damaged
	Slice  index.SliceID `json:"slice"`
	Bucket string        `json:"bucket"`
	Bytes  uint64        `json:"bytes"` // on disk
	// Unix time by the indexer's clock: found under the present epoch by this process
	SinceMS int64 `json:"since_ms"`
	LeftMS  int64 `json:"left_ms"` // of its grace; 0: it may be dropped, -1: it is kept for ever
}

// Held returns which nodes hold which stability timestamp of an index's copies, for scans.
type Held struct {
	Copy index.CopyID `json:"copy"`
	Node index.NodeID `json:"node"`
	Ref  StabilityRef `json:"ref"`
	OK   bool         `json:"ok"` // its node is active
}

// ReportReply answers a report: what the component should know now.
type ReportReply struct {
	Fence    Fence  `json:"fence"`
	Leader   Leader `json:"leader"`
	Revision uint64 `json:"revision"` // newest definitions revision
	// Known is false when the leader does not know this component (boot id): register again.
	Known bool `json:"known"`
	// Full asks for a full report next.
	Full bool `json:"full"`
	// HW lists the buckets of which the leader wants HW (stability.source heartbeat).
	HW []string `json:"hw,omitempty"`
	// HeldPacked, for indexers only, is PackHeld of what all copies hold; nothing when the report names its HeldHash.
	HeldPacked []byte `json:"held_packed,omitempty"`
	HeldHash   uint64 `json:"held_hash,string,omitempty"`
	// TransferRate, for indexers only, is how many bytes of files a second they send at most; 0: as they were started.
	TransferRate int64 `json:"transfer_rate,omitempty"`
}

// Took reports whether what the report told was taken: else it has to be told again, with everything.
func (a *ReportReply) Took() bool { return a.Known && !a.Full }

// IndexerHello answers a HelloRequest: all that an indexer hosts (IM-8). It is a full report.
type IndexerHello struct {
	Report IndexerReport `json:"report"`
	// Minimum is, per bucket, the highest incarnation below which each vbucket refuses streams.
	Minimum []MinimumIncarnations `json:"minimum"`
}

// MinimumIncarnations is the fence of one bucket's vbuckets on an indexer, by vbucket.
type MinimumIncarnations struct {
	Bucket       string              `json:"bucket"`
	Incarnations []index.Incarnation `json:"incarnations"`
}

// ProjectorHello answers a HelloRequest: all streams that run. It is a full report.
type ProjectorHello struct {
	Report ProjectorReport `json:"report"`
}

// StabilizeRequest asks the leader for a stability timestamp at or above Need as soon as possible (a scan with session
// consistency waits for it). POST /v1/buckets/{bucket}:stabilize on any manager; the answer is a BucketStability. Code
// TIMEOUT (504) when KV does not get there within WaitMS.
type StabilizeRequest struct {
	Need   timestamp.Vector `json:"need"`
	WaitMS int64            `json:"wait_ms"`
}
