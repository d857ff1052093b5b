package core

import (
	"fmt"

	"tidemark/index"
	"tidemark/wire"
)

// Identity identifies the node and its cluster, and holds the fence of the leader it obeys. The zero value belongs to
// a node that is not registered.
type Identity struct {
	ClusterID string       `json:"cluster_id"`
	Node      index.NodeID `json:"node"`
	Fence     wire.Fence   `json:"fence"` // highest seen; its counter is valid within one run of the process only
}

// Admit checks the fence of a command to the process with this boot id, and returns the identity that the node has
// afterwards. If store is true, the caller must store next before it obeys the command, because the command comes from
// a new leader.
func (id Identity) Admit(boot string, f wire.Fence) (next Identity, store bool, err error) {
	highest, err := id.Fence.Admit(boot, f)
	if err != nil {
		return id, false, err
	}
	if id.ClusterID != "" && f.ClusterID != id.ClusterID {
		return id, false, fmt.Errorf("%w: the command is from cluster %q, this indexer belongs to "+
			"%q", wire.ErrForeignCluster, f.ClusterID,
			id.ClusterID)
	}
	old := id.Fence
	next = id
	next.Fence = highest
	return next, old.ClusterID != f.ClusterID || old.Epoch != f.Epoch || old.Term != f.Term, nil
}

// Registered returns the identity that a leader has assigned. store reports whether it differs from id.
func (id Identity) Registered(r *wire.RegisterReply) (next Identity, store bool, err error) {
	if id.ClusterID != "" && id.ClusterID != r.ClusterID {
		return id, false, fmt.Errorf("%w: the managers belong to cluster %q, this data folder to %q",
			wire.ErrForeignCluster, r.ClusterID, id.ClusterID)
	}
	next = id
	next.ClusterID, next.Node = r.ClusterID, r.Node
	return next, next != id, nil
}

// Kept returns the part of the identity that outlives the process.
func (id Identity) Kept() Identity {
	id.Fence.Counter = 0
	return id
}
