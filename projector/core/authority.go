package core

import (
	"tidemark/errcode"
	"tidemark/index"
	"tidemark/wire"
)

// Authority is whom a projector obeys. The zero value is of one that no manager has registered: it obeys nobody.
type Authority struct {
	Fence      wire.Fence // highest seen
	Registered bool
}

// Admit checks the fence of a command for a projector. asks: it only asks, and may come after others whatever its
// counter. next is whom the projector obeys afterwards. Errors are refusals, or wrap wire.ErrFenced or
// wire.ErrForeignCluster.
func (a Authority) Admit(id index.ProjectorID, f wire.Fence, asks bool) (next Authority, err error) {
	if !a.Registered {
		return a, errcode.Refuse(errcode.Unavailable, "projector %s has not registered with a manager yet; try again", id)
	}
	if asks && f.Epoch == a.Fence.Epoch && f.Term == a.Fence.Term {
		f.Counter = max(f.Counter, a.Fence.Counter)
	}
	highest, err := a.Fence.Admit(f)
	if err == nil && !asks {
		a.Fence = highest
	}
	return a, err
}

// Register takes over what a manager has answered: a projector that starts asks before it obeys.
func (a Authority) Register(r *wire.RegisterReply) Authority {
	if a.Fence.ClusterID == "" || a.Fence.Less(r.Fence) {
		a.Fence = r.Fence
	}
	a.Fence.ClusterID, a.Registered = r.ClusterID, true
	return a
}
