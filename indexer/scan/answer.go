package scan

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"tidemark/errcode"
	"tidemark/indexer/scanport"
	"tidemark/internal/rpc"
	"tidemark/wire"
)

// writeStall is how long a manager, or the network to it, may take nothing before its scan is ended. Longer than it
// waits for its own client: that one ends the scan, and says why.
const writeStall = 60 * time.Second

// Answer is a body that is written for as long as the other side takes something now and then, or until a fixed time.
type Answer struct {
	w     http.ResponseWriter
	c     *http.ResponseController
	stall time.Duration // that one write may take; 0: the time is fixed
	begun bool
}

// NewAnswer answers a request.
func NewAnswer(w http.ResponseWriter) *Answer {
	return &Answer{w: w, c: http.NewResponseController(w), stall: writeStall}
}

// NewPart answers a coordinator, which takes a node's rows when it is their turn: nothing may be taken for as long as
// the scan takes, and no longer.
func NewPart(w http.ResponseWriter, lasts time.Duration) (*Answer, error) {
	a := &Answer{w: w, c: http.NewResponseController(w)}
	return a, a.c.SetWriteDeadline(time.Now().Add(lasts))
}

// Cut ends every write, one that is under way, too. It may be called from any goroutine until the request is answered.
func (a *Answer) Cut() { _ = a.c.SetWriteDeadline(time.Unix(1, 0)) } // the connection has ended otherwise

// Begun reports whether something was written: an error can no longer be the whole answer.
func (a *Answer) Begun() bool { return a.begun }

// Write implements io.Writer.
func (a *Answer) Write(p []byte) (int, error) {
	if !a.begun {
		a.begun = true
		a.w.Header().Set("Content-Type", MediaType)
	}
	if a.stall > 0 {
		if err := a.c.SetWriteDeadline(time.Now().Add(a.stall)); err != nil {
			return 0, err
		}
	}
	n, err := a.w.Write(p)
	if err != nil {
		err = Errorf(errcode.Cancelled, "writing to who asked: %w", err)
	}
	return n, err
}

// Whole says how long the answer is: who passes it on need not look for its end.
func (a *Answer) Whole(size int) { a.w.Header().Set("Content-Length", strconv.Itoa(size)) }

// Session tells in a header what a session has seen with the rows that come, unless some have been sent already.
func (a *Answer) Session(seen *scanport.Seen) {
	if !a.begun {
		a.w.Header().Set(scanport.HeaderSession, seen.Token())
	}
}

// Flush sends what was written.
func (a *Answer) Flush() { _ = a.c.Flush() } // the next write meets the error again

// HeaderUser of a manager's request says for whom it asks.
const HeaderUser = "Tidemark-User"

// maxUser bounds the name of whom a manager, or another node, asks for, in bytes.
const maxUser = 256

// AskedFor returns for whom a manager asks.
func AskedFor(r *http.Request) string {
	return wire.Cut(r.Header.Get(HeaderUser), maxUser)
}

// busyRetryMS is when who was refused for lack of room may ask again, in milliseconds.
const busyRetryMS = 1000

// ProblemOf makes of any error what REST tells.
func ProblemOf(err error) *rpc.Problem {
	var p *rpc.Problem
	if errors.As(err, &p) {
		return p
	}
	e := AsError(err)
	p = rpc.Refuse(e.Code, "%s", e.Detail)
	if p.Lost = e.Lost; e.Code == errcode.Busy {
		p.RetryAfterMS = busyRetryMS
	}
	return p
}
