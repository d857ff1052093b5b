package feed

import (
	"errors"
	"fmt"
	"time"

	"tidemark/kv/mcbp"
	"tidemark/timestamp"
)

// pacer replaces flow control for a node that has none (PR-17): if a stream's document would exceed the window, the
// stream is closed at the node, what still arrives of it is dropped, and once half of the window is free, it is
// opened again from the last delivered seqno. The user sees one stream. Conn.mu guards it.
type pacer struct {
	conn   *Conn
	byWire map[StreamID]*paced // by the node's stream id
	byVB   map[uint16]*paced
	paused int   // streams that wait to be reopened
	making bool  // the reader is making a block that is not in the queue yet
	block  int64 // bytes of that block not counted in Conn.held yet
	// ends are the StreamEnds of streams that the user has closed meanwhile; they are appended to the block being made.
	ends []Event
}

// paced is one of the user's streams.
type paced struct {
	vb     uint16
	id     StreamID // the user's id
	wire   StreamID // the node's id
	end    uint64
	vbuuid uint64
	need   int64     // bytes of the document that did not fit
	since  time.Time // when the node got the request to close or open it
	track  Tracker
	state  pacedState
}

type pacedState uint8

const (
	flowing  pacedState = iota
	stopping            // closed by the pacer; its end has not arrived
	paused              // closed at the node
	opening             // requested again
	leaving             // the user is closing it
	gone                // the user has closed it
)

// resumeFraction: 1/resumeFraction of the window must be free before streams are reopened.
const resumeFraction = 2

func newPacer(c *Conn) *pacer {
	return &pacer{conn: c, byWire: map[StreamID]*paced{}, byVB: map[uint16]*paced{}}
}

// begin registers a stream after the node's first consent.
func (p *pacer) begin(vb uint16, id StreamID, req mcbp.StreamRequest, log timestamp.FailoverLog) {
	s := &paced{vb: vb, id: id, wire: id, end: req.End, track: NewTracker(Position{Seqno: req.Start,
		SnapStart: req.SnapStart, SnapEnd: req.SnapEnd})}
	if len(log) > 0 {
		s.vbuuid = log[0].VBUUID
	}
	p.byWire[id], p.byVB[vb] = s, s
}

// admit reports whether an event of n bytes is delivered; held is what the user holds already. A document larger than
// the window is delivered if nothing else is held.
func (p *pacer) admit(e *Event, held, n int64) bool {
	s := p.byWire[e.Stream]
	switch {
	case s == nil || e.Kind == StreamBegin:
		return true
	case e.Kind == StreamEnd:
		return p.ended(s, e)
	case s.state != flowing:
		return false
	case e.Kind.IsDocument() && held > 0 && held+n > int64(p.conn.conf.BufferBytes):
		s.state, s.need, s.since = stopping, n, time.Now()
		p.conn.request(mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPCloseStream, s.vb, 0)}, func(_ *Block, f *mcbp.Frame) {
			if p.conn.endOnClose && f.Status() == mcbp.StatusOK {
				return // its StreamEnd follows
			}
			switch s.state {
			case stopping:
				p.pause(s)
			case gone:
				delete(p.byWire, s.wire)
			}
		})
		return false
	}
	_, _ = s.track.Observe(e) // the user's own tracker reports errors
	e.Stream = s.id
	return true
}

// ended reports whether the node's StreamEnd is delivered to the user.
func (p *pacer) ended(s *paced, e *Event) bool {
	if s.state == stopping && e.EndReason == mcbp.EndClosed {
		p.pause(s)
		return false
	}
	was := s.state
	p.drop(s)
	e.Stream = s.id
	return was != gone
}

func (p *pacer) pause(s *paced) {
	s.state = paused
	p.paused++
	p.resume()
}

func (p *pacer) drop(s *paced) {
	if s.state == paused {
		p.paused--
	}
	s.state = gone
	delete(p.byWire, s.wire)
	if p.byVB[s.vb] == s {
		delete(p.byVB, s.vb)
	}
}

