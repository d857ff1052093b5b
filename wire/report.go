package wire

import (
	"tidemark/index"
	"tidemark/timestamp"
)

// RegisterIndexer registers an indexer (IM-10). POST /v1/cluster/indexers on any manager. Errors: BOOT_CONFLICT (409)
// if another process with the same uuid is alive, NODE_REMOVED (410) if the indexer was removed and its folder has to
// be deleted.
type RegisterIndexer struct {
	ClusterID string   `json:"cluster_id"` // "" the first time
	Endpoint  Endpoint `json:"endpoint"`   // Node is ignored
}

// RegisterProjector registers a projector. POST /v1/cluster/projectors on any manager.
type RegisterProjector struct {
	ClusterID string            `json:"cluster_id"` // "" unless configured
	Endpoint  ProjectorEndpoint `json:"endpoint"`
}

// LeaveProjector unregisters a projector that has ended for good because its KV node has left. POST
// /v1/cluster/projectors:leave on any manager. The answer is OK, also if it was unregistered already, or if another
// process has registered under its id since.
type LeaveProjector struct {
	ClusterID string            `json:"cluster_id"`
	ID        index.ProjectorID `json:"id"`
	BootID    string            `json:"boot_id"`
}

// RegisterReply has the identity of the component, and the leader. A starting projector accepts no fence below Fence.
type RegisterReply struct {
	ClusterID string       `json:"cluster_id"`
	Node      index.NodeID `json:"node"` // indexers only
	Fence     Fence        `json:"fence"`
	Leader    Leader       `json:"leader"`
}

// StreamStates is the state, or the changes, of a projector's streams of one bucket.
type StreamStates struct {
	Bucket     string        `json:"bucket"`
	BucketUUID string        `json:"bucket_uuid"`
	Full       bool          `json:"full"` // all streams are listed; vbuckets not listed are not streamed
	Streams    []StreamState `json:"streams"`
	// Moved are streams of which only Complete has changed, packed: Move adds one, Expand turns them into entries. Each
	// carries its incarnation, so that it does not depend on earlier reports: a receiver that has a stream of this
	// incarnation as the vbucket's owner takes its complete seqno.
	Moved []byte `json:"moved,omitempty"`

	moving *rowWriter[index.Incarnation]
	// Dropping lists the indexers to which data of some of these streams is being dropped, because their queues here are
	// full and smart throttling has given them up, or because they are unreachable (RT-8). Every report lists all of
	// them. They do not notice before DropData and BEGIN arrive, which end it.
	Dropping []index.NodeID `json:"dropping,omitempty"`
	// Hosted is what the KV node hosts. It is nil if unchanged since the last report, or not known yet.
	Hosted *Hosted `json:"hosted,omitempty"`
}

// StreamState is the level state of one vbucket's maintenance stream. In CBOR it is an array.
type StreamState struct {
	_           struct{}              `cbor:",toarray"`
	VBucket     uint16                `json:"vbucket"`
	Incarnation index.Incarnation     `json:"incarnation"`
	Complete    uint64                `json:"complete"` // newest seqno that ends a DCP snapshot
	Ended       bool                  `json:"ended"`    // the stream of that incarnation has ended
	Log         timestamp.FailoverLog `json:"log"`      // nil: unchanged since the last report
	Purge       uint64                `json:"purge"`    // KV has purged deletions at or below it
	Revision    timestamp.MapRevision `json:"revision"` // of the vbucket map under which the stream began
}

// Hosted is the set of vbuckets of a bucket that are active on a projector's KV node, streamed or not, and the
// revision of the vbucket map that states so. A stream from another node under an older map is void, even if that
// node hangs and never reports its end.
type Hosted struct {
	Node     string                `json:"node"` // the KV node's own name in the map: several projectors may serve it
	Revision timestamp.MapRevision `json:"revision"`
	VBuckets []uint16              `json:"vbuckets"` // ascending
}

