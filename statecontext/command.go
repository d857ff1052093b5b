package statecontext

import (
	"tidemark/index"
	"tidemark/partition"
	"tidemark/timestamp"
)

// Command is one change that the leader proposes. Several travel in one Raft entry (Encode).
type Command struct {
	// TimeMS is the state time that the proposer reckons with (Clock); the state time never falls below it.
	TimeMS int64
	// WallMS is the proposer's wall clock, for people and calendars: unix milliseconds, which no age is reckoned from.
	WallMS int64
	// Request says on whose behalf the command is; nil: the cluster's own. One with a Key makes the outcome exactly-once
	// within the ledger's window. Refusals are outcomes too, but for those that pass by themselves (Code.Passing) or came
	// before the command was looked at: whoever asks again may then be served.
	Request *Request
	Body    Body
}

// Request identifies what a user asked for, so that asking again gives the one outcome.
type Request struct {
	Principal string   // who asks, at most MaxKeyBytes
	Key       string   // Idempotency-Key, at most MaxKeyBytes; "": nothing is remembered, and BodyHash is not kept
	BodyHash  [32]byte // of the request's body: the same key with another body is refused
}

// keyed reports whether the outcome is remembered.
func (r *Request) keyed() bool { return r != nil && r.Key != "" }

// Body is one of the command types below.
type Body interface {
	kind() kind
	append(dst []byte) []byte
	apply(t *tx) *Rejection
}

// kind is a command's type in its encoding. A number is never reused.
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
	kindSetCopyStates        kind = 15
	kindPlaceCopies          kind = 16
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

// BootstrapCluster returns the cluster its id, once. Rejections: AlreadyBootstrapped, InvalidArgument,
// FormatNotAllowed.
type BootstrapCluster struct {
	ClusterID   string
	Epoch       uint64 // at least 1
	FormatLevel uint64 // 0 counts as 1
	Limits      Limits // zero fields: defaults
}

// LeaderStarted begins a term: the first command of every leader, before BootstrapCluster also. It registers the
// manager as RegisterManager does, with its rejections, and StaleTerm.
type LeaderStarted struct {
	Term    uint64
	Manager Manager // ModifiedCAS is ignored
}

// RegisterManager adds or updates an index manager. Nothing changed is no update. Rejections: InvalidArgument,
// LimitExceeded, FormatNotAllowed when its version is older than the cluster's level.
type RegisterManager struct{ Manager Manager }

// RegisterProjector adds or updates a projector. Nothing changed is no update. Rejections: InvalidArgument,
// LimitExceeded.
type RegisterProjector struct{ Projector Projector }

// RegisterIndexer adds or updates an indexer by its uuid; Node and ModifiedCAS are ignored. A new uuid gets a number
// (Result.Node); a known one with new addresses or a new boot id is taken over. Whether a second live process of one
// uuid is refused is the coordinator's to decide before it proposes. Rejections: InvalidArgument, NodeRemoved,
// LimitExceeded.
type RegisterIndexer struct{ Indexer Indexer }

// RemoveManager forgets a manager. Rejection: UnknownNode.
type RemoveManager struct{ ID string }

// BeginRemoval remembers which manager a request removes, before it is taken out of Raft's members, which alone say
// whether that has happened. It changes nothing else, and gives Result.Member, also to who sends the request again when
// another manager has the name by then. Rejection: InvalidArgument.
type BeginRemoval struct{ ID string }

// RemoveProjector forgets a projector. Rejections: UnknownNode, NodeAlive where another process of it has registered.
type RemoveProjector struct {
	ID     index.ProjectorID
	BootID string // of the process that is meant; "": whichever is registered
}

// RemoveIndexer forgets an indexer that holds no copies, for ever: its uuid may not register again. Rejections:
// UnknownNode, NodeInUse.
type RemoveIndexer struct {
	Node index.NodeID
	UUID string // guards against a number that was given away meanwhile
}

