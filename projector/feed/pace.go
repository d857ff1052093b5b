package feed

import (
	"errors"
	"fmt"
	"time"

	"tidemark/kv/mcbp"
	"tidemark/timestamp"
)

// pacer stands in for flow control with a node that knows none (PR-17): a stream whose document would exceed the window
// is closed at the node, what still comes of it is dropped, and when half of the window has been released it is opened
// again from the last seqno that was handed over. Its user sees one stream. All of it is guarded by Conn.mu.
type pacer struct {
	conn   *Conn
	byWire map[StreamID]*paced // by the id that the node knows
	byVB   map[uint16]*paced
	paused int   // streams that wait to be opened again
	making bool  // the reader makes a block that is not in the queue yet
	block  int64 // its bytes, which Conn.held does not have yet
	// ends are those of streams that their user has closed meanwhile: they follow what is in the block
	ends []Event
}

// paced is one stream of the user's.
type paced struct {
	vb     uint16
	id     StreamID // the user's
	wire   StreamID // the node's
	end    uint64
	vbuuid uint64
	need   int64     // of the document that did not fit
	asked  time.Time // when the node was asked for what it is stopping or opening
	track  Tracker
	state  pacedState
}

type pacedState uint8

const (
	flowing  pacedState = iota
	stopping            // closed by us, its end has not come
	paused              // closed at the node
	opening             // asked for again
	leaving             // its user is closing it
	gone                // the user wants it no more
)

// resumeFraction of the window must be free before streams are opened again.
const resumeFraction = 2

func newPacer(c *Conn) *pacer {
	return &pacer{conn: c, byWire: map[StreamID]*paced{}, byVB: map[uint16]*paced{}}
}

// begin books the node's first consent.
func (p *pacer) begin(vb uint16, id StreamID, req mcbp.StreamRequest, log timestamp.FailoverLog) {
	s := &paced{vb: vb, id: id, wire: id, end: req.End, track: NewTracker(Position{Seqno: req.Start,
		SnapStart: req.SnapStart, SnapEnd: req.SnapEnd})}
	if len(log) > 0 {
		s.vbuuid = log[0].VBUUID
	}
	p.byWire[id], p.byVB[vb] = s, s
}

// admit says whether the event of n bytes goes to the user, who holds some already. A document larger than the window
// goes when nothing else is held.
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
		s.state, s.need, s.asked = stopping, n, time.Now()
		p.conn.request(mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPCloseStream, s.vb, 0)}, func(_ *Block, f *mcbp.Frame) {
			if p.conn.endOnClose && f.Status() == mcbp.StatusOK {
				return // its end comes
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
	_, _ = s.track.Observe(e) // the user's own tracker tells him what is wrong
	e.Stream = s.id
	return true
}

// ended says whether an end of the node's is one for the user.
func (p *pacer) ended(s *paced, e *Event) bool {
	if s.state == stopping && e.EndReason == mcbp.EndClosed {
		p.pause(s)
		return false
	}
	was := s.state
	p.forget(s)
	e.Stream = s.id
	return was != gone
}

func (p *pacer) pause(s *paced) {
	s.state = paused
	p.paused++
	p.resume()
}

func (p *pacer) forget(s *paced) {
	if s.state == paused {
		p.paused--
	}
	s.state = gone
	delete(p.byWire, s.wire)
	if p.byVB[s.vb] == s {
		delete(p.byVB, s.vb)
	}
}

// resume opens paused streams again when there is room.
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

// reopen asks for the stream from where it was stopped.
func (p *pacer) reopen(s *paced) {
	s.state, s.asked = opening, time.Now()
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

// reopened takes the node's answer. What needs a decision ends the stream: its user opens it again as after any end.
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
			delete(p.byWire, s.wire) // no end will come
		}
		return
	}
	if errors.Is(err, ErrTemporary) || errors.Is(err, ErrStreamExists) { // the one that was closed is not quite gone
		s.state = paused
		p.paused++ // tried again with the watchdog's next look
		return
	}
	reason := mcbp.EndStateChanged
	if errors.Is(err, ErrRollback) {
		reason = mcbp.EndRollback
	}
	p.forget(s)
	e := b.next(StreamEnd, f)
	e.VBucket, e.Stream, e.EndReason = s.vb, s.id, reason
}

// close ends a stream that the node does not have at the moment; false if the node has it.
func (p *pacer) close(vb uint16) (*paced, bool) {
	s := p.byVB[vb]
	switch {
	case s == nil:
		return nil, false
	case s.state == flowing || s.state == leaving:
		s.state = leaving // the end that comes now is the user's
		return nil, false
	}
	p.leave(s)
	return s, true
}

// leave forgets a stream of which the node may still send something: that is for nobody.
func (p *pacer) leave(s *paced) {
	owed := s.state == stopping || s.state == opening
	p.forget(s)
	if owed {
		p.byWire[s.wire] = s
	}
}

// overdue ends the streams that the node was asked to close, or to open again, and has not within the limit of any
// request: nothing else would move them. Their users ask for them again, as after any end.
func (p *pacer) overdue() {
	limit := p.conn.conf.RequestTimeout
	for _, s := range p.byVB {
		if s.state != stopping && s.state != opening || time.Since(s.asked) < limit {
			continue
		}
		p.conn.conf.Logger.Warn("the node neither closes nor opens a stream that waits for room: the stream is given up",
			"kv", p.conn.conf.Addr, "vbucket", s.vb, "asked", fmt.Sprint(limit, " ago"))
		p.leave(s)
		p.conn.endPaused(s, mcbp.EndStateChanged)
	}
}
