package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"tidemark/indexer/scanport"
	"tidemark/internal/detector"
	"tidemark/internal/rpc"
	"tidemark/manager/api/v1"
)

const (
	// maxRow bounds a line of a scan's answer, in bytes.
	maxRow = 64 << 20
	// lineBuffer is the size of the buffer for reading an answer.
	lineBuffer = 64 << 10
)

// ErrCut is wrapped if a scan's stream stopped before its last line. If a server can still send why a scan ends
// early, that is the last line, and is returned as a *Problem.
var ErrCut = errors.New("the scan was cut off before its end")

// Rows is a running scan. Use: for rows.Next() { rows.Row() }; then rows.Err(); always Close.
type Rows struct {
	source rowSource
	row    v1.Row
	end    *v1.ScanEnd
	err    error

	session *Session // nil if there is none
	sent    map[string]writes
	named   bool // the caller named the timestamp
}

// rowSource returns the rows of a scan, and its end: next returns exactly one of row, end and err.
type rowSource interface {
	next(row *v1.Row) (end *v1.ScanEnd, err error)
	// seen returns the state that the rows received so far show; nil if there are none.
	seen() *scanport.Seen
	close() error
}

// Scan scans an index; ref is an id or a Ref. The scan ends with ctx. It shows nothing older than what the client has
// seen before, see Session.
func (c *Client) Scan(ctx context.Context, ref string, req v1.ScanRequest) (*Rows, error) {
	return c.session.Scan(ctx, c, ref, req)
}

func (c *Client) scan(ctx context.Context, ref string, req v1.ScanRequest) (*Rows, error) {
	body, err := req.Encode()
	if err != nil {
		return nil, err
	}
	if c.direct != nil {
		s, err := c.direct.begin(ctx, operation{op: scanport.Scan, of: ref, consistency: req.Consistency}, body)
		if err == nil {
			return &Rows{source: s}, nil
		}
		if !errors.Is(err, errDetour) {
			return nil, err
		}
	}
	s := &managedScan{c: c, ctx: ctx, of: ref, consistency: req.Consistency, body: body}
	if s.answerLines, err = s.request(); err != nil {
		return nil, err
	}
	return &Rows{source: s}, nil
}

// answerLines is an answer that is sent line by line.
type answerLines struct {
	lines   *bufio.Reader
	body    io.Closer
	cancel  context.CancelFunc
	resumed bool // it continues after the requested place

	session string // what was seen with its first rows; after a failure, with all of them
	failed  bool
}

// lines requests an answer that is sent line by line. It has to begin within firstRowsTimeout, and may then last as
// long as ctx. A refused request is retried as long as ctx lasts, or within p unless that is nil.
func (c *Client) lines(ctx context.Context, q operation, path string, header http.Header, body []byte,
	p *refusalLimit) (*answerLines, error) {
	ctx, cancel := context.WithCancel(ctx)
	var answer *http.Response
	var from string
	end := cancel
	err := c.retry(ctx, q, 0, func(ctx context.Context, server string) error {
		one, give := context.WithCancel(ctx)
		silent := time.AfterFunc(firstRowsTimeout, give)
		got, err := c.send(one, http.MethodPost, server+path, header, body)
		if !silent.Stop() && err == nil { // it answered just when its time ran out
			_ = got.Body.Close()
			err = context.DeadlineExceeded
		}
		if err != nil {
			give()
			return p.check(q, server, err)
		}
		answer, from, end = got, server, func() { give(); cancel() }
		return nil
	})
	if err != nil {
		cancel()
		return nil, err
	}
	size := lineBuffer
	if n := answer.ContentLength; n >= 0 && n < lineBuffer {
		size = int(n) + 1
	}
	// Only this server has these rows.
	watched := &detector.Body{ReadCloser: answer.Body, Detector: c.alive, Peer: from, Silent: end}
	return &answerLines{lines: bufio.NewReaderSize(watched, size), body: watched, cancel: end,
		resumed: answer.Header.Get(scanport.HeaderResume) != "", session: answer.Header.Get(scanport.HeaderSession)}, nil
}

// Count counts the entries that a scan would return.
func (c *Client) Count(ctx context.Context, ref string, req v1.ScanRequest) (v1.CountReply, error) {
	return c.session.Count(ctx, c, ref, req)
}

