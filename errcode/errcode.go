// Package errcode is the only table of the reasons for which a request may be refused: typed codes and, for each of
// them, the HTTP status, whether the same request may be retried, the exit code of the command line, and a text for
// people. Every refusal names a code of this package; no other package spells a code out as a string. The texts are
// part of the interface: programs compare them, and the request ledger of the replicated state stores them.
package errcode

// Code is the machine-readable reason of a refusal. It is an error, so that errors.Is(rejection, UnknownIndex) holds.
type Code string

// Error returns the code's text.
func (c Code) Error() string { return string(c) }

// The codes, by status. Each constant is named like its text; Lookup returns its description.
const (
	// 400: the request is malformed, or cannot be carried out.
	BadRequest          Code = "BAD_REQUEST"
	SyntaxError         Code = "SYNTAX_ERROR"
	BadDefinition       Code = "BAD_DEFINITION"
	Unsupported         Code = "UNSUPPORTED"
	InvalidArgument     Code = "INVALID_ARGUMENT"
	LimitExceeded       Code = "LIMIT_EXCEEDED"
	TooManyVBuckets     Code = "TOO_MANY_VBUCKETS"
	PlacementImpossible Code = "PLACEMENT_IMPOSSIBLE"
	BadIdempotencyKey   Code = "BAD_IDEMPOTENCY_KEY"
	UnsupportedFormat   Code = "UNSUPPORTED_FORMAT"

	// 401, 403: authentication and authorization.
	Unauthenticated Code = "UNAUTHENTICATED"
	Forbidden       Code = "FORBIDDEN"

	// 404, 405: the object or method does not exist.
	NotFound          Code = "NOT_FOUND"
	UnknownUser       Code = "UNKNOWN_USER"
	UnknownToken      Code = "UNKNOWN_TOKEN"
	UnknownIndex      Code = "UNKNOWN_INDEX"
	IndexNotHosted    Code = "INDEX_NOT_HOSTED"
	BucketNotInKV     Code = "BUCKET_NOT_IN_KV"
	UnknownCollection Code = "UNKNOWN_COLLECTION"
	UnknownBucket     Code = "UNKNOWN_BUCKET"
	UnknownNode       Code = "UNKNOWN_NODE"
	UnknownRebalance  Code = "UNKNOWN_REBALANCE"
	UnknownScan       Code = "UNKNOWN_SCAN"
	UnknownCopy       Code = "UNKNOWN_COPY"
	MethodNotAllowed  Code = "METHOD_NOT_ALLOWED"

	// 408: the body does not arrive.
	BodyTooSlow Code = "BODY_TOO_SLOW"

	// 409: the request conflicts with the present state.
	UserExists            Code = "USER_EXISTS"
	TokenExists           Code = "TOKEN_EXISTS"
	LastAdmin             Code = "LAST_ADMIN"
	NameExists            Code = "NAME_EXISTS"
	IndexNotReady         Code = "INDEX_NOT_READY"
	IndexInRollback       Code = "INDEX_IN_ROLLBACK"
	TokenLost             Code = "TOKEN_LOST"
	BucketGone            Code = "BUCKET_GONE"
	CollectionGone        Code = "COLLECTION_GONE"
	GenerationMismatch    Code = "GENERATION_MISMATCH"
	StateMismatch         Code = "STATE_MISMATCH"
	IllegalTransition     Code = "ILLEGAL_TRANSITION"
	NodeInUse             Code = "NODE_IN_USE"
	RebalanceRunning      Code = "REBALANCE_RUNNING"
	SplitRunning          Code = "SPLIT_RUNNING"
	StalePlan             Code = "STALE_PLAN"
	IndexChanged          Code = "INDEX_CHANGED"
	Fenced                Code = "FENCED"
	StaleTerm             Code = "STALE_TERM"
	StaleRevision         Code = "STALE_REVISION"
	StepMismatch          Code = "STEP_MISMATCH"
	RollbackMismatch      Code = "ROLLBACK_MISMATCH"
	StabilityNotMonotone  Code = "STABILITY_NOT_MONOTONE"
	PlacementInconsistent Code = "PLACEMENT_INCONSISTENT"
	BootConflict          Code = "BOOT_CONFLICT"
	AnotherProcess        Code = "ANOTHER_PROCESS"
	ForeignCluster        Code = "FOREIGN_CLUSTER"
	AlreadyBootstrapped   Code = "ALREADY_BOOTSTRAPPED"
	MemberConflict        Code = "MEMBER_CONFLICT"
	QuorumAtRisk          Code = "QUORUM_AT_RISK"
	TransferFailed        Code = "TRANSFER_FAILED"
	NodeAlive             Code = "NODE_ALIVE"
	LastCopies            Code = "LAST_COPIES"
	FormatNotAllowed      Code = "FORMAT_NOT_ALLOWED"
	FormatTooOld          Code = "FORMAT_TOO_OLD"
	BackupOfOther         Code = "BACKUP_OF_OTHER"
	RestoreMismatch       Code = "RESTORE_MISMATCH"

	// 410 to 415: gone, changed, too large.
	NodeRemoved          Code = "NODE_REMOVED"
	SnapshotTooOld       Code = "SNAPSHOT_TOO_OLD"
	CursorExpired        Code = "CURSOR_EXPIRED"
	SnapshotSkipped      Code = "SNAPSHOT_SKIPPED"
	ScanCancelled        Code = "SCAN_CANCELLED"
	CASMismatch          Code = "CAS_MISMATCH"
	BodyTooLarge         Code = "BODY_TOO_LARGE"
	UnsupportedMediaType Code = "UNSUPPORTED_MEDIA_TYPE"

	// 422, 429: understood, but refused.
	RequestMismatch Code = "REQUEST_MISMATCH"
	BackupUnusable  Code = "BACKUP_UNUSABLE"
	TooManyFailures Code = "TOO_MANY_FAILURES"
	TooManyWatchers Code = "TOO_MANY_WATCHERS"

	// 499, 500: the client has gone, or the server is defective.
	Cancelled Code = "CANCELLED"
	Internal  Code = "INTERNAL"
	Damaged   Code = "DAMAGED"

	// 503: temporarily unavailable.
	NoLeader            Code = "NO_LEADER"
	NotReady            Code = "NOT_READY"
	ManagerNotCurrent   Code = "MANAGER_NOT_CURRENT"
	NotBootstrapped     Code = "NOT_BOOTSTRAPPED"
	Busy                Code = "BUSY"
	Restoring           Code = "RESTORING"
	LedgerFull          Code = "LEDGER_FULL"
	NoProjector         Code = "NO_PROJECTOR"
	NoIndexer           Code = "NO_INDEXER"
	Unavailable         Code = "UNAVAILABLE"
	KVUnavailable       Code = "KV_UNAVAILABLE"
	VBucketsUnavailable Code = "VBUCKETS_UNAVAILABLE"

	// 504: timed out.
	OutcomeUnknown Code = "OUTCOME_UNKNOWN"
	Timeout        Code = "TIMEOUT"
)

// Exit codes of the command line. They are part of the interface.
const (
	ExitOK          = 0
	ExitFailed      = 1
	ExitUsage       = 2
	ExitNotFound    = 3
	ExitConflict    = 4
	ExitUnavailable = 5
	ExitTimeout     = 6
	ExitRemoved     = 7 // of a role: its node was permanently removed from the cluster
)

// StatusClientGone is the status of requests whose client has disconnected; it appears in logs only.
const StatusClientGone = 499
