package storage

import (
	"encoding/binary"
	"errors"
	"fmt"

	"tidemark/ingest"
	"tidemark/timestamp"
)

// Keys and values of the stored records. Numbers in keys are big-endian, so that the byte order of keys is their
// order.
//
//	'b' vbucket(2) docid        -> back entry: seqno, number of keys, each key with its length (varints);
//	                               no keys: tombstone
//	'f' key docid               -> length of docid (varint)
//	'l' vbucket(2)              -> failover log
//	'p' slot                    -> state record, see appendStateRecord
const (
	tagBack  = 'b'
	tagFwd   = 'f'
	tagLog   = 'l'
	tagState = 'p'
)

var errRecord = errors.New("a stored record does not parse")

func appendBackKey(dst []byte, vb uint16, docID []byte) []byte {
	dst = append(dst, tagBack, byte(vb>>8), byte(vb))
	return append(dst, docID...)
}

func appendFwdKey(dst, key, docID []byte) []byte {
	dst = append(dst, tagFwd)
	dst = append(dst, key...)
	return append(dst, docID...)
}

// backRange returns the bounds of a vbucket's back entries.
func backRange(vb uint16) (low, high []byte) {
	return appendBackKey(nil, vb, nil), binary.BigEndian.AppendUint32(nil, uint32(tagBack)<<24|(uint32(vb)+1)<<8)[:3]
}

func logKey(vb uint16) []byte { return []byte{tagLog, byte(vb >> 8), byte(vb)} }

func appendBackValue(dst []byte, seqno uint64, keys [][]byte) []byte {
	dst = binary.AppendUvarint(dst, seqno)
	dst = binary.AppendUvarint(dst, uint64(len(keys)))
	for _, k := range keys {
		dst = binary.AppendUvarint(dst, uint64(len(k)))
		dst = append(dst, k...)
	}
	return dst
}

// decodeBackValue decodes a back entry. keys alias v, and dst is reused for them.
func decodeBackValue(dst [][]byte, v []byte) (seqno uint64, keys [][]byte, err error) {
	seqno, n := binary.Uvarint(v)
	if n <= 0 {
		return 0, nil, fmt.Errorf("back entry: %w", errRecord)
	}
	v = v[n:]
	count, n := binary.Uvarint(v)
	if n <= 0 || count > uint64(len(v)) {
		return 0, nil, fmt.Errorf("back entry: %w", errRecord)
	}
	v, keys = v[n:], dst[:0]
	for range count {
		size, n := binary.Uvarint(v)
		if n <= 0 || size > uint64(len(v)-n) {
			return 0, nil, fmt.Errorf("back entry: %w", errRecord)
		}
		keys = append(keys, v[n:n+int(size)])
		v = v[n+int(size):]
	}
	if len(v) != 0 {
		return 0, nil, fmt.Errorf("back entry: %w", errRecord)
	}
	return seqno, keys, nil
}

// splitFwd splits a forward row into key and document id.
func splitFwd(row, value []byte) (key, docID []byte, err error) {
	size, n := binary.Uvarint(value)
	if n <= 0 || len(row) < 1 || row[0] != tagFwd || size > uint64(len(row)-1) {
		return nil, nil, fmt.Errorf("forward row: %w", errRecord)
	}
	cut := len(row) - int(size)
	return row[1:cut], row[cut:], nil
}

// state is everything about a slice except its rows: the number of its batch, its positions and the failover logs.
type state struct {
	number    uint64 // of the batch, counted from 1
	items     int64  // forward rows
	stable    timestamp.Vector
	exact     bool // the rows are exactly those at stable
	positions []ingest.Position
	logs      []timestamp.FailoverLog
}

func newState(vbuckets int) state {
	return state{
		stable:    timestamp.New(vbuckets),
		positions: make([]ingest.Position, vbuckets),
		logs:      make([]timestamp.FailoverLog, vbuckets),
	}
}

// State records: each batch writes one, into one of stateSlots keys in turn. Slot 0 holds a full record, the others
// the changes since the previous record. A store is reopened at the newest batch that it holds, so the newest full
// record and the changes after it, numbered without a gap, yield its state.
const (
	stateSlots  = 64
	stateFormat = 1
	flagFull    = 1
	flagExact   = 2
)

// stateSlot returns the slot of a record. Records of batches whose number is a multiple of stateSlots, and of the
// first batch after opening, are full.
func stateSlot(number uint64, full bool) byte {
	if full {
		return 0
	}
	return byte(number % stateSlots)
}

// appendStateRecord encodes next. changed lists the vbuckets whose position differs from prev (ignored if full).
func appendStateRecord(dst []byte, prev, next *state, changed []uint16, full bool) ([]byte, error) {
	var flags byte
	base := prev.stable
	if full {
		flags |= flagFull
		base = timestamp.New(next.stable.Len())
	}
	if next.exact {
		flags |= flagExact
	}
	dst = append(dst, stateFormat, flags)
	dst = binary.AppendUvarint(dst, next.number)
	dst = binary.AppendVarint(dst, next.items)
	dst, err := next.stable.AppendDelta(dst, base)
	if err != nil {
		return dst, err
	}
	if full {
		dst = binary.AppendUvarint(dst, uint64(len(next.positions)))
		for v := range next.positions {
			dst = binary.BigEndian.AppendUint16(dst, uint16(v))
			dst = ingest.AppendPosition(dst, next.positions[v])
		}
		return dst, nil
	}
	dst = binary.AppendUvarint(dst, uint64(len(changed)))
	for _, v := range changed {
		dst = binary.BigEndian.AppendUint16(dst, v)
		dst = ingest.AppendPosition(dst, next.positions[v])
	}
	return dst, nil
}

// stateRecord is a record's head; rest is encoded against the previous state.
type stateRecord struct {
	number uint64
	flags  byte
	items  int64
	rest   []byte
}

func parseStateRecord(v []byte) (r stateRecord, err error) {
	if len(v) < 2 || v[0] != stateFormat {
		return r, fmt.Errorf("state record: %w", errRecord)
	}
	r.flags, v = v[1], v[2:]
	number, n := binary.Uvarint(v)
	if n <= 0 {
		return r, fmt.Errorf("state record: %w", errRecord)
	}
	r.number, v = number, v[n:]
	items, n := binary.Varint(v)
	if n <= 0 {
		return r, fmt.Errorf("state record: %w", errRecord)
	}
	r.items, r.rest = items, v[n:]
	return r, nil
}

// apply advances s by the record, in place.
func (s *state) apply(r stateRecord) error {
	base := s.stable
	if r.flags&flagFull != 0 {
		base = timestamp.New(len(s.positions))
	}
	stable, rest, err := timestamp.ApplyDelta(r.rest, base)
	if err != nil {
		return err
	}
	count, n := binary.Uvarint(rest)
	if n <= 0 || count > uint64(len(s.positions)) {
		return fmt.Errorf("state record: %w", errRecord)
	}
	rest = rest[n:]
	for range count {
		if len(rest) < 2 || int(binary.BigEndian.Uint16(rest)) >= len(s.positions) {
			return fmt.Errorf("state record: %w", errRecord)
		}
		v := binary.BigEndian.Uint16(rest)
		if s.positions[v], rest, err = ingest.DecodePosition(rest[2:]); err != nil {
			return err
		}
	}
	if len(rest) != 0 {
		return fmt.Errorf("state record: %w", errRecord)
	}
	s.number, s.items, s.stable, s.exact = r.number, r.items, stable, r.flags&flagExact != 0
	return nil
}
