package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"tidemark/indexer/scanport"
	"tidemark/manager/api/v1"
)

// managedScan is a scan by way of managers. When the one that passes it on is lost, another one goes on with it, at the
// same timestamp, behind the last place that has come; the rows behind that which have been given come again then, and
// are passed over: they are the same. It implements rowSource.
type managedScan struct {
	*answerLines
	c           *Client
	ctx         context.Context //nolint:containedctx // of the scan
	of          string
	consistency string
	body        []byte
	fixed       bool // all rows are of one timestamp

	place string // behind which it can be gone on with; "": from the beginning
	some  bool   // a row was given
	given int    // rows behind the place that were given
	came  int    // rows behind the place that have come from the present manager
	lost  int    // managers in a row that brought no place
}

// mostLost is how many managers in a row may be lost before one of them has brought a place.
const mostLost = 3

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
	for {
		end, got, err := s.line(row)
		switch {
		case errors.Is(err, ErrCut):
			if err = s.goOn(err); err != nil {
				return nil, err
			}
		case end != nil || err != nil:
			return end, err
		case got:
			return nil, nil //nolint:nilnil // a row, and not the end
		}
	}
}

// line takes a line; got: it was a row that was not given before.
func (s *managedScan) line(row *v1.Row) (end *v1.ScanEnd, got bool, err error) {
	line, err := s.readLine()
	if err != nil {
		return nil, false, err
	}
	if place, ok := scanport.PlaceLine(line); ok {
		s.place, s.given, s.came, s.lost = place, max(0, s.given-s.came), 0, 0
		return nil, false, nil
	}
	if end, err = s.read(line, row); end != nil || err != nil {
		return end, false, err
	}
	if s.came++; s.came <= s.given {
		return nil, false, nil
	}
	s.given, s.some = s.came, true
	return nil, true, nil
}

// goOn has the rest given by another manager. Where no place has come yet the answer begins anew, which is the same one
// only if nothing of it was given.
func (s *managedScan) goOn(why error) error {
	another := s.some && s.place == "" || s.given > 0 && !s.fixed // it would be another answer
	if s.lost++; s.ctx.Err() != nil || another || s.lost > mostLost {
		return why
	}
	_ = s.close()
	next, err := s.ask()
	if err != nil {
		return err
	}
	if s.answerLines, s.came = next, 0; s.place != "" && !next.goesOn {
		return fmt.Errorf("%w, and what answered then, a manager or a proxy before it, began anew", why)
	}
	return nil
}
