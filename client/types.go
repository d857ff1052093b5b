package client

import (
	"encoding/json"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/statecontext"
	"tidemark/timestamp"
	"tidemark/wire"
)

// Error is what a manager or indexer answers when it refuses: status, code, detail (RFC 9457).
type Error = wire.Problem

// Reason is why a manager is not ready.
type Reason = wire.Reason

// IndexInfo is an index as GET /v1/indexes shows it.
type IndexInfo struct {
	ID     index.ID `json:"id"`
	Name   string   `json:"name"`
	Bucket string   `json:"bucket"`
	// Scope and Collection name the collection that the documents are in; absent: the default one.
	Scope      string `json:"scope,omitempty"`
	Collection string `json:"collection,omitempty"`
	// CollectionID is the id that it had when the index was made: one that is made again under the name is another one.
	CollectionID uint32      `json:"collection_id,omitempty"`
	State        index.State `json:"state"`
	Deferred     bool        `json:"deferred,omitempty"`
	Reason       string      `json:"reason,omitempty"` // of state error
	Progress     float64     `json:"progress"`         // of the build, percent: 0 to 100
	// Availability says how much of a ready index can be scanned; absent when it is not ready, or when no leader was
	// asked.
	Availability *Availability   `json:"availability,omitempty"`
	Definition   string          `json:"definition"` // canonical DDL text
	IsPrimary    bool            `json:"is_primary"`
	Keys         []index.KeyExpr `json:"keys,omitempty"`
	Where        string          `json:"where,omitempty"`
	// PartitionBy is how entries are spread over slices; absent: by the document's id.
	PartitionBy index.PartitionBy `json:"partition_by,omitzero"`
	Partitions  uint16            `json:"num_partition"`
	Replicas    uint8             `json:"num_replica"`
	Items       uint64            `json:"items"`      // entries, of the first replica of each slice
	DiskBytes   uint64            `json:"disk_bytes"` // of all copies
	Copies      []partition.Copy  `json:"copies,omitempty"`
	CreatedMS   int64             `json:"created_ms"`
	ModifiedCAS uint64            `json:"modified_cas"` // its ETag
	// Replaces is the index of this name that this one is being built for, with other slices: when it is ready it has the
	// name. Absent: no split, or it is over.
	Replaces index.ID `json:"replaces,omitempty"`
	// Split is the index that is being built in the place of this one; absent: none is.
	Split *SplitInfo `json:"split,omitempty"`
	// SplitFailed is why the newest split came to nothing; absent: none did, or another one was begun since.
	SplitFailed string `json:"split_failed,omitempty"`
	// SplitWaits is why it is not split by itself now, though a slice of it has more bytes than it may (--split-above of
	// the managers); absent: none has.
	SplitWaits string `json:"split_waits,omitempty"`
	// Faults tells of documents that have no entry because of an error; absent when there are none.
	Faults *IndexFaults `json:"faults,omitempty"`
	// ExpressionRules is the lowest version of the expressions' rules by which its entries were made; absent when it was
	// not recorded.
	ExpressionRules uint32 `json:"expression_rules,omitempty"`
	// Outdated says what that means when projectors evaluate by other rules and its expressions give other values by them;
	// absent when they do not, or when no leader was asked.
	Outdated string `json:"outdated,omitempty"`
}

// SplitInfo tells of an index that is being built in the place of another one.
type SplitInfo struct {
	ID       index.ID    `json:"id"`
	State    index.State `json:"state"`
	Progress float64     `json:"progress"` // of its build, percent
	// Cause is why it began by itself; absent: somebody asked for it.
	Cause      string `json:"cause,omitempty"`
	Partitions uint16 `json:"num_partition"`
	Definition string `json:"definition"`
}

// Availability says how much of a ready index can be scanned.
type Availability struct {
	// State is available: every slice has as many copies as were asked for; degraded: every slice can be scanned, some
	// have fewer copies; or unavailable: some slice cannot be scanned.
	State   string `json:"state"`
	Why     string `json:"why,omitempty"` // it is not available: which slices, and what is wrong with their copies
	SinceMS int64  `json:"since_ms"`      // unix milliseconds; when this leader saw it first
}

