package storage

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
)

// recent holds the newest back entries of documents that were written lately, so that a document's old keys need not be
// looked for in the store: what is not found here stands in tables or nowhere. It belongs to the writer.
//
// All that stands in memtables is here; it is charged with the batch (scratch.cost). What has gone to tables stays
// until there is no room for it (evict), oldest first: an entry says what a document's newest version is wherever that
// is stored.
//
// Entries are noted after their batch is committed, under the number that memtables' rotations have then; as that
// number rises before the memtable is taken away, everything noted under it is in tables once that rotation is written.
type recent struct {
	seed   maphash.Seed
	slots  []recentSlot // an open table; a power of two, of which three quarters are used at most
	used   int
	chunks []recentChunk // oldest first
	first  uint32        // number of the first
	stored int           // so many of them are in tables
	bytes  int64         // of these
	// While rotations below doubt are not written, memtables may hold something that is not here.
	doubt uint64
}

// recentChunk is an arena of entries {length of key, key, length of value + 1 or 0 for a deletion, value}.
type recentChunk struct {
	rotation uint64
	arena    []byte
}

// recentSlot is where an entry is.
type recentSlot struct {
	hash, chunk uint32 // number of its chunk; 0: the slot is free
	at          uint32
}

const (
	recentSlots  = 256 // at least
	slotBytes    = 12
	chunkBytes   = 256 << 10 // when another one is begun
	recentWeight = 24        // bytes of an entry beside its key and value, with the free slots
)

func newRecent() recent { return recent{seed: maphash.MakeSeed(), first: 1} }

// written tells that the rotations up to that number are in tables.
func (r *recent) written(rotation uint64) {
	for r.stored < len(r.chunks) && r.chunks[r.stored].rotation <= rotation {
		c := &r.chunks[r.stored]
		if len(c.arena) < cap(c.arena)*3/4 {
			c.arena = bytes.Clone(c.arena)
		}
		r.stored++
		r.bytes += int64(cap(c.arena))
	}
	if r.doubt <= rotation {
		r.doubt = 0
	}
}

// size is what it takes beside what is charged with batches.
func (r *recent) size() int64 { return r.bytes + int64(len(r.slots))*slotBytes }

// evict forgets the oldest entries; false when all that there are stand in memtables.
func (r *recent) evict() bool {
	if r.stored == 0 {
		return false
	}
	arena := r.chunks[0].arena
	for at := 0; at < len(arena); {
		key, _, next := readRecent(arena, at)
		r.remove(uint32(maphash.Bytes(r.seed, key)), recentSlot{chunk: r.first, at: uint32(at)})
		at = next
	}
	r.chunks[0].arena = nil
	r.chunks = r.chunks[1:]
	r.first++
	r.stored--
	r.bytes -= int64(cap(arena))
	switch {
	case len(r.chunks) == 0:
		r.chunks, r.slots = nil, nil
	case len(r.slots) > recentSlots && r.used < len(r.slots)/8:
		r.resize(len(r.slots) / 2)
	}
	return true
}

// sure tells that what is not here is in no memtable.
func (r *recent) sure() bool { return r.doubt == 0 }

// forget drops everything; until that rotation is written nothing is sure.
func (r *recent) forget(rotation uint64) {
	*r = recent{seed: r.seed, first: r.first + uint32(len(r.chunks)), doubt: rotation}
}

// find returns the newest value of a key; nil when it was deleted.
func (r *recent) find(key []byte) (value []byte, found bool) {
	if r.used == 0 {
		return nil, false
	}
	s := r.slots[r.slot(uint32(maphash.Bytes(r.seed, key)), key)]
	if s.chunk == 0 {
		return nil, false
	}
	_, value, _ = readRecent(r.chunks[s.chunk-r.first].arena, int(s.at))
	return value, true
}

// note keeps an entry that was committed before the rotations had that number.
func (r *recent) note(rotation uint64, key, value []byte, deleted bool) {
	n := len(r.chunks)
	if n == 0 || r.chunks[n-1].rotation != rotation || len(r.chunks[n-1].arena) >= chunkBytes {
		c := recentChunk{rotation: rotation}
		if n > 0 && r.chunks[n-1].rotation == rotation {
			c.arena = make([]byte, 0, chunkBytes+chunkBytes/16)
		}
		r.chunks = append(r.chunks, c)
		n++
	}
	if 4*(r.used+1) > 3*len(r.slots) {
		r.resize(max(2*len(r.slots), recentSlots))
	}
	c := &r.chunks[n-1]
	at := uint32(len(c.arena))
	c.arena = binary.AppendUvarint(c.arena, uint64(len(key)))
	c.arena = append(c.arena, key...)
	if deleted {
		c.arena = append(c.arena, 0)
	} else {
		c.arena = binary.AppendUvarint(c.arena, uint64(len(value))+1)
		c.arena = append(c.arena, value...)
	}
	h := uint32(maphash.Bytes(r.seed, key))
	s := r.slot(h, key)
	if r.slots[s].chunk == 0 {
		r.used++
	}
	r.slots[s] = recentSlot{hash: h, chunk: r.first + uint32(n-1), at: at}
}

// slot returns where a key is, or would be.
func (r *recent) slot(h uint32, key []byte) uint32 {
	mask := uint32(len(r.slots) - 1)
	for s := h & mask; ; s = (s + 1) & mask {
		o := &r.slots[s]
		if o.chunk == 0 {
			return s
		}
		if o.hash != h {
			continue
		}
		if k, _, _ := readRecent(r.chunks[o.chunk-r.first].arena, int(o.at)); bytes.Equal(k, key) {
			return s
		}
	}
}

// remove frees the slot of an entry, unless a newer one of its key has it.
func (r *recent) remove(h uint32, entry recentSlot) {
	mask := uint32(len(r.slots) - 1)
	s := h & mask
	for r.slots[s].chunk != entry.chunk || r.slots[s].at != entry.at {
		if r.slots[s].chunk == 0 {
			return
		}
		s = (s + 1) & mask
	}
	r.used--
	// who stands behind it only because of it
	for next := (s + 1) & mask; r.slots[next].chunk != 0; next = (next + 1) & mask {
		if (next-r.slots[next].hash)&mask >= (next-s)&mask {
			r.slots[s] = r.slots[next]
			s = next
		}
	}
	r.slots[s] = recentSlot{}
}

func (r *recent) resize(n int) {
	old := r.slots
	r.slots = make([]recentSlot, n)
	mask := uint32(n - 1)
	for _, o := range old {
		if o.chunk == 0 {
			continue
		}
		s := o.hash & mask
		for r.slots[s].chunk != 0 {
			s = (s + 1) & mask
		}
		r.slots[s] = o
	}
}

// readRecent reads one entry, and returns where the next begins; a nil value is a deletion.
func readRecent(arena []byte, at int) (key, value []byte, next int) {
	n, k := binary.Uvarint(arena[at:])
	at += k
	key = arena[at : at+int(n)]
	at += int(n)
	n, k = binary.Uvarint(arena[at:])
	at += k
	if n == 0 {
		return key, nil, at
	}
	next = at + int(n-1)
	return key, arena[at:next:next], next
}
