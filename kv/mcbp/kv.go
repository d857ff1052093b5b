package mcbp

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// MaxVBuckets is the maximum number of vbuckets of a bucket: the hash has 15 bits.
const MaxVBuckets = 1 << 15

// MaxFeatures is the maximum number of features in one HELLO.
const MaxFeatures = 256

// VBucket returns the vbucket of a document key (without its collection prefix) in a bucket with n vbuckets. n is a
// power of two from 1 to MaxVBuckets; for n < 1 the result is 0.
func VBucket(key []byte, n int) uint16 {
	if n < 1 {
		return 0
	}
	return uint16(((crc32.ChecksumIEEE(key) >> 16) & 0x7fff) % uint32(n))
}

// AppendFeatures appends the value of a HELLO request or answer.
func AppendFeatures(dst []byte, features []Feature) []byte {
	for _, f := range features {
		dst = binary.BigEndian.AppendUint16(dst, uint16(f))
	}
	return dst
}

// DecodeFeatures decodes the value of a HELLO request or answer.
func DecodeFeatures(value []byte) ([]Feature, error) {
	if len(value)%2 != 0 || len(value) > 2*MaxFeatures {
		return nil, malformed("HELLO value", len(value), "an even number up to 512")
	}
	out := make([]Feature, len(value)/2)
	for i := range out {
		out[i] = Feature(binary.BigEndian.Uint16(value[2*i:]))
	}
	return out, nil
}

// Store is the fixed part of SET, ADD and REPLACE.
type Store struct {
	Flags, Expiry uint32
}

// AppendExtras appends the 8 bytes of extras.
func (m Store) AppendExtras(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, m.Flags)
	return binary.BigEndian.AppendUint32(dst, m.Expiry)
}

// DecodeStore decodes the extras of SET, ADD and REPLACE.
func DecodeStore(extras []byte) (Store, error) {
	if len(extras) != 8 {
		return Store{}, malformed("SET extras", len(extras), "8")
	}
	return Store{Flags: binary.BigEndian.Uint32(extras), Expiry: binary.BigEndian.Uint32(extras[4:])}, nil
}

// AppendTouch appends the extras of TOUCH: the new expiry.
func AppendTouch(dst []byte, expiry uint32) []byte {
	return binary.BigEndian.AppendUint32(dst, expiry)
}

// DecodeTouch decodes the extras of TOUCH.
func DecodeTouch(extras []byte) (uint32, error) {
	if len(extras) != 4 {
		return 0, malformed("TOUCH extras", len(extras), "4")
	}
	return binary.BigEndian.Uint32(extras), nil
}

// NoCreate is the expiry of an INCREMENT or DECREMENT that must not create the document.
const NoCreate = 0xffffffff

// Arithmetic is the fixed part of INCREMENT and DECREMENT. A document that does not exist is created with Initial,
// unless Expiry is NoCreate.
type Arithmetic struct {
	Delta, Initial uint64
	Expiry         uint32
}

// AppendExtras appends the 20 bytes of extras.
func (m Arithmetic) AppendExtras(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, m.Delta)
	dst = binary.BigEndian.AppendUint64(dst, m.Initial)
	return binary.BigEndian.AppendUint32(dst, m.Expiry)
}

// DecodeArithmetic decodes the extras of INCREMENT and DECREMENT.
func DecodeArithmetic(extras []byte) (Arithmetic, error) {
	if len(extras) != 20 {
		return Arithmetic{}, malformed("INCREMENT extras", len(extras), "20")
	}
	return Arithmetic{
		Delta: binary.BigEndian.Uint64(extras), Initial: binary.BigEndian.Uint64(extras[8:]),
		Expiry: binary.BigEndian.Uint32(extras[16:]),
	}, nil
}

// AppendCounter appends the value of an INCREMENT or DECREMENT answer: the new number.
func AppendCounter(dst []byte, n uint64) []byte { return binary.BigEndian.AppendUint64(dst, n) }

// DecodeCounter decodes the value of an INCREMENT or DECREMENT answer.
func DecodeCounter(value []byte) (uint64, error) {
	if len(value) != 8 {
		return 0, malformed("INCREMENT answer", len(value), "8")
	}
	return binary.BigEndian.Uint64(value), nil
}

