package mcbp

import (
	"encoding/binary"
	"fmt"
	"math"

	"tidemark/timestamp"
)

// Sizes of the fixed fields of DCP messages, in bytes.
const (
	OpenExtrasSize         = 8
	StreamRequestSize      = 48
	FailoverEntrySize      = 16
	StreamEndSize          = 4
	SnapshotMarkerV1Size   = 20
	SnapshotMarkerV20Size  = 36
	SnapshotMarkerV21Size  = 44
	SnapshotMarkerV22Size  = 52
	MutationExtrasSize     = 31
	DeletionExtrasV1Size   = 18
	DeletionExtrasV2Size   = 21
	ExpirationExtrasSize   = 20
	BufferAckSize          = 4
	SystemEventExtrasSize  = 13
	SeqnoAdvancedSize      = 8
	OSOSnapshotSize        = 4
	MaxFailoverLog         = 4096 // entries; real engines keep 25
	MaxConnectionName      = 200  // bytes of a DCP connection's name
	EndOfTime              = uint64(math.MaxUint64)
	MaxStreamRequestFilter = 64 << 10 // bytes of a STREAM_REQ's JSON value
)

// Open is the fixed part of DCP_OPEN; the key is the connection's name.
type Open struct {
	Flags OpenFlags
}

// AppendExtras appends the 8 bytes of extras.
func (m Open) AppendExtras(dst []byte) []byte {
	dst = append(dst, 0, 0, 0, 0)
	return binary.BigEndian.AppendUint32(dst, uint32(m.Flags))
}

// DecodeOpen decodes the extras of DCP_OPEN.
func DecodeOpen(extras []byte) (Open, error) {
	if len(extras) != OpenExtrasSize {
		return Open{}, malformed("DCP_OPEN extras", len(extras), "8")
	}
	return Open{Flags: OpenFlags(binary.BigEndian.Uint32(extras[4:]))}, nil
}

// StreamRequest is the fixed part of DCP_STREAM_REQ: a request for what follows Start, up to End, on the branch
// VBUUID, for a consumer whose last window was SnapStart to SnapEnd. The vbucket is in the header; the optional value
// is a JSON filter.
type StreamRequest struct {
	Flags     StreamFlags
	Start     uint64 // last seqno that the consumer has
	End       uint64 // EndOfTime for an endless stream
	VBUUID    uint64
	SnapStart uint64
	SnapEnd   uint64
}

// AppendExtras appends the 48 bytes of extras.
func (m StreamRequest) AppendExtras(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(m.Flags))
	dst = append(dst, 0, 0, 0, 0)
	for _, v := range [...]uint64{m.Start, m.End, m.VBUUID, m.SnapStart, m.SnapEnd} {
		dst = binary.BigEndian.AppendUint64(dst, v)
	}
	return dst
}

// DecodeStreamRequest decodes the extras of DCP_STREAM_REQ.
func DecodeStreamRequest(extras []byte) (StreamRequest, error) {
	if len(extras) != StreamRequestSize {
		return StreamRequest{}, malformed("DCP_STREAM_REQ extras", len(extras), "48")
	}
	return StreamRequest{
		Flags:     StreamFlags(binary.BigEndian.Uint32(extras)),
		Start:     binary.BigEndian.Uint64(extras[8:]),
		End:       binary.BigEndian.Uint64(extras[16:]),
		VBUUID:    binary.BigEndian.Uint64(extras[24:]),
		SnapStart: binary.BigEndian.Uint64(extras[32:]),
		SnapEnd:   binary.BigEndian.Uint64(extras[40:]),
	}, nil
}

// AppendFailoverLog appends the value of a FAILOVER_LOG or STREAM_REQ answer,
// newest entry first.
func AppendFailoverLog(dst []byte, log timestamp.FailoverLog) []byte {
	for _, e := range log {
		dst = binary.BigEndian.AppendUint64(dst, e.VBUUID)
		dst = binary.BigEndian.AppendUint64(dst, e.Seqno)
	}
	return dst
}

// DecodeFailoverLog decodes a failover log value: 1 to MaxFailoverLog entries.
func DecodeFailoverLog(value []byte) (timestamp.FailoverLog, error) {
	n := len(value) / FailoverEntrySize
	if n == 0 || n > MaxFailoverLog || len(value)%FailoverEntrySize != 0 {
		return nil, malformed("failover log", len(value), "a multiple of 16, from 16 to 65536")
	}
	log := make(timestamp.FailoverLog, n)
	for i := range log {
		at := value[i*FailoverEntrySize:]
		log[i] = timestamp.LogEntry{VBUUID: binary.BigEndian.Uint64(at), Seqno: binary.BigEndian.Uint64(at[8:])}
	}
	return log, nil
}

