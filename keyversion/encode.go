package keyversion

import (
	"encoding/binary"
	"fmt"
	"slices"

	"tidemark/index"
	"tidemark/timestamp"
)

// The body of a batch is a sequence of events, each
//
//	tag: low 4 bits Kind, tagRun, tagWindow, tagPart
//	with tagRun, the run header: vbucket, flags (runIncarnation), vbuuid (8 bytes),
//	    with runIncarnation: epoch, term, counter
//	seqno: signed difference to the event before in the run, to 0 at its start
//	data and StreamEnd, with tagWindow: start as signed difference seqno-start, length end-start (modulo 2^64)
//	data, with tagPart: 2 * number of the part, and 1 with More
//	StreamEnd, with tagPart: number of sums, each {index id, slice, number of keys, sum of their hashes (8 bytes)}
//	data: docid, number of statements, each {index id, slice + 1 modulo 2^16, number of keys, keys},
//	    number of the list of its Rest: 0 for none, from 1 in the order in which lists first stand in the frame;
//	    behind the number of one that is new the list: its bytes, number of places,
//	    each {index id, slice + 1 modulo 2^16}
//	Activate, Deactivate: copies
//	StreamBegin: start, failover log, purge, revision epoch, revision, copies
//
// Numbers are varints; strings are a length and bytes. A run is a sequence of events of one vbucket, incarnation and
// vbuuid. An incarnation is repeated only if it differs from that of the previous run, a window only if it differs
// from the last one in the run.
const (
	tagKind   byte = 0x0f
	tagRun    byte = 0x80
	tagWindow byte = 0x40
	tagPart   byte = 0x20
	tagNone   byte = 0x10 // not used

	runIncarnation byte = 1
)

// run is the state relative to which an event is encoded.
type run struct {
	vbucket     uint16
	incarnation index.Incarnation
	vbuuid      uint64
	seqno       uint64
	window      timestamp.Window
}

// Encoder builds one batch frame, event by event. The zero value is empty and ready for use. It reuses the buffer's
// memory from frame to frame (Reset); Append to a sufficiently large buffer allocates nothing.
type Encoder struct {
	buf        []byte
	events     int
	statements int
	keys       int
	run        run
	lists      []*Places // in the frame so far
	scratch    []byte
}

// Reset empties the encoder; the next frame is built in buf's memory, which may be nil.
func (e *Encoder) Reset(buf []byte) {
	clear(e.lists)
	*e = Encoder{buf: buf[:0], lists: e.lists[:0], scratch: e.scratch}
}

// Events returns the number of events in the frame so far.
func (e *Encoder) Events() int { return e.events }

// Len returns the length of the frame so far in bytes, including the header; 0 if it is empty.
func (e *Encoder) Len() int { return len(e.buf) }

// Cap returns the capacity of the frame's buffer, in bytes.
func (e *Encoder) Cap() int { return cap(e.buf) }

// Append adds one event, of which it keeps nothing. An error wraps ErrTooLarge and leaves the frame unchanged: if the
// frame was empty the event can never be sent, otherwise it may fit into the next frame.
func (e *Encoder) Append(ev *Event) error {
	before := *e
	if len(e.buf) == 0 {
		e.buf = append(e.buf, make([]byte, HeaderSize)...)
	}
	err := e.append(ev)
	if err == nil && len(e.buf) > MaxFrame {
		err = fmt.Errorf("%w: frame of %d bytes, at most %d", ErrTooLarge, len(e.buf), MaxFrame)
	}
	if err != nil {
		memory := e.buf
		*e = before
		e.buf = memory[:len(before.buf)]
		return fmt.Errorf("vbucket %d, %s, seqno %d: %w", ev.VBucket, ev.Kind, ev.Seqno, err)
	}
	e.events++
	return nil
}

// Finish completes the frame and returns it. It is valid until Reset, and nothing may be appended to it. An encoder
// without events returns a frame without events.
func (e *Encoder) Finish(number uint64) []byte {
	if len(e.buf) == 0 {
		e.buf = append(e.buf, make([]byte, HeaderSize)...)
	}
	sealHeader(e.buf, frameBatch, BatchFormat, number)
	return e.buf
}

// AppendBatch appends the batch's frame to dst. An error wraps ErrTooLarge; dst is returned unchanged then.
func AppendBatch(dst []byte, b *Batch) ([]byte, error) {
	var e Encoder
	e.Reset(dst[len(dst):])
	for i := range b.Events {
		if err := e.Append(&b.Events[i]); err != nil {
			return dst, err
		}
	}
	return append(dst, e.Finish(b.Number)...), nil
}

