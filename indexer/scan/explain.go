package scan

import (
	"encoding/json"
	"time"

	"tidemark/index"
	"tidemark/manager/api/v1"
	"tidemark/partition"
)

// maxParts bounds the parts of an Explain; Omitted counts the others.
const maxParts = 1024

// explained collects the contents of an Explain. The zero value collects nothing.
type explained struct {
	wanted   bool
	began    time.Time
	attempts int
	parts    []v1.ScanPart
	of       []*remote // parallel to parts
	omitted  int
	looked   Looked // sum over all parts
}

// requested records what was requested of a node, whether or not it has opened it.
func (e *explained) requested(n *remote, name func(index.NodeID) string) {
	switch {
	case !e.wanted:
		return
	case len(e.parts) == maxParts:
		e.omitted++
		return
	}
	p := v1.ScanPart{Indexer: name(n.node), OpenedMS: millis(n.took)}
	for _, s := range n.slices {
		p.Slices, p.Copies = append(p.Slices, s.slice), append(p.Copies, s.candidates[0].copy)
	}
	if n.err != nil {
		p.Error = n.err.Error()
	}
	e.parts, e.of = append(e.parts, p), append(e.of, n)
}

// lost records that a node failed after it had opened its part.
func (e *explained) lost(n *remote, why error) {
	for i, o := range e.of {
		if o == n {
			e.parts[i].Error = why.Error()
		}
	}
}

// explained returns how the scan was carried out, or nil if that was not requested.
func (r *run) explained() *v1.ScanExplain {
	e := &r.explain
	if !e.wanted {
		return nil
	}
	for i, n := range e.of {
		e.parts[i].Rows = n.rows
		if n.stream != nil {
			l := n.stream.Looked()
			e.parts[i].Read, e.parts[i].Filtered = l.Read, l.Filtered
		}
	}
	x := &v1.ScanExplain{Attempts: e.attempts, ScanTimes: r.spec.Progress.Times(), TookMS: millis(time.Since(e.began)),
		Chosen: r.why(), Slices: len(r.plan.slices), Of: int(r.layout.Partitions), Read: e.looked.Read,
		Filtered: e.looked.Filtered, Parts: e.parts, Omitted: e.omitted}
	if at, known := r.c.catalog.Arrived(r.result.Ref); known {
		age := millis(e.began.Sub(at))
		x.AgeMS = &age
	}
	if x.LeftOut = r.leftOut(); len(x.LeftOut) > 0 {
		x.LeftOutWhy = "the bounds lie in the ranges of other slices"
		if r.layout.Scheme == partition.HashKey {
			x.LeftOutWhy = "the values that the bounds fix are in other slices, by their hash"
		}
	}
	return x
}

// leftOut returns the slices that cannot hold a row of the bounds.
func (r *run) leftOut() (slices []index.SliceID) {
	queried := make([]bool, r.layout.Partitions)
	for i := range r.plan.slices {
		queried[r.plan.slices[i].slice] = true
	}
	for i, is := range queried {
		if !is {
			slices = append(slices, index.SliceID(i))
		}
	}
	return slices
}

// why returns how the scan's timestamp was chosen.
func (r *run) why() string {
	text := "the newest timestamp held by a copy of every slice"
	switch {
	case r.spec.At != nil && r.spec.later():
		return "the timestamp of the previous rows: the scan continues"
	case r.spec.At != nil:
		return "the timestamp of the request"
	case r.floored:
		text += ", at or above the session's last timestamp"
	case r.least != nil && r.spec.Consistency == AtPlus:
		text += ", at or above the tokens"
	case r.least != nil && r.spec.Consistency == Session:
		text += ", at or above KV's state at the request"
	case r.least != nil:
		text += ", at or above the rest of the session's last timestamp"
	}
	if r.plan.behind {
		text += "; no copy held such a timestamp yet, so the scan waited"
	}
	return text
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// appendExplain appends ,"explain":{…}, or nothing for nil.
func appendExplain(dst []byte, e *v1.ScanExplain) []byte {
	if e == nil {
		return dst
	}
	b, err := json.Marshal(e)
	if err != nil { // never happens: it has numbers and strings only
		return dst
	}
	return append(append(dst, `,"explain":`...), b...)
}
