package consensus

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// memberTimeout bounds how long Raft may take to accept a change of members.
const memberTimeout = 5 * time.Second

var (
	// ErrNoOther is wrapped when there is no server that leadership could be handed to.
	ErrNoOther = errors.New("no other voter can lead now")
	// ErrMembersChanged is wrapped when the members are not those on which the decision was made.
	ErrMembersChanged = errors.New("the members have changed meanwhile; decide again")
)

// members is how the servers of a cluster come together, and change.
type members struct {
	*base
	storage  *storage
	links    *links
	reigns   *reigns
	changing sync.Mutex               // held during a change of members
	sees     atomic.Pointer[[]string] // ids of the managers that Form found at its last look, itself included
}

// Servers returns the members, voters and others, in the order in which they came.
func (b *base) Servers() ([]Server, error) {
	f := b.raft.GetConfiguration()
	if err := f.Error(); err != nil {
		return nil, fmt.Errorf("members: %w", err)
	}
	var all []Server
	for _, s := range f.Configuration().Servers {
		all = append(all, Server{ID: string(s.ID), Raft: string(s.Address), Voter: s.Suffrage == raft.Voter})
	}
	return all, nil
}

// AddNonvoter adds a server that receives the log and has no vote; the way in for every new one. seen, unless nil, is
// what Servers gave when the decision was made: ErrMembersChanged when it is no longer so.
func (ms *members) AddNonvoter(s Server, seen []Server) error {
	return ms.member(seen, func() raft.IndexFuture {
		return ms.raft.AddNonvoter(raft.ServerID(s.ID), raft.ServerAddress(s.Raft), 0, memberTimeout)
	})
}

// AddVoter adds a voter, or makes one of a server that has caught up.
func (ms *members) AddVoter(s Server, seen []Server) error {
	return ms.member(seen, func() raft.IndexFuture {
		return ms.raft.AddVoter(raft.ServerID(s.ID), raft.ServerAddress(s.Raft), 0, memberTimeout)
	})
}

// RemoveServer removes a server, a voter or another. A leader may remove itself; it then steps down.
func (ms *members) RemoveServer(id string, seen []Server) error {
	return ms.member(seen, func() raft.IndexFuture { return ms.raft.RemoveServer(raft.ServerID(id), 0, memberTimeout) })
}

// member makes one change at a time. The library's own guard (prevIndex) cannot be used: it does not tell the index.
// Only a leader makes changes, and its configuration is the newest, so that a lock of this node is guard enough.
func (ms *members) member(seen []Server, change func() raft.IndexFuture) error {
	ms.changing.Lock()
	defer ms.changing.Unlock()
	if seen != nil {
		now, err := ms.Servers()
		if err != nil {
			return err
		}
		if !slices.Equal(now, seen) {
			return fmt.Errorf("%w: they are %v, the decision was made on %v", ErrMembersChanged, now, seen)
		}
	}
	ms.stirs.stir()
	if err := change().Error(); err != nil {
		if err = ms.outcome(err); errors.Is(err, ErrUnknownOutcome) {
			err = fmt.Errorf("%w: when a majority answers, tidemark cluster status shows whether it counts; if one is lost "+
				"for ever, tidemark cluster recover", err)
		}
		return fmt.Errorf("change of members: %w", err)
	}
	return nil
}

// TransferLeadershipTo hands leadership to one voter. It returns when this node no longer leads, or with ErrNoOther.
func (b *base) TransferLeadershipTo(s Server) error {
	if b.raft.State() != raft.Leader {
		return b.notLeader()
	}
	b.stirs.stir()
	if err := b.raft.LeadershipTransferToServer(raft.ServerID(s.ID), raft.ServerAddress(s.Raft)).Error(); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrNoOther, s.ID, err)
	}
	return nil
}

// TransferLeadership hands leadership to the voter that is furthest. It returns when this node no longer leads, or
// after an election timeout with ErrNoOther.
func (b *base) TransferLeadership() error {
	if b.raft.State() != raft.Leader {
		return b.notLeader()
	}
	b.stirs.stir()
	if err := b.raft.LeadershipTransfer().Error(); err != nil {
		return fmt.Errorf("%w: %w", ErrNoOther, err)
	}
	return nil
}
