package feed

import (
	"tidemark/kv/mcbp"
	"tidemark/timestamp"
)

// StreamID names one stream of a connection. It is never used twice on one
// connection.
type StreamID uint32

// Kind says what an event is.
type Kind uint8

// The kinds of events. StreamBegin is made here, from the node's consent to a
// stream request; the others are the protocol's.
const (
	// StreamBegin is the first event of a stream; FailoverLog decodes its Value.
	StreamBegin Kind = iota + 1
	// SnapshotMarker opens the window SnapStart to SnapEnd.
	SnapshotMarker
	// Mutation is a new version of a document.
	Mutation
	// Deletion removes a document.
	Deletion
	// Expiration removes a document whose time is over.
	Expiration
	// StreamEnd is the last event of a stream; EndReason says why.
	StreamEnd
	// SeqnoAdvanced moves the seqno without an item.
	SeqnoAdvanced
	// SystemEvent says that a collection or scope came or went.
	SystemEvent
	// OSO brackets an out-of-order snapshot; not asked for.
	OSO
)

// String is the kind's name.
func (k Kind) String() string {
	names := [...]string{"none", "StreamBegin", "SnapshotMarker", "Mutation", "Deletion", "Expiration", "StreamEnd",
		"SeqnoAdvanced", "SystemEvent", "OSO"}
	if int(k) < len(names) {
		return names[k]
	}
	return "unknown"
}

// IsDocument reports whether the event is a version of a document.
func (k Kind) IsDocument() bool { return k >= Mutation && k <= Expiration }

// Event is one message of a stream. Its slices alias the block's memory.
type Event struct {
	Kind Kind
	// Datatype is what remains after decoding: snappy is always gone, xattr says that
	// Xattrs was there. JSON is a hint only.
	Datatype mcbp.Datatype
	// Undecodable says that the value claims to be compressed or to have extended
	// attributes and does not decode: Value is empty, the document has no keys.
	Undecodable bool
	// EmptiesDefault says of a SystemEvent that all documents of the default collection are gone. No Deletion says it of
	// each.
	EmptiesDefault bool
	VBucket        uint16
	Stream         StreamID
	// Collection is 0 for the default collection.
	Collection uint32
	// Flags are the document's flags; of an OSO, its own; of a SystemEvent, which.
	Flags  uint32
	Expiry uint32
	// DeleteTime of a Deletion or Expiration is unix seconds; 0 when the node does not tell (Config.Tombstones).
	DeleteTime uint32
	// SnapFlags belong to a SnapshotMarker, EndReason to a StreamEnd.
	SnapFlags mcbp.SnapshotFlags
	EndReason mcbp.EndReason
	Seqno     uint64
	RevSeqno  uint64
	CAS       uint64
	// SnapStart and SnapEnd belong to a SnapshotMarker, and so does Purge: up to where deletions are forgotten that the
	// snapshot would have had; 0 when the node does not tell (Config.Tombstones).
	SnapStart, SnapEnd, Purge uint64
	// Key is the document's key without its collection prefix.
	Key []byte
	// Value is the document, decompressed and without extended attributes.
	Value []byte
	// Xattrs is the section of extended attributes, if asked for.
	Xattrs []byte
}

// FailoverLog decodes the failover log of a StreamBegin, newest entry first.
func (e *Event) FailoverLog() (timestamp.FailoverLog, error) { return mcbp.DecodeFailoverLog(e.Value) }
