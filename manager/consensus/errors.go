package consensus

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
)

var (
	// ErrBusy is wrapped when too much waits already; nothing was proposed. Try again after a moment.
	ErrBusy = errors.New("the leader is busy")
	// ErrUnknownOutcome is wrapped when a proposal may or may not become part of the state: it was handed to Raft, and
	// time ran out or leadership was lost. Ask the state, or propose again under the same request id.
	ErrUnknownOutcome = errors.New("outcome unknown")
	// ErrNotLeader is what a NotLeaderError is.
	ErrNotLeader = errors.New("not the leader")
	// ErrClosed is wrapped when the node is stopping; nothing was proposed.
	ErrClosed = errors.New("the node is stopping")
	// ErrHasState is wrapped when a node that has a log or a snapshot is told to bootstrap.
	ErrHasState = errors.New("the node has Raft state already")
	// ErrInUse is wrapped when another process has the store open.
	ErrInUse = errors.New("the Raft store is in use")
	// ErrRemoved is wrapped when this server was removed from its cluster: it never takes part again.
	ErrRemoved = errors.New("this manager was removed from its cluster")
	// ErrStore is wrapped when the store cannot be opened or is damaged.
	ErrStore = errors.New("raft store")
	// ErrFormatTooOld is wrapped when a command needs a newer format level than the cluster's; nothing was proposed.
	ErrFormatTooOld = errors.New("the cluster's format level is too old for this")
	// ErrFormatTooNew is wrapped when the data folder is of a cluster whose format level this program does not know.
	ErrFormatTooNew = errors.New("the data is of a newer version")
	// ErrDamaged is wrapped, beside ErrStore, when what is stored is not what was written.
	ErrDamaged = errors.New("damaged")
	// ErrCommand is wrapped when a command is not one that may be proposed; nothing was proposed.
	ErrCommand = errors.New("command refused before it was proposed")
)

// Leader is where the leader is, as far as this node knows.
type Leader struct {
	ID    string // Raft server id
	Raft  string // host:port
	Known bool
}

// NotLeaderError says that this node cannot propose or read, and who may. Nothing was proposed.
type NotLeaderError struct{ Leader Leader }

// Error names the leader.
func (e *NotLeaderError) Error() string {
	if !e.Leader.Known {
		return "not the leader, and none is known at the moment"
	}
	return fmt.Sprintf("not the leader; it is %s at %s", e.Leader.ID, e.Leader.Raft)
}

// Is makes errors.Is(err, ErrNotLeader) hold.
func (e *NotLeaderError) Is(target error) bool { return target == ErrNotLeader }

// notLeader returns the error for now.
func (b *base) notLeader() error { return &NotLeaderError{Leader: b.Leader()} }

// outcome turns the error of a future into one of this package. Where the library answers before it appended anything,
// the proposal certainly did not happen; else it may still be committed by a later leader.
func (b *base) outcome(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raft.ErrNotLeader):
		return b.notLeader()
	case errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return fmt.Errorf("leadership is being handed on: %w", b.notLeader())
	case errors.Is(err, raft.ErrEnqueueTimeout):
		return fmt.Errorf("%w: the log did not take a proposal in time", ErrBusy)
	}
	return fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
}
