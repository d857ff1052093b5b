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
		{Code: BadRequest, Status: 400, Exit: ExitFailed, Title: "The request means nothing",
			WayOut: "The detail names the field, line and column, or the parameter or header."},
		{Code: SyntaxError, Status: 400, Exit: ExitFailed, Title: "The statement cannot be parsed",
			WayOut: "Mend the statement: the detail has line, column and a caret."},
		{Code: BadDefinition, Status: 400, Exit: ExitFailed, Title: "The definition cannot be an index",
			WayOut: "Mend the definition: the detail says which part, and where."},
		{Code: Unsupported, Status: 400, Exit: ExitFailed, Title: "Understood, and not supported",
			WayOut: "The detail says what is supported."},
		{Code: InvalidArgument, Status: 400, Exit: ExitFailed, Title: "A value is not one that the cluster takes",
			WayOut: "Change the value that the detail names."},
		{Code: LimitExceeded, Status: 400, Exit: ExitFailed, Title: "Beyond a limit of the cluster",
			WayOut: "The detail names the limit: use less, drop something, or raise the limit."},
		{Code: TooManyVBuckets, Status: 400, Exit: ExitFailed, Title: "The bucket has more vbuckets than can be indexed",
			WayOut: "Make a bucket of at most as many as the detail says (Couchbase's have 1,024, or 128), and copy the " +
				"documents there."},
		{Code: PlacementImpossible, Status: 400, Exit: ExitFailed, Title: "The index cannot be placed",
			WayOut: "Fewer replicas, other nodes, or more indexers."},
		{Code: BadIdempotencyKey, Status: 400, Exit: ExitFailed, Title: "The Idempotency-Key cannot be one",
			WayOut: "At most 200 bytes."},
		{Code: UnsupportedFormat, Status: 400, Exit: ExitFailed, Title: "A wire format of another version",
			WayOut: "Upgrade the older side."},
		{Code: Unauthenticated, Status: 401, Exit: ExitFailed, Title: "Nobody known is asking",
			WayOut: "Give --user or --token-file; a token may have ended, a password may be another by now."},
		{Code: Forbidden, Status: 403, Exit: ExitFailed, Title: "The caller may not do this",
			WayOut: "Ask an administrator for the role that the detail names; a node needs the certificate of its role."},
		{Code: NotFound, Status: 404, Exit: ExitNotFound, Title: "No such call",
			WayOut: "/openapi.json lists the calls."},
		{Code: UnknownUser, Status: 404, Exit: ExitNotFound, Title: "No such user",
			WayOut: "GET /v1/users lists the users."},
		{Code: UnknownToken, Status: 404, Exit: ExitNotFound, Title: "No such token",
			WayOut: "GET /v1/tokens lists the tokens."},
		{Code: UnknownIndex, Status: 404, Exit: ExitNotFound, Title: "No such index",
			WayOut: "GET /v1/indexes lists the indexes."},
		{Code: IndexNotHosted, Status: 404, Exit: ExitNotFound, Title: "The indexer has no such index",
			WayOut: "It has just been dropped: list the indexes."},
		{Code: BucketNotInKV, Status: 404, Exit: ExitNotFound, Title: "KV has no such bucket",
			WayOut: "Check the bucket's name, and that the projectors' KV user may read it."},
		{Code: UnknownCollection, Status: 404, Exit: ExitNotFound, Title: "KV has no such collection",
			WayOut: "Check the names of scope and collection, or make it; KV before 7.0 has none."},
		{Code: UnknownBucket, Status: 404, Exit: ExitNotFound, Title: "No index is on that bucket",
			WayOut: "Check the bucket's name."},
		{Code: UnknownNode, Status: 404, Exit: ExitNotFound, Title: "No such manager, projector or indexer",
			WayOut: "It has been removed, or never was; GET /v1/status lists them."},
		{Code: UnknownRebalance, Status: 404, Exit: ExitNotFound, Title: "No such rebalance",
			WayOut: "It is over, or never was; tidemark rebalance status lists those that are remembered."},
		{Code: UnknownScan, Status: 404, Exit: ExitNotFound, Title: "No such scan is under way",
			WayOut: "It has ended, or goes on at another indexer under another id; tidemark scan list lists those that run."},
		{Code: UnknownCopy, Status: 404, Exit: ExitNotFound, Title: "No such copy of a slice",
			WayOut: "It has been moved or dropped since; nothing is to be done.", Between: true},
		{Code: MethodNotAllowed, Status: 405, Exit: ExitFailed, Title: "Not a method of this call",
			WayOut: "Allow lists the methods."},
		{Code: BodyTooSlow, Status: 408, Exit: ExitTimeout, Title: "The body has not come in time",
			WayOut: "Nothing was done: send it again, over a faster network."},
	}
}

