package core

import (
	"fmt"

	"tidemark/index"
	"tidemark/wire"
)

// Identity is which node of which cluster one is, and whom it obeys. The zero value is of one that nobody has
// registered.
type Identity struct {
	ClusterID string       `json:"cluster_id"`
	Node      index.NodeID `json:"node"`
	Fence     wire.Fence   `json:"fence"` // highest seen; the counter counts within a run only
}

// Admit checks a command's fence; next is who the node is afterwards. store: that is to be stored before the command is
// obeyed, because a new leader speaks.
func (id Identity) Admit(f wire.Fence) (next Identity, store bool, err error) {
	highest, err := id.Fence.Admit(f)
	if err != nil {
		return id, false, err
	}
	if id.ClusterID != "" && f.ClusterID != id.ClusterID {
		return id, false, fmt.Errorf("%w: from %q, this one belongs to %q", wire.ErrForeignCluster, f.ClusterID,
			id.ClusterID)
	}
	old := id.Fence
	next = id
	next.Fence = highest
	return next, old.ClusterID != f.ClusterID || old.Epoch != f.Epoch || old.Term != f.Term, nil
}

// Registered takes over what a leader has assigned. store: it is news.
func (id Identity) Registered(r *wire.RegisterReply) (next Identity, store bool, err error) {
	if id.ClusterID != "" && id.ClusterID != r.ClusterID {
		return id, false, fmt.Errorf("%w: the managers are of cluster %q, this data folder belongs to %q",
			wire.ErrForeignCluster, r.ClusterID, id.ClusterID)
	}
	next = id
	next.ClusterID, next.Node = r.ClusterID, r.Node
	return next, next != id, nil
}

// Kept is what of it outlives the process.
func (id Identity) Kept() Identity {
	id.Fence.Counter = 0
	return id
}
