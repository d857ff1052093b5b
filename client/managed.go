package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"tidemark/indexer/scanport"
	"tidemark/manager/api/v1"
)

// managedScan is a scan by way of managers. When the one that passes it on is lost, another one goes on with it, at the
// same timestamp, behind the last place that has come. Lines are given once the place behind them, or the answer's end,
// has come: what has to come again was never given. It implements rowSource.
type managedScan struct {
	*answerLines
	c           *Client
	ctx         context.Context //nolint:containedctx // of the scan
	of          string
	consistency string
	body        []byte

	held  []byte // lines that have come
	ready []byte // of held: lines to give, each with its end
	place string // behind them, where it can be gone on with; "": from the beginning
	loose bool   // some were given that have no place behind them
	lost  int    // managers in a row that brought no place
}

const (
	// mostLost is how many managers in a row may be lost before one of them has brought a place.
	mostLost = 3
	// mostHeld bounds the lines that wait for the place behind them, in bytes; it may be one line more.
	mostHeld = 1 << 20
)

func (s *managedScan) ask() (*answerLines, error) {
	header := http.Header{}
	header.Set(scanport.HeaderPlaces, "true")
	if s.place != "" {
		header.Set(scanport.HeaderResume, s.place)
	}
	return s.c.lines(s.ctx, question{op: scanport.Scan, of: s.of, consistency: s.consistency},
		"/v1/indexes/"+s.of+":scan", header, s.body, nil)
}

// seen implements rowSource.
func (s *managedScan) seen() *scanport.Seen {
	if s.failed && s.session != "" {
		return lastSeen(s.session)
	}
	if place, err := scanport.ParsePlace(s.place); err == nil {
		if saw, _, err := scanport.CutSeen(place); err == nil {
			return &saw
		}
	}
	return lastSeen(s.session)
}

// next implements rowSource.
func (s *managedScan) next(row *v1.Row) (*v1.ScanEnd, error) {
	for len(s.ready) == 0 {
		err := s.take()
		if errors.Is(err, ErrCut) {
			err = s.goOn(err)
		}
		if err != nil {
			return nil, err
		}
	}
	line, rest, _ := bytes.Cut(s.ready, []byte{'\n'})
	s.ready = rest
	return s.read(line, row)
}

// take takes lines up to the place behind them or to the answer's end, or, where neither comes, more of them than are
// held.
func (s *managedScan) take() error {
	s.held = s.held[:0]
	for last := 0; ; last = len(s.held) {
		var err error
		s.held, err = s.appendLine(s.held)
		if errors.Is(err, io.EOF) && isLast(s.held) {
			s.ready = s.held
			return nil
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrCut, err)
		}
		line := bytes.TrimSuffix(s.held[last:], []byte{'\n'})
		if place, ok := scanport.PlaceLine(line); ok {
			s.ready, s.place, s.loose, s.lost = s.held[:last], place, place == "", 0
			return nil
		}
		if len(s.held) > mostHeld && !isLast(line) { // of very long rows, behind which it is not gone on
			s.ready, s.place, s.loose = s.held, "", true
			return nil
		}
	}
}

// isLast says whether the last one of some lines ends an answer.
func isLast(lines []byte) bool {
	lines = bytes.TrimSuffix(lines, []byte{'\n'})
	line := lines[bytes.LastIndexByte(lines, '\n')+1:]
	if bytes.HasPrefix(line, []byte(`{"key":`)) { // the rows, by far the most
		return false
	}
	var l struct {
		End   bool            `json:"end"`
		Error json.RawMessage `json:"error"`
	}
	return json.Unmarshal(line, &l) == nil && (l.End || l.Error != nil)
}

// goOn has the rest given by another manager. Where no place has come yet the answer begins anew, which is the same one
// only if nothing of it was given.
func (s *managedScan) goOn(why error) error {
	if s.lost++; s.ctx.Err() != nil || s.loose || s.lost > mostLost {
		return why
	}
	_ = s.close()
	next, err := s.ask()
	if err != nil {
		return err
	}
	if s.answerLines = next; s.place != "" && !next.goesOn {
		return fmt.Errorf("%w, and what answered then, a manager or a proxy before it, began anew", why)
	}
	return nil
}