// AppendRollback appends the value of a STREAM_REQ answer with StatusRollback.
func AppendRollback(dst []byte, seqno uint64) []byte {
	return binary.BigEndian.AppendUint64(dst, seqno)
}

// DecodeRollback decodes the value of a STREAM_REQ answer with StatusRollback.
func DecodeRollback(value []byte) (uint64, error) {
	if len(value) != 8 {
		return 0, malformed("rollback value", len(value), "8")
	}
	return binary.BigEndian.Uint64(value), nil
}

// AppendStreamEnd appends the extras of DCP_STREAM_END.
func AppendStreamEnd(dst []byte, r EndReason) []byte {
	return binary.BigEndian.AppendUint32(dst, uint32(r))
}

// DecodeStreamEnd decodes the extras of DCP_STREAM_END.
func DecodeStreamEnd(extras []byte) (EndReason, error) {
	if len(extras) != StreamEndSize {
		return 0, malformed("DCP_STREAM_END extras", len(extras), "4")
	}
	return EndReason(binary.BigEndian.Uint32(extras)), nil
}

// SnapshotMarker opens a window Start to End of a stream. Version 1 is in the
// extras; version 2 has one byte of extras and the rest in the value.
type SnapshotMarker struct {
	Start, End uint64
	Flags      SnapshotFlags
	// V2 is set if the marker is in the second form, which has the fields below.
	V2            bool
	MaxVisible    uint64
	HighCompleted uint64
	HasPurge      bool // form 2.2
	HighPrepared  uint64
	Purge         uint64
}

// AppendExtras appends the extras: 20 bytes, or the version byte of the second form.
func (m SnapshotMarker) AppendExtras(dst []byte) []byte {
	switch {
	case m.V2 && m.HasPurge:
		return append(dst, 2)
	case m.V2:
		return append(dst, 0)
	}
	return m.appendWindow(dst)
}

// AppendValue appends the value: nothing in the first form, 36 or 52 bytes in
// the second.
func (m SnapshotMarker) AppendValue(dst []byte) []byte {
	if !m.V2 {
		return dst
	}
	dst = m.appendWindow(dst)
	dst = binary.BigEndian.AppendUint64(dst, m.MaxVisible)
	dst = binary.BigEndian.AppendUint64(dst, m.HighCompleted)
	if m.HasPurge {
		dst = binary.BigEndian.AppendUint64(dst, m.HighPrepared)
		dst = binary.BigEndian.AppendUint64(dst, m.Purge)
	}
	return dst
}

// appendWindow appends the 20 bytes that both forms have.
func (m SnapshotMarker) appendWindow(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, m.Start)
	dst = binary.BigEndian.AppendUint64(dst, m.End)
	return binary.BigEndian.AppendUint32(dst, uint32(m.Flags))
}

// DecodeSnapshotMarker decodes both forms. A marker that ends before it starts
// is malformed.
func DecodeSnapshotMarker(extras, value []byte) (SnapshotMarker, error) {
	var m SnapshotMarker
	at := extras
	switch {
	case len(extras) == SnapshotMarkerV1Size:
	case len(extras) == 1 && (len(value) == SnapshotMarkerV20Size || len(value) == SnapshotMarkerV21Size ||
		len(value) == SnapshotMarkerV22Size):
		at = value
		m.V2 = true
		m.MaxVisible = binary.BigEndian.Uint64(value[20:])
		m.HighCompleted = binary.BigEndian.Uint64(value[28:])
		if len(value) == SnapshotMarkerV22Size {
			m.HasPurge = true
			m.HighPrepared = binary.BigEndian.Uint64(value[36:])
			m.Purge = binary.BigEndian.Uint64(value[44:])
		}
	default:
		return m, malformed("DCP_SNAPSHOT_MARKER extras", len(extras), "20, or 1 with a value of 36, 44 or 52")
	}
	m.Start, m.End = binary.BigEndian.Uint64(at), binary.BigEndian.Uint64(at[8:])
	m.Flags = SnapshotFlags(binary.BigEndian.Uint32(at[16:]))
	if m.Start > m.End {
		return m, fmt.Errorf("%w: DCP_SNAPSHOT_MARKER opens the window %d to %d, want start ≤ end", ErrMalformed, m.Start,
			m.End)
	}
	return m, nil
}