// AppendGetReply appends the extras of a GET answer: the document's flags.
func AppendGetReply(dst []byte, flags uint32) []byte {
	return binary.BigEndian.AppendUint32(dst, flags)
}

// DecodeGetReply decodes the extras of a GET answer.
func DecodeGetReply(extras []byte) (flags uint32, err error) {
	if len(extras) != 4 {
		return 0, malformed("GET answer extras", len(extras), "4")
	}
	return binary.BigEndian.Uint32(extras), nil
}

// MutationToken identifies the mutation that a write made: the branch and its seqno. It is in the extras of answers
// to writes if FeatureMutationToken is granted.
type MutationToken struct {
	VBUUID, Seqno uint64
}

// AppendExtras appends the 16 bytes of extras.
func (m MutationToken) AppendExtras(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, m.VBUUID)
	return binary.BigEndian.AppendUint64(dst, m.Seqno)
}

// DecodeMutationToken decodes the extras of a write's answer.
func DecodeMutationToken(extras []byte) (MutationToken, error) {
	if len(extras) != 16 {
		return MutationToken{}, malformed("mutation token", len(extras), "16")
	}
	return MutationToken{VBUUID: binary.BigEndian.Uint64(extras), Seqno: binary.BigEndian.Uint64(extras[8:])}, nil
}

// VBucketSeqno is the high seqno of one vbucket.
type VBucketSeqno struct {
	VBucket uint16
	Seqno   uint64
}

// VBSeqnosOfCollection is the size of the extras of GET_ALL_VB_SEQNOS with a collection.
const VBSeqnosOfCollection = 8

// AppendVBSeqnosRequest appends the extras of GET_ALL_VB_SEQNOS: the state of the requested vbuckets.
func AppendVBSeqnosRequest(dst []byte, state VBucketState) []byte {
	return binary.BigEndian.AppendUint32(dst, uint32(state))
}

// DecodeVBSeqnosRequest decodes the extras of GET_ALL_VB_SEQNOS: none (alive), a
// state, or a state and a collection id.
func DecodeVBSeqnosRequest(extras []byte) (state VBucketState, collection uint32, err error) {
	switch len(extras) {
	case 0:
		return VBucketAlive, 0, nil
	case 4:
		return VBucketState(binary.BigEndian.Uint32(extras)), 0, nil
	case VBSeqnosOfCollection:
		return VBucketState(binary.BigEndian.Uint32(extras)), binary.BigEndian.Uint32(extras[4:]), nil
	}
	return 0, 0, malformed("GET_ALL_VB_SEQNOS extras", len(extras), "0, 4 or 8")
}

// AppendVBSeqno appends one entry of a GET_ALL_VB_SEQNOS answer.
func AppendVBSeqno(dst []byte, e VBucketSeqno) []byte {
	dst = binary.BigEndian.AppendUint16(dst, e.VBucket)
	return binary.BigEndian.AppendUint64(dst, e.Seqno)
}

// DecodeVBSeqnos decodes the value of a GET_ALL_VB_SEQNOS answer.
func DecodeVBSeqnos(value []byte) ([]VBucketSeqno, error) {
	if len(value)%10 != 0 || len(value) > 10*MaxVBuckets {
		return nil, malformed("GET_ALL_VB_SEQNOS value", len(value), "a multiple of 10, for at most 32768 vbuckets")
	}
	out := make([]VBucketSeqno, len(value)/10)
	for i := range out {
		at := value[10*i:]
		out[i] = VBucketSeqno{VBucket: binary.BigEndian.Uint16(at), Seqno: binary.BigEndian.Uint64(at[2:])}
	}
	return out, nil
}

// ObserveSeqno is the value of an OBSERVE_SEQNO answer. The Old fields are set if there was a failover since the
// vbuuid in the request.
type ObserveSeqno struct {
	VBucket            uint16
	VBUUID             uint64
	Persisted, Current uint64
	Failover           bool
	OldVBUUID          uint64
	OldSeqno           uint64
}

