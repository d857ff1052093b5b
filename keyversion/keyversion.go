// Package keyversion holds the messages that a router sends to indexers (PR-3) and their frames.
//
// All data messages have one meaning: an event for (bucket, vbucket, docid, seqno) states, for each slice it names,
// the complete set of secondary keys that the document has there as of seqno. Insertion, update, deletion and
// UpsertDeletion are the same statement with another set. Therefore redelivery, overlap of two streams and any
// interleaving of them end in the same state (docs/architecture.md, "The data way").
//
// Guarantees: decoding allocates nothing per event in the steady state (fields alias the frame), every length is
// checked before it is used, and a damaged frame is reported, never applied in part.
package keyversion

import (
	"slices"

	"tidemark/index"
	"tidemark/timestamp"
)

// Kind is the type of an event (PR-3).
type Kind uint8

// The kinds. Values are part of the wire format.
const (
	Insert         Kind = 1  // the document's keys as of seqno (DCP mutation)
	Delete         Kind = 2  // the document was deleted (DCP deletion or expiration): every set is empty
	DSync          Kind = 3  // a Sync that accompanies a deletion
	Sync           Kind = 4  // {vbuuid, newest complete seqno}
	StreamBegin    Kind = 5  // the vbucket's stream starts, see Begin
	StreamEnd      Kind = 6  // the vbucket's stream ended regularly
	UpsertDeletion Kind = 7  // the document has no keys in the slices named (made by the router)
	DropData       Kind = 8  // the first dropped {vbucket, vbuuid, seqno}; data follows again after the next StreamBegin
	Activate       Kind = 9  // Copies join: this stream has everything after Seqno
	Deactivate     Kind = 10 // Copies leave: this stream has nothing more for them
)

// String returns the name of the kind in PR-3, and ACTIVATE and DEACTIVATE for those two.
func (k Kind) String() string {
	names := [...]string{"", "INSERT", "DELETE", "DSYNC", "SYNC", "STREAM_BEGIN", "STREAM_END", "UpsertDeletion",
		"DropData",
		"ACTIVATE", "DEACTIVATE"}
	if k == 0 || int(k) >= len(names) {
		return "UNKNOWN"
	}
	return names[k]
}

// Data reports whether events of the kind are about a document.
func (k Kind) Data() bool { return k == Insert || k == Delete || k == UpsertDeletion }

// Statement is the complete set of keys of one document in one slice (or in all slices that the receiver hosts:
// index.AllSlices). An empty set means that the document has no entry there. In an event the first statement of an
// index that covers a slice applies to it: a statement for AllSlices comes after those that name slices, and applies
// to the other slices.
type Statement struct {
	Index index.ID
	Slice index.SliceID // or index.AllSlices
	Keys  [][]byte      // collated composite keys (package collate); alias the frame
}

// Place is a slice of an index, or all slices of it that the receiver hosts (index.AllSlices).
type Place struct {
	Index index.ID
	Slice index.SliceID
}

// Places are the places in which a document has no keys, see Event.Rest. They are immutable, and may be retained.
type Places struct {
	all []Place
}

// NewPlaces returns the places of a list, which it retains; nil if the list is empty.
func NewPlaces(all []Place) *Places {
	if len(all) == 0 {
		return nil
	}
	return &Places{all: all}
}

// All returns the list, which the caller must not modify.
func (p *Places) All() []Place {
	if p == nil {
		return nil
	}
	return p.all
}

// Cover reports whether the places include a slice. It is false for nil.
func (p *Places) Cover(id index.ID, slice index.SliceID) bool {
	for _, at := range p.All() {
		if at.Index == id && (at.Slice == slice || at.Slice == index.AllSlices) {
			return true
		}
	}
	return false
}

// Begin is the content of StreamBegin.
type Begin struct {
	Start    uint64                // the stream starts after this seqno
	Log      timestamp.FailoverLog // newest branch first
	Purge    uint64                // KV has purged deletions at or below it
	Revision timestamp.MapRevision // of the projector's vbucket map
	Copies   []index.CopyID        // the copies at the receiving endpoint that this stream feeds, ascending
}

// Event is one message of one vbucket's stream. Kind determines which fields are set. DocID, Statements and Begin
// alias the frame and are valid as long as the frame is.
type Event struct {
	Kind        Kind
	VBucket     uint16
	Incarnation index.Incarnation // maintenance: of the stream; side streams: Counter is the request's id
	VBUUID      uint64
	// data: of the mutation; Sync: complete seqno; Activate: A; DropData: first dropped; StreamEnd: last sent
	Seqno uint64
	// data: the DCP snapshot that contains it; StreamEnd of a side stream: {0, highest window end read}
	Window timestamp.Window
	// Part and More are for data that does not fit into one frame. It is sent in parts: consecutive events of the same
	// document and seqno, numbered from 0, with More set in all but the last. Each has whole indexes. Only all of them
	// together are the version of the document: Seqno counts as received with the last one.
	Part       uint16
	More       bool
	DocID      []byte
	Statements []Statement
	// Rest states the empty set for each of its places that Statements does not cover. Most documents have keys in few
	// of the indexes that evaluate them, and share the list of places without keys, so that a frame has it only once. A
	// part has no Rest. It does not alias the frame.
	Rest   *Places
	Copies []index.CopyID // Activate, Deactivate
	Begin  *Begin         // StreamBegin
	Sums   Sums           // StreamEnd of a side stream, if requested: of what was evaluated for the receiver
}

// Explicit appends all statements of a data event to dst, those of Rest after the others.
func (ev *Event) Explicit(dst []Statement) []Statement {
	dst = append(dst, ev.Statements...)
	for _, at := range ev.Rest.All() {
		if !slices.ContainsFunc(ev.Statements, func(s Statement) bool { return s.Index == at.Index && s.Slice == at.Slice }) {
			dst = append(dst, Statement{Index: at.Index, Slice: at.Slice})
		}
	}
	return dst
}

// Class is the type of a topic. For shared topics its value is the topic id byte of PR-14.
type Class uint8

// The classes of topics. A catchup topic's id is the NodeID (0 to 250) of its indexer.
const (
	ClassMaintenance Class = 255
	ClassBackfill    Class = 254
	ClassCatchup     Class = 0
)

// String returns the first element of the topic's path.
func (c Class) String() string {
	switch c {
	case ClassMaintenance:
		return "maintenance"
	case ClassBackfill:
		return "backfill"
	}
	return "catchup"
}

// Hello opens a connection from a router to an endpoint: it identifies the sender and the content. Source: RT-3,
// RT-4.
type Hello struct {
	ClusterID  string            // refused if it is another cluster's
	Projector  index.ProjectorID // sender
	BootID     string            // of the projector's process
	Topic      string            // "/maintenance", "/backfill/<id>", "/catchup/<node>/<id>" (PR-11)
	Bucket     string
	BucketUUID string       // KV's; refused if it is another one
	Node       index.NodeID // intended receiver; another node refuses. 0: a subscriber that is not an indexer
	Connection uint16       // 0 to Connections-1
	// Connections is the number of connections of this topic, bucket and endpoint: vbucket v uses connection v %
	// Connections.
	Connections uint16
}

// Batch is the content of one data frame: events of one connection, in order. On a connection numbers rise by one
// from batch to batch, from any first number (a router continues its count when it reconnects). The receiver
// acknowledges the highest number up to which it has taken everything. Batches with number 0 are outside that count
// and are not acknowledged: they repeat StreamBegin after a reconnection.
type Batch struct {
	Number uint64
	Events []Event

	arena arena
	frame int // size in bytes
}
