package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"tidemark/errcode"
	"tidemark/indexer/scanport"
	"tidemark/internal/detector"
	"tidemark/internal/rpc"
	"tidemark/manager/api/v1"
	"tidemark/statecontext"
)

// mostResumed is how many indexers in a row may be lost before one of them has given a row.
const mostResumed = 3

// passRows passes the rows of a scan, or a count, on to a client. When their indexer is lost, another one goes on with
// the answer at the same timestamp, behind the last rows that have gone to the client: with every 32 KiB or so comes
// the place behind them, and no row goes to the client before the place behind it is known. Where nothing has gone yet,
// another one is asked the same. An answer that nobody can go on with ends with a line that says why.
func (g *scans) passRows(ctx context.Context, w http.ResponseWriter, resp *http.Response, q *question,
	addrs func(*question) []string) error {
	p := &passage{w: w, control: http.NewResponseController(w), tells: q.tells, place: q.resume}
	for tries := 0; ; tries++ {
		before := q.resume
		err := p.take(resp)
		_ = resp.Body.Close()
		if q.resume = p.place; q.resume != before {
			tries = 0
		}
		lost := resp.Request.URL.Host
		switch {
		case err == nil, errors.Is(err, errClientGone):
			return nil
		case ctx.Err() != nil, p.begun && p.place == "", tries == mostResumed:
			return p.end(cutShort(ctx, err))
		case p.waited > slowClient: // it may have hung up as nothing was taken, which says nothing bad of it
		case !errors.Is(err, detector.ErrSilent):
			g.alive.Failed(lost)
		}
		why := err
		if resp, err = g.askRest(ctx, q, addrs, lost); err != nil {
			return p.end(cutShort(ctx, fmt.Errorf("%w; another one was to go on: %w", why, err)))
		}
		if resp.StatusCode != http.StatusOK {
			err := rpc.ReadProblem(resp)
			_ = resp.Body.Close()
			return p.end(err)
		}
	}
}

// slowClient is for how long a client may take nothing before its indexer may have hung up.
const slowClient = 20 * time.Second

// askRest asks again, the indexer that was lost as the last one. Where nothing has gone yet, the name may be another
// index's by now.
func (g *scans) askRest(ctx context.Context, q *question, addrs func(*question) []string, lost string) (*http.Response,
	error) {
	order := func(*statecontext.Index) []string {
		all := addrs(q)
		if i := slices.Index(all, lost); i >= 0 {
			all = append(slices.Delete(all, i, i+1), lost)
		}
		return all
	}
	if q.resume == "" {
		return g.askReady(ctx, q, order)
	}
	return g.askOne(ctx, q, order(q.index))
}

// placedNow lists the scan addresses of the indexers that hold a question's index by now.
func (g *scans) placedNow(q *question) []string {
	if now := g.cfg.Raft.State().Index(q.index.Definition.ID); now != nil {
		q.index = now
	}
	return g.scanners(q.index)
}

// passage is an answer on its way to a client.
type passage struct {
	w       http.ResponseWriter
	control *http.ResponseController
	tells   bool          // places go to the client, too
	begun   bool          // something has gone
	midway  bool          // of a line, a part of which has gone
	place   string        // behind what has gone; "": nothing has, or it cannot be gone on with
	waited  time.Duration // for the client to take the newest piece
	held    []byte        // that has come, and not gone
}

// errClientGone says that nobody is left to tell.
var errClientGone = errors.New("the client takes no more rows")

// takeHeader passes on what the header says of the answer.
func (p *passage) takeHeader(from http.Header) {
	for _, h := range []string{"Content-Type", "Retry-After", scanport.HeaderSession} {
		if v := from.Get(h); v != "" {
			p.w.Header().Set(h, v)
		}
	}
}

// take passes on what comes of an answer. nil: the whole of it has gone.
func (p *passage) take(resp *http.Response) error {
	if !p.begun {
		p.takeHeader(resp.Header)
		if n := resp.ContentLength; n > 0 && n <= pieceOfAnswer {
			return p.takeShort(resp.Body, n)
		}
	}
	p.held = p.held[:0]
	for scanned := 0; ; {
		p.held = slices.Grow(p.held, pieceOfAnswer)
		n, err := resp.Body.Read(p.held[len(p.held):cap(p.held)])
		p.held = p.held[:len(p.held)+n]
		var gone error
		scanned, gone = p.passPlaced(scanned)
		switch {
		case gone != nil:
			return gone
		case err == io.EOF:
			return p.send(p.held)
		case err != nil:
			return err
		case len(p.held) > mostHeld: // of very long rows, behind which it is not gone on
			if err := p.send(p.held); err != nil {
				return err
			}
			p.place, p.midway = "", p.held[len(p.held)-1] != '\n'
			p.held, scanned = p.held[:0], 0
		}
	}
}

// passPlaced passes on the rows that have a place behind them, of what is held from scanned on, and returns up to where
// no line is whole.
func (p *passage) passPlaced(scanned int) (int, error) {
	for {
		end := bytes.IndexByte(p.held[scanned:], '\n')
		if end < 0 {
			return scanned, nil
		}
		next := scanned + end + 1
		place, ok := scanport.PlaceLine(p.held[scanned : next-1])
		if !ok {
			scanned = next
			continue
		}
		rows := p.held[:scanned]
		if p.tells {
			rows = p.held[:next]
		}
		if err := p.send(rows); err != nil {
			return scanned, err
		}
		_ = p.control.Flush()
		p.place, p.midway = place, false
		p.held, scanned = p.held[:copy(p.held, p.held[next:])], 0
	}
}

// mostHeld bounds what waits for the place behind it, in bytes.
const mostHeld = 1 << 20

// takeShort passes on an answer that is whole, in one piece.
func (p *passage) takeShort(from io.Reader, n int64) error {
	body := make([]byte, n)
	if _, err := io.ReadFull(from, body); err != nil {
		return err
	}
	p.w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
	return p.send(body)
}

func (p *passage) send(b []byte) error {
	began := time.Now()
	p.begun = p.begun || len(b) > 0
	_ = p.control.SetWriteDeadline(began.Add(rowsPatience)) // a client that takes nothing is let go
	_, err := p.w.Write(b)
	p.waited = time.Since(began)
	if err != nil {
		return fmt.Errorf("%w: %w", errClientGone, err)
	}
	return nil
}

// seen is a session's token of what was seen up to the place; "" where that does not tell.
func (p *passage) seen() string {
	place, err := scanport.ParsePlace(p.place)
	if err != nil {
		return ""
	}
	seen, _, err := scanport.CutSeen(place)
	if err != nil {
		return ""
	}
	return seen.Token()
}

// end ends an answer that has no end of its own: as a problem where nothing has gone, with a line that says so between
// two lines, and else, as a client must not take half a line for one, by cutting the connection.
func (p *passage) end(why *rpc.Problem) error {
	if whole := bytes.LastIndexByte(p.held, '\n') + 1; p.begun && whole > 0 {
		p.midway = false
		if p.send(p.held[:whole]) != nil {
			return nil
		}
	}
	switch {
	case !p.begun:
		return why
	case p.midway:
		panic(http.ErrAbortHandler) // net/http's way to cut the connection
	}
	line, err := json.Marshal(v1.ScanFailure{Error: *why, Session: p.seen()})
	if err != nil {
		line = fmt.Appendf(nil, `{"error":{"code":%q}}`, errcode.Internal)
	}
	_ = p.send(append(line, '\n'))
	return nil
}
