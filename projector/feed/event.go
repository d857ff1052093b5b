package feed

import (
	"tidemark/kv/mcbp"
	"tidemark/timestamp"
)

// StreamID identifies one stream of a connection. It is never reused on that connection.
type StreamID uint32

// Kind is the kind of an event.
type Kind uint8

// The kinds of events. StreamBegin is generated here, from the node's consent to a stream request; the others are the
// protocol's.
const (
	// StreamBegin is the first event of a stream; FailoverLog decodes its Value.
	StreamBegin Kind = iota + 1
	// SnapshotMarker opens the window from SnapStart to SnapEnd.
	SnapshotMarker
	// Mutation is a new version of a document.
	Mutation
	// Deletion removes a document.
	Deletion
	// Expiration removes a document that has expired.
	Expiration
	// StreamEnd is the last event of a stream; EndReason is the reason.
	StreamEnd
	// SeqnoAdvanced moves the seqno without an item.
	SeqnoAdvanced
	// SystemEvent reports that a collection or scope was created, changed or dropped.
	SystemEvent
	// OSO brackets an out-of-order snapshot; it is not requested.
	OSO
)

// String returns the kind's name.
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
	// Datatype is what remains after decoding: snappy is always cleared, xattr means that Xattrs is set. JSON is a hint
	// only.
	Datatype mcbp.Datatype
	// Undecodable is set if the value is flagged as compressed or as having extended attributes but does not decode:
	// Value is empty, and the document has no keys.
	Undecodable bool
	// EmptiesDefault is set on a SystemEvent that removes all documents of the default collection. No Deletion is sent
	// for each of them.
	EmptiesDefault bool
	VBucket        uint16
	Stream         StreamID
	// Collection is 0 for the default collection.
	Collection uint32
	// Flags are the document's flags, the flags of an OSO, or the kind of a SystemEvent.
	Flags  uint32
	Expiry uint32
	// DeleteTime of a Deletion or Expiration is in unix seconds; 0 if the node does not send it (Config.Tombstones).
	DeleteTime uint32
	// SnapFlags is set on a SnapshotMarker, EndReason on a StreamEnd.
	SnapFlags mcbp.SnapshotFlags
	EndReason mcbp.EndReason
	Seqno     uint64
	RevSeqno  uint64
	CAS       uint64
	// SnapStart, SnapEnd and Purge are set on a SnapshotMarker. Purge is the seqno up to which deletions were purged
	// that the snapshot would have contained; 0 if the node does not send it (Config.Tombstones).
	SnapStart, SnapEnd, Purge uint64
	// Key is the document's key without its collection prefix.
	Key []byte
	// Value is the document, decompressed and without extended attributes.
	Value []byte
	// Xattrs is the section of extended attributes, if requested.
	Xattrs []byte
}

// FailoverLog decodes the failover log of a StreamBegin, newest entry first.
func (e *Event) FailoverLog() (timestamp.FailoverLog, error) { return mcbp.DecodeFailoverLog(e.Value) }
