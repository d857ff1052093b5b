package core

import (
	"tidemark/errcode"
	"tidemark/wire"
)

// Older orders definitions by epoch and revision: who was left behind by a recovery may go on with revisions of its
// own.
func Older(a, b *wire.Definitions) bool {
	if a.Fence.Epoch != b.Fence.Epoch {
		return a.Fence.Epoch < b.Fence.Epoch
	}
	return a.Revision < b.Revision
}

// TakeDefinitions refuses definitions that are older than those that are here; have is nil where there are none.
func TakeDefinitions(have, d *wire.Definitions) error {
	if have != nil && Older(d, have) {
		return errcode.Refuse(errcode.Fenced, "definitions revision %d is older than %d, which is here", d.Revision,
			have.Revision)
	}
	return nil
}

// Revision is what the coordinator is told of the definitions that are here, under the fence that is obeyed: revisions
// of another epoch mean nothing to it.
func Revision(d *wire.Definitions, f wire.Fence) (revision uint64, known bool) {
	if d == nil || d.Fence.Epoch != f.Epoch {
		return 0, false
	}
	return d.Revision, true
}
