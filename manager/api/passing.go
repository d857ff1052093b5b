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

// mostResumed limits how many indexers in a row may be lost without progress.
const mostResumed = 3

// passRows sends the rows of a scan, or a count, to a client. If their indexer is lost, another one continues the
// answer at the same timestamp, after the last rows that were sent to the client: about every 32 KiB the indexer
// sends its place, and rows are sent to the client only once the place after them is known. If nothing was sent yet,
// the next indexer gets the original request. An answer that no indexer can continue ends with a line with the
// reason.
func (g *scans) passRows(ctx context.Context, w http.ResponseWriter, resp *http.Response, q *question,
	addrs func(*question) []string) error {
	p := &passage{w: w, control: http.NewResponseController(w), sendsPlaces: q.wantsPlaces, place: q.resume}
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
		case p.waited > slowClient: // it may have hung up because the client was slow, which does not mean that it failed
		case !errors.Is(err, detector.ErrSilent):
			g.alive.Failed(lost)
		}
		why := err
		if resp, err = g.askRest(ctx, q, addrs, lost); err != nil {
			return p.end(cutShort(ctx, fmt.Errorf("%w; continuing the scan at another indexer failed: %w", why, err)))
		}
		if resp.StatusCode != http.StatusOK {
			err := rpc.ReadProblem(resp)
			_ = resp.Body.Close()
			return p.end(err)
		}
	}
}

// slowClient is how long a client may block before its indexer may hang up.
const slowClient = 20 * time.Second

// askRest repeats the request, with the lost indexer last. If nothing was sent yet, the name may belong to another
// index by now.
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

// placedNow returns the scan addresses of the indexers that hold the request's index now.
func (g *scans) placedNow(q *question) []string {
	if now := g.cfg.Raft.State().Index(q.index.Definition.ID); now != nil {
		q.index = now
	}
	return g.scanners(q.index)
}

// passage is an answer in transit to a client.
type passage struct {
	w           http.ResponseWriter
	control     *http.ResponseController
	sendsPlaces bool          // the client receives places, too
	begun       bool          // something was sent
	midway      bool          // a part of a line was sent
	place       string        // after what was sent; "": nothing was, or the answer cannot be continued
	waited      time.Duration // how long the client took to accept the last piece
	held        []byte        // received and not sent yet
}

// errClientGone means that the client has disconnected.
var errClientGone = errors.New("the client has disconnected")

// takeHeader copies the relevant headers of the answer.
func (p *passage) takeHeader(from http.Header) {
	for _, h := range []string{"Content-Type", "Retry-After", scanport.HeaderSession} {
		if v := from.Get(h); v != "" {
			p.w.Header().Set(h, v)
		}
	}
}

// take sends an answer to the client as it arrives. It returns nil at its end.
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
		case len(p.held) > mostHeld: // very long rows: the answer cannot be continued after them
			if err := p.send(p.held); err != nil {
				return err
			}
			p.place, p.midway = "", p.held[len(p.held)-1] != '\n'
			p.held, scanned = p.held[:0], 0
		}
	}
}

// passPlaced sends the rows followed by a place, of what is held from scanned on, and returns the offset up to which
// it has seen whole lines.
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
		if p.sendsPlaces {
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

// mostHeld limits the bytes that wait for the place after them.
const mostHeld = 1 << 20

// takeShort sends a short, complete answer in one piece.
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
	_ = p.control.SetWriteDeadline(began.Add(rowsPatience)) // a client that accepts nothing is disconnected
	_, err := p.w.Write(b)
	p.waited = time.Since(began)
	if err != nil {
		return fmt.Errorf("%w: %w", errClientGone, err)
	}
	return nil
}

// seen returns a session token for the rows seen up to the place; "" if it cannot be determined.
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

// end ends an incomplete answer: with a problem if nothing was sent, between two lines with an error line, and
// otherwise by cutting the connection, so that the client does not take half a line for a whole one.
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
		panic(http.ErrAbortHandler) // cuts the connection in net/http
	}
	line, err := json.Marshal(v1.ScanFailure{Error: *why, Session: p.seen()})
	if err != nil {
		line = fmt.Appendf(nil, `{"error":{"code":%q}}`, errcode.Internal)
	}
	_ = p.send(append(line, '\n'))
	return nil
}
