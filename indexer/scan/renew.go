package scan

import (
	"context"
	"fmt"
	"slices"
	"time"

	"tidemark/errcode"
	"tidemark/partition"
)

// retriable reports whether a copy that failed with this error may become readable at the same timestamp a moment
// later.
func retriable(why error) bool {
	switch CodeOf(why) {
	case errcode.Unavailable, errcode.Timeout, errcode.IndexNotHosted, errcode.IndexNotReady, errcode.Busy:
		return true
	}
	return false
}

// renew searches for copies of slices whose known copies have all failed in the middle of a scan. Rows have been
// returned by then, so the scan cannot start over; but every live node that made the timestamp still holds it. So
// renew rechecks the catalog for as long as a scan may wait: a copy may have moved or been made, its node may be
// reachable again, or it may have been silent only for a moment while another one died. Copies that reported that
// they do not hold the timestamp are not tried again. A slice that still has no candidate afterwards is left to the
// caller, with its error.
func (r *run) renew(ctx context.Context, todo []*sliceplan) error {
	if !r.out.given || r.spec.Stability == NoStability { // another attempt follows, perhaps at a newer timestamp
		return nil
	}
	var lost []*sliceplan
	for _, s := range todo {
		if len(s.candidates) == 0 {
			lost = append(lost, s)
		}
	}
	if len(lost) > 0 && r.renewing.IsZero() {
		r.renewing = time.Now().Add(r.c.opts.Wait)
	}
	for waited := false; len(lost) > 0; waited = true {
		view, err := r.c.View(r.spec.Index)
		if err = r.stillHeld(&view, err); err != nil {
			return err
		}
		lost = slices.DeleteFunc(lost, func(s *sliceplan) bool { return s.hopeless(&view) || waited && r.found(&view, s) })
		if len(lost) == 0 || time.Now().After(r.renewing) {
			break
		}
		r.spec.Progress.stuck()
		if err := r.c.await(ctx, r.bucket); err != nil {
			return err
		}
	}
	for _, s := range lost {
		e := *AsError(s.last)
		e.Detail = fmt.Sprintf("%s (waited %s)", e.Detail, r.c.opts.Wait)
		s.last = &e
	}
	return nil
}

// stillHeld returns an error if no node can hold the scan's timestamp any more. err is why there is no view; it is
// considered temporary unless the index was dropped.
func (r *run) stillHeld(v *View, err error) error {
	switch {
	case err != nil && CodeOf(err) == errcode.IndexNotHosted:
		return err
	case err == nil && (v.Bucket.Generation != r.plan.ref.Generation || v.Bucket.RollbackID != r.plan.ref.RollbackID):
		return Errorf(errcode.SnapshotTooOld, "bucket %q was rolled back or created again during the scan: start it "+
			"anew", v.Bucket.Name)
	}
	return nil
}

// found sets the candidates of a slice to the copies that can be requested now, and reports whether there are any.
func (r *run) found(v *View, s *sliceplan) bool {
	if v.healthy == nil {
		v.Prepare()
	}
	if int(s.slice) >= len(v.healthy) {
		return false
	}
	s.candidates = nil // a view's candidates are shared
	for _, c := range v.healthy[s.slice] {
		if !slices.Contains(s.without, c.copy) {
			s.candidates = append(s.candidates, c)
		}
	}
	if len(s.candidates) == 0 {
		return false
	}
	s.last = nil
	turn, busier := r.turn()
	s.order(r.plan.ref, turn, r.c.nodes.Suspect, busier)
	return true
}

// hopeless reports whether all copies of a slice, wherever they are now, have reported that they do not hold the
// timestamp.
func (s *sliceplan) hopeless(v *View) bool {
	return len(v.Topology.Copies) > 0 && !slices.ContainsFunc(v.Topology.Copies, func(c partition.Copy) bool {
		return c.Slice == s.slice && !slices.Contains(s.without, c.ID)
	})
}
