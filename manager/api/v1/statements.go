package v1

import (
	"tidemark/index"
	"tidemark/partition"
)

// StatementRequest is the body of POST /v1/statements: one or more DDL statements separated by semicolons.
type StatementRequest struct {
	Statement string `json:"statement"`
}

// StatementResult is the outcome of one statement.
type StatementResult struct {
	ID     index.ID `json:"id"`
	Name   string   `json:"name"`
	Bucket string   `json:"bucket"`
	// Scope and Collection name the collection that the documents are in; absent: the default one.
	Scope      string      `json:"scope,omitempty"`
	Collection string      `json:"collection,omitempty"`
	State      index.State `json:"state"`
	CAS        uint64      `json:"cas"`
	// Deferred is set if the index waits for BUILD INDEX.
	Deferred bool `json:"deferred,omitempty"`
	// Existed is set if the statement changed nothing because of IF NOT EXISTS or IF EXISTS.
	Existed bool `json:"existed,omitempty"`
	// Notices lists options without effect, and fields of the key that none of the examined documents has.
	Notices []string `json:"notices,omitempty"`
	// Places, of a dry run, lists where the copies of the index would be placed.
	Places []Place `json:"places,omitempty"`
	// Moves, of a dry run, counts the copies that would then move.
	Moves int `json:"moves,omitempty"`
	// Cost, of a dry run, is the expected cost; absent if the statement would change nothing. For an index created with
	// defer_build it is the cost of its build.
	Cost *StatementCost `json:"cost,omitempty"`
}

// StatementCost is the expected cost of a statement. What is not known is absent, and listed in Unknown.
type StatementCost struct {
	// Documents is the number of documents in the keyspace, which a build reads from KV, once for all copies and for all
	// indexes built at the same time; absent if none are read.
	Documents *Estimate `json:"documents,omitempty"`
	Copies    int       `json:"copies,omitempty"`  // to be made
	Entries   *Estimate `json:"entries,omitempty"` // expected in a replica of the index
	Bytes     *Estimate `json:"bytes,omitempty"`   // that these copies would take on disk
	Frees     *Estimate `json:"frees,omitempty"`   // bytes of copies that would be dropped
	// Unknown lists what cannot be estimated, and why.
	Unknown []string `json:"unknown,omitempty"`
}

// Estimate is an approximate number and its source.
type Estimate struct {
	Value uint64 `json:"value"`
	// Bound is about, at_least or at_most.
	Bound  string `json:"bound"`
	Source string `json:"source"`
}

// Values of Estimate.Bound.
const (
	About   = "about"
	AtLeast = "at_least"
	AtMost  = "at_most"
)

// Place is the part of an index that an indexer would hold.
type Place struct {
	Indexer string       `json:"indexer"`
	Copies  []PlacedCopy `json:"copies"`
}

// PlacedCopy identifies a copy.
type PlacedCopy struct {
	Slice   index.SliceID     `json:"slice"`
	Replica partition.Replica `json:"replica"`
}

// StatementReply is the answer of POST /v1/statements.
type StatementReply struct {
	// DryRun is set if nothing was changed: results are what would be, without the id of a new index and without cas.
	DryRun  bool              `json:"dry_run,omitempty"`
	Results []StatementResult `json:"results"`
}

// CreateRequest is the body of POST /v1/indexes: the contents of CREATE INDEX, in JSON.
type CreateRequest struct {
	Name   string `json:"name"`
	Bucket string `json:"bucket"`
	// Scope and Collection name the collection that the documents are in; absent: the default one.
	Scope      string          `json:"scope,omitempty"`
	Collection string          `json:"collection,omitempty"`
	IsPrimary  bool            `json:"is_primary,omitempty"`
	Keys       []index.KeyExpr `json:"keys,omitempty"`
	Where      string          `json:"where,omitempty"`
	// PartitionBy distributes entries over slices by key; absent: by the document's id.
	PartitionBy index.PartitionBy `json:"partition_by,omitzero"`
	IfNotExists bool              `json:"if_not_exists,omitempty"`
	DeferBuild  bool              `json:"defer_build,omitempty"`
	Partitions  uint16            `json:"num_partition,omitempty"`
	Replicas    uint8             `json:"num_replica,omitempty"`
	Nodes       []string          `json:"nodes,omitempty"`
	// AutoSplit false: the index is split and merged only on request. Absent counts as true.
	AutoSplit *bool `json:"auto_split,omitempty"`
}

// BuildRequest is the body of POST /v1/indexes:build.
type BuildRequest struct {
	Bucket string `json:"bucket"`
	// Scope and Collection name the collection that the documents are in; absent: the default one.
	Scope      string   `json:"scope,omitempty"`
	Collection string   `json:"collection,omitempty"`
	Names      []string `json:"names"`
}

// PatchRequest is the body of PATCH /v1/indexes/{id}: the changes.
type PatchRequest struct {
	// Deferred may only be false: it starts the build of an index that is deferred or in state error.
	Deferred *bool `json:"deferred,omitempty"`
}

// Keyspace returns the keyspace of the index's documents: bucket, or bucket.scope.collection.
func (r *StatementResult) Keyspace() string {
	return index.KeyspaceOf(r.Bucket, r.Scope, r.Collection).String()
}
