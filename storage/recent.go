package storage

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
)

// recent holds the back entries that stand in memtables, so that a document's old keys need not be looked for there, which
// is the dear half of the search in the store: what is not found here stands in the tables or nowhere. It belongs to the
// writer; what it takes is charged with the batch (scratch.cost).
//
// A part of it goes with the memtables that it is of. Entries are noted after their batch is committed, under the number
// that memtables' rotations have then; as that number rises before the memtable is taken away, everything noted under it is in
// tables once that rotation is written.
type recent struct {
	seed  maphash.Seed
	parts []recentPart // oldest first
	// While rotations below doubt are not written, memtables may hold something that is not here.
	doubt uint64
}

// recentPart is an open table of offsets into an arena of entries {length of key, key, length of value + 1 or 0 for a
// deletion, value}.
type recentPart struct {
	rotation uint64
	slots    []recentSlot // a power of two; at most half of them are used
	used     int
	arena    []byte
}

type recentSlot struct {
	hash uint32
	at   uint32 // of its entry in the arena, plus one; 0: free
}

const (
	recentSlots  = 256 // of a new part
	maxRecent    = 1 << 30
	recentWeight = 24 // bytes of an entry beside its key and value, with the free half of the slots
)

func newRecent() recent { return recent{seed: maphash.MakeSeed()} }

// written forgets what is in tables: the rotations up to that number.
func (r *recent) written(rotation uint64) {
	n := 0
	for n < len(r.parts) && r.parts[n].rotation <= rotation {
		n++
	}
	if n > 0 {
		r.parts = append([]recentPart(nil), r.parts[n:]...)
	}
	if r.doubt <= rotation {
		r.doubt = 0
	}
}

// sure tells that what is not here is in no memtable.
func (r *recent) sure() bool { return r.doubt == 0 }

// forget drops everything; until that rotation is written nothing is sure.
func (r *recent) forget(rotation uint64) { r.parts, r.doubt = nil, rotation }

// find gives the newest value of a key; nil when it was deleted.
func (r *recent) find(key []byte) (value []byte, found bool) {
	if len(r.parts) == 0 {
		return nil, false
	}
	h := uint32(maphash.Bytes(r.seed, key))
	for i := len(r.parts) - 1; i >= 0; i-- {
		p := &r.parts[i]
		if s := p.slot(h, key); p.slots[s].at != 0 {
			_, value = p.entry(p.slots[s].at)
			return value, true
		}
	}
	return nil, false
}

// note keeps an entry that was committed before the rotations had that number.
func (r *recent) note(rotation uint64, key, value []byte, deleted bool) {
	n := len(r.parts)
	if n == 0 || r.parts[n-1].rotation != rotation {
		r.parts = append(r.parts, recentPart{rotation: rotation, slots: make([]recentSlot, recentSlots)})
		n++
	}
	p := &r.parts[n-1]
	if len(p.arena)+len(key)+len(value) > maxRecent {
		r.forget(rotation)
		return
	}
	if 2*p.used >= len(p.slots) {
		p.grow()
	}
	at := uint32(len(p.arena)) + 1
	p.arena = binary.AppendUvarint(p.arena, uint64(len(key)))
	p.arena = append(p.arena, key...)
	if deleted {
		p.arena = append(p.arena, 0)
	} else {
		p.arena = binary.AppendUvarint(p.arena, uint64(len(value))+1)
		p.arena = append(p.arena, value...)
	}
	h := uint32(maphash.Bytes(r.seed, key))
	s := p.slot(h, key)
	if p.slots[s].at == 0 {
		p.used++
	}
	p.slots[s] = recentSlot{h, at}
}

// slot gives where a key is, or would be.
func (p *recentPart) slot(h uint32, key []byte) uint32 {
	mask := uint32(len(p.slots) - 1)
	for s := h & mask; ; s = (s + 1) & mask {
		if p.slots[s].at == 0 {
			return s
		}
		if p.slots[s].hash != h {
			continue
		}
		if k, _ := p.entry(p.slots[s].at); bytes.Equal(k, key) {
			return s
		}
	}
}

// entry reads one; a nil value is a deletion.
func (p *recentPart) entry(at uint32) (key, value []byte) {
	b := p.arena[at-1:]
	n, k := binary.Uvarint(b)
	key, b = b[k:k+int(n)], b[k+int(n):]
	if n, k = binary.Uvarint(b); n > 0 {
		value = b[k : k+int(n-1) : k+int(n-1)]
	}
	return key, value
}

func (p *recentPart) grow() {
	old := p.slots
	p.slots = make([]recentSlot, 2*len(old))
	mask := uint32(len(p.slots) - 1)
	for _, o := range old {
		if o.at == 0 {
			continue
		}
		s := o.hash & mask
		for p.slots[s].at != 0 {
			s = (s + 1) & mask
		}
		p.slots[s] = o
	}
}
