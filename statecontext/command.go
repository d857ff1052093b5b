package statecontext

import (
	"tidemark/index"
	"tidemark/partition"
	"tidemark/timestamp"
)

// Command is one change that the leader proposes. One Raft entry may hold several commands (see Encode).
type Command struct {
	// TimeMS is the state time stamped by the proposer (see Clock); the state time never falls below it.
	TimeMS int64
	// WallMS is the proposer's wall clock in unix milliseconds. It is for display and calendar dates only; no age is
	// computed from it.
	WallMS int64
	// Request identifies the user's request; nil for the cluster's own commands. A Key makes the outcome exactly-once
	// within the ledger's window. Rejections are outcomes, too, except those that pass by themselves (Code.Passing) and
	// those made before the command was examined: a retry of these may succeed.
	Request *Request
	Body    Body
}

// Request identifies a user's request, so that every retry gets the same outcome.
type Request struct {
	Principal string   // the authenticated user, at most MaxKeyBytes
	Key       string   // Idempotency-Key, at most MaxKeyBytes; "": nothing is remembered, and BodyHash is not kept
	BodyHash  [32]byte // hash of the request body: the same key with another body is rejected
}

// keyed reports whether the outcome of the request is remembered.
func (r *Request) keyed() bool { return r != nil && r.Key != "" }

// Body is implemented by the command types below.
type Body interface {
	kind() kind
	append(dst []byte) []byte
	apply(t *tx) *Rejection
}

// kind is the number of a command type in the encoding. A number is never reused.
type kind uint8

const (
	kindBootstrapCluster     kind = 1
	kindLeaderStarted        kind = 2
	kindRegisterManager      kind = 3
	kindRegisterProjector    kind = 4
	kindRegisterIndexer      kind = 5
	kindRemoveManager        kind = 6
	kindRemoveProjector      kind = 7
	kindRemoveIndexer        kind = 8
	kindSetBucket            kind = 9
	kindBucketGone           kind = 10
	kindCreateIndex          kind = 11
	kindBuildIndexes         kind = 12
	kindDropIndex            kind = 13
	kindSetIndexState        kind = 14
	kindAllocateCopies       kind = 15
	kindForgetCopies         kind = 16
	kindRemoveIndex          kind = 17
	kindAdvanceStability     kind = 18
	kindSetBackfillTimestamp kind = 19
	kindSetRollbackStep      kind = 20
	kindSetFormatLevel       kind = 21
	kindSetLimits            kind = 22
	kindRaiseEpoch           kind = 23
	kindPutUser              kind = 24
	kindRemoveUser           kind = 25
	kindPutToken             kind = 26
	kindRemoveToken          kind = 27
	kindBeginRestore         kind = 30
	kindRestoreChunk         kind = 31
	kindFinishRestore        kind = 32
	kindAbortRestore         kind = 33
	kindEvictIndexer         kind = 40
	kindSetBucketSettings    kind = 41
	kindEvictCopies          kind = 42
	kindRollbackLogs         kind = 43
	kindStartRebalance       kind = 50
	kindStepRebalance        kind = 51
	kindCancelRebalance      kind = 52
	kindEndRebalance         kind = 53
	kindSetIndexerGoing      kind = 54
	kindAlterIndex           kind = 55
	kindNoteDifference       kind = 56
	kindSplitIndex           kind = 57
	kindByName               kind = 58
	kindCancelSplit          kind = 59
	kindSetAutoSplit         kind = 60
	kindNoteAbsences         kind = 61
	kindBeginRemoval         kind = 62

	kindReserved kind = 255
)

// BootstrapCluster sets the id of the cluster, once. Rejections: AlreadyBootstrapped, InvalidArgument,
// FormatNotAllowed.
type BootstrapCluster struct {
	ClusterID   string
	Epoch       uint64 // at least 1
	FormatLevel uint64 // 0 counts as 1
	Limits      Limits // zero fields: defaults
}