// AppendValue appends the value: 27 bytes, or 43 after a failover.
func (m ObserveSeqno) AppendValue(dst []byte) []byte {
	format := byte(0)
	if m.Failover {
		format = 1
	}
	dst = binary.BigEndian.AppendUint16(append(dst, format), m.VBucket)
	for _, v := range [...]uint64{m.VBUUID, m.Persisted, m.Current} {
		dst = binary.BigEndian.AppendUint64(dst, v)
	}
	if m.Failover {
		dst = binary.BigEndian.AppendUint64(dst, m.OldVBUUID)
		dst = binary.BigEndian.AppendUint64(dst, m.OldSeqno)
	}
	return dst
}

// DecodeObserveSeqno decodes the value of an OBSERVE_SEQNO answer.
func DecodeObserveSeqno(value []byte) (ObserveSeqno, error) {
	if !(len(value) == 27 && value[0] == 0 || len(value) == 43 && value[0] == 1) {
		return ObserveSeqno{}, malformed("OBSERVE_SEQNO value", len(value), "27 with format 0, or 43 with format 1")
	}
	m := ObserveSeqno{
		VBucket:   binary.BigEndian.Uint16(value[1:]),
		VBUUID:    binary.BigEndian.Uint64(value[3:]),
		Persisted: binary.BigEndian.Uint64(value[11:]),
		Current:   binary.BigEndian.Uint64(value[19:]),
	}
	if value[0] == 1 {
		m.Failover = true
		m.OldVBUUID, m.OldSeqno = binary.BigEndian.Uint64(value[27:]), binary.BigEndian.Uint64(value[35:])
	}
	return m, nil
}

// KnownConfig is the extras of GET_CLUSTER_CONFIG if FeatureKnownConfig is granted: the version that the client has.
type KnownConfig struct {
	RevEpoch, Rev int64
}

// AppendExtras appends the 16 bytes of extras.
func (m KnownConfig) AppendExtras(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(m.RevEpoch))
	return binary.BigEndian.AppendUint64(dst, uint64(m.Rev))
}

// DecodeKnownConfig decodes the extras of GET_CLUSTER_CONFIG; ok is false if there are none.
func DecodeKnownConfig(extras []byte) (m KnownConfig, ok bool, err error) {
	switch len(extras) {
	case 0:
		return KnownConfig{}, false, nil
	case 16:
		return KnownConfig{RevEpoch: int64(binary.BigEndian.Uint64(extras)), Rev: int64(binary.BigEndian.Uint64(extras[8:]))},
			true, nil
	}
	return KnownConfig{}, false, malformed("GET_CLUSTER_CONFIG extras", len(extras), "0 or 16")
}

// AppendCollectionID appends the answer extras of GET_COLLECTION_ID and GET_SCOPE_ID: manifest
// uid and collection or scope id.
func AppendCollectionID(dst []byte, manifest uint64, collection uint32) []byte {
	dst = binary.BigEndian.AppendUint64(dst, manifest)
	return binary.BigEndian.AppendUint32(dst, collection)
}

// DecodeCollectionID decodes the extras that AppendCollectionID appended.
func DecodeCollectionID(extras []byte) (manifest uint64, collection uint32, err error) {
	if len(extras) != 12 {
		return 0, 0, malformed("GET_COLLECTION_ID answer extras", len(extras), "12")
	}
	return binary.BigEndian.Uint64(extras), binary.BigEndian.Uint32(extras[8:]), nil
}

// maxLEB128 is the maximum size of a 32-bit LEB128 number in bytes.
const maxLEB128 = 5

// AppendCollectionKey appends a document key with its collection prefix (an unsigned LEB128 number), which is the
// form of keys if FeatureCollections is granted.
func AppendCollectionKey(dst []byte, collection uint32, key []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(collection)), key...)
}

// SplitCollectionKey splits the collection prefix off a key.
func SplitCollectionKey(key []byte) (collection uint32, document []byte, err error) {
	if len(key) > 0 && key[0] < 0x80 {
		return uint32(key[0]), key[1:], nil
	}
	v, n := binary.Uvarint(key[:min(len(key), maxLEB128)])
	if n <= 0 || v > 1<<32-1 {
		return 0, nil, malformed("collection prefix of a key", len(key), "an unsigned LEB128 number of 32 bits")
	}
	return uint32(v), key[n:], nil
}