func (c *Client) count(ctx context.Context, ref string, req v1.ScanRequest) (v1.CountReply, error) {
	var reply v1.CountReply
	body, err := req.Encode()
	if err != nil {
		return reply, err
	}
	if c.direct != nil {
		s, err := c.direct.begin(ctx, operation{op: scanport.Count, of: ref, consistency: req.Consistency}, body)
		if err == nil && s.answer.Tail == scanport.More {
			s.abort()
			return reply, fmt.Errorf("%w: rows instead of the requested number", ErrCut)
		}
		if err == nil {
			var unread error
			if s.answer.Tail == scanport.End {
				unread = json.Unmarshal(s.answer.Text, &reply)
			}
			if err = s.finish(); err == nil {
				err = unread
			}
			return reply, err
		}
		if !errors.Is(err, errDetour) {
			return reply, err
		}
	}
	return reply, c.call(ctx, http.MethodPost, "/v1/indexes/"+ref+":count", nil, json.RawMessage(body), &reply)
}

// Next advances to the next row; it returns false at the end or on an error.
func (r *Rows) Next() bool {
	if r.err != nil || r.end != nil {
		return false
	}
	r.end, r.err = r.source.next(&r.row)
	switch {
	case r.end != nil:
		r.session.ended(r.end.Session, r.sent, !r.named)
	case r.err != nil:
		r.session.failed(r.err, r.sent)
		r.stopped()
	}
	return r.end == nil && r.err == nil
}

// stopped records what was seen if the rest is not read.
func (r *Rows) stopped() {
	if r.session == nil {
		return
	}
	if seen := r.source.seen(); seen != nil {
		r.session.cut(seen)
	}
}

// read parses a line of a scan: a row, the end, or a failure.
func (r *answerLines) read(line []byte, row *v1.Row) (*v1.ScanEnd, error) {
	if parseRow(line, row) {
		return nil, nil //nolint:nilnil // a row, and not the end
	}
	var l struct {
		Key []json.RawMessage `json:"key"`
		ID  *string           `json:"id"`
		// Of a group.
		Values json.RawMessage `json:"values"`
		End    bool            `json:"end"`
		Rows   uint64          `json:"rows"`
		v1.ScanSeen
		v1.ScanMore
		Timestamp v1.ScanTimestamp `json:"timestamp"`
		Explain   *v1.ScanExplain  `json:"explain"`
		Error     *rpc.Problem     `json:"error"`
	}
	switch err := json.Unmarshal(line, &l); {
	case err != nil:
		return nil, fmt.Errorf("%w: a line is not JSON: %w", ErrCut, err)
	case l.Error != nil:
		if l.Session != "" {
			r.session = l.Session
		}
		r.failed = true
		return nil, l.Error
	case l.End:
		r.drain()
		return &v1.ScanEnd{End: true, Rows: l.Rows, Timestamp: l.Timestamp, ScanSeen: l.ScanSeen, ScanMore: l.ScanMore,
			Explain: l.Explain}, nil
	case l.Values != nil: // the same form as in an indexer's messages
		*row = v1.Row{Key: l.Key, ID: string(l.Values)}
		return nil, nil //nolint:nilnil // a row, and not the end
	case l.ID == nil:
		return nil, fmt.Errorf("%w: a line is neither row nor end: %.100s", ErrCut, line)
	}
	*row = v1.Row{Key: l.Key, ID: *l.ID}
	return nil, nil //nolint:nilnil // a row, and not the end
}

// appendLine appends the next line, with its newline, to dst. With an error, dst contains what was received of the
// line: a part of it, unless the error is io.EOF.
func (r *answerLines) appendLine(dst []byte) ([]byte, error) {
	for from := len(dst); ; {
		part, err := r.lines.ReadSlice('\n')
		dst = append(dst, part...)
		switch {
		case !errors.Is(err, bufio.ErrBufferFull):
			return dst, err //nolint:wrapcheck // from the connection
		case len(dst)-from > maxRow:
			return dst, fmt.Errorf("a line has more than %d bytes", maxRow)
		}
	}
}

// drain reads the end of an answer after its last line: only then can its connection be reused.
func (r *answerLines) drain() { _, _ = r.lines.Peek(1) }

// Row returns the present row; it is valid until the next call of Next.
func (r *Rows) Row() v1.Row { return r.row }

// End returns the last line, once Next has returned false without an error.
func (r *Rows) End() (v1.ScanEnd, error) {
	if r.err != nil {
		return v1.ScanEnd{}, r.err
	}
	if r.end == nil {
		return v1.ScanEnd{}, fmt.Errorf("%w: not read to the end", ErrCut)
	}
	return *r.end, nil
}

// Err returns what ended the scan early, nil if it is complete.
func (r *Rows) Err() error { return r.err }

// Close ends the scan.
func (r *Rows) Close() error {
	if r.end == nil && r.err == nil {
		r.stopped()
	}
	return r.source.close()
}

func (r *answerLines) close() error {
	r.cancel()
	return r.body.Close()
}
