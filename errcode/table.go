package errcode

import "slices"

// CodeInfo describes a code. docs/errors.md, the OpenAPI document, the command line's exit codes and the clients'
// retries are derived from it.
type CodeInfo struct {
	Code    Code   `json:"code"`
	Status  int    `json:"status"`    // HTTP status
	Title   string `json:"title"`     // title of the problem: the same for each occurrence
	Exit    int    `json:"exit_code"` // of the command line
	Retry   bool   `json:"retry"`     // clients retry the same request automatically, at any manager
	Between bool   `json:"between"`   // seen only between components, not by users
	WayOut  string `json:"way_out"`   // what to do
}

// All returns the table, by status. To add a code, add a constant and a line here.
func All() []CodeInfo {
	return slices.Concat(refused(), conflicts(), outdated(), failures())
}

// Lookup returns the description of a code; false for a code that only a newer version has.
func Lookup(code Code) (CodeInfo, bool) {
	all := All()
	if i := slices.IndexFunc(all, func(c CodeInfo) bool { return c.Code == code }); i >= 0 {
		return all[i], true
	}
	return CodeInfo{}, false
}

// refused returns the codes for requests that are wrong in themselves, including their sender.
func refused() []CodeInfo {
	return []CodeInfo{
		{Code: BadRequest, Status: 400, Exit: ExitFailed, Title: "The request is malformed",
			WayOut: "The detail names the field, line and column, or the parameter or header."},
		{Code: SyntaxError, Status: 400, Exit: ExitFailed, Title: "The statement cannot be parsed",
			WayOut: "Correct the statement: the detail has line, column and a caret."},
		{Code: BadDefinition, Status: 400, Exit: ExitFailed, Title: "The index definition is not valid",
			WayOut: "Correct the definition: the detail names the part and its position."},
		{Code: Unsupported, Status: 400, Exit: ExitFailed, Title: "The request is understood but not supported",
			WayOut: "The detail lists what is supported."},
		{Code: InvalidArgument, Status: 400, Exit: ExitFailed, Title: "A value is not allowed",
			WayOut: "Change the value that the detail names."},
		{Code: LimitExceeded, Status: 400, Exit: ExitFailed, Title: "The request exceeds a limit of the cluster",
			WayOut: "Use less, drop something, or raise the limit that the detail names."},
		{Code: TooManyVBuckets, Status: 400, Exit: ExitFailed, Title: "The bucket has more vbuckets than can be indexed",
			WayOut: "Make a bucket with at most as many as the detail states (Couchbase's have 1,024, or 128), and copy the " +
				"documents there."},
		{Code: PlacementImpossible, Status: 400, Exit: ExitFailed, Title: "The index cannot be placed",
			WayOut: "Ask for fewer replicas or other nodes, or add indexers."},
		{Code: BadIdempotencyKey, Status: 400, Exit: ExitFailed, Title: "The Idempotency-Key is not valid",
			WayOut: "Send a key of at most 200 bytes."},
		{Code: UnsupportedFormat, Status: 400, Exit: ExitFailed, Title: "The message has a wire format of another version",
			WayOut: "Upgrade the older of the two sides."},
		{Code: Unauthenticated, Status: 401, Exit: ExitFailed, Title: "The request has no valid credentials",
			WayOut: "Give --user or --token-file; a token may have expired, or a password may have changed."},
		{Code: Forbidden, Status: 403, Exit: ExitFailed, Title: "The caller lacks the role for this call",
			WayOut: "Ask an administrator for the role that the detail names; a node needs the certificate of its role."},
		{Code: NotFound, Status: 404, Exit: ExitNotFound, Title: "The API has no such call",
			WayOut: "/openapi.json lists the calls."},
		{Code: UnknownUser, Status: 404, Exit: ExitNotFound, Title: "No such user",
			WayOut: "GET /v1/users lists the users."},
		{Code: UnknownToken, Status: 404, Exit: ExitNotFound, Title: "No such token",
			WayOut: "GET /v1/tokens lists the tokens."},
		{Code: UnknownIndex, Status: 404, Exit: ExitNotFound, Title: "No such index",
			WayOut: "GET /v1/indexes lists the indexes."},
		{Code: IndexNotHosted, Status: 404, Exit: ExitNotFound, Title: "The indexer has no such index",
			WayOut: "The index has just been dropped: list the indexes."},
		{Code: BucketNotInKV, Status: 404, Exit: ExitNotFound, Title: "KV has no such bucket",
			WayOut: "Check the bucket's name, and that the projectors' KV user may read it."},
		{Code: UnknownCollection, Status: 404, Exit: ExitNotFound, Title: "KV has no such collection",
			WayOut: "Check the names of scope and collection, or create it; KV before 7.0 has no collections."},
		{Code: UnknownBucket, Status: 404, Exit: ExitNotFound, Title: "No index is on that bucket",
			WayOut: "Check the bucket's name."},
		{Code: UnknownNode, Status: 404, Exit: ExitNotFound, Title: "No such manager, projector or indexer",
			WayOut: "The node was removed or never registered; GET /v1/status lists the nodes."},
		{Code: UnknownRebalance, Status: 404, Exit: ExitNotFound, Title: "No such rebalance",
			WayOut: "The rebalance is over or never existed; tidemark rebalance status lists those that are remembered."},
		{Code: UnknownScan, Status: 404, Exit: ExitNotFound, Title: "No such scan is running",
			WayOut: "It has ended, or continues at another indexer under another id; tidemark scan list lists running scans."},
		{Code: UnknownCopy, Status: 404, Exit: ExitNotFound, Title: "No such copy of a slice",
			WayOut: "It has been moved or dropped since; no action is needed.", Between: true},
		{Code: MethodNotAllowed, Status: 405, Exit: ExitFailed, Title: "The call does not have this method",
			WayOut: "The header Allow lists the methods."},
		{Code: BodyTooSlow, Status: 408, Exit: ExitTimeout, Title: "The body did not arrive in time",
			WayOut: "Nothing was done: send it again, over a faster network."},
	}
}

