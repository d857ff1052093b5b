// Package packed holds events between their arrival and their write: encoded in little memory and few objects (Arena,
// Interned), decoded for one copy at a time (Unpacker), and distributed to the copies of a bucket in one pass over
// the events (Spreader). It guarantees that a copy gets exactly what an event states for it. It does no I/O and never
// blocks.
package packed

import (
	"encoding/binary"

	"tidemark/index"
	"tidemark/indexer/storage"
	"tidemark/keyversion"
)

// A packed event is the part of a KeyVersions event that is needed to write it: a flag byte, the document id with its
// length, then per statement {index 8, slice 2, length of the rest 4, number of keys, keys with their lengths}.
// Numbers without a size are varints. The event's Rest is kept separately.
const (
	packEverywhere = 1 // a deletion without statements: no copy has the document
	statementHead  = 8 + 2 + 4
)

// Arena allocates memory in blocks, so that queued events need no allocation each. A block lives as long as something
// in it is referenced.
type Arena struct {
	block []byte
	// Refused is called with each key that is left out.
	Refused func(*keyversion.Event, *keyversion.Statement, []byte)
}

const (
	arenaBlock = 64 << 10
	arenaLarge = 8 << 10 // size from which on an event gets its own allocation
)

func (a *Arena) take(n int) []byte {
	if n >= arenaLarge {
		return make([]byte, 0, n)
	}
	if cap(a.block)-len(a.block) < n {
		a.block = make([]byte, 0, arenaBlock)
	}
	at := len(a.block)
	a.block = a.block[:at+n]
	return a.block[at : at : at+n]
}

// Pack encodes an event. It leaves out keys that the store would refuse and passes them to Refused. Projectors
// enforce lower limits, so that this happens only to events of a foreign or damaged projector.
func (a *Arena) Pack(e *keyversion.Event) []byte {
	size := 1 + binary.MaxVarintLen32 + len(e.DocID)
	for i := range e.Statements {
		size += statementHead + binary.MaxVarintLen32
		for _, k := range e.Statements[i].Keys {
			size += binary.MaxVarintLen32 + len(k)
		}
	}
	b := a.take(size)
	flag := byte(0)
	if e.Kind == keyversion.Delete && len(e.Statements) == 0 && e.Rest == nil {
		flag = packEverywhere
	}
	b = append(b, flag)
	b = binary.AppendUvarint(b, uint64(len(e.DocID)))
	b = append(b, e.DocID...)
	for i := range e.Statements {
		b = a.packStatement(b, e, &e.Statements[i])
	}
	return b
}

func (a *Arena) packStatement(b []byte, e *keyversion.Event, s *keyversion.Statement) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(s.Index))
	b = binary.LittleEndian.AppendUint16(b, uint16(s.Slice))
	at := len(b)
	b = append(b, 0, 0, 0, 0)
	keys := s.Keys
	if e.Kind != keyversion.Insert {
		keys = nil
	}
	good := 0
	for _, k := range keys {
		if storable(k) {
			good++
		} else if a.Refused != nil {
			a.Refused(e, s, k)
		}
	}
	b = binary.AppendUvarint(b, uint64(good))
	for _, k := range keys {
		if storable(k) {
			b = binary.AppendUvarint(b, uint64(len(k)))
			b = append(b, k...)
		}
	}
	binary.LittleEndian.PutUint32(b[at:], uint32(len(b)-at-4))
	return b
}

// storable reports whether the store accepts a key.
func storable(k []byte) bool { return len(k) > 0 && len(k) <= storage.MaxKey }

// Unpacker decodes packed events for one copy. The keys that it returns stay valid; it reuses only the list of them.
type Unpacker struct {
	Index index.ID
	Slice index.SliceID
	Keys  [][]byte // backing array of all returned keys
}

// Values for the place of a copy's statement in a packed event when there is none.
const (
	Unknown = -1 // Update must search for the statement
	inRest  = -2 // the statement is in the event's Rest
)

// Update returns what the event states for the copy; false if it does not concern the copy. at is the place of its
// statement, see Share.Each.
func (u *Unpacker) Update(b []byte, rest *keyversion.Places, at, vb int, seqno uint64) (storage.Update, bool) {
	n, k := binary.Uvarint(b[1:])
	id := b[1+k:][:n:n]
	up := storage.Update{VBucket: uint16(vb), DocID: id, Seqno: seqno}
	if b[0] == packEverywhere {
		return up, true
	}
	if at == Unknown {
		if at = u.find(b, 1+k+len(id)); at == Unknown {
			return up, rest.Cover(u.Index, u.Slice)
		}
	}
	if at == inRest {
		return up, true
	}
	keys := b[at+statementHead:]
	count, k := binary.Uvarint(keys)
	keys = keys[k:]
	if count == 0 {
		return up, true
	}
	from := len(u.Keys)
	for range count {
		size, k := binary.Uvarint(keys)
		u.Keys = append(u.Keys, keys[k:k+int(size):k+int(size)])
		keys = keys[k+int(size):]
	}
	up.Keys = u.Keys[from:len(u.Keys):len(u.Keys)]
	return up, true
}

// find returns the place of the copy's statement, searching from at.
func (u *Unpacker) find(b []byte, at int) int {
	for len(b)-at >= statementHead {
		head := b[at:]
		no := index.SliceID(binary.LittleEndian.Uint16(head[8:]))
		if index.ID(binary.LittleEndian.Uint64(head)) == u.Index && (no == u.Slice || no == index.AllSlices) {
			return at
		}
		at += statementHead + int(binary.LittleEndian.Uint32(head[10:]))
	}
	return Unknown
}
