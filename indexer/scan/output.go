package scan

import (
	"bytes"
)

// maxHeld bounds the bytes of rows that are held back while slices are unopened; rowOverhead is the cost of such a
// row in addition to its bytes.
const (
	maxHeld     = 1 << 20
	rowOverhead = 64
)

// output processes the rows of the merge: it drops rows that repeat others or precede the offset, makes groups of
// cells, and passes the rest to the sink.
type output struct {
	spec    *Spec
	sink    Sink
	rows    int64 // passed on or held back
	given   bool  // the sink has got a row
	skip    int64 // rows still to be skipped
	after   *Row  // without stability: last row seen, behind which the next page begins
	last    *Row  // last row of the caller's page, once that is full
	repeats repeats
	folding *folding // makes groups; nil for rows
	held    holdback
}

// reset starts with the first row, or with the first missing one of a continued answer.
func (o *output) reset() error {
	o.rows, o.skip, o.last = 0, o.spec.Offset, nil
	o.repeats = repeats{parts: o.spec.Distinct, desc: o.spec.Desc}
	if o.spec.Groups != nil {
		o.folding = newFolding(o.spec.Groups, o.spec.Desc)
	}
	if p := o.spec.Resume; p != nil {
		o.rows, o.skip = p.Rows, 0
		o.after = &Row{Key: bytes.Clone(p.Last.Key), DocID: bytes.Clone(p.Last.DocID)}
		if o.spec.Page != nil && p.Rows == o.spec.Limit {
			o.last = o.after
		}
		_, err := o.repeats.seen(p.Last.Key)
		return err
	}
	if p := o.spec.Page; p != nil && p.after != nil {
		o.after = p.after
		_, err := o.repeats.seen(p.after.Key)
		return err
	}
	return nil
}

// give passes a row to the sink, unless it repeats the previous one or is skipped. Cells go into their groups
// instead.
func (o *output) give(row Row) error {
	if o.folding != nil {
		return o.fold(row)
	}
	repeated, err := o.repeats.seen(row.Key)
	if err == nil && !repeated {
		err = o.put(row)
	}
	if err != nil {
		return err
	}
	if o.spec.Stability == NoStability {
		if o.after == nil {
			o.after = &Row{}
		}
		o.after.Key, o.after.DocID = append(o.after.Key[:0], row.Key...), append(o.after.DocID[:0], row.DocID...)
	}
	return nil
}

// put passes a row to the sink, unless it is skipped.
func (o *output) put(row Row) error {
	if o.skip > 0 {
		o.skip--
		return nil
	}
	if err := o.row(row); err != nil {
		return err
	}
	if o.rows++; o.spec.Page != nil && o.rows == o.spec.Limit {
		o.last = &Row{Key: bytes.Clone(row.Key), DocID: bytes.Clone(row.DocID)}
		if o.folding != nil { // the results are not needed again
			o.last.DocID = nil
		}
	}
	o.spec.Progress.given(o.rows)
	return nil
}

// row passes a row to the sink, or holds it back.
func (o *output) row(row Row) error {
	if h := &o.held; h.on {
		h.rows = append(h.rows, Row{Key: bytes.Clone(row.Key), DocID: bytes.Clone(row.DocID)})
		h.bytes += len(row.Key) + len(row.DocID) + rowOverhead
		return nil
	}
	o.given = true
	if err := o.sink.Row(row); err != nil {
		return &sinkError{err}
	}
	return nil
}

// release passes on the rows that were held back, and all later rows at once.
func (o *output) release() error {
	o.held.on = false
	for _, row := range o.held.rows {
		if err := o.row(row); err != nil {
			return err
		}
	}
	o.held = holdback{}
	return nil
}

// holdback keeps rows from the client until no slice has to be opened any more. How long that takes must not depend
// on the client, because a node holds a timestamp only for a short time. If it is too late all the same, the client
// has got no row, and the scan starts over at a newer timestamp.
type holdback struct {
	on    bool
	rows  []Row
	bytes int
}

func (h *holdback) begin(on bool) { *h = holdback{on: on, rows: h.rows[:0]} }

func (h *holdback) full() bool { return h.on && h.bytes >= maxHeld }

// sinkError marks an error of the sink, which a further attempt cannot help.
type sinkError struct{ err error }

func (e *sinkError) Error() string { return "the client has disconnected: " + e.err.Error() }
func (e *sinkError) Unwrap() error { return e.err }