func (e *Encoder) append(ev *Event) error {
	if ev.Kind == 0 || ev.Kind > Deactivate {
		return fmt.Errorf("%w: kind %d, known: 1 to %d", ErrTooLarge, ev.Kind, Deactivate)
	}
	if e.events == MaxEvents {
		return fmt.Errorf("%w: more than %d events", ErrTooLarge, MaxEvents)
	}
	if ev.VBucket >= timestamp.MaxVBuckets {
		return fmt.Errorf("%w: at most %d vbuckets", ErrTooLarge, timestamp.MaxVBuckets)
	}
	tag := byte(ev.Kind)
	newRun := e.events == 0 || ev.VBucket != e.run.vbucket || ev.VBUUID != e.run.vbuuid ||
		ev.Incarnation != e.run.incarnation
	if newRun {
		tag |= tagRun
	}
	at := len(e.buf)
	e.buf = append(e.buf, tag)
	if newRun {
		e.startRun(ev)
	}
	e.buf = appendVarint(e.buf, int64(ev.Seqno-e.run.seqno))
	e.run.seqno = ev.Seqno
	if ev.hasWindow() && ev.Window != e.run.window {
		e.buf[at] |= tagWindow
		e.buf = appendVarint(e.buf, int64(ev.Seqno-ev.Window.Start))
		e.buf = binary.AppendUvarint(e.buf, ev.Window.End-ev.Window.Start)
		e.run.window = ev.Window
	}
	return e.body(ev, at)
}

// body encodes the part of an event after position and window, which depends on its kind. at is the position of its
// tag.
func (e *Encoder) body(ev *Event, at int) error {
	switch {
	case ev.Kind.Data():
		return e.data(ev, at)
	case ev.Kind == Activate || ev.Kind == Deactivate:
		return e.copies(ev.Copies)
	case ev.Kind == StreamBegin:
		return e.begin(ev.Begin)
	case ev.Kind == StreamEnd && len(ev.Sums) > 0:
		e.buf[at] |= tagPart
		return e.sums(ev.Sums)
	}
	return nil
}

func (e *Encoder) sums(all Sums) error {
	if len(all) > MaxCopies {
		return fmt.Errorf("%w: sums of %d slices, at most %d", ErrTooLarge, len(all), MaxCopies)
	}
	e.buf = binary.AppendUvarint(e.buf, uint64(len(all)))
	for i := range all {
		s := &all[i]
		e.buf = binary.AppendUvarint(e.buf, uint64(s.Index))
		e.buf = binary.AppendUvarint(e.buf, uint64(s.Slice))
		e.buf = binary.AppendUvarint(e.buf, s.Keys)
		e.buf = binary.LittleEndian.AppendUint64(e.buf, s.Hash)
	}
	return nil
}

// hasWindow reports whether the event's window is sent.
func (ev *Event) hasWindow() bool { return ev.Kind.Data() || ev.Kind == StreamEnd }

func (e *Encoder) startRun(ev *Event) {
	e.buf = binary.AppendUvarint(e.buf, uint64(ev.VBucket))
	var flags byte
	if e.events == 0 || ev.Incarnation != e.run.incarnation {
		flags = runIncarnation
	}
	e.buf = append(e.buf, flags)
	e.buf = binary.LittleEndian.AppendUint64(e.buf, ev.VBUUID)
	if flags == runIncarnation {
		e.buf = binary.AppendUvarint(e.buf, ev.Incarnation.Epoch)
		e.buf = binary.AppendUvarint(e.buf, ev.Incarnation.Term)
		e.buf = binary.AppendUvarint(e.buf, ev.Incarnation.Counter)
	}
	e.run = run{vbucket: ev.VBucket, incarnation: ev.Incarnation, vbuuid: ev.VBUUID}
}