// Mutation is the fixed part of DCP_MUTATION; key, value, datatype and cas are
// in the frame.
type Mutation struct {
	Seqno, RevSeqno         uint64
	Flags, Expiry, LockTime uint32
	// MetaLen bytes at the end of the value are extended metadata, not part of the document.
	MetaLen uint16
	NRU     uint8
}

// AppendExtras appends the 31 bytes of extras.
func (m Mutation) AppendExtras(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, m.Seqno)
	dst = binary.BigEndian.AppendUint64(dst, m.RevSeqno)
	dst = binary.BigEndian.AppendUint32(dst, m.Flags)
	dst = binary.BigEndian.AppendUint32(dst, m.Expiry)
	dst = binary.BigEndian.AppendUint32(dst, m.LockTime)
	dst = binary.BigEndian.AppendUint16(dst, m.MetaLen)
	return append(dst, m.NRU)
}

// DecodeMutation decodes the extras of DCP_MUTATION.
func DecodeMutation(extras []byte) (Mutation, error) {
	if len(extras) != MutationExtrasSize {
		return Mutation{}, malformed("DCP_MUTATION extras", len(extras), "31")
	}
	return Mutation{
		Seqno:    binary.BigEndian.Uint64(extras),
		RevSeqno: binary.BigEndian.Uint64(extras[8:]),
		Flags:    binary.BigEndian.Uint32(extras[16:]),
		Expiry:   binary.BigEndian.Uint32(extras[20:]),
		LockTime: binary.BigEndian.Uint32(extras[24:]),
		MetaLen:  binary.BigEndian.Uint16(extras[28:]),
		NRU:      extras[30],
	}, nil
}

// Deletion is the fixed part of DCP_DELETION (both forms) and DCP_EXPIRATION.
type Deletion struct {
	Seqno, RevSeqno uint64
	// MetaLen is the length of extended metadata at the end of the value (first
	// form only).
	MetaLen uint16
	// DeleteTime is in seconds since 1970 (second form and expiration only).
	DeleteTime uint32
	// WithTime selects the second form.
	WithTime bool
}

// AppendExtras appends the extras of DCP_DELETION: 18 bytes, or 21 WithTime.
func (m Deletion) AppendExtras(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, m.Seqno)
	dst = binary.BigEndian.AppendUint64(dst, m.RevSeqno)
	if !m.WithTime {
		return binary.BigEndian.AppendUint16(dst, m.MetaLen)
	}
	return append(binary.BigEndian.AppendUint32(dst, m.DeleteTime), 0)
}

// AppendExpirationExtras appends the 20 bytes of extras of DCP_EXPIRATION.
func (m Deletion) AppendExpirationExtras(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, m.Seqno)
	dst = binary.BigEndian.AppendUint64(dst, m.RevSeqno)
	return binary.BigEndian.AppendUint32(dst, m.DeleteTime)
}

// DecodeDeletion decodes the extras of DCP_DELETION (18 or 21 bytes) and
// DCP_EXPIRATION (20 bytes; some engines send 18).
func DecodeDeletion(extras []byte) (Deletion, error) {
	if len(extras) != DeletionExtrasV1Size && len(extras) != DeletionExtrasV2Size && len(extras) != ExpirationExtrasSize {
		return Deletion{}, malformed("DCP_DELETION extras", len(extras), "18, 20 or 21")
	}
	m := Deletion{Seqno: binary.BigEndian.Uint64(extras), RevSeqno: binary.BigEndian.Uint64(extras[8:])}
	if len(extras) == DeletionExtrasV1Size {
		m.MetaLen = binary.BigEndian.Uint16(extras[16:])
		return m, nil
	}
	m.WithTime, m.DeleteTime = true, binary.BigEndian.Uint32(extras[16:])
	return m, nil
}

// AppendBufferAck appends the extras of DCP_BUFFER_ACK: bytes processed.
func AppendBufferAck(dst []byte, n uint32) []byte { return binary.BigEndian.AppendUint32(dst, n) }

// DecodeBufferAck decodes the extras of DCP_BUFFER_ACK.
func DecodeBufferAck(extras []byte) (uint32, error) {
	if len(extras) != BufferAckSize {
		return 0, malformed("DCP_BUFFER_ACK extras", len(extras), "4")
	}
	return binary.BigEndian.Uint32(extras), nil
}

// SystemEvent is the fixed part of DCP_SYSTEM_EVENT (changes of collections and scopes); the key is the name, and the
// format of the value depends on Event.
type SystemEvent struct {
	Seqno   uint64
	Event   uint32
	Version uint8
}

// AppendExtras appends the 13 bytes of extras.
func (m SystemEvent) AppendExtras(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, m.Seqno)
	dst = binary.BigEndian.AppendUint32(dst, m.Event)
	return append(dst, m.Version)
}

