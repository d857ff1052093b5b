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

// managedScan is a scan through managers. If the manager that relays it fails, another one continues it, at the same
// timestamp, after the last place received. Lines are returned to the caller once the place after them, or the
// answer's end, has arrived: lines that have to be sent again have not been returned before. It implements rowSource.
type managedScan struct {
	*answerLines
	c           *Client
	ctx         context.Context //nolint:containedctx // of the scan
	of          string
	consistency string
	body        []byte

	held  []byte // lines received
	ready []byte // part of held: complete lines to return
	place string // after the lines of ready, where the scan can be continued; "": from the beginning
	loose bool   // lines without a place after them were returned
	lost  int    // consecutive managers that sent no place
}

const (
	// maxLost is how many consecutive managers may fail without having sent a place.
	maxLost = 3
	// maxHeld bounds the lines that wait for the place after them, in bytes; they may exceed it by one line.
	maxHeld = 1 << 20
)

// request requests the answer, from s.place on.
func (s *managedScan) request() (*answerLines, error) {
	header := http.Header{}
	header.Set(scanport.HeaderPlaces, "true")
	if s.place != "" {
		header.Set(scanport.HeaderResume, s.place)
	}
	return s.c.lines(s.ctx, operation{op: scanport.Scan, of: s.of, consistency: s.consistency},
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
			err = s.resume(err)
		}
		if err != nil {
			return nil, err
		}
	}
	line, rest, _ := bytes.Cut(s.ready, []byte{'\n'})
	s.ready = rest
	return s.read(line, row)
}

// take reads lines up to the place after them or to the answer's end; if neither comes within maxHeld bytes, it
// returns what it has.
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
		if len(s.held) > maxHeld && !isLast(line) { // with very long rows; the scan cannot be continued after them
			s.ready, s.place, s.loose = s.held, "", true
			return nil
		}
	}
}

// isLast reports whether the last of some lines ends an answer.
func isLast(lines []byte) bool {
	lines = bytes.TrimSuffix(lines, []byte{'\n'})
	line := lines[bytes.LastIndexByte(lines, '\n')+1:]
	if bytes.HasPrefix(line, []byte(`{"key":`)) { // a row, the most frequent case
		return false
	}
	var l struct {
		End   bool            `json:"end"`
		Error json.RawMessage `json:"error"`
	}
	return json.Unmarshal(line, &l) == nil && (l.End || l.Error != nil)
}

// resume requests the rest from another manager. If no place has arrived yet, the answer begins anew, which is only
// correct if nothing of it was returned.
func (s *managedScan) resume(why error) error {
	if s.lost++; s.ctx.Err() != nil || s.loose || s.lost > maxLost {
		return why
	}
	_ = s.close()
	next, err := s.request()
	if err != nil {
		return err
	}
	if s.answerLines = next; s.place != "" && !next.resumed {
		return fmt.Errorf("%w, and the next manager, or a proxy before it, began the answer from its start", why)
	}
	return nil
}
