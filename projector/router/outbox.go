package router

import (
	"slices"

	"tidemark/keyversion"
	"tidemark/projector/core"
)

// outbox is a lane's queue of frames: the open one being filled, and those sealed and not yet acknowledged.
type outbox struct {
	open   *frame
	queue  []*frame // sealed, oldest first
	sent   int      // frames of queue sent on the present connection
	bytes  int      // memory of queue
	number uint64   // of the newest sealed batch
	spares []*frame // free frames for reuse
	kept   int      // memory of spares
}

// frame is a batch with the positions that its acknowledgement confirms.
type frame struct {
	enc    keyversion.Encoder
	bytes  []byte // once sealed
	number uint64
	marks  []mark
	// partial is set if the frame ends between the parts of an event.
	partial bool
	again   bool // it was sent on a connection that ended, which may keep using its memory
}

// mark is a vbucket's position at the end of a frame.
type mark struct {
	vb     *laneVB
	stream *core.Downstream
	seqno  uint64
}

const (
	frameOverhead  = 512            // memory besides its buffer, estimated
	maxSpareFrames = 64             // free frames kept per lane
	maxSpareBytes  = 1 << 20        // their memory
	maxSpareFrame  = 2 * batchBytes // of one frame: no more than batches need
)

func (f *frame) memory() int { return cap(f.bytes) + frameOverhead }

// apply records the position as acknowledged.
func (m mark) apply() {
	if m.stream == m.vb.ackedStream && m.stream != nil {
		m.vb.ackedSeqno = max(m.vb.ackedSeqno, m.seqno)
		return
	}
	m.vb.ackedStream, m.vb.ackedSeqno = m.stream, m.seqno
}

// memory returns what the frames occupy, in bytes. The open frame counts only as far as it is filled, because a bound
// may be as small as one batch.
func (o *outbox) memory() int { return o.bytes + o.open.enc.Len() }

func (o *outbox) empty() bool { return len(o.queue) == 0 && o.open.enc.Events() == 0 }

func (o *outbox) full() bool {
	return o.open.enc.Events() >= batchEvents || o.open.enc.Len() >= batchBytes
}

func (o *outbox) allSent() bool { return o.sent == len(o.queue) }

// mark records the vbucket's position in the open frame.
func (o *outbox) mark(s *laneVB) {
	f := o.open
	if n := len(f.marks); n > 0 && f.marks[n-1].vb == s && f.marks[n-1].stream == s.stream {
		f.marks[n-1].seqno = s.seqno
		return
	}
	f.marks = append(f.marks, mark{s, s.stream, s.seqno})
}

// markUnfed records that the vbucket is no longer fed here once everything queued is acknowledged.
func (o *outbox) markUnfed(s *laneVB) {
	m := mark{vb: s}
	switch {
	case o.open.enc.Events() > 0:
		o.open.marks = append(o.open.marks, m)
	case len(o.queue) > 0:
		f := o.queue[len(o.queue)-1]
		f.marks = append(f.marks, m)
	default:
		m.apply()
	}
}

// seal moves the open frame to the queue and opens another.
func (o *outbox) seal() *frame {
	f := o.open
	o.number++
	f.number = o.number
	f.bytes = f.enc.Finish(f.number)
	o.queue = append(o.queue, f)
	o.bytes += f.memory()
	if n := len(o.spares); n > 0 {
		o.open, o.spares = o.spares[n-1], o.spares[:n-1]
		o.kept -= o.open.enc.Cap()
	} else {
		o.open = new(frame)
	}
	return f
}

// next returns the oldest frame not yet sent on this connection, nil if there is none.
func (o *outbox) next() *frame {
	if o.allSent() {
		return nil
	}
	f := o.queue[o.sent]
	o.sent++
	return f
}

// acknowledged removes the sent frames up to a number, and returns how many it removed. Parts of an event stay until
// the last one is acknowledged: after a reconnection the endpoint needs all of them again.
func (o *outbox) acknowledged(number uint64) int {
	whole := 0
	for n := 0; n < o.sent && o.queue[n].number <= number; n++ {
		if !o.queue[n].partial {
			whole = n + 1
		}
	}
	n := 0
	for n < whole {
		f := o.queue[n]
		for _, m := range f.marks {
			m.apply()
		}
		o.bytes -= f.memory()
		o.reuse(f)
		n++
	}
	o.queue, o.sent = slices.Delete(o.queue, 0, n), o.sent-n
	return n
}

// rewind schedules all frames to be sent again on the next connection, and returns how many had been sent.
func (o *outbox) rewind() int {
	n := o.sent
	for _, f := range o.queue[:n] {
		f.again = true
	}
	o.sent = 0
	return n
}

// reuse keeps a frame's memory for a later frame.
func (o *outbox) reuse(f *frame) {
	if f.again || cap(f.bytes) > maxSpareFrame || len(o.spares) >= maxSpareFrames || o.kept+cap(f.bytes) > maxSpareBytes {
		return
	}
	o.kept += cap(f.bytes)
	clear(f.marks)
	f.enc.Reset(f.bytes)
	f.bytes, f.marks, f.number, f.partial = nil, f.marks[:0], 0, false
	o.spares = append(o.spares, f)
}
