package feed

import (
	"errors"
	"fmt"

	"github.com/golang/snappy"

	"tidemark/kv/kvclient"
	"tidemark/kv/mcbp"
)

// minRead is the room below which the reader begins a new chunk instead of reading a sliver.
const minRead = 32 << 10

// growth is the factor by which the next chunk for a message that does not fit may be larger.
const growth = 4

// reader is the state of the read loop: the chunk being filled, and the one that holds decompressed values.
type reader struct {
	conn      *Conn
	cur       *chunk
	from, to  int // the unparsed bytes in cur
	arena     *chunk
	arenaUsed int
	frame     mcbp.Frame // the message being parsed
}

// readLoop reads, parses in place, answers noops, completes requests and queues the events.
func (c *Conn) readLoop() error {
	r := &reader{conn: c, cur: c.chunks.take(chunkBytes)}
	defer r.free()
	for {
		if err := r.fill(); err != nil {
			err = c.lost(err)
			c.fail(err)
			return err
		}
		if err := r.parse(); err != nil {
			c.fail(err)
			return err
		}
	}
}

// free releases the reader's own references to its memory.
func (r *reader) free() {
	r.cur.release()
	if r.arena != nil {
		r.arena.release()
	}
}

// fill reads once, into a new chunk if the present message does not fit into this one or little room is left.
func (r *reader) fill() error {
	if err := r.room(); err != nil {
		return err
	}
	n, err := r.conn.session.Read(r.cur.buf[r.to:])
	r.to += n
	r.conn.arrived.Add(uint64(n))
	if n > 0 {
		return nil
	}
	return err
}

// room makes sure that there is enough room for a read. The memory for a large message grows with what has arrived of
// it, not with the size in its header.
func (r *reader) room() error {
	have, free, need := r.to-r.from, len(r.cur.buf)-r.to, minRead
	if have >= mcbp.HeaderSize {
		h, err := mcbp.ParseHeader(r.cur.buf[r.from:r.to])
		if err != nil {
			return err
		}
		need = h.Size() - have
	}
	if free >= need || r.from == 0 && free >= minRead {
		return nil
	}
	next := r.conn.chunks.take(max(min(have+need, growth*have), chunkBytes))
	n := copy(next.buf, r.cur.buf[r.from:r.to])
	r.cur.release()
	r.cur, r.from, r.to = next, 0, n
	return nil
}

// parse handles every complete message in the buffer and queues their events as one block.
func (r *reader) parse() error {
	c, f := r.conn, &r.frame
	var b *Block
	for {
		n, err := f.Parse(r.cur.buf[r.from:r.to])
		if errors.Is(err, mcbp.ErrShort) {
			break
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrProtocol, err)
		}
		r.from += n
		if f.Op == mcbp.OpDCPNoop && f.Magic.IsRequest() {
			c.answerNoop(f.Header)
			continue
		}
		if b == nil {
			b = newBlock(c.released)
			b.hold(r.cur)
			c.begun()
		}
		if err := r.frameOf(b, n); err != nil {
			b.free()
			return err
		}
	}
	if b == nil {
		return nil
	}
	if held := c.held.Add(int64(b.bytes)); held > c.limit {
		b.free()
		return fmt.Errorf("%w: %s ignores flow control: %d bytes sent ahead, the window is %d", ErrProtocol, c.conf.Addr,
			held, c.conf.BufferBytes)
	}
	c.counted()
	if !c.push(b) {
		b.Release()
	}
	return nil
}

// frameOf handles the parsed frame, of n bytes: an event goes into b, an answer to its request.
func (r *reader) frameOf(b *Block, n int) error {
	c, f := r.conn, &r.frame
	if !f.Magic.IsRequest() {
		if err := c.response(b, f); err != nil {
			return err
		}
		if c.session.Lapsed(f.Status()) {
			return c.lost(kvclient.NewStatusError(*f))
		}
		return nil
	}
	b.bytes += n
	have := len(b.Events)
	if err := r.event(b, f); err != nil {
		return err
	}
	if p := c.pacer.Load(); p != nil && len(b.Events) > have {
		c.pace(p, b, n)
	}
	return nil
}