// ProjectorReport is a projector's level state (SYNC included, PR-18). POST /v1/components/{id}/reports at once on
// begin, end and rollback, else every 100 ms while there are changes, and every 400 ms at rest. Sequence rises with
// every report of a boot id.
type ProjectorReport struct {
	ID        index.ProjectorID `json:"id"`
	BootID    string            `json:"boot_id"`
	ClusterID string            `json:"cluster_id"`
	Sequence  uint64            `json:"sequence"`
	Revision  uint64            `json:"revision"` // definitions revision in force
	Buckets   []StreamStates    `json:"buckets"`
	Counters  ProjectorCounters `json:"counters"`
	// Base is the sequence of the newest answered report; this report has the changes since. 0: it has everything.
	Base uint64 `json:"base,omitempty"`
	// Faults are those of the indexes with the most faults. It is valid if FaultsToo is set; otherwise faults have not
	// changed since the last report. FaultsOmitted counts the indexes left out.
	FaultsToo     bool          `json:"faults_too,omitempty"`
	Faults        []IndexFaults `json:"faults,omitempty"`
	FaultsOmitted int           `json:"faults_omitted,omitempty"`
	// Evaluation lists the indexes that the projector cannot evaluate. It is nil if unchanged since the last report, or
	// if the projector has no definitions yet.
	Evaluation *Evaluation `json:"evaluation,omitempty"`
	// KV lists the buckets for which the KV node does not answer, ascending; every report has all of them.
	KV []KVTrouble `json:"kv,omitempty"`
	// Unreached lists the first MaxUnreached of the indexers' data ports to which no connection has worked for 5 s,
	// ascending by node and address; every report has all of them. Which of these indexers are away only the leader can
	// judge.
	Unreached []Unreached `json:"unreached,omitempty"`
}

const (
	// MaxUnreached limits the data ports of one report that cannot be reached.
	MaxUnreached = 256
	// MaxUnreachedErrors is how many of these have an error; the first do.
	MaxUnreachedErrors = 16
)

// Unreached describes a data port of an indexer that a projector cannot connect to although it has data for it, or
// that refuses its streams.
type Unreached struct {
	Node    index.NodeID `json:"node"`
	Address string       `json:"address"` // host:port
	Error   string       `json:"error,omitempty"`
	Refused bool         `json:"refused,omitempty"` // the indexer answers there, and refuses; Error is its reason
	SinceMS int64        `json:"since_ms"`          // unix milliseconds, of the projector's clock
}

// KVTrouble describes a KV node that is unreachable, or that refuses its client.
type KVTrouble struct {
	Bucket  string `json:"bucket"`
	Node    string `json:"node"` // host:port
	Error   string `json:"error"`
	SinceMS int64  `json:"since_ms"` // unix milliseconds, of the projector's clock
}

// Evaluation is the outcome of compiling definitions on a projector.
type Evaluation struct {
	Revision uint64 `json:"revision"` // of the definitions
	Rules    uint32 `json:"rules"`    // expression.Rules of the projector's version
	// Indexes are those that the projector cannot evaluate, in any state; those not in state error come first. More is
	// set if the list is cut off.
	Indexes []Unevaluated `json:"indexes,omitempty"`
	More    bool          `json:"more,omitempty"`
}

// Unevaluated is an index for which a projector makes no entries, and the reason.
type Unevaluated struct {
	Index index.ID `json:"index"`
	Error string   `json:"error"`
}

// MaxUnevaluated bounds the indexes of one Evaluation.
const MaxUnevaluated = 256

// Whole reports whether r is a full report, which does not depend on an earlier one.
func (r *ProjectorReport) Whole() bool { return r.Base == 0 }

// HWHeartbeat is the state of one bucket on an indexer (IM-16): in its report, or as changes (BucketChange).
type HWHeartbeat struct {
	Bucket   string           `json:"bucket"`
	IndexIDs []index.ID       `json:"index_ids"`
	HW       timestamp.Vector `json:"hw"`
	// hash of the positions that would survive a crash: what is written to disk, the minimum over all copies
	LastPersistence uint64 `json:"last_persistence,string"`
	// hash of the newest stability timestamp up to which all batches are written, including those of copies being built
	LastStability uint64 `json:"last_stability,string"`
	// number of LastStability, which a recovery changes
	LastNumber    uint64 `json:"last_stability_number"`
	MutationQueue uint64 `json:"mutation_queue"` // bytes in the queue
	QueueLimit    uint64 `json:"queue_limit"`    // bytes
}

