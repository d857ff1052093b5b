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

// base is what all parts of a node work with.
type base struct {
	cfg     Config
	id      raft.ServerID
	fsm     StateMachine
	clock   *seenClock
	stirs   *stirs
	raft    *raft.Raft                // nil until Open has ended
	started atomic.Pointer[raft.Raft] // raft, for connections that come in while Open is at work
	stop    chan struct{}             // closed by Close
	done    chan struct{}             // closed when Run has ended
	ended   chan struct{}             // closed when Raft has ended

	unanswered atomic.Int64  // questions that Raft has been given and has not answered
	replied    chan struct{} // capacity 1: it has answered one
}

// ID is this node's Raft server id.
func (b *base) ID() string { return string(b.id) }

// Addr is the address that the other nodes dial.
func (b *base) Addr() string { return b.cfg.Advertise }

// self is what this node registers as.
func (b *base) self() statecontext.Manager {
	return statecontext.Manager{ID: string(b.id), Name: b.cfg.Name, REST: b.cfg.REST, Raft: b.cfg.Advertise,
		FormatLevel: b.cfg.FormatLevel}
}

// Leader returns the leader that this node knows.
func (b *base) Leader() Leader {
	addr, id := b.raft.LeaderWithID()
	return Leader{ID: string(id), Raft: string(addr), Known: addr != ""}
}

// Term is Raft's present term.
func (b *base) Term() uint64 { return b.raft.CurrentTerm() }

// WaitApplied returns when the state contains the entry with this index.
func (b *base) WaitApplied(ctx context.Context, index uint64) error {
	below, span := rpc.StartSpan(ctx, "wait applied")
	err := b.fsm.Wait(below, index)
	rpc.EndSpan(ctx, span, err)
	return err
}

// State returns the newest state of this node.
func (b *base) State() *statecontext.State { return b.fsm.State() }

// StateTimeMS returns the state's time of now: what was stamped last, and what has passed here since that was seen.
func (b *base) StateTimeMS() int64 { return b.clock.stamp() }

// await waits for what Raft was given: for its end, that of Raft, as what is committed and not applied then it answers
// nobody, or that of ctx, whose error says nothing of what comes of it. give hands it to Raft, which may take a while.
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

// answerPatience bounds untilReplied: a leader that has lost its followers answers when its lease is over.
const answerPatience = time.Second

// untilReplied waits until Raft has answered what it was given: whom it has not answered when it ends it never does.
// What is committed is applied meanwhile, and whoever waits for it knows.
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

// Snapshot takes a state snapshot now; nothing new is no error.
func (b *base) Snapshot() error {
	if err := b.raft.Snapshot().Error(); err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return fmt.Errorf("state snapshot: %w", err)
	}
	return nil
}