// SplitXattrs splits a value with DatatypeXattr (already decompressed) into its extended attributes and the document.
// The format is four bytes of length, the section, the document.
func SplitXattrs(value []byte) (xattrs, document []byte, err error) {
	if len(value) < 4 {
		return nil, nil, malformed("value with extended attributes", len(value), "at least 4")
	}
	n := binary.BigEndian.Uint32(value)
	if uint64(n) > uint64(len(value)-4) {
		return nil, nil, fmt.Errorf("%w: extended attributes of %d bytes in a value of %d", ErrMalformed, n, len(value))
	}
	return value[4 : 4+n : 4+n], value[4+n:], nil
}

// AppendXattrs appends the section that SplitXattrs splits off: its length and the attributes. The document follows.
func AppendXattrs(dst, xattrs []byte) []byte {
	return append(binary.BigEndian.AppendUint32(dst, uint32(len(xattrs))), xattrs...)
}

// AppendXattr appends one extended attribute to a section: its length, its name, a zero, its JSON value and a zero.
func AppendXattr(section []byte, name string, value []byte) []byte {
	section = binary.BigEndian.AppendUint32(section, uint32(len(name)+len(value)+2))
	return append(append(append(append(section, name...), 0), value...), 0)
}

// SystemXattrs returns a copy of the system attributes in a section (as returned by SplitXattrs): those whose names
// begin with an underscore. They survive the deletion of their document. The result is nil for an invalid section.
func SystemXattrs(section []byte) (system []byte) {
	for len(section) > 0 {
		if len(section) < 4 {
			return nil
		}
		n := binary.BigEndian.Uint32(section)
		if n == 0 || uint64(n) > uint64(len(section)-4) {
			return nil
		}
		if section[4] == '_' {
			system = append(system, section[:4+n]...)
		}
		section = section[4+n:]
	}
	return system
}

// Sizes and options of the extras of DELETE_WITH_META.
const (
	withMetaSize     = 24
	withMetaNMeta    = 2
	withMetaOptions  = 4
	MetaSkipConflict = 0x01 // regardless of the existing version
	MetaForceAccept  = 0x02
)

// WithMeta is the fixed part of DELETE_WITH_META: a version with the metadata that another cluster assigned.
type WithMeta struct {
	Flags, Time uint32 // Time of a deletion: when it was made, unix seconds
	Rev, CAS    uint64
	Options     uint32
	MetaLen     uint16 // bytes of extended metadata at the end of the value
}

// DecodeWithMeta decodes 24 bytes of extras, optionally followed by 4 bytes of options, and 2 of the metadata's
// length.
func DecodeWithMeta(extras []byte) (m WithMeta, err error) {
	n := len(extras) - withMetaSize
	if n != 0 && n != withMetaNMeta && n != withMetaOptions && n != withMetaOptions+withMetaNMeta {
		return m, malformed("extras with metadata", len(extras), "24, 26, 28 or 30")
	}
	m = WithMeta{Flags: binary.BigEndian.Uint32(extras), Time: binary.BigEndian.Uint32(extras[4:]),
		Rev: binary.BigEndian.Uint64(extras[8:]), CAS: binary.BigEndian.Uint64(extras[16:])}
	rest := extras[withMetaSize:]
	if n >= withMetaOptions {
		m.Options, rest = binary.BigEndian.Uint32(rest), rest[withMetaOptions:]
	}
	if len(rest) > 0 {
		m.MetaLen = binary.BigEndian.Uint16(rest)
	}
	return m, nil
}

// AppendExtras appends 28 bytes of extras, the form with options.
func (m WithMeta) AppendExtras(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, m.Flags)
	dst = binary.BigEndian.AppendUint32(dst, m.Time)
	dst = binary.BigEndian.AppendUint64(dst, m.Rev)
	dst = binary.BigEndian.AppendUint64(dst, m.CAS)
	return binary.BigEndian.AppendUint32(dst, m.Options)
}

// StatDiskTrouble is the statistic in which a node of the embedded KV says what is wrong with a bucket's disk. It is
// there only if something is.
const StatDiskTrouble = "tidemark_disk_trouble"