// conflicts returns the codes for requests that conflict with the present state.
func conflicts() []CodeInfo {
	return []CodeInfo{
		{Code: UserExists, Status: 409, Exit: ExitConflict, Title: "A user of that name exists",
			WayOut: "Choose another name, or change the user."},
		{Code: TokenExists, Status: 409, Exit: ExitConflict, Title: "A token of that id exists",
			WayOut: "Its secret is not shown again: revoke it, and create another token."},
		{Code: LastAdmin, Status: 409, Exit: ExitConflict, Title: "No administrator would be left",
			WayOut: "Add another administrator first."},
		{Code: NameExists, Status: 409, Exit: ExitConflict, Title: "The bucket has an index of that name",
			WayOut: "Choose another name, or use IF NOT EXISTS."},
		{Code: IndexNotReady, Status: 409, Exit: ExitConflict, Title: "The index is not ready",
			WayOut: "Wait; run BUILD INDEX if it is deferred; in state error, its reason names the remedy."},
		{Code: IndexInRollback, Status: 409, Exit: ExitConflict, Title: "The bucket is being rolled back",
			WayOut: "KV has failed over: try again."},
		{Code: TokenLost, Status: 409, Exit: ExitConflict, Title: "The write that a token stands for was lost",
			WayOut: "KV has failed over without this write: read the document again."},
		{Code: BucketGone, Status: 409, Exit: ExitConflict, Title: "The bucket was deleted",
			WayOut: "Drop the index, or run BUILD INDEX once a bucket of that name exists again (of a collection: drop it)."},
		{Code: CollectionGone, Status: 409, Exit: ExitConflict, Title: "The collection was dropped or emptied",
			WayOut: "Drop the index, and create it again on an existing collection."},
		{Code: GenerationMismatch, Status: 409, Exit: ExitConflict, Title: "The bucket was replaced by another one of its " +
			"name",
			WayOut: "Drop the index, or build it again."},
		{Code: StateMismatch, Status: 409, Exit: ExitConflict, Title: "The index is in another state",
			WayOut: "Describe the index: its present state does not allow the request."},
		{Code: IllegalTransition, Status: 409, Exit: ExitConflict, Title: "The index cannot enter that state from its " +
			"present one",
			WayOut: "Describe the index: its present state does not allow the request."},
		{Code: NodeInUse, Status: 409, Exit: ExitConflict, Title: "The indexer still has copies",
			WayOut: "Move or drop its copies first."},
		{Code: RebalanceRunning, Status: 409, Exit: ExitConflict, Title: "Another rebalance is under way",
			WayOut: "Wait until that rebalance is over (tidemark rebalance status), or cancel it."},
		{Code: SplitRunning, Status: 409, Exit: ExitConflict, Title: "The index is being split",
			WayOut: "Wait until the split is over (describe the index), or cancel it."},
		{Code: StalePlan, Status: 409, Exit: ExitConflict, Title: "The placement has changed since the plan was made",
			WayOut: "Make a new plan; the detail names what has changed."},
		{Code: Fenced, Status: 409, Exit: ExitConflict, Title: "The request is older than one already accepted",
			WayOut: "It came from a deposed leader or came late; no action is needed.", Between: true},
		{Code: StaleTerm, Status: 409, Exit: ExitConflict, Title: "The command has a lower term than the state",
			WayOut: "It came from a deposed leader; no action is needed.", Between: true},
		{Code: StaleRevision, Status: 409, Exit: ExitConflict, Title: "The report is of an older revision of the definitions",
			WayOut: "It came late; no action is needed.", Between: true},
		{Code: StepMismatch, Status: 409, Exit: ExitConflict, Title: "The rollback is in another step",
			WayOut: "The command came late; no action is needed.", Between: true},
		{Code: RollbackMismatch, Status: 409, Exit: ExitConflict, Title: "The bucket was, or is being, rolled back",
			WayOut: "Try again.", Between: true},
		{Code: StabilityNotMonotone, Status: 409, Exit: ExitConflict, Title: "The stability timestamp does not follow the " +
			"present one",
			WayOut: "The command came late; no action is needed.", Between: true},
		{Code: PlacementInconsistent, Status: 409, Exit: ExitConflict, Title: "Copies are missing, duplicated, or on one " +
			"node", WayOut: "This is a bug: report it.", Between: true},
		{Code: BootConflict, Status: 409, Exit: ExitConflict, Title: "Two live processes have one identity",
			WayOut: "A folder was copied: stop one of the two and wipe its folder.", Between: true},
		{Code: AnotherProcess, Status: 409, Exit: ExitConflict, Title: "The command is meant for another process",
			WayOut:  "The process that is meant has ended, or is elsewhere; the leader goes on when it has registered.",
			Between: true},
		{Code: ForeignCluster, Status: 409, Exit: ExitConflict, Title: "The component belongs to another cluster",
			WayOut: "Point it at its own cluster, or wipe its folder.", Between: true},
		{Code: AlreadyBootstrapped, Status: 409, Exit: ExitConflict, Title: "The cluster already has an id",
			WayOut: "No action is needed.", Between: true},
		{Code: MemberConflict, Status: 409, Exit: ExitConflict, Title: "The manager conflicts with a present " +
			"member", WayOut: "The detail names the member: give the new manager another name and address, or remove " +
			"the member first."},
		{Code: QuorumAtRisk, Status: 409, Exit: ExitConflict, Title: "A majority of managers would be missing",
			WayOut: "Restart the managers that do not answer, or remove them first; ?yes=lose-data removes as many of them " +
				"as needed."},
		{Code: TransferFailed, Status: 409, Exit: ExitConflict, Title: "Leadership could not be transferred",
			WayOut: "Choose another voter that is running."},
		{Code: NodeAlive, Status: 409, Exit: ExitConflict, Title: "The node is running",
			WayOut: "Stop it first, or use force."},
		{Code: LastCopies, Status: 409, Exit: ExitConflict, Title: "The node holds the only copies of slices",
			WayOut: "Restart the indexer, or wait until other replicas are filled; cluster remove --force rebuilds the " +
				"indexes that the detail names."},
		{Code: FormatNotAllowed, Status: 409, Exit: ExitConflict, Title: "Not every voter understands the format",
			WayOut: "Upgrade the managers that the detail names first."},
		{Code: FormatTooOld, Status: 409, Exit: ExitConflict, Title: "The cluster is in the middle of an upgrade",
			WayOut: "When all managers run the new version, run tidemark cluster finalize-upgrade."},
		{Code: BackupOfOther, Status: 409, Exit: ExitConflict, Title: "The backup cannot be restored into this cluster " +
			"in this way", WayOut: "The detail names the backup's cluster, and how the backup can be restored."},
		{Code: RestoreMismatch, Status: 409, Exit: ExitConflict, Title: "The restore has ended",
			WayOut: "Nothing was done: restore again."},
	}
}

