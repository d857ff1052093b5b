package store

import (
	"encoding/binary"
	"errors"
	"fmt"

	"tidemark/kv/mcbp"
	"tidemark/kv/seglog"
	"tidemark/timestamp"
)

// Datatype bits of a document, as on the wire.
const (
	DatatypeJSON   = 0x01
	DatatypeSnappy = 0x02
	DatatypeXattr  = 0x04
)

// Limits of a document.
const (
	// MaxKeyBytes is the maximum length of a key.
	MaxKeyBytes = 250
	// MaxMemberKeyBytes is the maximum length of a key in a collection other than the default one.
	MaxMemberKeyBytes = 246
	// MaxValueBytes is the maximum size of a value.
	MaxValueBytes = 20 << 20
)

// Doc is one version of a document: a mutation or, if Deleted, a tombstone. Its exported fields never change once it
// is in the store, so it may be read without a lock.
type Doc struct {
	Key   string
	Value []byte
	// Collection is the id of the document's collection.
	Collection uint32
	// Seqno is the version's sequence number in its vbucket, Rev counts the document's versions, Cas is its CAS.
	Seqno, Rev, Cas uint64
	// Flags is opaque client data. Expiry is an absolute time in unix seconds, 0 for never.
	Flags, Expiry uint32
	// DeleteTime is when a tombstone was made, in unix seconds.
	DeleteTime uint32
	Datatype   byte
	Deleted    bool
	// Expired marks a tombstone that was made because the document expired.
	Expired bool

	next uint64 // the seqno that superseded this version, 0 while it is the newest; guarded by the vbucket's lock
	lsn  uint64 // log position that makes it durable
}

// docOverhead is the approximate memory in bytes of a document in addition to key and value: the struct and its
// entries in map and list.
const docOverhead = 224

func (d *Doc) memory() int64 { return docOverhead + int64(len(d.Key)) + int64(len(d.Value)) }

// Kinds of log records. Format: kind u8, vbucket u16, then for a document: bits u8 (1 deleted, 2 expired), datatype
// u8, seqno u64, cas u64, rev u64, flags u32, expiry u32, delete time u32, key length u16, key, value, where the key
// begins with the collection's id (LEB128) if bits has 4; for a vbucket state: state u8, high u64, purge u64, max cas
// u64, n u16, n × (vbuuid u64, seqno u64) newest first; for a replica's snapshot window: start u64, end u64; for a
// reset, which voids all earlier records of the vbucket: nothing.
const (
	recordDoc    = 1
	recordState  = 2
	recordWindow = 3
	recordReset  = 4

	docHeader   = 3 + 2 + 24 + 12 + 2
	stateHeader = 3 + 1 + 24 + 2

	bitDeleted = 1
	bitExpired = 2
	bitMember  = 4 // in a collection other than the default one
)

var errRecord = errors.New("record cannot be read")

func (d *Doc) recordBytes() int64 {
	return seglog.FrameOverhead + docHeader + d.prefixBytes() + int64(len(d.Key)) + int64(len(d.Value))
}

// prefixBytes returns the length of the collection's id before the key.
func (d *Doc) prefixBytes() (n int64) {
	if d.Collection == mcbp.DefaultCollection {
		return 0
	}
	for c := d.Collection; ; c >>= 7 {
		if n++; c < 0x80 {
			return n
		}
	}
}

func appendDoc(dst []byte, vb uint16, d *Doc) []byte {
	start := len(dst)
	dst = seglog.BeginFrame(dst)
	dst = append(dst, recordDoc)
	dst = binary.BigEndian.AppendUint16(dst, vb)
	var bits byte
	if d.Deleted {
		bits |= bitDeleted
	}
	if d.Expired {
		bits |= bitExpired
	}
	if d.Collection != mcbp.DefaultCollection {
		bits |= bitMember
	}
	dst = append(dst, bits, d.Datatype)
	dst = binary.BigEndian.AppendUint64(dst, d.Seqno)
	dst = binary.BigEndian.AppendUint64(dst, d.Cas)
	dst = binary.BigEndian.AppendUint64(dst, d.Rev)
	dst = binary.BigEndian.AppendUint32(dst, d.Flags)
	dst = binary.BigEndian.AppendUint32(dst, d.Expiry)
	dst = binary.BigEndian.AppendUint32(dst, d.DeleteTime)
	dst = binary.BigEndian.AppendUint16(dst, uint16(int(d.prefixBytes())+len(d.Key)))
	if bits&bitMember != 0 {
		dst = binary.AppendUvarint(dst, uint64(d.Collection))
	}
	dst = append(dst, d.Key...)
	dst = append(dst, d.Value...)
	return seglog.FinishFrame(dst, start)
}

// recordPlace decodes the kind and vbucket with which every record begins.
func recordPlace(payload []byte) (kind byte, vb uint16, rest []byte, err error) {
	if len(payload) < 3 {
		return 0, 0, nil, fmt.Errorf("%w: %d bytes", errRecord, len(payload))
	}
	return payload[0], binary.BigEndian.Uint16(payload[1:]), payload[3:], nil
}