// SetBucket tells what a projector learnt. A new uuid, or a bucket that was gone, is the next generation: timestamps
// begin at zero, a rollback context ends, and indexes of the older uuid go to error. Nothing changed is no update.
// Rejections: InvalidArgument, LimitExceeded, GenerationMismatch.
type SetBucket struct {
	Name     string
	UUID     string
	VBuckets int
	Seen     *SeenBucket // before the projector was asked; nil: whatever is known by now
}

// SeenBucket is what a proposer knew of a bucket. What was learnt later than it stands.
type SeenBucket struct {
	Generation uint64 // 0: the bucket was not known
	Gone       bool
}

// Seen returns what is known of a bucket.
func (s *State) Seen(bucket string) SeenBucket {
	b := s.Bucket(bucket)
	if b == nil {
		return SeenBucket{}
	}
	return SeenBucket{Generation: b.Generation, Gone: b.Gone}
}

// BucketGone tells that the bucket of this uuid was deleted: its indexes go to error BUCKET_GONE.
type BucketGone struct {
	Name string
	UUID string
}

// Placement places one slice of one replica.
type Placement struct {
	Slice   index.SliceID
	Replica partition.Replica
	Node    index.NodeID
}

// CreateIndex adds an index in state pending. ID, State and ModifiedCAS of the definition are assigned by
// Apply (Result.Index); BucketUUID must be the bucket's. Placement names every (slice, replica) exactly once.
// Rejections: UnknownBucket, BucketIsGone, NameExists, InvalidArgument, LimitExceeded, IndexChanged where it is placed
// on an indexer that is gone or being removed, PlacementInconsistent.
type CreateIndex struct {
	Definition  index.Definition
	Layout      partition.Layout
	Placement   []Placement
	IfNotExists bool // an index of that name is a success that changes nothing
}

// BuildIndexes asks for indexes to be built: deferred ones are no longer deferred, ones in error go back to pending. Of
// an index whose bucket was re-created it makes new copies for the present bucket. All ids or none. Rejections:
// UnknownIndex, CASMismatch, StateMismatch, UnknownBucket, BucketIsGone.
type BuildIndexes struct {
	IDs []index.ID
	// IfMatch, unless 0, must be the ModifiedCAS of each of them (there is one).
	IfMatch uint64
	// Rules is the version of the expressions' rules by which entries are made now; 0: not known.
	Rules uint32
}

// DropIndex starts dropping an index: its name is free at once, its copies are leaving. One that waits for BUILD INDEX
// is gone at once, since no host has anything of it. An index that is being dropped already is a success that changes
// nothing. Rejections: UnknownIndex, CASMismatch, StateMismatch.
type DropIndex struct {
	ID index.ID
	// IfMatch, unless 0, must be the definition's ModifiedCAS.
	IfMatch uint64
}

// Guard is what the coordinator believed of a bucket when it decided; zero Generation means unguarded.
type Guard struct {
	Generation uint64
	RollbackID uint64 // of the newest finished rollback; a rollback under way is a mismatch
}

// SetIndexState moves an index through the state machine (package index). Rejections: UnknownIndex, StateMismatch when
// it is not in From, IllegalTransition, LimitExceeded, and where a Guard is given UnknownBucket, BucketIsGone,
// GenerationMismatch and RollbackMismatch.
type SetIndexState struct {
	ID     index.ID
	From   index.State // expected state
	To     index.State // not Dropping: that is DropIndex
	Reason string      // kept for state error only
	Guard  Guard
}

// CopyChange moves one copy to another state.
type CopyChange struct {
	Index index.ID
	Copy  index.CopyID
	State partition.CopyState
}

// SetCopyStates moves copies: placed → allocated → leaving, placed → leaving. A copy that is allocated leaves only when
// another one of its slice and replica is allocated. All or none.
type SetCopyStates struct {
	// Revision is the definitions revision under which the hosts reported; it must not be below any of the commits
	// that placed the copies.
	Revision uint64
	Copies   []CopyChange
}

// PlaceCopies adds and removes copies of one index (replica repair, moves: the new copy stands beside the old one until
// that one is leaving). Removed ones are forgotten, whatever they hold: their hosts drop them as orphans.
type PlaceCopies struct {
	ID index.ID
	// IfTopology, unless 0, must be the TopologyCAS.
	IfTopology uint64
	Add        []Placement
	Remove     []index.CopyID
}

