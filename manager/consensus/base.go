package consensus

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"tidemark/internal/rpc"
	"tidemark/statecontext"
)

// base holds what all parts of a node share.
type base struct {
	cfg      Config
	id       raft.ServerID
	fsm      StateMachine
	clock    *seenClock
	activity *activity
	raft     *raft.Raft                // nil until Open has finished
	started  atomic.Pointer[raft.Raft] // raft, for connections accepted while Open still runs
	stop     chan struct{}             // closed by Close
	done     chan struct{}             // closed when Run has returned
	ended    chan struct{}             // closed when Raft has shut down

	unanswered atomic.Int64  // calls to Raft whose future has not resolved
	replied    chan struct{} // capacity 1: signals that a future has resolved
}

// ID returns this node's Raft server id.
func (b *base) ID() string { return string(b.id) }

// Addr returns the address that the other nodes dial.
func (b *base) Addr() string { return b.cfg.Advertise }

// self returns the manager that this node registers.
func (b *base) self() statecontext.Manager {
	return statecontext.Manager{ID: string(b.id), Name: b.cfg.Name, REST: b.cfg.REST, Raft: b.cfg.Advertise,
		FormatLevel: b.cfg.FormatLevel}
}

// Leader returns the leader as known to this node.
func (b *base) Leader() Leader {
	addr, id := b.raft.LeaderWithID()
	return Leader{ID: string(id), Raft: string(addr), Known: addr != ""}
}

// Term returns Raft's current term.
func (b *base) Term() uint64 { return b.raft.CurrentTerm() }

// WaitApplied waits until the state contains the entry with this index, or ctx ends.
func (b *base) WaitApplied(ctx context.Context, index uint64) error {
	below, span := rpc.StartSpan(ctx, "wait applied")
	err := b.fsm.Wait(below, index)
	rpc.EndSpan(ctx, span, err)
	return err
}

// State returns the newest state of this node.
func (b *base) State() *statecontext.State { return b.fsm.State() }

// StateTimeMS returns the present state time: the newest stamp plus the time since this node saw it.
func (b *base) StateTimeMS() int64 { return b.clock.stamp() }

// await calls give, which passes something to Raft and may block, and waits until the future resolves, Raft has shut
// down (it resolves no futures of entries that are committed but not applied by then), or ctx ends. In the last case
// the error does not say whether the call takes effect.
func (b *base) await(ctx context.Context, give func() raft.Future) error {
	done := make(chan error, 1)
	b.unanswered.Add(1)
	go func() {
		done <- give().Error()
		b.unanswered.Add(-1)
		select {
		case b.replied <- struct{}{}:
		default:
		}
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-b.ended:
	}
	select {
	case err := <-done:
		return err
	default:
		return raft.ErrRaftShutdown
	}
}

// answerPatience bounds untilReplied: a leader without followers resolves its futures when its lease expires.
const answerPatience = time.Second

// untilReplied waits until Raft has resolved the pending futures, since after its shutdown it resolves none.
// Committed entries are applied meanwhile, so their callers learn the outcome.
func (b *base) untilReplied() {
	late := time.NewTimer(answerPatience)
	defer late.Stop()
	for b.unanswered.Load() > 0 {
		select {
		case <-b.replied:
		case <-late.C:
			return
		}
	}
}

// Snapshot takes a state snapshot now. It returns nil if there is nothing new to snapshot.
func (b *base) Snapshot() error {
	if err := b.raft.Snapshot().Error(); err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return fmt.Errorf("state snapshot: %w", err)
	}
	return nil
}