// IndexFaults counts documents that have no entry in an index because of an error, since the projectors' processes
// began and over all streams: a document that a stream brings again is counted again.
type IndexFaults struct {
	Expression uint64 `json:"expression"` // an expression failed
	TooLong    uint64 `json:"too_long"`   // a key was too long
	// Sample is one of these documents.
	Sample FaultSample `json:"sample"`
}

// FaultSample is a document that has no entry.
type FaultSample struct {
	DocID   string `json:"doc_id"`
	VBucket uint16 `json:"vbucket"`
	Seqno   uint64 `json:"seqno"`
	Error   string `json:"error"`
}

// IndexList is the answer of GET /v1/indexes: a page of the list.
type IndexList struct {
	CAS     uint64      `json:"cas"`
	Indexes []IndexInfo `json:"indexes"`
	// Next is what ?after= takes for the page that follows; absent from the last one.
	Next string `json:"next,omitempty"`
}

// StatementRequest is the body of POST /v1/statements: one or more DDL statements separated by semicolons.
type StatementRequest struct {
	Statement string `json:"statement"`
}

// StatementResult is what one statement has done.
type StatementResult struct {
	ID     index.ID `json:"id"`
	Name   string   `json:"name"`
	Bucket string   `json:"bucket"`
	// Scope and Collection name the collection that the documents are in; absent: the default one.
	Scope      string      `json:"scope,omitempty"`
	Collection string      `json:"collection,omitempty"`
	State      index.State `json:"state"`
	CAS        uint64      `json:"cas"`
	// Deferred tells that the index waits for BUILD INDEX.
	Deferred bool `json:"deferred,omitempty"`
	// Existed tells that IF NOT EXISTS or IF EXISTS made the statement do nothing.
	Existed bool `json:"existed,omitempty"`
	// Notices say what was written and does nothing.
	Notices []string `json:"notices,omitempty"`
	// Places, of a dry run, say where the copies of the index would lie.
	Places []Place `json:"places,omitempty"`
	// Moves, of a dry run, counts the copies that would then move elsewhere.
	Moves int `json:"moves,omitempty"`
}

// Place is what an indexer would hold of an index.
type Place struct {
	Indexer string       `json:"indexer"`
	Copies  []PlacedCopy `json:"copies"`
}

// PlacedCopy names a copy.
type PlacedCopy struct {
	Slice   index.SliceID     `json:"slice"`
	Replica partition.Replica `json:"replica"`
}

// StatementReply is the answer of POST /v1/statements.
type StatementReply struct {
	// DryRun tells that nothing was done: results say what would be, without the id of an index that would be created and
	// without cas.
	DryRun  bool              `json:"dry_run,omitempty"`
	Results []StatementResult `json:"results"`
}

// CreateRequest is the body of POST /v1/indexes: what CREATE INDEX says, in JSON.
type CreateRequest struct {
	Name   string `json:"name"`
	Bucket string `json:"bucket"`
	// Scope and Collection name the collection that the documents are in; absent: the default one.
	Scope      string          `json:"scope,omitempty"`
	Collection string          `json:"collection,omitempty"`
	IsPrimary  bool            `json:"is_primary,omitempty"`
	Keys       []index.KeyExpr `json:"keys,omitempty"`
	Where      string          `json:"where,omitempty"`
	// PartitionBy spreads entries over slices by key; absent: by the document's id.
	PartitionBy index.PartitionBy `json:"partition_by,omitzero"`
	IfNotExists bool              `json:"if_not_exists,omitempty"`
	DeferBuild  bool              `json:"defer_build,omitempty"`
	Partitions  uint16            `json:"num_partition,omitempty"`
	Replicas    uint8             `json:"num_replica,omitempty"`
	Nodes       []string          `json:"nodes,omitempty"`
}

// BuildRequest is the body of POST /v1/indexes:build.
type BuildRequest struct {
	Bucket string `json:"bucket"`
	// Scope and Collection name the collection that the documents are in; absent: the default one.
	Scope      string   `json:"scope,omitempty"`
	Collection string   `json:"collection,omitempty"`
	Names      []string `json:"names"`
}

