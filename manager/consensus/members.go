package consensus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// memberTimeout bounds how long Raft may take to accept a change of members.
const memberTimeout = 5 * time.Second

var (
	// ErrNoOther is wrapped if there is no server to which leadership could be transferred.
	ErrNoOther = errors.New("no other voter can lead now")
	// ErrMembersChanged is wrapped if the members are not those for which the decision was made.
	ErrMembersChanged = errors.New("the members have changed meanwhile; repeat the request")
)

// members forms the cluster and changes its membership.
type members struct {
	*base
	storage  *storage
	links    *links
	reigns   *reigns
	changing chan struct{}            // capacity 1: held by the change of members in progress
	sees     atomic.Pointer[[]string] // ids of the managers that Form saw last, including itself
}

// Servers returns the members, voters and nonvoters, in the order of the configuration.
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

// AddNonvoter adds a server that receives the log and has no vote, which is how every new server enters. seen, unless
// nil, is the result of Servers for which the decision was made; if it has changed, the error is ErrMembersChanged.
// As with the other changes, if ctx ends first, ErrBusy means that nothing was done, ErrUnknownOutcome that Raft has
// the change.
func (ms *members) AddNonvoter(ctx context.Context, s Server, seen []Server) error {
	return ms.member(ctx, seen, func() raft.IndexFuture {
		return ms.raft.AddNonvoter(raft.ServerID(s.ID), raft.ServerAddress(s.Raft), 0, memberTimeout)
	})
}

// AddVoter adds a voter, or promotes a nonvoter that has caught up.
func (ms *members) AddVoter(ctx context.Context, s Server, seen []Server) error {
	return ms.member(ctx, seen, func() raft.IndexFuture {
		return ms.raft.AddVoter(raft.ServerID(s.ID), raft.ServerAddress(s.Raft), 0, memberTimeout)
	})
}

// RemoveServer removes a voter or nonvoter. A leader may remove itself; it then steps down.
func (ms *members) RemoveServer(ctx context.Context, id string, seen []Server) error {
	return ms.member(ctx, seen, func() raft.IndexFuture {
		return ms.raft.RemoveServer(raft.ServerID(id), 0, memberTimeout)
	})
}

// member makes one change at a time. The library's own guard (prevIndex) cannot be used, because the library does not
// expose the index. Only a leader makes changes, and its configuration is the newest, so a lock on this node is guard
// enough. The change holds it until Raft has decided, even if its caller no longer waits: otherwise the next change
// would be decided for the old members.
func (ms *members) member(ctx context.Context, seen []Server, change func() raft.IndexFuture) error {
	select {
	case ms.changing <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("%w: another change of members is not committed yet: %w", ErrBusy, ctx.Err())
	}
	if err := ms.unchanged(seen); err != nil {
		<-ms.changing
		return err
	}
	ms.activity.signal()
	done := make(chan error, 1)
	ms.links.asking.Go(func() {
		err := ms.await(context.Background(), func() raft.Future { return change() })
		if err == nil {
			ms.storage.noteCommitted(byMembers) // Raft does not pass it to the state machine
		}
		<-ms.changing
		done <- err
	})
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err = ms.outcome(err); err == nil {
		return nil
	}
	if errors.Is(err, ErrUnknownOutcome) {
		err = fmt.Errorf("%w: once a majority answers, tidemark cluster status shows whether the change took effect; if "+
			"the majority is lost permanently, tidemark cluster recover", err)
	}
	return fmt.Errorf("change of members: %w", err)
}

// unchanged rejects a decision that was made for members other than the present ones.
func (ms *members) unchanged(seen []Server) error {
	if seen == nil {
		return nil
	}
	now, err := ms.Servers()
	if err == nil && !slices.Equal(now, seen) {
		err = fmt.Errorf("%w: they are %v, the request was decided for %v", ErrMembersChanged, now, seen)
	}
	return err
}

// TransferLeadershipTo transfers leadership to one voter. It returns when this node no longer leads, or with
// ErrNoOther.
func (b *base) TransferLeadershipTo(ctx context.Context, s Server) error {
	err := b.transfer(ctx, func() raft.Future {
		return b.raft.LeadershipTransferToServer(raft.ServerID(s.ID), raft.ServerAddress(s.Raft))
	})
	if errors.Is(err, ErrNoOther) {
		return fmt.Errorf("to %s: %w", s.ID, err)
	}
	return err
}

// TransferLeadership transfers leadership to the most up-to-date voter. It returns when this node no longer leads, or
// after an election timeout with ErrNoOther.
func (b *base) TransferLeadership(ctx context.Context) error {
	return b.transfer(ctx, func() raft.Future { return b.raft.LeadershipTransfer() })
}

// transfer transfers leadership. The library gives the transfer one election timeout, unless the library waits for
// its disk: then the outcome is still unknown when transfer returns.
func (b *base) transfer(ctx context.Context, give func() raft.Future) error {
	if b.raft.State() != raft.Leader {
		return b.notLeader()
	}
	b.activity.signal()
	within, cancel := context.WithTimeout(ctx, transportTimeout(b.cfg.Heartbeat))
	defer cancel()
	switch err := b.await(within, give); {
	case err == nil:
		return nil
	case within.Err() != nil:
		return fmt.Errorf("%w: leadership is being transferred: %w", ErrUnknownOutcome, err)
	default:
		return fmt.Errorf("%w: %w", ErrNoOther, err)
	}
}