// LeaderStarted begins a term. It is the first command of every leader, even before BootstrapCluster. It registers
// the manager as RegisterManager does, with the same rejections, and StaleTerm.
type LeaderStarted struct {
	Term    uint64
	Manager Manager // ModifiedCAS is ignored
}

// RegisterManager adds or updates an index manager. If nothing changes, it is not an update. Rejections:
// InvalidArgument, LimitExceeded, FormatNotAllowed if the manager's version is older than the cluster's level.
type RegisterManager struct{ Manager Manager }

// RegisterProjector adds or updates a projector. If nothing changes, it is not an update. Rejections:
// InvalidArgument, LimitExceeded.
type RegisterProjector struct{ Projector Projector }

// RegisterIndexer adds or updates an indexer by its uuid; Node and ModifiedCAS are ignored. A new uuid gets a node id
// (Result.Node); new addresses or a new boot id of a known uuid replace the old ones. Before it proposes, the
// coordinator decides whether to refuse a second live process with the same uuid. Rejections: InvalidArgument,
// NodeRemoved, LimitExceeded.
type RegisterIndexer struct{ Indexer Indexer }

// RemoveManager removes a manager's registration. Rejection: UnknownNode.
type RemoveManager struct{ ID string }

// BeginRemoval records which manager a request removes, before that manager is removed from the Raft configuration,
// which alone shows whether the removal has happened. It changes nothing else. It returns Result.Member, also to a
// retry of the request at a time when another manager has the name. Rejection: InvalidArgument.
type BeginRemoval struct{ ID string }

// RemoveProjector removes a projector's registration. Rejections: UnknownNode, NodeAlive if another process of it has
// registered.
type RemoveProjector struct {
	ID     index.ProjectorID
	BootID string // of the process to remove; "": whichever is registered
}

// RemoveIndexer removes, for ever, an indexer that holds no copies: its uuid may not register again. Rejections:
// UnknownNode, NodeInUse.
type RemoveIndexer struct {
	Node index.NodeID
	UUID string // guards against a node id that was reassigned meanwhile
}

// SetBucket records what a projector has reported of a bucket. A new uuid, or the return of a bucket that was gone,
// begins the next generation: timestamps start at zero, a rollback context ends, and indexes of the older uuid go to
// state error. If nothing changes, it is not an update. Rejections: InvalidArgument, LimitExceeded,
// GenerationMismatch.
type SetBucket struct {
	Name     string
	UUID     string
	VBuckets int
	Seen     *SeenBucket // the bucket before the projector was asked; nil: unguarded
}

// SeenBucket is the state of a bucket when a projector was asked for it. Changes made since then take precedence.
type SeenBucket struct {
	Generation uint64 // 0: the state had no such bucket
	Gone       bool
}

// Seen returns the generation of a bucket and whether it is gone.
func (s *State) Seen(bucket string) SeenBucket {
	b := s.Bucket(bucket)
	if b == nil {
		return SeenBucket{}
	}
	return SeenBucket{Generation: b.Generation, Gone: b.Gone}
}

// BucketGone records that the bucket with this uuid was deleted: its indexes go to state error with BUCKET_GONE.
type BucketGone struct {
	Name string
	UUID string
}

// Placement assigns one slice of one replica to a node.
type Placement struct {
	Slice   index.SliceID
	Replica partition.Replica
	Node    index.NodeID
}

// CreateIndex adds an index in state pending. Apply assigns ID, State and ModifiedCAS of the definition
// (Result.Index); BucketUUID must be the bucket's. Placement names every (slice, replica) exactly once. Rejections:
// UnknownBucket, BucketIsGone, NameExists, InvalidArgument, LimitExceeded, IndexChanged if it is placed on an indexer
// that is gone or being removed, PlacementInconsistent.
type CreateIndex struct {
	Definition  index.Definition
	Layout      partition.Layout
	Placement   []Placement
	IfNotExists bool // an existing index of that name is a success that changes nothing
}