// PatchRequest is the body of PATCH /v1/indexes/{id}: what is to change.
type PatchRequest struct {
	// Deferred takes false: the build of a deferred index, or of one in state error, starts.
	Deferred *bool `json:"deferred,omitempty"`
}

// Token says that a write at {vbucket, vbuuid, seqno} must be seen.
type Token struct {
	VBucket uint16 `json:"vbucket"`
	VBUUID  uint64 `json:"vbuuid,string"`
	Seqno   uint64 `json:"seqno"`
}

// Range limits a scan. A nil bound is open; Inclusion is both (default), low, high or neither. Equal, Prefix, From,
// After, UpTo and Below make one of Go values.
type Range struct {
	Low       []json.RawMessage `json:"low,omitempty"`
	High      []json.RawMessage `json:"high,omitempty"`
	Inclusion string            `json:"inclusion,omitempty"`

	err error // of the values that it was made of
}

// Condition is one on a single component of the key, from 0: it equals Equal, is one of In, or lies between Low and
// High, of which one may be missing. Exactly one of the three is given. Component and ComponentIn make one of Go
// values.
type Condition struct {
	Component int               `json:"component"`
	Equal     json.RawMessage   `json:"equal,omitempty"`
	In        []json.RawMessage `json:"in,omitempty"`
	Low       json.RawMessage   `json:"low,omitempty"`
	High      json.RawMessage   `json:"high,omitempty"`
	Inclusion string            `json:"inclusion,omitempty"` // of Low and High: both (default), low, high or neither

	err error // of the values that it was made of
}

// ScanRequest is the body of POST /v1/indexes/{id}:scan and :count. At most one of Equal, Range and Ranges is given;
// none means the whole index.
type ScanRequest struct {
	Limit         int               `json:"limit,omitempty"`       // rows; 0 = no limit
	Consistency   string            `json:"consistency,omitempty"` // any (default), at_plus, session
	Tokens        []Token           `json:"tokens,omitempty"`      // for at_plus
	Equal         []json.RawMessage `json:"equal,omitempty"`
	Range         *Range            `json:"range,omitempty"`
	Ranges        []Range           `json:"ranges,omitempty"`
	Reverse       bool              `json:"reverse,omitempty"`
	WantTimestamp bool              `json:"want_timestamp,omitempty"`
	Explain       bool              `json:"explain,omitempty"` // how it is carried out is wanted, with its end
	Offset        int               `json:"offset,omitempty"`  // rows passed over before the first one
	// one row, the first, of those with the same key, or with the same Project
	Distinct bool `json:"distinct,omitempty"`
	// Stability is scan (default: all rows are of one timestamp), none (each 10,000 rows are of the newest one), or query:
	// of one timestamp that is kept for later scans, which name it with Timestamp, ScanTimestamp.ID of the first one.
	Stability string `json:"stability,omitempty"`
	Timestamp string `json:"timestamp,omitempty"`
	// ScanVectors are tokens as SDKs of Couchbase write them, instead of Tokens: {"bucket":{"vbucket":[seqno,"vbuuid"]}}.
	ScanVectors map[string]map[string][]json.RawMessage `json:"scan_vectors,omitempty"`
	// components of the key that rows have, from 0; nil: all; empty: none
	Project []int `json:"project,omitzero"`
	// conditions on single components: rows that do not meet all of them are left out
	Where []Condition `json:"where,omitempty"`
	// Session has tokens of earlier answers (ScanSeen.Session), separated by commas: nothing older is shown. Those of
	// other buckets than the index's do not count. The Go client keeps them by itself, see Session.
	Session string `json:"session,omitempty"`
	// WantCursor asks for a page: Limit rows, and a cursor (ScanEnd.Cursor) behind which the next request, otherwise the
	// same, goes on with Cursor. All pages are of one timestamp, which is kept for a minute after each, for ten minutes at
	// most; then the answer is CURSOR_EXPIRED. With Newer the scan goes on behind the cursor in the newest state.
	WantCursor bool   `json:"want_cursor,omitempty"`
	Cursor     string `json:"cursor,omitempty"`
	Newer      bool   `json:"newer,omitempty"`
}