// docIdentity decodes only what identifies a document record. value is the offset of its value.
func docIdentity(b []byte) (collection uint32, key []byte, seqno uint64, value int, err error) {
	const fixed = docHeader - 3
	if len(b) < fixed {
		return 0, nil, 0, 0, fmt.Errorf("%w: document of %d bytes", errRecord, len(b))
	}
	keyLen := int(binary.BigEndian.Uint16(b[fixed-2:]))
	if len(b) < fixed+keyLen {
		return 0, nil, 0, 0, fmt.Errorf("%w: key of %d bytes in %d", errRecord, keyLen, len(b)-fixed)
	}
	key = b[fixed : fixed+keyLen]
	if b[0]&bitMember != 0 {
		if collection, key, err = mcbp.SplitCollectionKey(key); err != nil {
			return 0, nil, 0, 0, fmt.Errorf("%w: %w", errRecord, err)
		}
	}
	return collection, key, binary.BigEndian.Uint64(b[2:]), fixed + keyLen, nil
}

// decodeDoc decodes a document record after its kind and vbucket. The result does not alias b.
func decodeDoc(b []byte) (*Doc, error) {
	collection, key, seqno, at, err := docIdentity(b)
	if err != nil {
		return nil, err
	}
	d := &Doc{
		Deleted: b[0]&bitDeleted != 0, Expired: b[0]&bitExpired != 0, Datatype: b[1],
		Key: string(key), Collection: collection, Seqno: seqno, Cas: binary.BigEndian.Uint64(b[10:]),
		Rev:   binary.BigEndian.Uint64(b[18:]),
		Flags: binary.BigEndian.Uint32(b[26:]), Expiry: binary.BigEndian.Uint32(b[30:]),
		DeleteTime: binary.BigEndian.Uint32(b[34:]),
	}
	if value := b[at:]; len(value) > 0 {
		d.Value = append(make([]byte, 0, len(value)), value...)
	}
	return d, nil
}

// vbRecord is the stored state of a vbucket without its documents.
type vbRecord struct {
	State               State
	High, Purge, MaxCas uint64
	Failover            timestamp.FailoverLog
}

func (r vbRecord) recordBytes() int64 {
	return seglog.FrameOverhead + stateHeader + 16*int64(len(r.Failover))
}

func appendState(dst []byte, vb uint16, r vbRecord) []byte {
	start := len(dst)
	dst = seglog.BeginFrame(dst)
	dst = append(dst, recordState)
	dst = binary.BigEndian.AppendUint16(dst, vb)
	dst = append(dst, byte(r.State))
	dst = binary.BigEndian.AppendUint64(dst, r.High)
	dst = binary.BigEndian.AppendUint64(dst, r.Purge)
	dst = binary.BigEndian.AppendUint64(dst, r.MaxCas)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(r.Failover)))
	for _, e := range r.Failover {
		dst = binary.BigEndian.AppendUint64(dst, e.VBUUID)
		dst = binary.BigEndian.AppendUint64(dst, e.Seqno)
	}
	return seglog.FinishFrame(dst, start)
}

func decodeState(b []byte) (vbRecord, error) {
	const fixed = stateHeader - 3
	if len(b) < fixed {
		return vbRecord{}, fmt.Errorf("%w: vbucket state of %d bytes", errRecord, len(b))
	}
	n := int(binary.BigEndian.Uint16(b[fixed-2:]))
	if len(b) != fixed+16*n || n == 0 {
		return vbRecord{}, fmt.Errorf("%w: vbucket state of %d bytes for %d failover entries", errRecord, len(b), n)
	}
	r := vbRecord{
		State: State(b[0]), High: binary.BigEndian.Uint64(b[1:]),
		Purge: binary.BigEndian.Uint64(b[9:]), MaxCas: binary.BigEndian.Uint64(b[17:]),
	}
	for i := range n {
		at := b[fixed+16*i:]
		r.Failover = append(r.Failover, timestamp.LogEntry{VBUUID: binary.BigEndian.Uint64(at),
			Seqno: binary.BigEndian.Uint64(at[8:])})
	}
	return r, nil
}

// appendWindow appends a record of a replica's snapshot window.
func appendWindow(dst []byte, vb uint16, w SnapshotRange) []byte {
	start := len(dst)
	dst = seglog.BeginFrame(dst)
	dst = append(dst, recordWindow)
	dst = binary.BigEndian.AppendUint16(dst, vb)
	dst = binary.BigEndian.AppendUint64(dst, w.Start)
	dst = binary.BigEndian.AppendUint64(dst, w.End)
	return seglog.FinishFrame(dst, start)
}

func decodeWindow(b []byte) (SnapshotRange, error) {
	if len(b) != 16 {
		return SnapshotRange{}, fmt.Errorf("%w: snapshot window of %d bytes", errRecord, len(b))
	}
	return SnapshotRange{Start: binary.BigEndian.Uint64(b), End: binary.BigEndian.Uint64(b[8:])}, nil
}

// appendReset appends a record that voids the vbucket's earlier ones.
func appendReset(dst []byte, vb uint16) []byte {
	start := len(dst)
	dst = seglog.BeginFrame(dst)
	dst = append(dst, recordReset)
	dst = binary.BigEndian.AppendUint16(dst, vb)
	return seglog.FinishFrame(dst, start)
}
