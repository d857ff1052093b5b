package router

import (
	"slices"

	"tidemark/keyversion"
	"tidemark/projector/core"
)

// outbox is a lane's queue of frames: one that is being filled, and those that are sealed and not acknowledged.
type outbox struct {
	open   *frame
	queue  []*frame // sealed, oldest first
	sent   int      // of queue, on the present connection
	bytes  int      // memory of queue
	number uint64   // of the newest sealed batch
	spares []*frame // kept for reuse
	kept   int      // memory of spares
}

// frame is a batch with what its acknowledgement means.
type frame struct {
	enc    keyversion.Encoder
	bytes  []byte // when sealed
	number uint64
	marks  []mark
	// partial: it ends between the parts of an event.
	partial bool
	again   bool // it was sent on a connection that ended: its memory may be in use there for ever
}

// mark says where a vbucket stands after a frame.
type mark struct {
	vb     *laneVB
	stream *core.Downstream
	seqno  uint64
}

const (
	frameOverhead  = 512            // beside its buffer, estimated
	maxSpareFrames = 64             // kept for reuse per lane
	maxSpareBytes  = 1 << 20        // their memory
	maxSpareFrame  = 2 * batchBytes // of one: no more than batches need
)

func (f *frame) memory() int { return cap(f.bytes) + frameOverhead }

// apply notes what the endpoint has acknowledged.
func (m mark) apply() {
	if m.stream == m.vb.ackedStream && m.stream != nil {
		m.vb.ackedSeqno = max(m.vb.ackedSeqno, m.seqno)
		return
	}
	m.vb.ackedStream, m.vb.ackedSeqno = m.stream, m.seqno
}

// memory is what the frames occupy, in bytes, the open one as far as it is filled: a bound may be no more than a batch.
func (o *outbox) memory() int { return o.bytes + o.open.enc.Len() }

func (o *outbox) empty() bool { return len(o.queue) == 0 && o.open.enc.Events() == 0 }

func (o *outbox) full() bool {
	return o.open.enc.Events() >= batchEvents || o.open.enc.Len() >= batchBytes
}

func (o *outbox) allSent() bool { return o.sent == len(o.queue) }

// mark notes in the open frame where the vbucket stands.
func (o *outbox) mark(s *laneVB) {
	f := o.open
	if n := len(f.marks); n > 0 && f.marks[n-1].vb == s && f.marks[n-1].stream == s.stream {
		f.marks[n-1].seqno = s.seqno
		return
	}
	f.marks = append(f.marks, mark{s, s.stream, s.seqno})
}

// markUnfed notes that the vbucket's stream is over here once everything queued is acknowledged.
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

// seal closes the open frame and begins another.
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

// next returns the oldest frame not yet sent on this connection, nil when there is none.
func (o *outbox) next() *frame {
	if o.allSent() {
		return nil
	}
	f := o.queue[o.sent]
	o.sent++
	return f
}

// acknowledged takes off the frames up to a number, as far as they have been sent, and says how many. Parts of an event
// stay until the last one was acknowledged: after a cut the endpoint gets all of them again.
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

// rewind makes everything be sent again, on another connection, and says how many frames had been sent.
func (o *outbox) rewind() int {
	n := o.sent
	for _, f := range o.queue[:n] {
		f.again = true
	}
	o.sent = 0
	return n
}

// reuse keeps a frame's memory.
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