// BuildIndexes requests the build of indexes: deferred indexes are no longer deferred, and indexes in state error go
// back to pending. If an index's bucket was re-created, the index gets new copies for the present bucket. The command
// applies to all ids or to none. Rejections: UnknownIndex, CASMismatch, StateMismatch, UnknownBucket, BucketIsGone.
type BuildIndexes struct {
	IDs []index.ID
	// IfMatch, unless 0, must equal the ModifiedCAS of every index in IDs; it is used with a single id.
	IfMatch uint64
	// Rules is the version of the expression rules by which entries are made now; 0: unknown.
	Rules uint32
}

// DropIndex begins to drop an index: its name is free at once, and its copies are leaving. An index that waits for
// BUILD INDEX is removed at once, since no host holds any of it. Dropping an index that is already being dropped is a
// success that changes nothing. Rejections: UnknownIndex, CASMismatch, StateMismatch.
type DropIndex struct {
	ID index.ID
	// IfMatch, unless 0, must equal the definition's ModifiedCAS.
	IfMatch uint64
}

// Guard is the bucket's generation and rollback for which the coordinator decided; Generation 0 means unguarded.
type Guard struct {
	Generation uint64
	RollbackID uint64 // of the newest finished rollback; a rollback in progress is a mismatch
}

// SetIndexState moves an index through the state machine (package index). Rejections: UnknownIndex, StateMismatch if
// it is not in From, IllegalTransition, LimitExceeded, CASMismatch, and with a Guard also UnknownBucket, BucketIsGone,
// GenerationMismatch and RollbackMismatch.
type SetIndexState struct {
	ID     index.ID
	From   index.State // expected state
	To     index.State // not Dropping: that is DropIndex
	Reason string      // kept for state error only
	Guard  Guard
	// IfTopology, unless 0, must be the TopologyCAS: an index is ready with the copies that were found whole.
	IfTopology uint64
}

// AllocateCopies records that hosts have made copies of one index that were placed on them. Copies that are allocated
// stay so. All or none. Rejections: UnknownIndex, UnknownCopy, StaleRevision, IllegalTransition (a copy is leaving).
type AllocateCopies struct {
	ID index.ID
	// Revision is the definitions revision at which the hosts reported; it must not be below the commit that placed any
	// of the copies.
	Revision uint64
	Copies   []index.CopyID
}

// ForgetCopies forgets copies of one index that are leaving: their hosts have deleted them, or will drop them as
// orphans when they are back. All or none. Rejections: UnknownIndex, StateMismatch (the index is being dropped, or a
// copy is not leaving), CASMismatch, UnknownCopy.
type ForgetCopies struct {
	ID index.ID
	// IfTopology, unless 0, must equal the index's TopologyCAS.
	IfTopology uint64
	Copies     []index.CopyID
}

// RemoveIndex removes an index that is being dropped, once its hosts have deleted its copies. Rejections:
// UnknownIndex, StateMismatch.
type RemoveIndex struct{ ID index.ID }

// BucketAdvance promotes one bucket; see NewBucketAdvance.
type BucketAdvance struct {
	Bucket     string
	Generation uint64
	RollbackID uint64
	Number     uint64 // the previous number + 1
	Stability  []byte // delta against the previous stability vector
	Mutation   []byte // delta against the previous mutation timestamp
	Logs       []timestamp.VBucketLog
}

// AdvanceStability promotes the stability timestamps of any number of buckets (IM-15). A bucket whose guards fail, or
// whose vector would decrease for a vbucket, is left out (Result.Buckets); if all are left out, the command is
// rejected.
type AdvanceStability struct{ Buckets []BucketAdvance }

