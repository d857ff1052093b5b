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

// writeStall is how long a manager, or the network to it, may accept nothing before its scan is ended. It exceeds the
// time that a manager waits for its own client, so that the manager ends the scan first and reports the reason.
const writeStall = 60 * time.Second

// Answer is a response body that is written as long as the reader accepts data from time to time, or until a fixed
// time.
type Answer struct {
	w     http.ResponseWriter
	c     *http.ResponseController
	stall time.Duration // limit of one write; 0: the deadline is fixed
	begun bool
}

// NewAnswer returns the answer to a manager's request.
func NewAnswer(w http.ResponseWriter) *Answer {
	return &Answer{w: w, c: http.NewResponseController(w), stall: writeStall}
}

// NewPart returns the answer to a coordinating node, which reads a node's rows when the merge needs them. It may
// therefore accept nothing for as long as the scan lasts, and no longer.
func NewPart(w http.ResponseWriter, lasts time.Duration) (*Answer, error) {
	a := &Answer{w: w, c: http.NewResponseController(w)}
	return a, a.c.SetWriteDeadline(time.Now().Add(lasts))
}

// Cut ends all writes, including one in progress. It may be called from any goroutine until the request is answered.
// an error means that the connection has ended already
func (a *Answer) Cut() { _ = a.c.SetWriteDeadline(time.Unix(1, 0)) }

// Begun reports whether something was written. An error can then no longer be the whole answer.
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
		err = Errorf(errcode.Cancelled, "writing the answer: %w", err)
	}
	return n, err
}

// Whole announces the length of the answer, so that an intermediary need not search for its end.
func (a *Answer) Whole(size int) { a.w.Header().Set("Content-Length", strconv.Itoa(size)) }

// Session sets the header with what a session has seen once it has the rows, unless data has been sent already.
func (a *Answer) Session(seen *scanport.Seen) {
	if !a.begun {
		a.w.Header().Set(scanport.HeaderSession, seen.Token())
	}
}

// Flush sends what was written.
func (a *Answer) Flush() { _ = a.c.Flush() } // the next write returns the error again

// HeaderUser of a manager's request names the user that it is made for.
const HeaderUser = "Tidemark-User"

// maxUser bounds the name of the user that a manager or another node makes a request for, in bytes.
const maxUser = 256

// PrincipalOf returns the user that a manager makes a request for.
func PrincipalOf(r *http.Request) string {
	return wire.Cut(r.Header.Get(HeaderUser), maxUser)
}

// busyRetryMS is when a request that was refused as busy may be retried, in milliseconds.
const busyRetryMS = 1000

// ProblemOf returns any error as a REST problem.
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
