package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/gorilla/websocket"
	"go.opentelemetry.io/otel/propagation"

	"tidemark/indexer/scanport"
	"tidemark/internal/detector"
	"tidemark/internal/rpc"
	"tidemark/manager/api/v1"
	"tidemark/wire"
)

// directScan is an answer from an indexer.
type directScan struct {
	d      *direct
	dc     *directConn // nil once it was returned or closed
	stop   func() bool // of the function that closes the connection when the context ends
	route  *v1.ScanRoute
	wait   detector.Wait
	ctx    context.Context
	answer scanport.Answer

	// For continuing with the answer at another indexer.
	of       string // the index
	req      scanport.Request
	saw      *scanport.Seen // from the last message that contains it
	place    []byte         // after the last message received; empty: the answer cannot be continued
	received time.Time
	idle     time.Duration // how long the caller took before it requested the newest message
}

// slowReader is the time without reads after which an indexer may close the connection; such a close does not count as
// a failure of the indexer.
const slowReader = 20 * time.Second

// send sends the request and reads the first message. A refusal is a *wire.Problem; the connection is then returned to
// the idle ones or closed.
func (s *directScan) send() error {
	ws := s.dc.ws
	s.stop = context.AfterFunc(s.ctx, func() { _ = ws.Close() })
	began := time.Now()
	s.d.load.Begin(s.dc.addr)
	req := s.req
	req.Index, req.RequestID = s.route.Index.String(), rpc.RequestID(s.ctx)
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(s.ctx, carrier)
	req.Parent = carrier["traceparent"]
	deadline := time.Now().Add(firstRowsTimeout)
	_ = ws.SetWriteDeadline(deadline)
	s.dc.setDeadline(deadline)
	s.dc.out = scanport.AppendRequest(s.dc.out[:0], req)
	s.d.alive.Begin(&s.wait, s.dc.addr, portsOf(s.route), s.hangUp)
	err := ws.WriteMessage(websocket.BinaryMessage, s.dc.out)
	if err == nil {
		err = s.read()
	}
	if s.wait.End() {
		return fmt.Errorf("%s: %w", s.dc.addr, detector.ErrSilent)
	}
	if err != nil {
		return err
	}
	now := time.Now()
	if s.answer.Tail == scanport.Failure && s.answer.Empty() {
		if p := (*wire.Problem)(nil); errors.As(s.failure(), &p) && viaManagers(p) {
			s.d.load.Refused(s.dc.addr, now)
		}
		return s.finish()
	}
	s.d.load.Answered(s.dc.addr, now.Sub(began), now)
	if s.answer.Tail == scanport.More {
		s.dc.setDeadline(time.Time{}) // rows may come for as long as the context lasts
	}
	return nil
}

// hangUp ends a pending read. Unlike Close, it does not block.
func (s *directScan) hangUp() { _ = s.dc.ws.NetConn().SetDeadline(time.Unix(1, 0)) }