// ScanRoute is the answer of :locate: how to scan an index without a manager between.
type ScanRoute struct {
	Index     index.ID `json:"index"`
	ScanPorts []string `json:"scan_ports"` // host:port, of the indexers that hold the index, in no order
	Ticket    string   `json:"ticket"`     // stands for the caller there
	TicketMS  int64    `json:"ticket_ms"`  // how long it is good
}

// Row is one entry of an index.
type Row struct {
	Key []json.RawMessage `json:"key"`
	ID  string            `json:"id"`
}

// ScanTimestamp names the state that a scan has shown.
type ScanTimestamp struct {
	// ID names it for later scans, see ScanRequest.Stability.
	ID     string            `json:"id"`
	Hash   string            `json:"hash"`
	Vector []VBucketPosition `json:"vector,omitempty"`
}

// VBucketPosition is written ["vbuuid", seqno].
type VBucketPosition timestamp.Position

// MarshalJSON writes ["vbuuid", seqno].
func (p VBucketPosition) MarshalJSON() ([]byte, error) {
	return json.Marshal([2]any{formatUint(p.VBUUID), p.Seqno})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (p *VBucketPosition) UnmarshalJSON(b []byte) error {
	var pair [2]json.RawMessage
	if err := json.Unmarshal(b, &pair); err != nil {
		return err
	}
	var s string
	if err := json.Unmarshal(pair[0], &s); err != nil {
		return err
	}
	u, err := parseUint(s)
	if err != nil {
		return err
	}
	p.VBUUID = u
	return json.Unmarshal(pair[1], &p.Seqno)
}

// ScanEnd is the last line of a scan that came to its end.
type ScanEnd struct {
	End       bool          `json:"end"`
	Rows      uint64        `json:"rows"`
	Timestamp ScanTimestamp `json:"timestamp"`
	ScanSeen
	ScanMore
	Explain *ScanExplain `json:"explain,omitempty"` // where it was asked for
}

// ScanMore is the end of a page, see ScanRequest.WantCursor.
type ScanMore struct {
	More   bool   `json:"more,omitempty"`   // rows follow
	Cursor string `json:"cursor,omitempty"` // behind which they do; absent with More: the last row has more than 32 KiB
}

// ScanSeen is what a session has seen with an answer.
type ScanSeen struct {
	// Session is a token: what is asked for with it shows nothing older.
	Session string `json:"session,omitempty"`
	// SessionLost says why something that the session had seen is there no more, as a failover has undone it or the bucket
	// was made anew; absent: all is. The answer shows all that KV had when it began then, whatever its consistency.
	SessionLost string `json:"session_lost,omitempty"`
}

// ScanExplain says how a scan or a count was carried out. Of an answer that another indexer has gone on with it is that
// one's part.
type ScanExplain struct {
	// Attempts is how often copies were chosen: again where none had the timestamp, and for each page of stability none.
	Attempts int        `json:"attempts"`
	WaitedMS float64    `json:"waited_ms"` // for a stability timestamp that is new enough
	TookMS   float64    `json:"took_ms"`   // in all, until its last row was given
	Slices   int        `json:"slices"`    // that may hold rows of the ranges
	Of       int        `json:"of"`        // slices of the index
	Parts    []ScanPart `json:"parts"`     // what indexers were asked for, in the order of the questions, at most 1,024
	Omitted  int        `json:"omitted,omitempty"`
}

// ScanPart is what one indexer was asked for at once.
type ScanPart struct {
	Indexer  string          `json:"indexer"`
	Slices   []index.SliceID `json:"slices"`
	Copies   []index.CopyID  `json:"copies"`
	Rows     int64           `json:"rows"`            // taken from it, before distinct and offset
	OpenedMS float64         `json:"opened_ms"`       // until it had the timestamp, and its first rows
	Error    string          `json:"error,omitempty"` // why others were asked instead
}

// CountReply is the answer of :count.
type CountReply struct {
	Count     uint64        `json:"count"`
	Timestamp ScanTimestamp `json:"timestamp"`
	ScanSeen
	Explain *ScanExplain `json:"explain,omitempty"`
}

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
	Indexers    []IndexerStatus   `json:"indexers"`
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
	NotReady []Reason `json:"not_ready,omitempty"`
	// ServerID is its Raft id: the name and a random suffix that goes with its data folder.
	ServerID string `json:"server_id"`
	// Lag is how many log entries it lacks, as the leader sees it.
	Lag uint64 `json:"lag,omitempty"`
	// Problem says what is wrong with it, and the way out.
	Problem string `json:"problem,omitempty"`
}

