package feed

import (
	"sync"
	"sync/atomic"
)

// chunkBytes is the size of the pooled memory that the socket is read into. It is the best one measured: one system
// call for 500 documents of 1 KiB.
const chunkBytes = 512 << 10

// keptEvents is the capacity up to which an event list goes back into the pool.
const keptEvents = 16 << 10

// keptChunks is how many free chunks a connection keeps for itself. The chunk that was freed last is filled next: it
// is still in the processor's cache, and no garbage collection can empty this list as it can a sync.Pool.
const keptChunks = 2

// chunk is memory that blocks point into; it is reused when the last of them is released.
type chunk struct {
	buf  []byte
	home *chunks
	refs atomic.Int32
}

// chunks holds the free chunks of one connection, the one freed last on top.
type chunks struct {
	mu   sync.Mutex // leaf
	free [keptChunks]*chunk
	n    int
}

// take returns a chunk of at least n bytes with one reference.
func (l *chunks) take(n int) *chunk {
	var c *chunk
	if n > chunkBytes {
		c = &chunk{buf: make([]byte, n)}
	} else if c = l.pop(); c == nil {
		c = chunkPool.Get().(*chunk)
	}
	c.home = l
	c.refs.Store(1)
	return c
}

// pop returns the chunk freed last, nil if there is none.
func (l *chunks) pop() *chunk {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.n == 0 {
		return nil
	}
	l.n--
	c := l.free[l.n]
	l.free[l.n] = nil
	return c
}

// push keeps a free chunk; it returns false if there are enough.
func (l *chunks) push(c *chunk) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.n == keptChunks {
		return false
	}
	l.free[l.n] = c
	l.n++
	return true
}

var chunkPool = sync.Pool{New: func() any { return &chunk{buf: make([]byte, chunkBytes)} }}

var eventPool = sync.Pool{New: func() any { s := make([]Event, 0, 512); return &s }}

// release drops one reference.
func (c *chunk) release() {
	if c.refs.Add(-1) != 0 || len(c.buf) != chunkBytes {
		return
	}
	home := c.home
	c.home = nil // so that a pooled chunk keeps no connection alive
	if !home.push(c) {
		chunkPool.Put(c)
	}
}

// Block is a run of events in the order of the connection, with the memory they point into.
type Block struct {
	// Events may be read until the last Release.
	Events []Event

	released func(bytes int) // called once, by the last Release
	list     *[]Event
	chunks   []*chunk
	inline   [2]*chunk // room for chunks in the common case
	bytes    int       // what the node counts for these events in flow control
	refs     atomic.Int32
}

// NewBlock returns an empty block with one reference, for an implementation of Feed whose events do not use chunks;
// released is called when the last holder has released the block, with the sum of the bytes given to Add.
func NewBlock(released func(bytes int)) *Block { return newBlock(released) }

// Add appends an event that the node counts with so many bytes. Only the creator may call it, and only before it
// shares the block.
func (b *Block) Add(e Event, bytes int) {
	b.Events = append(b.Events, e)
	b.bytes += bytes
}

// newBlock returns an empty block with one reference.
func newBlock(released func(int)) *Block {
	b := &Block{released: released, list: eventPool.Get().(*[]Event)}
	b.Events = (*b.list)[:0]
	b.chunks = b.inline[:0]
	b.refs.Store(1)
	return b
}

// hold makes the block keep a reference to a chunk.
func (b *Block) hold(c *chunk) {
	for _, have := range b.chunks {
		if have == c {
			return
		}
	}
	c.refs.Add(1)
	b.chunks = append(b.chunks, c)
}

// merge takes over the events and the memory of a later block.
func (b *Block) merge(later *Block) {
	b.Events = append(b.Events, later.Events...)
	b.bytes += later.bytes
	for _, c := range later.chunks {
		b.hold(c)
	}
	later.free()
}

// Bytes returns what the node counts for this block: the bytes that Release acknowledges.
func (b *Block) Bytes() int { return b.bytes }

// Retain lets n more holders share the block; each of them must call Release.
func (b *Block) Retain(n int) { b.refs.Add(int32(n)) }

// Release states that one holder has processed the events, which it must not use afterwards. The last Release frees
// the memory and acknowledges the bytes to the node. Further calls are ignored.
func (b *Block) Release() {
	if b.refs.Add(-1) != 0 {
		return
	}
	n := b.bytes
	b.free()
	b.released(n)
}

// free releases the memory.
func (b *Block) free() {
	large := false
	for _, c := range b.chunks {
		large = large || len(c.buf) > chunkBytes
		c.release()
	}
	large = large || len(b.chunks) == 0 // the memory does not come from chunks
	b.chunks = nil
	if cap(b.Events) <= keptEvents {
		if large { // otherwise the stale events point to pooled memory only
			clear(b.Events)
		}
		*b.list = b.Events[:0]
		eventPool.Put(b.list)
	}
	b.Events, b.list = nil, nil
}
