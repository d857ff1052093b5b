package consensus

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
)

var (
	// ErrBusy is wrapped if too many requests are waiting; nothing was proposed. Retry after a moment.
	ErrBusy = errors.New("the leader is busy")
	// ErrUnknownOutcome is wrapped if a proposal may or may not take effect: it was passed to Raft, and then time ran
	// out or leadership was lost. Read the state, or propose again with the same request id.
	ErrUnknownOutcome = errors.New("outcome unknown")
	// ErrNotLeader is matched by every NotLeaderError.
	ErrNotLeader = errors.New("not the leader")
	// ErrClosed is wrapped if the node is stopping; nothing was proposed.
	ErrClosed = errors.New("the node is stopping")
	// ErrHasState is wrapped if a node that has a log or a snapshot is to bootstrap.
	ErrHasState = errors.New("the node already has Raft state")
	// ErrInUse is wrapped if another process has opened the store.
	ErrInUse = errors.New("the Raft store is in use")
	// ErrRemoved is wrapped if this server was removed from its cluster: it never takes part again.
	ErrRemoved = errors.New("this manager was removed from its cluster")
	// ErrStore is wrapped if the store cannot be opened or is damaged.
	ErrStore = errors.New("raft store")
	// ErrFormatTooOld is wrapped if a command needs a newer format level than the cluster's; nothing was proposed.
	ErrFormatTooOld = errors.New("the cluster's format level is too old for this")
	// ErrFormatTooNew is wrapped if the data folder belongs to a cluster whose format level this program does not
	// support.
	ErrFormatTooNew = errors.New("the data is of a newer version")
	// ErrDamaged is wrapped, beside ErrStore, if stored data is not what was written.
	ErrDamaged = errors.New("damaged")
	// ErrCommand is wrapped if a command may not be proposed; nothing was proposed.
	ErrCommand = errors.New("command refused before it was proposed")
)

// Leader is the leader as known to a node.
type Leader struct {
	ID    string // Raft server id
	Raft  string // host:port
	Known bool
}

// NotLeaderError reports that this node does not lead, and which node does. Nothing was proposed.
type NotLeaderError struct{ Leader Leader }

// Error names the leader, if it is known.
func (e *NotLeaderError) Error() string {
	if !e.Leader.Known {
		return "not the leader, and no leader is known at the moment"
	}
	return fmt.Sprintf("not the leader; the leader is %s at %s", e.Leader.ID, e.Leader.Raft)
}

// Is makes errors.Is(err, ErrNotLeader) true.
func (e *NotLeaderError) Is(target error) bool { return target == ErrNotLeader }

// notLeader returns a NotLeaderError with the present leader.
func (b *base) notLeader() error { return &NotLeaderError{Leader: b.Leader()} }

// outcome converts the error of a future into one of this package. If the library failed before it appended anything,
// the proposal certainly does not take effect; otherwise a later leader may still commit it.
func (b *base) outcome(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raft.ErrNotLeader):
		return b.notLeader()
	case errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return fmt.Errorf("leadership is being transferred: %w", b.notLeader())
	case errors.Is(err, raft.ErrEnqueueTimeout):
		return fmt.Errorf("%w: the log did not accept a proposal in time", ErrBusy)
	}
	return fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
}