// DecodeSystemEvent decodes the extras of DCP_SYSTEM_EVENT.
func DecodeSystemEvent(extras []byte) (SystemEvent, error) {
	if len(extras) != SystemEventExtrasSize {
		return SystemEvent{}, malformed("DCP_SYSTEM_EVENT extras", len(extras), "13")
	}
	return SystemEvent{Seqno: binary.BigEndian.Uint64(extras), Event: binary.BigEndian.Uint32(extras[8:]),
		Version: extras[12]}, nil
}

// The events of DCP_SYSTEM_EVENT.
const (
	EventCollectionBegins  uint32 = 0
	EventCollectionEnds    uint32 = 1
	EventCollectionEmptied uint32 = 2
	EventScopeBegins       uint32 = 3
	EventScopeEnds         uint32 = 4

	// The minimum sizes of the value of an event about a collection, and about a scope.
	collectionEventSize = 16
	scopeEventSize      = 12
)

// CollectionEvent is the value of a DCP_SYSTEM_EVENT: the manifest that caused it, and its scope and collection.
// Collection is 0 in events about scopes.
type CollectionEvent struct {
	Manifest          uint64
	Scope, Collection uint32
}

// AboutScope reports whether an event is about a scope.
func AboutScope(event uint32) bool { return event == EventScopeBegins || event == EventScopeEnds }

// AppendValue appends the value of version 0: 16 bytes, 12 for events about scopes.
func (m CollectionEvent) AppendValue(dst []byte, event uint32) []byte {
	dst = binary.BigEndian.AppendUint64(dst, m.Manifest)
	dst = binary.BigEndian.AppendUint32(dst, m.Scope)
	if AboutScope(event) {
		return dst
	}
	return binary.BigEndian.AppendUint32(dst, m.Collection)
}

// DecodeCollectionEvent decodes the value of a DCP_SYSTEM_EVENT; later versions append more.
func DecodeCollectionEvent(event uint32, value []byte) (CollectionEvent, error) {
	want := collectionEventSize
	if AboutScope(event) {
		want = scopeEventSize
	}
	if len(value) < want {
		return CollectionEvent{}, malformed("DCP_SYSTEM_EVENT value", len(value), "16 or more, 12 about a scope")
	}
	m := CollectionEvent{Manifest: binary.BigEndian.Uint64(value), Scope: binary.BigEndian.Uint32(value[8:])}
	if !AboutScope(event) {
		m.Collection = binary.BigEndian.Uint32(value[12:])
	}
	return m, nil
}

// EmptiesDefault reports whether the event removes all documents of the default collection: it was dropped, or it
// begins, which happens only after it was emptied. There are no deletions of the single documents. value is that of
// the message, in the form of version 0 or 1, which are those sent to a consumer that has not requested another.
func (m SystemEvent) EmptiesDefault(value []byte) bool {
	if m.Event != EventCollectionBegins && m.Event != EventCollectionEnds || m.Version > 1 {
		return false
	}
	e, err := DecodeCollectionEvent(m.Event, value)
	return err == nil && e.Collection == DefaultCollection
}

// AppendSeqnoAdvanced appends the extras of DCP_SEQNO_ADVANCED.
func AppendSeqnoAdvanced(dst []byte, seqno uint64) []byte {
	return binary.BigEndian.AppendUint64(dst, seqno)
}

// DecodeSeqnoAdvanced decodes the extras of DCP_SEQNO_ADVANCED.
func DecodeSeqnoAdvanced(extras []byte) (uint64, error) {
	if len(extras) != SeqnoAdvancedSize {
		return 0, malformed("DCP_SEQNO_ADVANCED extras", len(extras), "8")
	}
	return binary.BigEndian.Uint64(extras), nil
}

// The flags of DCP_OSO_SNAPSHOT.
const (
	OSOStart uint32 = 1
	OSOEnd   uint32 = 2
)

// AppendOSOSnapshot appends the extras of DCP_OSO_SNAPSHOT.
func AppendOSOSnapshot(dst []byte, flags uint32) []byte {
	return binary.BigEndian.AppendUint32(dst, flags)
}

// DecodeOSOSnapshot decodes the extras of DCP_OSO_SNAPSHOT.
func DecodeOSOSnapshot(extras []byte) (uint32, error) {
	if len(extras) != OSOSnapshotSize {
		return 0, malformed("DCP_OSO_SNAPSHOT extras", len(extras), "4")
	}
	return binary.BigEndian.Uint32(extras), nil
}
