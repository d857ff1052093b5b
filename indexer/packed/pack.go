// Package packed holds events between their arrival and their write: in few bytes and few objects (Arena, Interned),
// read out for one copy at a time (Unpacker), and shared out among the copies of a bucket in one look at each event
// (Spreader). It promises that a copy gets exactly what an event states for it. It waits for nothing and writes
// nothing.
package packed

import (
	"encoding/binary"

	"tidemark/index"
	"tidemark/indexer/storage"
	"tidemark/keyversion"
)

// A packed event is the part of a KeyVersions event that is needed when it is written: a flag byte, the document id
// with its length, then per statement {index 8, slice 2, length of the rest 4, number of keys, keys with their
// lengths}. Numbers without a size are varints. The event's Rest is kept beside it.
const (
	packEverywhere = 1 // a deletion that names nobody: no copy has the document
	statementHead  = 8 + 2 + 4
)

// Arena hands out memory in blocks, so that queued events cost no allocation each. A block lives as long as something
// in it is referred to.
type Arena struct {
	block []byte
	// Refused is told of keys that are left out.
	Refused func(*keyversion.Event, *keyversion.Statement, []byte)
}

const (
	arenaBlock = 64 << 10
	arenaLarge = 8 << 10 // from here on an event has its own memory
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

// Pack keeps an event. Keys that the store would refuse are left out, and refused is told: the projector has its own,
// lower limits, so that this happens only to what comes from a foreign or damaged one.
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

// storable reports whether the store takes a key.
func storable(k []byte) bool { return len(k) > 0 && len(k) <= storage.MaxKey }

// Unpacker reads packed events for one copy. Keys it gives out stay valid; it reuses only its list of them.
type Unpacker struct {
	Index index.ID
	Slice index.SliceID
	Keys  [][]byte // backing of all keys given out
}

// Places of a copy's statement in a packed event, where there is none.
const (
	Unknown = -1 // it has to be looked for
	inRest  = -2 // it is one of the event's Rest
)

// Update returns what the event states for the copy; false when it does not concern it. at is the place of its
// statement, see share.
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

// find looks for the copy's statement from a place on.
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