// resume reopens paused streams if there is room.
func (p *pacer) resume() {
	held, window := p.conn.held.Load()+p.block, int64(p.conn.conf.BufferBytes)
	if p.paused == 0 || p.conn.err != nil || held > window/resumeFraction {
		return
	}
	for _, s := range p.byVB {
		if s.state == paused && (held == 0 || held+s.need <= window) {
			p.reopen(s)
		}
	}
}

// reopen requests the stream from where it was stopped.
func (p *pacer) reopen(s *paced) {
	s.state, s.since = opening, time.Now()
	p.paused--
	delete(p.byWire, s.wire)
	s.wire = p.conn.newStreamID()
	p.byWire[s.wire] = s
	at := s.track.Progress().Position
	m := mcbp.StreamRequest{Flags: mcbp.StreamActiveOnly, Start: at.Seqno, End: s.end, VBUUID: s.vbuuid,
		SnapStart: at.SnapStart, SnapEnd: at.SnapEnd}
	p.conn.request(mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPStreamReq, s.vb, uint32(s.wire)),
		Extras: m.AppendExtras(nil)}, func(b *Block, f *mcbp.Frame) {
		p.reopened(s, b, f)
	})
}

// reopened handles the node's answer. If a decision is needed, the stream ends: the user opens it again as after any
// end.
func (p *pacer) reopened(s *paced, b *Block, f *mcbp.Frame) {
	err := AnswerError(*f, s.vb)
	if err == nil {
		p.conn.streams[s.vb] = s.wire
		log, derr := mcbp.DecodeFailoverLog(f.Value)
		same := derr == nil && len(log) > 0 && log[0].VBUUID == s.vbuuid
		if s.state == opening && same {
			s.state = flowing
			return
		}
		p.conn.closeAbandoned(s.vb)
	}
	if s.state != opening {
		if err != nil {
			delete(p.byWire, s.wire) // no StreamEnd will come
		}
		return
	}
	if errors.Is(err, ErrTemporary) || errors.Is(err, ErrStreamExists) { // the closed stream is still listed
		s.state = paused
		p.paused++ // retried at the watchdog's next step
		return
	}
	reason := mcbp.EndStateChanged
	if errors.Is(err, ErrRollback) {
		reason = mcbp.EndRollback
	}
	p.drop(s)
	e := b.next(StreamEnd, f)
	e.VBucket, e.Stream, e.EndReason = s.vb, s.id, reason
}

// close ends a stream that the node does not have at the moment; it returns false if the node has it.
func (p *pacer) close(vb uint16) (*paced, bool) {
	s := p.byVB[vb]
	switch {
	case s == nil:
		return nil, false
	case s.state == flowing || s.state == leaving:
		s.state = leaving // the StreamEnd that follows is delivered
		return nil, false
	}
	p.leave(s)
	return s, true
}

// leave unregisters a stream for which the node may still send something, which is then dropped.
func (p *pacer) leave(s *paced) {
	pending := s.state == stopping || s.state == opening
	p.drop(s)
	if pending {
		p.byWire[s.wire] = s
	}
}

// overdue ends the streams that the node was to close or to open and has not within RequestTimeout: nothing
// else would end their wait. The user opens them again as after any end.
func (p *pacer) overdue() {
	limit := p.conn.conf.RequestTimeout
	for _, s := range p.byVB {
		if s.state != stopping && s.state != opening || time.Since(s.since) < limit {
			continue
		}
		p.conn.conf.Logger.Warn("node neither closes nor reopens a stream that waits for room: the stream is abandoned",
			"kv", p.conn.conf.Addr, "vbucket", s.vb, "requested", fmt.Sprint(limit, " ago"))
		p.leave(s)
		p.conn.endPaused(s, mcbp.EndStateChanged)
	}
}
