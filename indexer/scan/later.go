package scan

import "slices"

// later holds the slices of a scan that are not open yet, in the order of their rows.
type later struct {
	slices []*sliceplan
	next   int // how many to open next
}

// waiting returns the slices of the plan. Slices of an index that is partitioned by range follow each other in index
// order: for a scan with a limit, the first is opened, then two, four and so on while rows are missing. All other
// scans open all slices at once. So do groups, whose order may differ from that of the index; scans with stability
// query, because later scans need every node to keep the timestamp; and an attempt after one that opened a slice too
// late.
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

// take returns the slices to open next.
func (l *later) take() []*sliceplan {
	n := min(l.next, len(l.slices))
	taken := l.slices[:n]
	l.slices, l.next = l.slices[n:], 2*l.next
	return taken
}

// rest returns all remaining slices.
func (l *later) rest() []*sliceplan {
	taken := l.slices
	l.slices = nil
	return taken
}