// RemoveIndex forgets an index that is being dropped, when its hosts have let go of it. Rejections: UnknownIndex,
// StateMismatch.
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

// AdvanceStability promotes stability timestamps of any number of buckets (IM-15). A bucket whose guards fail, or whose
// vector would fall somewhere, is left out (Result.Buckets); when all are, the command is rejected.
type AdvanceStability struct{ Buckets []BucketAdvance }

// NewBucketAdvance makes the promotion of b to the given vectors; logs are those that changed.
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

// SetBackfillTimestamp replaces a bucket's backfill timestamp; a vector of no vbuckets clears it.
type SetBackfillTimestamp struct {
	Bucket     string
	Generation uint64
	Vector     timestamp.Vector
}

// SetRollbackStep moves a bucket's rollback context by one step (IM-23). Legal are none → started → prepare → restart →
// rollback → none, and from each step back to started, under the next id. Which fields count depends on To.
type SetRollbackStep struct {
	Bucket     string
	Generation uint64
	// ID is the rollback's id: for To started from none the previous one (Stability.RollbackID), else the context's.
	ID       uint64
	From, To RollbackStep
	Failover timestamp.Vector // To prepare
	Restart  timestamp.Vector // To restart
	// Stability is the stability timestamp from which the bucket goes on, nowhere above the present one (To none).
	Stability timestamp.Vector
	// Logs: to started, prepare: failover logs that changed; kept in context and, at the end, in Stability.
	Logs []timestamp.VBucketLog
}

// RollbackLogs merges failover logs into a bucket's rollback context in step started, as SetRollbackStep to prepare
// does: all of them may be more than one command can carry. Rejections: UnknownBucket, BucketIsGone,
// GenerationMismatch, StepMismatch, RollbackMismatch, InvalidArgument, StaleRevision.
type RollbackLogs struct {
	Bucket     string
	Generation uint64
	ID         uint64 // the rollback's
	Logs       []timestamp.VBucketLog
}

// PieceBytes is how much of something that one command cannot carry goes into one.
const PieceBytes = 256 << 10

// SplitLogs divides changes into those that fit into a piece, at least one, and the rest.
func SplitLogs(changes []timestamp.VBucketLog) (piece, rest []timestamp.VBucketLog) {
	bytes := 0
	for i := range changes {
		if bytes += len(appendVBucketLog(nil, &changes[i])); bytes > PieceBytes && i > 0 {
			return changes[:i], changes[i:]
		}
	}
	return changes, nil
}

// SetFormatLevel raises the newest command format that may be proposed. It is proposed once every voter reported it;
// one that registers meanwhile and does not know it is found by Apply.
// Rejection: FormatNotAllowed.
type SetFormatLevel struct{ Level uint64 }

// SetLimits replaces the limits; zero fields become the defaults. Rejection: InvalidArgument. How far a limit may be
// raised is Limits.Check's to say, before it is proposed.
type SetLimits struct{ Limits Limits }

// RaiseEpoch begins a new epoch after a recovery or a restore in place: terms may restart, and everything that carries
// an older epoch is refused. ClearLedger forgets the outcomes of requests made before. SkipNumbers passes over so many
// updates, and numbers of indexes, copies, rollbacks and stability timestamps, as a history that is lost may have made
// or given away: revisions go on above those that projectors and indexers go by, what indexers hold under a number
// never counts as what gets one from now on, and nothing is to them of before a rollback that they have carried out.
// ResetLimits sets the default limits.
type RaiseEpoch struct {
	Epoch       uint64 // above the present one
	ClearLedger bool
	SkipNumbers bool
	ResetLimits bool
}

// Numbers that RaiseEpoch passes over: of indexes, of copies and of rollbacks, far more than a cluster makes, and of
// stability timestamps and of updates, a year of 100 per second.
const (
	SkippedIDs       = 1 << 20
	SkippedStability = 1 << 32
	SkippedUpdates   = 1 << 32
)
