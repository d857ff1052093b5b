package consensus

import (
	"fmt"
	"slices"

	"github.com/hashicorp/raft"
)

// Codes of the reasons why a node is not ready.
const (
	ReasonNoLeader   = "no_leader"
	ReasonTakingOver = "taking_over"
	ReasonSetUp      = "set_up_failed"
	ReasonRemoved    = "removed"
	ReasonDisk       = "disk"
)

// Reason is why a node is not ready: a code for programs and a text for people.
type Reason struct {
	Code   string `json:"code"`
	Detail string `json:"detail"`
}

// Reasons returns why this node is not ready to serve, as far as Raft and its disk are concerned; nil if it is ready.
func (n *Node) Reasons() (reasons []Reason) {
	add := func(code, format string, args ...any) {
		reasons = append(reasons, Reason{code, fmt.Sprintf(format, args...)})
	}
	for _, fault := range n.disk.state().Faults {
		add(ReasonDisk, "%s", fault)
	}
	members, err := n.Servers()
	if err == nil && len(members) > 0 && !slices.ContainsFunc(members, func(s Server) bool { return s.ID == n.ID() }) {
		add(ReasonRemoved, "this server (%s) is no longer a member of the cluster; delete its folder and start it again to "+
			"join as a new one", n.ID())
	}
	n.mu.Lock()
	serving, setUp := n.serving.term != 0, n.setUp
	n.mu.Unlock()
	leader := n.Leader()
	switch {
	case serving:
	case n.raft.State() == raft.Leader && setUp != nil:
		add(ReasonSetUp, "this manager was elected but cannot start its term: %v", setUp)
	case n.raft.State() == raft.Leader, leader.Known && leader.ID == n.ID():
		add(ReasonTakingOver, "this manager is taking over leadership")
	case !leader.Known:
		add(ReasonNoLeader, "this manager knows no leader at the moment")
	}
	return reasons
}