// begun records that a block is being made.
func (c *Conn) begun() {
	if p := c.pacer.Load(); p != nil {
		c.mu.Lock()
		p.making = true
		c.mu.Unlock()
	}
}

// pace removes the block's last event, of n bytes, if the pacer does not admit it.
func (c *Conn) pace(p *pacer, b *Block, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !p.admit(&b.Events[len(b.Events)-1], c.held.Load()+int64(b.bytes-n), int64(n)) {
		b.Events = b.Events[:len(b.Events)-1]
		b.bytes -= n
	}
	p.block = int64(b.bytes)
}

// counted records that Conn.held includes the block's bytes.
func (c *Conn) counted() {
	if p := c.pacer.Load(); p != nil {
		c.mu.Lock()
		p.block = 0
		c.mu.Unlock()
	}
}

// answerNoop answers at once, with the same opaque.
func (c *Conn) answerNoop(noop mcbp.Header) {
	c.mu.Lock()
	c.sendLocked(mcbp.Frame{Header: mcbp.Response(noop, mcbp.StatusOK)})
	tooMuch := len(c.out) > maxUnsent
	c.mu.Unlock()
	if tooMuch {
		c.fail(fmt.Errorf("%w: %s sends noops but does not read the answers", ErrProtocol, c.conf.Addr))
	}
	poke(c.wake)
}

// event decodes a request of the node into the next event of the block.
func (r *reader) event(b *Block, f *mcbp.Frame) error {
	switch f.Op {
	case mcbp.OpDCPMutation:
		m, err := mcbp.DecodeMutation(f.Extras)
		if err != nil {
			return violation(f, err)
		}
		e := b.next(Mutation, f)
		e.Seqno, e.RevSeqno, e.Flags, e.Expiry = m.Seqno, m.RevSeqno, m.Flags, m.Expiry
		return r.document(b, e, f, int(m.MetaLen))
	case mcbp.OpDCPDeletion, mcbp.OpDCPExpiration:
		m, err := mcbp.DecodeDeletion(f.Extras)
		if err != nil {
			return violation(f, err)
		}
		kind := Deletion
		if f.Op == mcbp.OpDCPExpiration {
			kind = Expiration
		}
		e := b.next(kind, f)
		e.Seqno, e.RevSeqno, e.DeleteTime = m.Seqno, m.RevSeqno, m.DeleteTime
		return r.document(b, e, f, int(m.MetaLen))
	case mcbp.OpDCPSnapshotMarker:
		m, err := mcbp.DecodeSnapshotMarker(f.Extras, f.Value)
		if err != nil {
			return violation(f, err)
		}
		e := b.next(SnapshotMarker, f)
		e.SnapStart, e.SnapEnd, e.SnapFlags, e.Purge = m.Start, m.End, m.Flags, m.Purge
		return nil
	}
	return r.rareEvent(b, f)
}

// rareEvent handles the rare kinds for event.
func (r *reader) rareEvent(b *Block, f *mcbp.Frame) error {
	switch f.Op {
	case mcbp.OpDCPSeqnoAdvanced:
		s, err := mcbp.DecodeSeqnoAdvanced(f.Extras)
		if err != nil {
			return violation(f, err)
		}
		b.next(SeqnoAdvanced, f).Seqno = s
	case mcbp.OpDCPSystemEvent:
		m, err := mcbp.DecodeSystemEvent(f.Extras)
		if err != nil {
			return violation(f, err)
		}
		e := b.next(SystemEvent, f)
		e.Seqno, e.Flags, e.Key, e.Value = m.Seqno, m.Event, f.Key, f.Value
		e.EmptiesDefault = m.EmptiesDefault(f.Value)
	case mcbp.OpDCPStreamEnd:
		reason, err := mcbp.DecodeStreamEnd(f.Extras)
		if err != nil {
			return violation(f, err)
		}
		b.next(StreamEnd, f).EndReason = reason
		r.conn.ended(f.VBucket(), StreamID(f.Opaque))
	case mcbp.OpDCPOSOSnapshot:
		flags, err := mcbp.DecodeOSOSnapshot(f.Extras)
		if err != nil {
			return violation(f, err)
		}
		b.next(OSO, f).Flags = flags
	default:
		r.conn.conf.Logger.Debug("unknown message from the node", "opcode", f.Op)
	}
	return nil
}

