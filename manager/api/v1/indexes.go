package v1

import (
	"tidemark/index"
	"tidemark/partition"
)

// IndexInfo is an index as shown by GET /v1/indexes.
type IndexInfo struct {
	ID     index.ID `json:"id"`
	Name   string   `json:"name"`
	Bucket string   `json:"bucket"`
	// Scope and Collection name the collection that the documents are in; absent: the default one.
	Scope      string `json:"scope,omitempty"`
	Collection string `json:"collection,omitempty"`
	// CollectionID is the collection's id when the index was created: a collection that is re-created under the name has
	// another one.
	CollectionID uint32      `json:"collection_id,omitempty"`
	State        index.State `json:"state"`
	Deferred     bool        `json:"deferred,omitempty"`
	Reason       string      `json:"reason,omitempty"` // of state error
	Progress     float64     `json:"progress"`         // of the build in percent, 0 to 100
	// WaitingFor lists what prevents an index that is being built from becoming ready: which component cannot be
	// reached, why, and since when. Of a ready index it lists which of its indexers a projector cannot reach, so that
	// they fall behind. Absent: nothing does, or no leader was asked.
	WaitingFor []string `json:"waiting_for,omitempty"`
	// Availability is how much of a ready index can be scanned; absent if it is not ready, or if no leader was asked.
	Availability *Availability   `json:"availability,omitempty"`
	Definition   string          `json:"definition"` // canonical DDL text
	IsPrimary    bool            `json:"is_primary"`
	Keys         []index.KeyExpr `json:"keys,omitempty"`
	Where        string          `json:"where,omitempty"`
	// PartitionBy is how entries are distributed over slices; absent: by the document's id.
	PartitionBy index.PartitionBy `json:"partition_by,omitzero"`
	Partitions  uint16            `json:"num_partition"`
	Replicas    uint8             `json:"num_replica"`
	Items       uint64            `json:"items"` // entries, of one copy per slice
	// ItemsIncomplete is set for a ready index if no copy of some slice has been reported to the leader yet, so that
	// Items lacks that slice, or if no leader was asked.
	ItemsIncomplete bool             `json:"items_incomplete,omitempty"`
	DiskBytes       uint64           `json:"disk_bytes"` // of all copies
	Copies          []partition.Copy `json:"copies,omitempty"`
	// Load holds the size and the load of each copy, as its indexer reports; absent from lists, and if no leader was
	// asked.
	Load        []CopyLoad `json:"load,omitempty"`
	CreatedMS   int64      `json:"created_ms"`
	ModifiedCAS uint64     `json:"modified_cas"` // its ETag
	// Replaces is the index of this name whose successor this index is: it is being built with other slices, and takes
	// over the name when it is ready. Absent: there is no split, or it is over.
	Replaces index.ID `json:"replaces,omitempty"`
	// Origin, of an index that was split, is the id of the first index of the line, under which subscribers know it.
	// Absent: its own id.
	Origin index.ID `json:"origin,omitempty"`
	// Split is the successor that is being built for this index; absent: none.
	Split *SplitInfo `json:"split,omitempty"`
	// SplitFailed is why the newest split failed; absent: it did not, or another one was begun since.
	SplitFailed string `json:"split_failed,omitempty"`
	// SplitWaits is why the index is not split automatically now, although a slice exceeds a limit (--split-above and
	// --split-above-rate of the managers); absent: none does.
	SplitWaits string `json:"split_waits,omitempty"`
	// MergeWaits is why its slices are not merged automatically now, although they have been small and cold for long;
	// absent: there are none to merge.
	MergeWaits string `json:"merge_waits,omitempty"`
	// AutoSplit is set if the index is split and merged automatically, provided that the managers have limits for
	// slices.
	AutoSplit bool `json:"auto_split"`
	// RequestedPartitions is the requested number of slices, of an index that was split automatically since: it is never
	// merged below that. Absent: as many as it has.
	RequestedPartitions uint16 `json:"requested_partitions,omitempty"`
	// Faults counts documents that have no entry because of an error; absent if there are none.
	Faults *IndexFaults `json:"faults,omitempty"`
	// ExpressionRules is the lowest version of the expression rules by which its entries were made; absent if it was not
	// recorded.
	ExpressionRules uint32 `json:"expression_rules,omitempty"`
	// Notices, in the answer to its creation, are those of StatementResult.
	Notices []string `json:"notices,omitempty"`
	// Outdated describes the consequences if projectors evaluate by other rules under which its expressions give other
	// values; absent if they do not, or if no leader was asked.
	Outdated string `json:"outdated,omitempty"`
}

// CopyLoad is the size of a copy and the load on it.
type CopyLoad struct {
	Copy  index.CopyID `json:"copy"`
	Items uint64       `json:"items"` // entries
	Bytes uint64       `json:"bytes"` // on disk and in memory
	// WriteRate and ReadRate are as in CopyPlace.
	WriteRate uint64 `json:"write_rate"`
	ReadRate  uint64 `json:"read_rate"`
}

// SplitInfo is the successor of an index that is being split.
type SplitInfo struct {
	ID       index.ID    `json:"id"`
	State    index.State `json:"state"`
	Progress float64     `json:"progress"` // of its build, percent
	// Cause is why it began automatically; absent: a user requested it.
	Cause      string `json:"cause,omitempty"`
	Partitions uint16 `json:"num_partition"`
	Definition string `json:"definition"`
}

// Availability is how much of a ready index can be scanned.
type Availability struct {
	// State is available: every slice has as many copies as requested; degraded: every slice can be scanned, but some
	// have fewer copies; or unavailable: some slice cannot be scanned.
	State   string `json:"state"`
	Why     string `json:"why,omitempty"` // if it is not available: which slices, and what is wrong with their copies
	SinceMS int64  `json:"since_ms"`      // when the present leader first saw it, unix milliseconds
}

// IndexFaults counts documents that have no entry in an index because of an error, since the projectors' processes
// started and over all streams: a document that a stream sends again is counted again.
type IndexFaults struct {
	Expression uint64 `json:"expression"` // an expression failed
	TooLong    uint64 `json:"too_long"`   // a key was too long
	// Incomplete is set if a projector or an indexer counts such documents of more indexes than it reports (the 64 with
	// most) and does not report this one.
	Incomplete bool `json:"incomplete,omitempty"`
	// Sample is one of these documents; absent if none was reported.
	Sample *FaultSample `json:"sample,omitempty"`
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
	// Next is the value of ?after= for the next page; absent from the last page.
	Next string `json:"next,omitempty"`
}

// Keyspace returns the keyspace of the index's documents: bucket, or bucket.scope.collection.
func (i *IndexInfo) Keyspace() string {
	return index.KeyspaceOf(i.Bucket, i.Scope, i.Collection).String()
}
