package consensus

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// memberTimeout bounds how long Raft may take to accept a change of members.
const memberTimeout = 5 * time.Second

// Servers gives the members, voters and others, and the index of the log entry that made them so.
func (n *Node) Servers() ([]Server, uint64, error) {
	f := n.raft.GetConfiguration()
	if err := f.Error(); err != nil {
		return nil, 0, fmt.Errorf("members: %w", err)
	}
	var all []Server
	for _, s := range f.Configuration().Servers {
		all = append(all, Server{ID: string(s.ID), Raft: string(s.Address), Voter: s.Suffrage == raft.Voter})
	}
	return all, f.Index(), nil
}

// AddNonvoter adds a server that receives the log and has no vote; the way in for every new one. previous, unless 0, is
// the index from Servers on which the decision was made.
func (n *Node) AddNonvoter(s Server, previous uint64) error {
	return n.member(n.raft.AddNonvoter(raft.ServerID(s.ID), raft.ServerAddress(s.Raft), previous, memberTimeout))
}

// AddVoter adds a voter, or makes one of a server that has caught up.
func (n *Node) AddVoter(s Server, previous uint64) error {
	return n.member(n.raft.AddVoter(raft.ServerID(s.ID), raft.ServerAddress(s.Raft), previous, memberTimeout))
}

// RemoveServer removes a server, a voter or another.
func (n *Node) RemoveServer(id string, previous uint64) error {
	return n.member(n.raft.RemoveServer(raft.ServerID(id), previous, memberTimeout))
}

func (n *Node) member(f raft.IndexFuture) error {
	if err := f.Error(); err != nil {
		return fmt.Errorf("change of members: %w", n.outcome(err))
	}
	return nil
}

// ErrNoOther is wrapped when there is no server that leadership could be handed to.
var ErrNoOther = errors.New("no other voter can lead now")

// TransferLeadership hands leadership to the voter that is furthest. It returns when that one leads or after an
// election timeout.
func (n *Node) TransferLeadership() error {
	if n.raft.State() != raft.Leader {
		return n.notLeader()
	}
	if err := n.raft.LeadershipTransfer().Error(); err != nil {
		return fmt.Errorf("%w: %w", ErrNoOther, err)
	}
	return nil
}
