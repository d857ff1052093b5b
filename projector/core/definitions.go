package core

import (
	"tidemark/errcode"
	"tidemark/wire"
)

// Older reports whether a precedes b, by epoch and then by revision: a manager that a recovery left behind may go on
// numbering revisions in its old epoch.
func Older(a, b *wire.Definitions) bool {
	if a.Fence.Epoch != b.Fence.Epoch {
		return a.Fence.Epoch < b.Fence.Epoch
	}
	return a.Revision < b.Revision
}

// TakeDefinitions refuses definitions d that are older than the current ones, have. have is nil if there are none
// yet.
func TakeDefinitions(have, d *wire.Definitions) error {
	if have != nil && Older(d, have) {
		return errcode.Refuse(errcode.Fenced, "definitions revision %d is older than the present one, %d", d.Revision,
			have.Revision)
	}
	return nil
}

// Revision returns the revision to report to the coordinator under fence f. known is false if there are no
// definitions, or if they are of another epoch, whose revisions mean nothing to the coordinator.
func Revision(d *wire.Definitions, f wire.Fence) (revision uint64, known bool) {
	if d == nil || d.Fence.Epoch != f.Epoch {
		return 0, false
	}
	return d.Revision, true
}
