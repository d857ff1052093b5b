package scan

import (
	"encoding/json"
	"time"

	"tidemark/index"
)

// Explain says how a scan or a count was carried out, for people. Of an answer that another indexer has gone on with it
// is that one's part.
type Explain struct {
	// Attempts is how often copies were chosen: again where none had the timestamp, and for each page of stability none.
	Attempts int     `json:"attempts"`
	WaitedMS float64 `json:"waited_ms"` // for a stability timestamp that is new enough
	TookMS   float64 `json:"took_ms"`   // in all, until its last row was given
	Slices   int     `json:"slices"`    // that may hold rows of the ranges
	Of       int     `json:"of"`        // slices of the index
	Parts    []Part  `json:"parts"`     // what indexers were asked for, in the order of the questions
	Omitted  int     `json:"omitted,omitempty"`
}

// Part is what one indexer was asked for at once.
type Part struct {
	Indexer  string          `json:"indexer"`
	Slices   []index.SliceID `json:"slices"`
	Copies   []index.CopyID  `json:"copies"`
	Rows     int64           `json:"rows"`            // taken from it, before distinct and offset
	OpenedMS float64         `json:"opened_ms"`       // until it had the timestamp, and its first rows
	Error    string          `json:"error,omitempty"` // why others were asked instead
}

// maxParts bounds the parts of an Explain; Omitted counts the others.
const maxParts = 1024

// explained collects what an Explain says. The zero value collects nothing.
type explained struct {
	wanted   bool
	began    time.Time
	attempts int
	parts    []Part
	of       []*remote // whose parts they are
	omitted  int
}

// asked notes what a node was asked for, which it has or has not opened.
func (e *explained) asked(n *remote, name func(index.NodeID) string) {
	switch {
	case !e.wanted:
		return
	case len(e.parts) == maxParts:
		e.omitted++
		return
	}
	p := Part{Indexer: name(n.node), OpenedMS: millis(n.took)}
	for _, s := range n.slices {
		p.Slices, p.Copies = append(p.Slices, s.slice), append(p.Copies, s.candidates[0].copy)
	}
	if n.err != nil {
		p.Error = n.err.Error()
	}
	e.parts, e.of = append(e.parts, p), append(e.of, n)
}

// lost notes that a node failed after it had opened its part.
func (e *explained) lost(n *remote, why error) {
	for i, o := range e.of {
		if o == n {
			e.parts[i].Error = why.Error()
		}
	}
}

// end returns what was collected; nil where it was not wanted.
func (e *explained) end(p *plan, of int, waited time.Duration) *Explain {
	if !e.wanted {
		return nil
	}
	for i, n := range e.of {
		e.parts[i].Rows = n.rows
	}
	return &Explain{Attempts: e.attempts, WaitedMS: millis(waited), TookMS: millis(time.Since(e.began)),
		Slices: len(p.slices), Of: of, Parts: e.parts, Omitted: e.omitted}
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// appendExplain appends ,"explain":{…}; nothing of nil.
func appendExplain(dst []byte, e *Explain) []byte {
	if e == nil {
		return dst
	}
	b, err := json.Marshal(e)
	if err != nil { // it has numbers and strings
		return dst
	}
	return append(append(dst, `,"explain":`...), b...)
}
