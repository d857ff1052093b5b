package v1

import (
	"tidemark/index"
	"tidemark/partition"
)

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
	// WaitingFor says what keeps an index that is being built from becoming ready: who cannot be reached, why, and since
	// when. Absent: its build goes on, it is not being built, or no leader was asked.
	WaitingFor []string `json:"waiting_for,omitempty"`
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
	Items       uint64            `json:"items"` // entries, of one copy of each slice
	// ItemsIncomplete, of a ready index: no indexer has told the leader yet of any copy of one of the slices, so that
	// Items lacks that one's; or no leader was asked.
	ItemsIncomplete bool             `json:"items_incomplete,omitempty"`
	DiskBytes       uint64           `json:"disk_bytes"` // of all copies
	Copies          []partition.Copy `json:"copies,omitempty"`
	// Load says how much each copy has and does, as its indexer tells; absent from lists, and when no leader was asked.
	Load        []CopyLoad `json:"load,omitempty"`
	CreatedMS   int64      `json:"created_ms"`
	ModifiedCAS uint64     `json:"modified_cas"` // its ETag
	// Replaces is the index of this name that this one is being built for, with other slices: when it is ready it has the
	// name. Absent: no split, or it is over.
	Replaces index.ID `json:"replaces,omitempty"`
	// Origin, of an index that was split, is the id that it had first, by which subscribers know it. Absent: by its own.
	Origin index.ID `json:"origin,omitempty"`
	// Split is the index that is being built in the place of this one; absent: none is.
	Split *SplitInfo `json:"split,omitempty"`
	// SplitFailed is why the newest split came to nothing; absent: none did, or another one was begun since.
	SplitFailed string `json:"split_failed,omitempty"`
	// SplitWaits is why it is not split by itself now, though a slice of it is above its bounds (--split-above and
	// --split-above-rate of the managers); absent: none is.
	SplitWaits string `json:"split_waits,omitempty"`
	// MergeWaits is why slices of it are not merged by themselves now, though they have been small and cold for long;
	// absent: there are none to be merged.
	MergeWaits string `json:"merge_waits,omitempty"`
	// AutoSplit tells that it gets more and fewer slices by itself, where managers have bounds for slices.
	AutoSplit bool `json:"auto_split"`
	// AskedPartitions is how many slices were asked for, of an index that has more since it was split by itself: so many
	// it keeps. Absent: as many as it has.
	AskedPartitions uint16 `json:"asked_partitions,omitempty"`
	// Faults tells of documents that have no entry because of an error; absent when there are none.
	Faults *IndexFaults `json:"faults,omitempty"`
	// ExpressionRules is the lowest version of the expressions' rules by which its entries were made; absent when it was
	// not recorded.
	ExpressionRules uint32 `json:"expression_rules,omitempty"`
	// Notices, in the answer to its creation, are those of a StatementResult.
	Notices []string `json:"notices,omitempty"`
	// Outdated says what that means when projectors evaluate by other rules and its expressions give other values by them;
	// absent when they do not, or when no leader was asked.
	Outdated string `json:"outdated,omitempty"`
}

// CopyLoad is how much a copy has, and how much is done to it.
type CopyLoad struct {
	Copy  index.CopyID `json:"copy"`
	Items uint64       `json:"items"` // entries
	Bytes uint64       `json:"bytes"` // on disk and in memory
	// WriteRate and ReadRate are those of CopyPlace.
	WriteRate uint64 `json:"write_rate"`
	ReadRate  uint64 `json:"read_rate"`
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
	// Incomplete: a projector or an indexer counts such documents of more indexes than it tells (64, those with most), and
	// of this index it tells none.
	Incomplete bool `json:"incomplete,omitempty"`
	// Sample is one of these documents; absent where none is told of.
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
	// Next is what ?after= takes for the page that follows; absent from the last one.
	Next string `json:"next,omitempty"`
}

// Keyspace is where the documents of the index are: bucket, or bucket.scope.collection.
func (i *IndexInfo) Keyspace() string {
	return index.KeyspaceOf(i.Bucket, i.Scope, i.Collection).String()
}