// conflicts returns the codes for requests that conflict with the present state.
func conflicts() []CodeInfo {
	return []CodeInfo{
		{Code: UserExists, Status: 409, Exit: ExitConflict, Title: "There is a user of that name",
			WayOut: "Take another name, or change the user."},
		{Code: TokenExists, Status: 409, Exit: ExitConflict, Title: "There is such a token",
			WayOut: "Its secret is not shown again: revoke it, and make another one."},
		{Code: LastAdmin, Status: 409, Exit: ExitConflict, Title: "Nobody would be an administrator",
			WayOut: "Add another administrator first."},
		{Code: NameExists, Status: 409, Exit: ExitConflict, Title: "The bucket has an index of that name",
			WayOut: "Take another name, or IF NOT EXISTS."},
		{Code: IndexNotReady, Status: 409, Exit: ExitConflict, Title: "The index is not ready",
			WayOut: "Wait; BUILD INDEX when it is deferred; in state error its reason says what to do."},
		{Code: IndexInRollback, Status: 409, Exit: ExitConflict, Title: "The bucket is being rolled back",
			WayOut: "KV has failed over; try again."},
		{Code: TokenLost, Status: 409, Exit: ExitConflict, Title: "The write of a token was lost",
			WayOut: "KV has failed over without it: read the document again."},
		{Code: BucketGone, Status: 409, Exit: ExitConflict, Title: "The bucket was deleted",
			WayOut: "Drop the index, or BUILD INDEX once there is a bucket of the name again (of a collection: drop it)."},
		{Code: CollectionGone, Status: 409, Exit: ExitConflict, Title: "The collection was dropped or emptied",
			WayOut: "Drop the index, and create it again on a collection that there is."},
		{Code: GenerationMismatch, Status: 409, Exit: ExitConflict, Title: "The bucket is another one by now",
			WayOut: "Drop the index, or build it again."},
		{Code: StateMismatch, Status: 409, Exit: ExitConflict, Title: "The index is in another state",
			WayOut: "Describe it: what was asked cannot be in the state it is in."},
		{Code: IllegalTransition, Status: 409, Exit: ExitConflict, Title: "That state may not follow",
			WayOut: "Describe the index: what was asked cannot be in the state it is in."},
		{Code: NodeInUse, Status: 409, Exit: ExitConflict, Title: "The indexer still has copies",
			WayOut: "Move or drop what it has first."},
		{Code: RebalanceRunning, Status: 409, Exit: ExitConflict, Title: "Another rebalance is under way",
			WayOut: "Wait until it is over (tidemark rebalance status), or cancel it."},
		{Code: SplitRunning, Status: 409, Exit: ExitConflict, Title: "The index is being split",
			WayOut: "Wait until that is over (describe the index), or cancel it."},
		{Code: StalePlan, Status: 409, Exit: ExitConflict, Title: "The placement has changed since the plan was made",
			WayOut: "Make a new plan; the detail names what has changed."},
		{Code: Fenced, Status: 409, Exit: ExitConflict, Title: "Something newer has been heard",
			WayOut: "A deposed leader or a late request; nothing is to be done.", Between: true},
		{Code: StaleTerm, Status: 409, Exit: ExitConflict, Title: "A lower term than the state's",
			WayOut: "A deposed leader; nothing is to be done.", Between: true},
		{Code: StaleRevision, Status: 409, Exit: ExitConflict, Title: "An older revision of definitions",
			WayOut: "A late report; nothing is to be done.", Between: true},
		{Code: StepMismatch, Status: 409, Exit: ExitConflict, Title: "The rollback is in another step",
			WayOut: "A late command; nothing is to be done.", Between: true},
		{Code: RollbackMismatch, Status: 409, Exit: ExitConflict, Title: "The bucket was, or is being, rolled back",
			WayOut: "Try again.", Between: true},
		{Code: StabilityNotMonotone, Status: 409, Exit: ExitConflict, Title: "Not the next stability timestamp",
			WayOut: "A late command; nothing is to be done.", Between: true},
		{Code: PlacementInconsistent, Status: 409, Exit: ExitConflict, Title: "Copies are missing, doubled, or on one " +
			"node", WayOut: "A bug: report it.", Between: true},
		{Code: BootConflict, Status: 409, Exit: ExitConflict, Title: "Two live processes have one identity",
			WayOut: "A folder was copied: stop one of the two and wipe its folder.", Between: true},
		{Code: ForeignCluster, Status: 409, Exit: ExitConflict, Title: "Of another cluster",
			WayOut: "Point it at its own cluster, or wipe its folder.", Between: true},
		{Code: AlreadyBootstrapped, Status: 409, Exit: ExitConflict, Title: "The cluster has an id",
			WayOut: "Nothing is to be done.", Between: true},
		{Code: MemberConflict, Status: 409, Exit: ExitConflict, Title: "The manager cannot be a member beside those " +
			"that are there", WayOut: "The detail names the other one: give the new one another name and address, or remove " +
			"the old one first."},
		{Code: QuorumAtRisk, Status: 409, Exit: ExitConflict, Title: "A majority of managers would be missing",
			WayOut: "Bring the managers back that do not answer, or remove them first; ?yes=lose-data removes as many of them " +
				"as are in the way."},
		{Code: TransferFailed, Status: 409, Exit: ExitConflict, Title: "Leadership could not be handed on",
			WayOut: "Choose another voter, one that lives."},
		{Code: NodeAlive, Status: 409, Exit: ExitConflict, Title: "The node lives", WayOut: "Stop it first, or force it."},
		{Code: LastCopies, Status: 409, Exit: ExitConflict, Title: "What is to go has the only copies of slices",
			WayOut: "Bring the indexer back, or wait until other replicas are filled; cluster remove --force builds the " +
				"indexes that the detail names anew."},
		{Code: FormatNotAllowed, Status: 409, Exit: ExitConflict, Title: "A format that not every voter understands",
			WayOut: "Upgrade the managers that the detail names first."},
		{Code: FormatTooOld, Status: 409, Exit: ExitConflict, Title: "The cluster is in the middle of an upgrade",
			WayOut: "When all managers run the new version: tidemark cluster finalize-upgrade."},
		{Code: BackupOfOther, Status: 409, Exit: ExitConflict, Title: "The backup cannot be restored into this cluster " +
			"in this way", WayOut: "The detail says whose backup it is, and how it can be restored."},
		{Code: RestoreMismatch, Status: 409, Exit: ExitConflict, Title: "The restore is no longer under way",
			WayOut: "Nothing was done: restore again."},
	}
}

