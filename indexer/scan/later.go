package scan

import (
	"bytes"
	"slices"
)

// maxHeld is how many bytes of rows are held back while slices are left unopened.
const maxHeld = 1 << 20

// later are the slices of a scan that are not open yet, in the order in which their rows come.
type later struct {
	slices []*sliceplan
	next   int // how many are opened next
}

// waiting returns the slices of the plan. Those of an index that is partitioned by range stand one behind the other: of
// a scan with a limit the first is opened, then two, four and so on, for as long as rows are wanting. Of any other scan
// all are opened at once, and of groups, whose order may be another one. So they are with stability query, where later
// scans want the timestamp kept by every node, and in an attempt behind one that came too late.
func (r *run) waiting() later {
	l := later{slices: make([]*sliceplan, len(r.plan.slices)), next: len(r.plan.slices)}
	for i := range r.plan.slices {
		l.slices[i] = &r.plan.slices[i]
	}
	if r.plan.ordered && r.spec.Limit > 0 && r.spec.Stability != QueryStability && !r.count && !r.whole &&
		r.spec.Groups == nil {
		l.next = 1
		if r.spec.Reverse {
			slices.Reverse(l.slices)
		}
	}
	return l
}

// take returns the slices that are to be opened next.
func (l *later) take() []*sliceplan {
	n := min(l.next, len(l.slices))
	taken := l.slices[:n]
	l.slices, l.next = l.slices[n:], 2*l.next
	return taken
}

// rest returns all that are left.
func (l *later) rest() []*sliceplan {
	taken := l.slices
	l.slices = nil
	return taken
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

// row gives a row to the sink, or holds it back.
func (r *run) row(row Row) error {
	if h := &r.held; h.on {
		h.rows = append(h.rows, Row{Key: bytes.Clone(row.Key), DocID: bytes.Clone(row.DocID)})
		h.bytes += len(row.Key) + len(row.DocID) + rowOverhead
		return nil
	}
	r.given = true
	if err := r.sink.Row(row); err != nil {
		return &sinkError{err}
	}
	return nil
}

// rowOverhead is what a row that is held back costs beside its bytes.
const rowOverhead = 64

// release hands on what was held back, and everything that comes.
func (r *run) release() error {
	r.held.on = false
	for _, row := range r.held.rows {
		if err := r.row(row); err != nil {
			return err
		}
	}
	r.held = holdback{}
	return nil
}