// Accepted lists the stream that an indexer accepts for each vbucket, in parallel slices.
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
	// Ready is set once the copy has been exact at a stability timestamp at or above all its floors; Held is the newest
	// such one.
	Ready bool         `json:"ready"`
	Held  StabilityRef `json:"held"`
	Done  uint64       `json:"done"`  // seqnos covered by the side stream, summed over vbuckets
	Total uint64       `json:"total"` // activation timestamps, summed over vbuckets
	Items uint64       `json:"items"` // entries
	Bytes uint64       `json:"bytes"` // on disk
	// WriteRate is the number of entries written, changed or removed per second, ReadRate the number that scans read.
	// Both are precise to a sixteenth, and averaged over some 15 s.
	WriteRate uint64 `json:"write_rate,omitempty"`
	ReadRate  uint64 `json:"read_rate,omitempty"`
	// Received counts the bytes received of the files that another indexer sends, Expected their total; 0: none are
	// sent.
	Received uint64 `json:"received,omitempty"`
	Expected uint64 `json:"expected,omitempty"`
	Error    string `json:"error,omitempty"`
	// Compared is set if the copy was compared with the KV data since the process began. Without it, a copy that is not
	// listed as differing may still differ.
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
	// Backfill is the smallest side position of the copies of indexes that are being built. It has length 0 if there are
	// none.
	Backfill timestamp.Vector `json:"backfill,omitzero"`
}

// MaxDifferingCopies bounds the differing copies that one indexer reports.
const MaxDifferingCopies = 64

// CopyDifference reports that a copy differs from the KV data.
type CopyDifference struct {
	Index index.ID     `json:"index"`
	Copy  index.CopyID `json:"copy"`
	// Documents is the number of documents that differ, as far as the newest comparison recorded them; Kind is that of
	// the first one.
	Documents uint32         `json:"documents"`
	Kind      DifferenceKind `json:"kind"`
	TakenAnew bool           `json:"taken_anew"` // their vbuckets are being streamed again
}

// IndexerReport is an indexer's level state. POST /v1/components/{id}/reports at once on begin, end, and made or
// skipped stability timestamps, else every 100 ms while there are changes, and every 400 ms at rest. With a base,
// only buckets and copies that changed are listed: those left out are as in the base.
type IndexerReport struct {
	Node      index.NodeID `json:"node"`
	UUID      string       `json:"uuid"`
	BootID    string       `json:"boot_id"`
	ClusterID string       `json:"cluster_id"`
	Sequence  uint64       `json:"sequence"`
	Revision  uint64       `json:"revision"`         // definitions revision for which it has allocated copies
	Health    string       `json:"health,omitempty"` // "" if healthy, else the problem: "disk full: …"
	// Room is the number of bytes that new copies may occupy on the disk, beyond its reserve and data in memory; 0: the
	// disk cannot be measured.
	Room uint64 `json:"room,omitempty"`
	// Buckets is not sent: ReportSender.Make and Shorten turn it into Changes.
	Buckets []BucketReport `json:"buckets" cbor:"-"`
	Copies  []CopyReport   `json:"copies"`
	// Orphans are copies in the indexer's folder that no definitions name: the oldest MaxOrphans of OrphanCount. Every
	// report has them.
	Orphans     []Orphan `json:"orphans,omitempty"`
	OrphanCount int      `json:"orphan_count,omitempty"`
	// Faults count documents with keys that cannot be stored here, for the indexes with the most of them. Every report
	// has them. FaultsOmitted counts the indexes left out.
	Faults        []IndexFaults `json:"faults,omitempty"`
	FaultsOmitted int           `json:"faults_omitted,omitempty"`
	// Differing are copies that were found to differ from the KV data and not found to agree since: the first
	// MaxDifferingCopies by number. Every report has them. DifferingOmitted counts those left out.
	Differing        []CopyDifference `json:"differing,omitempty"`
	DifferingOmitted int              `json:"differing_omitted,omitempty"`
	// HeldHash is the hash of the newest list of held timestamps that the indexer has; 0 for none.
	HeldHash uint64 `json:"held_hash,string,omitempty"`
	// Base is the sequence of the newest answered report, from which Changes are the differences; 0 if the report has
	// everything. A leader whose newest report is another one discards the changes and asks for a full report.
	Base    uint64         `json:"base,omitempty"`
	Changes []BucketChange `json:"changes,omitempty"`
}