// outdated returns the codes for requests for something that is gone, changed or too large.
func outdated() []CodeInfo {
	return []CodeInfo{
		{Code: NodeRemoved, Status: 410, Exit: ExitNotFound, Title: "The node was removed for good",
			WayOut: "Delete its folder; it then joins as a new one.", Between: true},
		{Code: SnapshotTooOld, Status: 410, Exit: ExitUnavailable, Title: "The scan's timestamp is not held any more",
			WayOut: "Scan again."},
		{Code: CursorExpired, Status: 410, Exit: ExitUnavailable, Title: "The state that a cursor is of is not kept any more",
			WayOut: "Send the cursor with newer to go on behind it in the newest state, or begin anew."},
		{Code: SnapshotSkipped, Status: 410, Exit: ExitUnavailable, Title: "The indexer could not make this timestamp",
			WayOut: "Scan again."},
		{Code: ScanCancelled, Status: 410, Exit: ExitFailed, Title: "Somebody has ended the scan",
			WayOut: "The detail says who: ask them before it is scanned again."},
		{Code: CASMismatch, Status: 412, Exit: ExitConflict, Title: "It has changed since",
			WayOut: "Read it again, decide again; modified_cas is the present one."},
		{Code: BodyTooLarge, Status: 413, Exit: ExitFailed, Title: "The body is too large",
			WayOut: "The detail names the most."},
		{Code: UnsupportedMediaType, Status: 415, Exit: ExitFailed, Title: "Not a media type of this call",
			WayOut: "Send application/json."},
		{Code: RequestMismatch, Status: 422, Exit: ExitConflict, Title: "The Idempotency-Key was used for another request",
			WayOut: "Take a new key for a new request."},
		{Code: BackupUnusable, Status: 422, Exit: ExitFailed, Title: "The file cannot be restored",
			WayOut: "Nothing was done. It is no backup, damaged, or of a newer version: the detail says which; tidemark " +
				"cluster backup verify checks a file."},
		{Code: TooManyFailures, Status: 429, Exit: ExitUnavailable, Title: "Too many failed logins",
			WayOut: "Wait as long as Retry-After says, then try with the right password."},
		{Code: TooManyWatchers, Status: 429, Exit: ExitUnavailable, Retry: true,
			Title: "Too many event streams from one address", WayOut: "Close some, or ask another manager."},
	}
}

