package feed

import (
	"sync"
	"sync/atomic"
)

// chunkBytes is the size of the pooled memory that the socket is read into. It
// measured best: one system call for 500 documents of 1 KiB.
const chunkBytes = 512 << 10

// keptEvents is the longest event list that goes back into the pool.
const keptEvents = 16 << 10

// keptChunks is how many free chunks a connection keeps for itself. The one that was freed last is filled next: what
// the socket is copied into is then still in the processor's cache, and no garbage collection takes it away in between.
const keptChunks = 2

// chunk is memory that blocks point into; it goes back to where it came from when the last
// of them is released.
type chunk struct {
	buf  []byte
	home *chunks
	refs atomic.Int32
}

// chunks are the free ones of one connection, the last one freed on top.
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

// pop takes the last one freed; nil if there is none.
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

// push keeps a free chunk; false when enough are kept.
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

// release gives up one reference.
func (c *chunk) release() {
	if c.refs.Add(-1) != 0 || len(c.buf) != chunkBytes {
		return
	}
	home := c.home
	c.home = nil // what waits in the pool keeps no connection
	if !home.push(c) {
		chunkPool.Put(c)
	}
}

// Block is a run of events in the order of the connection, with the memory they
// point into.
type Block struct {
	// Events are the consumer's to read until the last Release.
	Events []Event

	released func(bytes int) // called once, with the last Release
	list     *[]Event
	chunks   []*chunk
	inline   [2]*chunk // room for chunks in the common case
	bytes    int       // what the node counts for these events
	refs     atomic.Int32
}

// NewBlock makes an empty block with one reference, for an implementation of Feed that has its events' memory from
// elsewhere; released is called when the last holder has released it, with what Add has counted.
func NewBlock(released func(bytes int)) *Block { return newBlock(released) }

// Add appends an event that the node counts with so many bytes; only whoever has made the block, and before anybody
// else has it.
func (b *Block) Add(e Event, bytes int) {
	b.Events = append(b.Events, e)
	b.bytes += bytes
}

// newBlock makes an empty block with one reference.
func newBlock(released func(int)) *Block {
	b := &Block{released: released, list: eventPool.Get().(*[]Event)}
	b.Events = (*b.list)[:0]
	b.chunks = b.inline[:0]
	b.refs.Store(1)
	return b
}

// hold makes the block keep a chunk.
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

// Bytes is what the node counts for this block: what Release acknowledges.
func (b *Block) Bytes() int { return b.bytes }

// Retain lets n more holders share the block; each of them calls Release.
func (b *Block) Retain(n int) { b.refs.Add(int32(n)) }

// Release says that one holder has processed the events. The last one gives the
// memory back and acknowledges the bytes to the node. Nobody may touch the events
// after his Release. One too many is ignored.
func (b *Block) Release() {
	if b.refs.Add(-1) != 0 {
		return
	}
	n := b.bytes
	b.free()
	b.released(n)
}

// free returns the memory back.
func (b *Block) free() {
	large := false
	for _, c := range b.chunks {
		large = large || len(c.buf) > chunkBytes
		c.release()
	}
	large = large || len(b.chunks) == 0 // memory of somebody else
	b.chunks = nil
	if cap(b.Events) <= keptEvents {
		if large { // else what the stale events point to is in the pool anyway
			clear(b.Events)
		}
		*b.list = b.Events[:0]
		eventPool.Put(b.list)
	}
	b.Events, b.list = nil, nil
}
