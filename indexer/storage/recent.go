package storage

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
)

// recent holds the newest back entries of recently written documents, so that a document's old keys need not be
// looked up in the store: an entry that is not found here is in tables, or does not exist. It belongs to the writer.
//
// Everything in memtables is here, and is charged with its batch (scratch.cost). Entries that have been written to
// tables stay until their memory is needed, and are then evicted, oldest first. An entry is the document's newest
// version, wherever that is stored.
//
// Entries are noted after their batch is committed, with the rotation number at that time. That number is incremented
// before the memtable is rotated, so everything noted under a number is in tables once that rotation has been
// written.
type recent struct {
	seed   maphash.Seed
	slots  []recentSlot // open-addressing hash table; its size is a power of two, at most three quarters are used
	used   int
	chunks []recentChunk // oldest first
	first  uint32        // number of the first chunk
	stored int           // number of chunks whose entries are in tables
	bytes  int64         // of those chunks
	// Until the rotations up to doubt are written, memtables may hold entries that are not here; 0: they do not.
	doubt uint64
}

// recentChunk is an arena of entries {length of key, key, length of value + 1 or 0 for a deletion, value}.
type recentChunk struct {
	rotation uint64
	arena    []byte
}

// recentSlot is the location of an entry.
type recentSlot struct {
	hash, chunk uint32 // chunk is the number of its chunk; 0: the slot is free
	at          uint32
}

const (
	recentSlots  = 256 // least number of slots
	slotBytes    = 12
	chunkBytes   = 256 << 10 // size at which a new chunk is started
	recentWeight = 24        // bytes of an entry in addition to its key and value, including free slots
)

func newRecent() recent { return recent{seed: maphash.MakeSeed(), first: 1} }

// written records that the rotations up to that number are in tables.
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

// size returns the bytes that are not charged with batches.
func (r *recent) size() int64 { return r.bytes + int64(len(r.slots))*slotBytes }

// evict drops the oldest chunk of entries. It returns false if all entries are in memtables.
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

// sure reports whether entries that are not here are in no memtable either.
func (r *recent) sure() bool { return r.doubt == 0 }

// forget drops everything. sure then returns false until that rotation is written.
func (r *recent) forget(rotation uint64) {
	*r = recent{seed: r.seed, first: r.first + uint32(len(r.chunks)), doubt: rotation}
}

// find returns the newest value of a key; nil if it was deleted.
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

// note adds an entry that was committed when rotation was the current rotation number.
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

// slot returns the slot of a key, or the free slot where it would be.
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

// remove frees the slot of an entry, unless a newer entry of its key uses it.
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
	// move up entries that were displaced by this one
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

// readRecent reads one entry, and returns where the next one starts; a nil value is a deletion.
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
