package v1

import (
	"tidemark/index"
	"tidemark/partition"
)

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
	// Notices say what was written and does nothing, and which fields of the key no document has that was looked at.
	Notices []string `json:"notices,omitempty"`
	// Places, of a dry run, say where the copies of the index would lie.
	Places []Place `json:"places,omitempty"`
	// Moves, of a dry run, counts the copies that would then move elsewhere.
	Moves int `json:"moves,omitempty"`
	// Cost, of a dry run, is what it would cost; absent where it would do nothing. Of an index that is created with
	// defer_build it is what its build would.
	Cost *StatementCost `json:"cost,omitempty"`
}

// StatementCost is what a statement would cost. What is not known is absent, and named in Unknown.
type StatementCost struct {
	// Documents are those of the keyspace, which a build reads from KV, once for all copies and for all indexes that are
	// built at the same time; absent of what needs none.
	Documents *Estimate `json:"documents,omitempty"`
	Copies    int       `json:"copies,omitempty"`  // that would be made
	Entries   *Estimate `json:"entries,omitempty"` // that a replica of the index would have
	Bytes     *Estimate `json:"bytes,omitempty"`   // that these copies would take on disk
	Frees     *Estimate `json:"frees,omitempty"`   // bytes of copies that would go
	// Unknown says what cannot be told, and why.
	Unknown []string `json:"unknown,omitempty"`
}

// Estimate is a number that is not known exactly, and where it comes from.
type Estimate struct {
	Value uint64 `json:"value"`
	// Bound is about, at_least or at_most.
	Bound  string `json:"bound"`
	Source string `json:"source"`
}

// What an Estimate is.
const (
	About   = "about"
	AtLeast = "at_least"
	AtMost  = "at_most"
)

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
	// AutoSplit false: it gets more and fewer slices only when somebody asks for them. Absent counts as true.
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

// PatchRequest is the body of PATCH /v1/indexes/{id}: what is to change.
type PatchRequest struct {
	// Deferred takes false: the build of a deferred index, or of one in state error, starts.
	Deferred *bool `json:"deferred,omitempty"`
}

// Keyspace is where the documents of the index are: bucket, or bucket.scope.collection.
func (r *StatementResult) Keyspace() string {
	return index.KeyspaceOf(r.Bucket, r.Scope, r.Collection).String()
}
