package core

import (
	"tidemark/errcode"
	"tidemark/index"
	"tidemark/wire"
)

// Authority is the highest fence a projector has admitted. With the zero value, no manager has registered the
// projector yet, and it refuses every command.
type Authority struct {
	Fence      wire.Fence // highest seen
	Registered bool
}

// Admit checks the fence of a command to the process of a projector with this boot id. reads is true for a read-only
// request: its counter may be lower than that of an earlier command of the same term. Admit returns the authority to
// use from now on. Errors are refusals, or wrap wire.ErrFenced or wire.ErrForeignCluster.
func (a Authority) Admit(id index.ProjectorID, boot string, f wire.Fence, reads bool) (next Authority, err error) {
	if err := wire.MeantFor(f.Boot, boot); err != nil { // also before it has registered, as when its id is in use
		return a, err
	}
	if !a.Registered {
		return a, errcode.Refuse(errcode.Unavailable, "projector %s has not registered with a manager yet; try again", id)
	}
	if reads && f.Epoch == a.Fence.Epoch && f.Term == a.Fence.Term {
		f.Counter = max(f.Counter, a.Fence.Counter)
	}
	highest, err := a.Fence.Admit(boot, f)
	if err == nil && !reads {
		a.Fence = highest
	}
	return a, err
}

// Register returns the authority after a manager's reply: a projector registers at startup before it obeys any
// command.
func (a Authority) Register(r *wire.RegisterReply) Authority {
	if a.Fence.ClusterID == "" || a.Fence.Less(r.Fence) {
		a.Fence = r.Fence
	}
	a.Fence.ClusterID, a.Registered = r.ClusterID, true
	return a
}