// outdated returns the codes for requests for something that is gone, changed or too large.
func outdated() []CodeInfo {
	return []CodeInfo{
		{Code: NodeRemoved, Status: 410, Exit: ExitNotFound, Title: "The node was removed for good",
			WayOut: "Delete its folder; it then joins as a new node.", Between: true},
		{Code: SnapshotTooOld, Status: 410, Exit: ExitUnavailable, Title: "The scan's timestamp is no longer kept",
			WayOut: "Scan again."},
		{Code: CursorExpired, Status: 410, Exit: ExitUnavailable, Title: "The cursor's state is no longer kept",
			WayOut: "Send the cursor with newer to continue after it in the newest state, or start again."},
		{Code: SnapshotSkipped, Status: 410, Exit: ExitUnavailable, Title: "The indexer could not make this timestamp",
			WayOut: "Scan again."},
		{Code: ScanCancelled, Status: 410, Exit: ExitFailed, Title: "A user has ended the scan",
			WayOut: "The detail names the user: ask before you scan again."},
		{Code: CASMismatch, Status: 412, Exit: ExitConflict, Title: "The object was changed since it was read",
			WayOut: "Read it again and repeat the change; modified_cas is its present cas."},
		{Code: BodyTooLarge, Status: 413, Exit: ExitFailed, Title: "The body is too large",
			WayOut: "The detail states the limit."},
		{Code: UnsupportedMediaType, Status: 415, Exit: ExitFailed, Title: "The call does not accept this media type",
			WayOut: "Send application/json."},
		{Code: RequestMismatch, Status: 422, Exit: ExitConflict, Title: "The Idempotency-Key was used for another request",
			WayOut: "Use a new key for a new request."},
		{Code: BackupUnusable, Status: 422, Exit: ExitFailed, Title: "The file cannot be restored",
			WayOut: "Nothing was changed. The file is no backup, damaged, or of a newer version, as the detail states; " +
				"tidemark cluster backup verify checks a file."},
		{Code: TooManyFailures, Status: 429, Exit: ExitUnavailable, Title: "Too many failed logins",
			WayOut: "Wait for the time in Retry-After, then try with the right password."},
		{Code: TooManyWatchers, Status: 429, Exit: ExitUnavailable, Retry: true,
			Title: "Too many event streams from one address", WayOut: "Close some streams, or use another manager."},
	}
}

