package scan

import (
	"bytes"
)

// maxHeld is how many bytes of rows are held back while slices are left unopened; rowOverhead is what such a row costs
// beside its bytes.
const (
	maxHeld     = 1 << 20
	rowOverhead = 64
)

// output is what a scan makes of the rows that the merge has: it passes over those that repeat others or stand before
// the offset, makes groups of cells, and gives the rest to the sink.
type output struct {
	spec    *Spec
	sink    Sink
	rows    int64 // given, or held back
	given   bool  // the sink has been given a row
	skip    int64 // rows that are still to be passed over
	after   *Row  // the last row seen, without stability: the next page begins behind it
	last    *Row  // of a page of the caller's that is full
	repeats repeats
	folding *folding // of groups; nil: rows are asked for
	held    holdback
}

// reset begins with the first row, or the first that is still to come of an answer that is gone on with.
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

// give returns a row to the sink, unless it repeats the one before or is passed over; of cells the groups that they
// make.
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

// put returns a row to the sink, unless it is passed over.
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
		if o.folding != nil { // the results are not wanted again
			o.last.DocID = nil
		}
	}
	o.spec.Progress.given(o.rows)
	return nil
}

// row gives a row to the sink, or holds it back.
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

// release hands on what was held back, and everything that comes.
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

// holdback keeps rows from the client until no slice has to be opened any more: how long that takes must not depend on
// the client, because a node holds a timestamp for a short time only. When it is too late all the same, nothing has
// been given, and the scan begins anew at a newer one.
type holdback struct {
	on    bool
	rows  []Row
	bytes int
}

func (h *holdback) begin(on bool) { *h = holdback{on: on, rows: h.rows[:0]} }

func (h *holdback) full() bool { return h.on && h.bytes >= maxHeld }

// sinkError marks an error of the sink: nothing can be done about it here.
type sinkError struct{ err error }

func (e *sinkError) Error() string { return "the client takes no more rows: " + e.err.Error() }
func (e *sinkError) Unwrap() error { return e.err }