// failures returns the codes for failures that are not the request's fault.
func failures() []CodeInfo {
	return []CodeInfo{
		{Code: Cancelled, Status: StatusClientGone, Exit: ExitFailed, Title: "The client has gone",
			WayOut: "Nobody is left to do anything."},
		{Code: Internal, Status: 500, Exit: ExitFailed, Title: "A bug", WayOut: "Look for the request id in the logs, " +
			"and report it."},
		{Code: Damaged, Status: 500, Exit: ExitFailed, Title: "Stored data does not match its checksum",
			WayOut: "See the indexer's log; other replicas answer."},
		{Code: NoLeader, Status: 503, Exit: ExitUnavailable, Retry: true, Title: "No leader can serve this now",
			WayOut: "Nothing was done: try again, anywhere. If it lasts, a majority of managers is missing."},
		{Code: NotReady, Status: 503, Exit: ExitUnavailable, Title: "This node is not ready",
			WayOut: "Its reasons say why: it has not caught up, was removed, or its disk is not well. The others can be asked."},
		{Code: ManagerNotCurrent, Status: 503, Exit: ExitUnavailable, Retry: true,
			Title: "This manager may not know who may do what", WayOut: "Nothing was done: ask another manager. The detail " +
				"and /readyz say why; an administrator's certificate is let in all the same."},
		{Code: NotBootstrapped, Status: 503, Exit: ExitUnavailable, Retry: true, Title: "The cluster has no id yet",
			WayOut: "Nothing was done: try again."},
		{Code: Busy, Status: 503, Exit: ExitUnavailable, Retry: true, Title: "Too much at once",
			WayOut: "Nothing was done: try again after Retry-After."},
		{Code: IndexChanged, Status: 503, Exit: ExitUnavailable, Retry: true,
			Title: "The index, or who was to hold it, was changed while the request was planned",
			WayOut: "Try again; nothing was done. What is planned is for one version of the index and the indexers there are; " +
				"the removal of an indexer, for one of all definitions."},
		{Code: Restoring, Status: 503, Exit: ExitUnavailable, Retry: true, Title: "A backup is being restored",
			WayOut: "Nothing was done: try again when that is over."},
		{Code: LedgerFull, Status: 503, Exit: ExitUnavailable, Title: "Too many recent requests of this user are " +
			"remembered", WayOut: "Nothing was done: wait, send fewer writes with an Idempotency-Key, or have an " +
			"administrator raise ledger_entries."},
		{Code: NoProjector, Status: 503, Exit: ExitUnavailable, Title: "No projector could say whether the bucket exists",
			WayOut: "Start a projector, or those that the detail names."},
		{Code: NoIndexer, Status: 503, Exit: ExitUnavailable, Retry: true,
			Title: "None of the registered indexers answers", WayOut: "Nothing was done: try again. If it lasts, start an " +
				"indexer."},
		{Code: Unavailable, Status: 503, Exit: ExitUnavailable, Retry: true, Title: "Nobody who could serve this answers",
			WayOut: "Nothing was done: try again."},
		{Code: KVUnavailable, Status: 503, Exit: ExitUnavailable, Title: "KV cannot be asked",
			WayOut: "Check that KV runs, and the projectors' KV user and password."},
		{Code: VBucketsUnavailable, Status: 503, Exit: ExitUnavailable, Title: "KV's present positions cannot be had",
			WayOut: "A KV node is missing: try again, or scan with consistency any."},
		{Code: OutcomeUnknown, Status: 504, Exit: ExitTimeout, Retry: true, Title: "The write may or may not be done",
			WayOut: "Send it again with the same Idempotency-Key to learn the outcome."},
		{Code: Timeout, Status: 504, Exit: ExitTimeout, Retry: true, Title: "Not in time",
			WayOut: "Nothing was done, or what was waited for did not come: try again, with more patience."},
	}
}
