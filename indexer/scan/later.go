package scan

import "slices"

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