// Whole reports whether r is a full report, which does not depend on an earlier one.
func (r *IndexerReport) Whole() bool { return r.Base == 0 }

// LastAcks returns the newest acknowledgement in r by bucket. If r was taken (ReportReply.Took), all acknowledgements
// up to it have been delivered. The caller must call it before Make or Shorten turns the buckets into changes.
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

// Orphan is a copy in an indexer's folder that definitions do not place there and never did as far as the indexer
// knows (IM-8). The indexer keeps it, but neither serves it nor applies events to it.
type Orphan struct {
	Copy   index.CopyID  `json:"copy"`
	Index  index.ID      `json:"index"` // 0: the folder is damaged
	Slice  index.SliceID `json:"slice"`
	Bucket string        `json:"bucket"`
	Bytes  uint64        `json:"bytes"` // on disk
	// Unix time on the indexer's clock at which this process found it under the present epoch
	SinceMS int64 `json:"since_ms"`
	LeftMS  int64 `json:"left_ms"` // rest of its grace period; 0: it may be dropped, -1: it is kept forever
}

// Held is the stability timestamp of a copy that a node holds for scans.
type Held struct {
	Copy index.CopyID `json:"copy"`
	Node index.NodeID `json:"node"`
	Ref  StabilityRef `json:"ref"`
	OK   bool         `json:"ok"` // its node is active
}

// ReportReply is the answer to a report, with what the component needs to know now.
type ReportReply struct {
	Fence    Fence  `json:"fence"`
	Leader   Leader `json:"leader"`
	Revision uint64 `json:"revision"` // newest definitions revision
	// Known is false if the leader does not know this component (boot id), which then has to register again.
	Known bool `json:"known"`
	// Full asks for a full report next.
	Full bool `json:"full"`
	// HW lists the buckets for which the leader wants the HW (stability.source heartbeat).
	HW []string `json:"hw,omitempty"`
	// HeldPacked, for indexers only, is PackHeld of the timestamps that all copies hold. It is empty if the report has
	// its HeldHash.
	HeldPacked []byte `json:"held_packed,omitempty"`
	HeldHash   uint64 `json:"held_hash,string,omitempty"`
	// TransferRate, for indexers only, limits the bytes of files that an indexer sends per second; 0: as configured at
	// start.
	TransferRate int64 `json:"transfer_rate,omitempty"`
}

// Took reports whether the leader took the report. If not, the sender has to send a full report.
func (a *ReportReply) Took() bool { return a.Known && !a.Full }

// IndexerHello answers a HelloRequest with everything that an indexer hosts (IM-8). It is a full report.
type IndexerHello struct {
	Report IndexerReport `json:"report"`
	// Minimum lists, per bucket, the incarnation of each vbucket below which the indexer refuses streams.
	Minimum []MinimumIncarnations `json:"minimum"`
}

// MinimumIncarnations is the fence of one bucket on an indexer, by vbucket.
type MinimumIncarnations struct {
	Bucket       string              `json:"bucket"`
	Incarnations []index.Incarnation `json:"incarnations"`
}

// ProjectorHello answers a HelloRequest with all running streams. It is a full report.
type ProjectorHello struct {
	Report ProjectorReport `json:"report"`
}

// StabilizeRequest asks the leader for a stability timestamp at or above Need as soon as possible (a scan with
// session consistency waits for it). POST /v1/buckets/{bucket}:stabilize on any manager; the answer is a
// BucketStability. Code TIMEOUT (504) if KV does not get there within WaitMS.
type StabilizeRequest struct {
	Need   timestamp.Vector `json:"need"`
	WaitMS int64            `json:"wait_ms"`
}