// data encodes the part of data events. tag is the position of the event's tag.
func (e *Encoder) data(ev *Event, tag int) error {
	e.statements += len(ev.Statements)
	switch {
	case len(ev.DocID) > MaxDocID:
		return fmt.Errorf("%w: document id of %d bytes, at most %d", ErrTooLarge, len(ev.DocID), MaxDocID)
	case len(ev.Statements) > MaxStatements || e.statements > MaxBatchStatements:
		return fmt.Errorf("%w: %d statements (%d in the batch), at most %d (%d)", ErrTooLarge, len(ev.Statements),
			e.statements, MaxStatements, MaxBatchStatements)
	}
	if ev.Part > 0 || ev.More {
		part := uint64(ev.Part) << 1
		if ev.More {
			part |= 1
		}
		e.buf[tag] |= tagPart
		e.buf = binary.AppendUvarint(e.buf, part)
	}
	e.buf = appendBytes(e.buf, ev.DocID)
	e.buf = binary.AppendUvarint(e.buf, uint64(len(ev.Statements)))
	for i := range ev.Statements {
		if err := e.statement(&ev.Statements[i]); err != nil {
			return err
		}
	}
	return e.rest(ev)
}

// rest appends the number of a list, and the list if it is new in the frame.
func (e *Encoder) rest(ev *Event) error {
	p := ev.Rest
	if len(p.All()) == 0 {
		e.buf = append(e.buf, 0)
		return nil
	}
	if ev.Part > 0 || ev.More {
		return fmt.Errorf("%w: a part with a list of places", ErrTooLarge)
	}
	no := slices.Index(e.lists, p)
	if no >= 0 {
		e.buf = binary.AppendUvarint(e.buf, uint64(no+1))
		return nil
	}
	if e.statements += len(p.all); len(p.all) > MaxStatements || e.statements > MaxBatchStatements {
		return fmt.Errorf("%w: a list of %d places (%d in the batch), at most %d (%d)", ErrTooLarge, len(p.all), e.statements,
			MaxStatements, MaxBatchStatements)
	}
	e.lists = append(e.lists, p)
	e.buf = binary.AppendUvarint(e.buf, uint64(len(e.lists)))
	list := binary.AppendUvarint(e.scratch[:0], uint64(len(p.all)))
	for _, at := range p.all {
		list = binary.AppendUvarint(list, uint64(at.Index))
		list = binary.AppendUvarint(list, uint64(at.Slice+1))
	}
	e.scratch = list
	e.buf = appendBytes(e.buf, list)
	return nil
}

func (e *Encoder) statement(s *Statement) error {
	e.keys += len(s.Keys)
	if len(s.Keys) > MaxKeys || e.keys > MaxBatchKeys {
		return fmt.Errorf("%w: index %d: %d keys (%d in the batch), at most %d (%d)", ErrTooLarge, s.Index, len(s.Keys),
			e.keys, MaxKeys, MaxBatchKeys)
	}
	buf := binary.AppendUvarint(e.buf, uint64(s.Index))
	buf = binary.AppendUvarint(buf, uint64(s.Slice+1))
	buf = binary.AppendUvarint(buf, uint64(len(s.Keys)))
	for _, k := range s.Keys {
		if len(k) > MaxKey || len(buf) > MaxFrame {
			return fmt.Errorf("%w: index %d: key of %d bytes after %d bytes of frame, at most %d (%d)", ErrTooLarge,
				s.Index, len(k), len(buf), MaxKey, MaxFrame)
		}
		buf = appendBytes(buf, k)
	}
	e.buf = buf
	return nil
}

func (e *Encoder) copies(ids []index.CopyID) error {
	if len(ids) > MaxCopies {
		return fmt.Errorf("%w: %d copies, at most %d", ErrTooLarge, len(ids), MaxCopies)
	}
	e.buf = binary.AppendUvarint(e.buf, uint64(len(ids)))
	for _, id := range ids {
		e.buf = binary.AppendUvarint(e.buf, uint64(id))
	}
	return nil
}

func (e *Encoder) begin(b *Begin) error {
	if b == nil {
		b = &Begin{}
	}
	if len(b.Log) > MaxLog {
		return fmt.Errorf("%w: failover log of %d entries, at most %d", ErrTooLarge, len(b.Log), MaxLog)
	}
	e.buf = binary.AppendUvarint(e.buf, b.Start)
	e.buf = timestamp.AppendLog(e.buf, b.Log)
	e.buf = binary.AppendUvarint(e.buf, b.Purge)
	e.buf = binary.AppendUvarint(e.buf, b.Revision.Epoch)
	e.buf = binary.AppendUvarint(e.buf, b.Revision.Rev)
	return e.copies(b.Copies)
}

func appendBytes(dst, b []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(b)))
	return append(dst, b...)
}

func appendVarint(dst []byte, i int64) []byte {
	return binary.AppendUvarint(dst, uint64(i<<1)^uint64(i>>63))
}