// read reads the next message.
func (s *directScan) read() error {
	_, r, err := s.dc.ws.NextReader()
	if err != nil {
		return err
	}
	in := s.dc.in[:0]
	for {
		if len(in) == cap(in) {
			in = append(in, make([]byte, max(directBuffer, len(in)))...)[:len(in)]
		}
		n, err := r.Read(in[len(in):cap(in)])
		in = in[:len(in)+n]
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	s.dc.in, s.received = in, time.Now()
	if err := s.answer.Read(in); err != nil {
		return err
	}
	if s.place = s.place[:0]; s.answer.Tail == scanport.More {
		s.place = append(s.place, s.answer.Text...)
		if saw, _, err := scanport.CutSeen(s.place); err == nil {
			s.saw = &saw
		}
	}
	return nil
}

// seen implements rowSource.
func (s *directScan) seen() *scanport.Seen {
	if s.dc != nil && s.answer.Tail == scanport.End {
		if end, err := readEnd(&s.answer); err == nil {
			return lastSeen(end.Session)
		}
	}
	return s.saw
}

// lastSeen returns the state in a token; nil if there is none.
func lastSeen(token string) *scanport.Seen {
	all, err := scanport.ParseSession(token)
	if err != nil || len(all) == 0 {
		return nil
	}
	return &all[len(all)-1]
}

// more reads a further message. It keeps waiting for an indexer that makes no progress, because others may no longer
// hold the timestamp.
func (s *directScan) more() error {
	s.idle = time.Since(s.received)
	s.d.alive.Begin(&s.wait, s.dc.addr, nil, s.hangUp)
	err := s.read()
	if s.wait.End() {
		return fmt.Errorf("%s: %w", s.dc.addr, detector.ErrSilent)
	}
	return err
}

// resume requests the rest of an answer from another indexer, at the same timestamp, after the last row received. why
// is how the answer ended. The error is, or wraps, a refusal (*wire.Problem).
func (s *directScan) resume(why error) error {
	lost := s.dc.addr
	s.abort()
	switch {
	case s.ctx.Err() != nil:
		return fmt.Errorf("%w (%w)", context.Cause(s.ctx), why)
	case len(s.place) == 0:
		return why
	case s.idle > slowReader:
		why = fmt.Errorf("the caller read nothing for %v: %w", s.idle.Round(time.Second), why)
	case !errors.Is(why, detector.ErrSilent):
		s.d.alive.Failed(lost)
	}
	// The scan may have taken long: the index may have moved, and the ticket has expired.
	s.reroute()
	s.req.Resume = bytes.Clone(s.place)
	all := slices.Clone(s.d.order(s.route))
	slices.SortStableFunc(all, func(a, b string) int { return tail(a, lost) - tail(b, lost) })
	for _, addr := range candidates(all) {
		n, err := s.d.try(s.ctx, s.route, addr, s.req)
		if err == nil {
			s.takeOver(n)
			return s.answer.Read(s.dc.in)
		}
		if p := refusal(err); p != nil && !errors.Is(err, errNotAccepted) {
			return p
		}
		if s.ctx.Err() != nil {
			return fmt.Errorf("%w (%w)", context.Cause(s.ctx), why)
		}
		why = fmt.Errorf("%w; %s did not continue the scan: %w", why, addr, err)
	}
	return why
}

// reroute looks up the present route of the index.
func (s *directScan) reroute() {
	if now, err := s.d.routeTo(s.ctx, s.of); err == nil && now != nil && now.Index == s.route.Index {
		s.route = now
	}
}

// takeOver takes over the connection and the first message of the scan that continues this one.
func (s *directScan) takeOver(n *directScan) {
	s.dc, s.stop, s.place, s.received = n.dc, n.stop, n.place, n.received
	if n.saw != nil { // otherwise the earlier state stays
		s.saw = n.saw
	}
}

// tail returns 1 for the indexer to try last, 0 for the others.
func tail(addr, last string) int {
	if addr == last {
		return 1
	}
	return 0
}

// finish returns the connection to the idle ones, unless its ticket is no longer valid, and returns the failure that
// ended the answer, if any. The answer must not be read afterwards, because its messages are in the connection's
// buffer.
func (s *directScan) finish() error {
	err := s.failure()
	if ticketRejected(err) {
		s.abort()
		return err
	}
	s.d.load.End(s.dc.addr)
	if s.stop() {
		s.d.give(s.dc)
	}
	s.dc = nil
	return err
}

// failure returns the failure that ended the answer; nil if it ended in order.
func (s *directScan) failure() error {
	if s.answer.Tail != scanport.Failure {
		return nil
	}
	p := struct {
		wire.Problem
		Session string `json:"session"` // a token of what was seen with the rows before
	}{}
	if err := json.Unmarshal(s.answer.Text, &p); err != nil || p.Code == "" {
		return fmt.Errorf("%w: an unreadable failure message", ErrCut)
	}
	if saw := lastSeen(p.Session); saw != nil {
		s.saw = saw
	}
	return &p.Problem
}

// abort closes the connection, unless it was returned.
func (s *directScan) abort() {
	if s.dc == nil {
		return
	}
	s.d.load.End(s.dc.addr)
	s.stop()
	_ = s.dc.ws.Close()
	s.dc = nil
}

// readOn reads the next message, from another indexer if this one fails.
func (s *directScan) readOn() error {
	err := s.more()
	if err != nil {
		err = s.resume(err)
	}
	switch p := refusal(err); {
	case err == nil:
		return nil
	case p != nil && s.ctx.Err() == nil:
		return p
	}
	return fmt.Errorf("%w: %w", ErrCut, err)
}

// next implements rowSource.
func (s *directScan) next(row *v1.Row) (end *v1.ScanEnd, err error) {
	if s.dc == nil {
		return nil, fmt.Errorf("%w: it was closed", ErrCut)
	}
	for {
		key, id, ok, err := s.answer.Next()
		if err != nil {
			s.abort()
			return nil, fmt.Errorf("%w: %w", ErrCut, err)
		}
		if ok {
			row.Key, row.ID = key, id
			return nil, nil //nolint:nilnil // a row, and not the end
		}
		if s.answer.Tail != scanport.More {
			break
		}
		if err := s.readOn(); err != nil {
			return nil, err
		}
	}
	end, unread := readEnd(&s.answer)
	if err := s.finish(); err != nil {
		return nil, err
	}
	return end, unread
}

// readEnd reads the last line of a scan; it returns nil if the answer ended otherwise.
func readEnd(a *scanport.Answer) (*v1.ScanEnd, error) {
	if a.Tail != scanport.End {
		return nil, nil //nolint:nilnil // a failure, which finish returns
	}
	end := &v1.ScanEnd{}
	if parseEnd(a.Text, end) {
		return end, nil
	}
	if err := json.Unmarshal(a.Text, end); err != nil {
		return nil, fmt.Errorf("%w: an unreadable end: %w", ErrCut, err)
	}
	return end, nil
}

// close returns the connection to the idle ones if the whole answer has arrived, whether or not the caller read it.
func (s *directScan) close() error {
	if s.dc != nil && s.answer.Tail != scanport.More {
		_ = s.finish() // the caller no longer needs its end
	}
	s.abort()
	return nil
}