// NewBucketAdvance returns the promotion of b to the given vectors; logs holds the failover logs that changed.
func NewBucketAdvance(b *Bucket, stability, mutation timestamp.Vector,
	logs []timestamp.VBucketLog) (BucketAdvance, error) {
	a := BucketAdvance{
		Bucket:     b.Name,
		Generation: b.Generation,
		RollbackID: b.Stability.RollbackID,
		Number:     b.Stability.Number + 1,
		Logs:       logs,
	}
	var err error
	if a.Stability, err = stability.AppendDelta(nil, b.Stability.Vector); err != nil {
		return a, err
	}
	a.Mutation, err = mutation.AppendDelta(nil, b.MutationTimestamp)
	return a, err
}

// SetBackfillTimestamp replaces a bucket's backfill timestamp; a vector with no vbuckets clears it.
type SetBackfillTimestamp struct {
	Bucket     string
	Generation uint64
	Vector     timestamp.Vector
}

// SetRollbackStep moves a bucket's rollback context by one step (IM-23). The legal steps are none → started → prepare
// → restart → rollback → none, and from each step back to started, under the next id. To determines which fields are
// used.
type SetRollbackStep struct {
	Bucket     string
	Generation uint64
	// ID is the rollback's id. From none to started it is the previous id (Stability.RollbackID), otherwise the
	// context's.
	ID       uint64
	From, To RollbackStep
	Failover timestamp.Vector // To prepare
	Restart  timestamp.Vector // To restart
	// Stability is the stability timestamp from which the bucket continues; it must not exceed the present one (To
	// none).
	Stability timestamp.Vector
	// Logs holds failover logs that changed (To started or prepare). The context keeps them, and Stability at the end.
	Logs []timestamp.VBucketLog
}

// RollbackLogs merges failover logs into a bucket's rollback context in step started, as SetRollbackStep to prepare
// does, because one command may not be able to carry all of them. Rejections: UnknownBucket, BucketIsGone,
// GenerationMismatch, StepMismatch, RollbackMismatch, InvalidArgument, StaleRevision.
type RollbackLogs struct {
	Bucket     string
	Generation uint64
	ID         uint64 // the rollback's
	Logs       []timestamp.VBucketLog
}

// PieceBytes is the size in bytes of the pieces into which data is split that exceeds one command.
const PieceBytes = 256 << 10

// SplitLogs returns the first changes that fit into one piece, at least one of them, and the rest.
func SplitLogs(changes []timestamp.VBucketLog) (piece, rest []timestamp.VBucketLog) {
	bytes := 0
	for i := range changes {
		if bytes += len(appendVBucketLog(nil, &changes[i])); bytes > PieceBytes && i > 0 {
			return changes[:i], changes[i:]
		}
	}
	return changes, nil
}

// SetFormatLevel raises the newest command format that may be proposed. The coordinator proposes it once every voter
// has reported support for it; Apply rejects it if a manager without that support has registered meanwhile.
// Rejection: FormatNotAllowed.
type SetFormatLevel struct{ Level uint64 }

// SetLimits replaces the limits; zero fields become the defaults. Rejection: InvalidArgument. The proposer checks
// beforehand, with Limits.Check, how far a limit may be raised.
type SetLimits struct{ Limits Limits }

// RaiseEpoch begins a new epoch after a recovery or a restore in place: Raft terms may restart, and everything that
// carries an older epoch is refused. ClearLedger forgets the outcomes of earlier requests. SkipNumbers skips as many
// updates, and as many ids of indexes, copies, rollbacks and stability timestamps, as a lost history may have used.
// Revisions then continue above those that projectors and indexers hold, data that indexers hold under an old number
// is never taken for that of a new one, and indexers do not take new data for data from before a rollback that they
// have carried out. ResetLimits sets the default limits.
type RaiseEpoch struct {
	Epoch       uint64 // above the present one
	ClearLedger bool
	SkipNumbers bool
	ResetLimits bool
}

// Numbers that RaiseEpoch skips: SkippedIDs for indexes, copies and rollbacks, far more than a cluster creates;
// SkippedStability for stability timestamps and SkippedUpdates for updates, more than a year at 100 per second.
const (
	SkippedIDs       = 1 << 20
	SkippedStability = 1 << 32
	SkippedUpdates   = 1 << 32
)