// failures returns the codes for failures that are not the request's fault.
func failures() []CodeInfo {
	return []CodeInfo{
		{Code: Cancelled, Status: StatusClientGone, Exit: ExitFailed, Title: "The client has disconnected",
			WayOut: "No action is needed."},
		{Code: Internal, Status: 500, Exit: ExitFailed, Title: "A bug in tidemark",
			WayOut: "Look for the request id in the logs, and report it."},
		{Code: Damaged, Status: 500, Exit: ExitFailed, Title: "Stored data does not match its checksum",
			WayOut: "See the indexer's log; other replicas still answer."},
		{Code: NoLeader, Status: 503, Exit: ExitUnavailable, Retry: true, Title: "No leader can serve this now",
			WayOut: "Nothing was done: try again, anywhere. If it lasts, a majority of managers is missing."},
		{Code: NotReady, Status: 503, Exit: ExitUnavailable, Title: "This node is not ready",
			WayOut: "Its reasons say why: it has not caught up, was removed, or its disk fails. Use another node."},
		{Code: ManagerNotCurrent, Status: 503, Exit: ExitUnavailable, Retry: true,
			Title: "This manager's users and tokens may be out of date", WayOut: "Nothing was done: use another manager. The " +
				"detail and /readyz say why; an administrator's certificate is accepted nevertheless."},
		{Code: NotBootstrapped, Status: 503, Exit: ExitUnavailable, Retry: true, Title: "The cluster has no id yet",
			WayOut: "Nothing was done: try again."},
		{Code: Busy, Status: 503, Exit: ExitUnavailable, Retry: true, Title: "Too many requests at once",
			WayOut: "Nothing was done: try again after Retry-After."},
		{Code: IndexChanged, Status: 503, Exit: ExitUnavailable, Retry: true,
			Title: "The index or its indexers changed while the request was planned",
			WayOut: "Nothing was done: try again. A plan is valid for one version of the index and of the set of indexers; " +
				"the plan to remove an indexer, for one version of all definitions."},
		{Code: Restoring, Status: 503, Exit: ExitUnavailable, Retry: true, Title: "A backup is being restored",
			WayOut: "Nothing was done: try again when the restore is over."},
		{Code: LedgerFull, Status: 503, Exit: ExitUnavailable, Title: "Too many recent requests of this user are " +
			"remembered", WayOut: "Nothing was done: wait, send fewer writes with an Idempotency-Key, or ask an " +
			"administrator to raise ledger_entries."},
		{Code: NoProjector, Status: 503, Exit: ExitUnavailable, Title: "No projector could check whether the bucket exists",
			WayOut: "Start a projector, or the projectors that the detail names."},
		{Code: NoIndexer, Status: 503, Exit: ExitUnavailable, Retry: true,
			Title: "None of the registered indexers answers", WayOut: "Nothing was done: try again. If it lasts, start an " +
				"indexer."},
		{Code: Unavailable, Status: 503, Exit: ExitUnavailable, Retry: true, Title: "No component that could serve this " +
			"answers",
			WayOut: "Nothing was done: try again."},
		{Code: KVUnavailable, Status: 503, Exit: ExitUnavailable, Title: "KV does not answer",
			WayOut: "Check that KV runs, and the projectors' KV user and password."},
		{Code: VBucketsUnavailable, Status: 503, Exit: ExitUnavailable, Title: "KV's present positions are not available",
			WayOut: "A KV node is missing: try again, or scan with consistency any."},
		{Code: OutcomeUnknown, Status: 504, Exit: ExitTimeout, Retry: true, Title: "The write may or may not have been done",
			WayOut: "Send it again with the same Idempotency-Key to learn the outcome."},
		{Code: Timeout, Status: 504, Exit: ExitTimeout, Retry: true, Title: "The time limit was exceeded",
			WayOut: "Nothing was done, or the awaited result did not come: try again with a longer timeout."},
	}
}