// JoinRequest is the body of POST /v1/cluster/managers:join.
type JoinRequest struct {
	// Address is where the manager that waits for a cluster listens for REST: host:port or a base URL.
	Address string `json:"address"`
}

// MemberReply is the answer to a change of members.
type MemberReply struct {
	ID       string `json:"id"` // its name
	ServerID string `json:"server_id,omitempty"`
	Detail   string `json:"detail"` // what follows from it
}

// IndexLoss is what the removal of an indexer means for an index.
type IndexLoss struct {
	Index  index.ID `json:"index"`
	Name   string   `json:"name"`
	Bucket string   `json:"bucket"`
	Copies int      `json:"copies"` // that the indexer had; each is placed anew on another
	// LastCopies is how many of them no living indexer has besides.
	LastCopies int `json:"last_copies"`
	// Rebuilt tells that the index is built anew from KV; until then it cannot be scanned.
	Rebuilt bool `json:"rebuilt"`
}

// IndexerRemoval is the answer of DELETE /v1/cluster/indexers/{id}.
type IndexerRemoval struct {
	ID      string       `json:"id"`
	Node    index.NodeID `json:"node"`
	UUID    string       `json:"uuid"`
	Alive   bool         `json:"alive"`
	Removed bool         `json:"removed"` // false after dry_run, and while it goes on
	// Evicting: it is decided and goes on by itself, also under another leader; the same call waits for its end. Waits
	// says what keeps it.
	Evicting bool        `json:"evicting,omitempty"`
	Waits    string      `json:"waits,omitempty"`
	Indexes  []IndexLoss `json:"indexes"` // of the copies that it had when it was asked for
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
	Copies   int          `json:"copies"`
	Health   string       `json:"health,omitempty"`
	Revision uint64       `json:"revision"`
	// QueueBytes is what waits to be written, over all buckets; QueueLimit the most that may.
	QueueBytes uint64 `json:"queue_bytes"`
	QueueLimit uint64 `json:"queue_limit"`
	// Orphans are slices in its folder that the cluster does not know: the oldest 64 of OrphanCount.
	Orphans     []Orphan `json:"orphans,omitempty"`
	OrphanCount int      `json:"orphan_count,omitempty"`
	// Evicting: it is being removed, Placed copies have still their place on it, and EvictionWaits says why it does not go
	// on.
	Evicting      bool   `json:"evicting,omitempty"`
	Placed        int    `json:"placed,omitempty"`
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
	// StabilityAgeMS is how long ago the leader saw the newest stability timestamp promoted; absent when there was none in
	// its term.
	StabilityAgeMS *int64 `json:"stability_age_ms,omitempty"`
	Lag            uint64 `json:"lag"`           // complete seqnos above it, over all vbuckets
	ScansWaiting   int    `json:"scans_waiting"` // for a newer one
	Rollback       string `json:"rollback,omitempty"`
	// RollbackForMS is for how long the leader has seen the rollback's present step under way; 0 without one.
	RollbackForMS int64 `json:"rollback_for_ms,omitempty"`
}

// Keyspace is where the documents of the index are: bucket, or bucket.scope.collection.
func (i *IndexInfo) Keyspace() string {
	return index.KeyspaceOf(i.Bucket, i.Scope, i.Collection).String()
}

// Keyspace is where the documents of the index are: bucket, or bucket.scope.collection.
func (r *StatementResult) Keyspace() string {
	return index.KeyspaceOf(r.Bucket, r.Scope, r.Collection).String()
}