// violation returns the error for a node that breaks the protocol. It ends the connection, because nothing after it
// can be trusted.
func violation(f *mcbp.Frame, err error) error {
	return fmt.Errorf("%w: vbucket %d: %w", ErrProtocol, f.VBucket(), err)
}

// next appends an event with the fields that all kinds share.
func (b *Block) next(kind Kind, f *mcbp.Frame) *Event {
	b.Events = append(b.Events, Event{})
	e := &b.Events[len(b.Events)-1]
	e.Kind, e.VBucket, e.Stream, e.CAS = kind, f.VBucket(), StreamID(f.Opaque), f.CAS
	return e
}

// document sets key and value: it removes the collection prefix from the key, and metadata, compression and extended
// attributes from the value.
func (r *reader) document(b *Block, e *Event, f *mcbp.Frame, meta int) error {
	e.Key, e.Value, e.Datatype = f.Key, f.Value, f.Datatype
	if r.conn.collections {
		id, key, err := mcbp.SplitCollectionKey(f.Key)
		if err != nil {
			return violation(f, err)
		}
		e.Collection, e.Key = id, key
	}
	if meta == 0 && f.Datatype&^mcbp.DatatypeJSON == 0 {
		return nil
	}
	if meta > len(e.Value) {
		return violation(f, fmt.Errorf("%d bytes of metadata in a value of %d", meta, len(e.Value)))
	}
	e.Value = e.Value[:len(e.Value)-meta]
	e.decode(func(n int) []byte { return r.space(b, n) })
	return nil
}

// Decode decompresses the value into new memory and splits off extended attributes.
func (e *Event) Decode() { e.decode(func(n int) []byte { return make([]byte, n) }) }

// decode is Decode with memory from alloc.
func (e *Event) decode(alloc func(n int) []byte) {
	if e.Datatype.Has(mcbp.DatatypeSnappy) {
		e.Datatype &^= mcbp.DatatypeSnappy
		if len(e.Value) > 0 && !e.decompress(alloc) {
			e.Value, e.Undecodable = nil, true
			return
		}
	}
	if e.Datatype.Has(mcbp.DatatypeXattr) {
		xattrs, document, err := mcbp.SplitXattrs(e.Value)
		if err != nil {
			e.Value, e.Undecodable = nil, true
			return
		}
		e.Xattrs, e.Value = xattrs, document
	}
}

// decompress undoes snappy; it returns false if the value does not decode or would exceed the largest body.
func (e *Event) decompress(alloc func(n int) []byte) bool {
	n, err := snappy.DecodedLen(e.Value)
	if err != nil || n < 0 || n > mcbp.MaxBody || n > mcbp.MaxSnappyRatio*len(e.Value) {
		return false
	}
	out, err := snappy.Decode(alloc(n), e.Value)
	if err != nil {
		return false
	}
	e.Value = out
	return true
}

// space returns n bytes of the arena, whose chunk the block keeps.
func (r *reader) space(b *Block, n int) []byte {
	if r.arena == nil || len(r.arena.buf)-r.arenaUsed < n {
		if r.arena != nil {
			r.arena.release()
		}
		r.arena, r.arenaUsed = r.conn.chunks.take(n), 0
	}
	b.hold(r.arena)
	dst := r.arena.buf[r.arenaUsed : r.arenaUsed+n : r.arenaUsed+n]
	r.arenaUsed += n
	return dst
}
