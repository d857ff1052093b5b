package scan

import (
	"context"
	"fmt"
	"slices"
	"time"

	"tidemark/errcode"
	"tidemark/partition"
)

// askAgain reports whether a copy that could not be read for this reason may be read a moment later, at the same
// timestamp.
func askAgain(why error) bool {
	switch CodeOf(why) {
	case errcode.Unavailable, errcode.Timeout, errcode.IndexNotHosted, errcode.IndexNotReady, errcode.Busy:
		return true
	}
	return false
}

// renew finds copies for slices of which all that were known have failed in the middle of a scan. Rows have been given
// then, and no attempt may begin anew; but the timestamp is still held by whoever made it and lives. So the catalog is
// looked at again, for as long as a scan may wait: a copy has moved or was made meanwhile, its node is heard again, or
// was only silent for a moment beside one that died. Who has said that he does not hold the timestamp is not asked
// again. A slice that is left without a copy, and its reason, is the caller's.
func (r *run) renew(ctx context.Context, todo []*sliceplan) error {
	if !r.out.given || r.spec.Stability == NoStability { // another attempt is made, at a newer timestamp perhaps
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

// stillHeld refuses where nobody can hold the scan's timestamp any more. err is why there is no view: it passes, unless
// the index was dropped.
func (r *run) stillHeld(v *View, err error) error {
	switch {
	case err != nil && CodeOf(err) == errcode.IndexNotHosted:
		return err
	case err == nil && (v.Bucket.Generation != r.plan.ref.Generation || v.Bucket.RollbackID != r.plan.ref.RollbackID):
		return Errorf(errcode.SnapshotTooOld, "bucket %q was rolled back or made anew in the middle of the scan: begin it "+
			"anew", v.Bucket.Name)
	}
	return nil
}

// found puts the copies of a slice that may be asked now into the choice.
func (r *run) found(v *View, s *sliceplan) bool {
	if v.healthy == nil {
		v.Prepare()
	}
	if int(s.slice) >= len(v.healthy) {
		return false
	}
	s.candidates = nil // those of a view are shared
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

// hopeless reports whether all copies of a slice, wherever they are now, have said that they do not hold the timestamp.
func (s *sliceplan) hopeless(v *View) bool {
	return len(v.Topology.Copies) > 0 && !slices.ContainsFunc(v.Topology.Copies, func(c partition.Copy) bool {
		return c.Slice == s.slice && !slices.Contains(s.without, c.ID)
	})
}
