// Package keyversion holds the messages that a router sends to indexers (PR-3) and their frames.
//
// One meaning for every message: an event for (bucket, vbucket, docid, seqno) states, for each slice it names, the
// complete set of secondary keys that the document has there as of seqno. Insertion, update, deletion and
// UpsertDeletion are the same statement with another set. So redelivery, overlap of two streams and any interleaving
// of them end in the same state (docs/architecture.md, "The data way").
//
// It promises that decoding allocates nothing per event in the steady state (fields alias the frame), that every length
// is checked before it is used, and that a damaged frame is named, never half applied.
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
	Delete         Kind = 2  // the document is gone (DCP deletion or expiration): every set is empty
	DSync          Kind = 3  // a Sync that a deletion carries along
	Sync           Kind = 4  // {vbuuid, newest complete seqno}
	StreamBegin    Kind = 5  // the vbucket's stream starts, see Begin
	StreamEnd      Kind = 6  // the vbucket's stream ended in order
	UpsertDeletion Kind = 7  // the document has no keys in the slices named (made by the router)
	DropData       Kind = 8  // the first dropped {vbucket, vbuuid, seqno}; data follows again after the next StreamBegin
	Activate       Kind = 9  // Copies join: everything after Seqno comes on this stream
	Deactivate     Kind = 10 // Copies leave: nothing more comes for them on this stream
)

// String returns the name of the kind in PR-3, ACTIVATE and DEACTIVATE beside them.
func (k Kind) String() string {
	names := [...]string{"", "INSERT", "DELETE", "DSYNC", "SYNC", "STREAM_BEGIN", "STREAM_END", "UpsertDeletion",
		"DropData",
		"ACTIVATE", "DEACTIVATE"}
	if k == 0 || int(k) >= len(names) {
		return "UNKNOWN"
	}
	return names[k]
}

// Data reports whether the kind carries a document.
func (k Kind) Data() bool { return k == Insert || k == Delete || k == UpsertDeletion }

// Statement is the complete set of keys of one document in one slice (or in all slices that the receiver hosts:
// index.AllSlices). An empty set means that the document has no entry there. In an event the first statement of an
// index that covers a slice is the one about it: AllSlices stands behind those that name slices, and is about the
// others.
type Statement struct {
	Index index.ID
	Slice index.SliceID // or index.AllSlices
	Keys  [][]byte      // collated composite keys (package collate); alias the frame
}

// Place is a slice of an index, or all of them that the receiver hosts (index.AllSlices).
type Place struct {
	Index index.ID
	Slice index.SliceID
}

// Places are where a document has no keys, see Event.Rest. They do not change, and may be kept.
type Places struct {
	all []Place
}

// NewPlaces returns the places of a list, which it keeps; nil for none.
func NewPlaces(all []Place) *Places {
	if len(all) == 0 {
		return nil
	}
	return &Places{all: all}
}

// All lists them; the list must not be changed.
func (p *Places) All() []Place {
	if p == nil {
		return nil
	}
	return p.all
}

// Cover reports whether a slice is among them. Nil covers none.
func (p *Places) Cover(id index.ID, slice index.SliceID) bool {
	for _, at := range p.All() {
		if at.Index == id && (at.Slice == slice || at.Slice == index.AllSlices) {
			return true
		}
	}
	return false
}

// Begin is what StreamBegin says.
type Begin struct {
	Start    uint64                // the stream starts after this seqno
	Log      timestamp.FailoverLog // newest branch first
	Purge    uint64                // KV has forgotten deletions at or below it
	Revision timestamp.MapRevision // of the vbucket map that the projector goes by
	Copies   []index.CopyID        // those at the receiving endpoint that this stream feeds, ascending
}

// Event is one message of one vbucket's stream. Which fields count depends on Kind. DocID, Statements and Begin alias
// the frame and are valid as long as it is held.
type Event struct {
	Kind        Kind
	VBucket     uint16
	Incarnation index.Incarnation // maintenance: of the stream; side streams: Counter is the request's id
	VBUUID      uint64
	// data: of the mutation; Sync: complete seqno; Activate: A; DropData: first dropped; StreamEnd: last sent
	Seqno uint64
	// data: the DCP snapshot it lies in; StreamEnd of a side stream: {0, highest window end read}
	Window timestamp.Window
	// Part and More are of data that does not fit into one frame: it travels in parts, events of the same document and
	// seqno behind each other, numbered from 0, with More in all but the last. Each states whole indexes. Only all of them
	// together are the document's version: the stream has come to Seqno with the last one.
	Part       uint16
	More       bool
	DocID      []byte
	Statements []Statement
	// Rest states the empty set for each of its places, behind Statements: a place that one of these covers is theirs.
	// Most documents have keys in few of the indexes that look at them, and no keys in the same other places, so that
	// these travel once in a frame. A part has none. It does not alias the frame.
	Rest   *Places
	Copies []index.CopyID // Activate, Deactivate
	Begin  *Begin         // StreamBegin
	Sums   Sums           // StreamEnd of a side stream that was asked for them: of what was evaluated for the receiver
}

// Explicit appends all that a data event states to dst, Rest as statements of their own behind the others.
func (ev *Event) Explicit(dst []Statement) []Statement {
	dst = append(dst, ev.Statements...)
	for _, at := range ev.Rest.All() {
		if !slices.ContainsFunc(ev.Statements, func(s Statement) bool { return s.Index == at.Index && s.Slice == at.Slice }) {
			dst = append(dst, Statement{Index: at.Index, Slice: at.Slice})
		}
	}
	return dst
}

// Class is the type of a topic; its value is the topic id byte of PR-14 for the shared ones.
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

// Hello opens a connection from a router to an endpoint: who speaks and about what. Source: RT-3, RT-4.
type Hello struct {
	ClusterID  string            // another cluster's is refused
	Projector  index.ProjectorID // who sends
	BootID     string            // of the projector's process
	Topic      string            // "/maintenance", "/backfill/<id>", "/catchup/<node>/<id>" (PR-11)
	Bucket     string
	BucketUUID string       // KV's; another one is refused
	Node       index.NodeID // the endpoint that is meant; another one refuses. 0: a subscriber that is no indexer
	Connection uint16       // 0 to Connections-1
	// Connections is the number of connections of this topic, bucket and endpoint: vbucket v travels on v % Connections.
	Connections uint16
}

// Batch is what one data frame holds: events of one connection, in order. On a connection numbers rise by one from
// batch to batch, from any first number on (a router goes on counting when it reconnects), and the receiver
// acknowledges the highest number up to which it has taken everything. Batches with number 0 stand outside that count
// and are not acknowledged: they repeat StreamBegin after a reconnection.
type Batch struct {
	Number uint64
	Events []Event

	arena arena
	frame int // bytes
}
