package consensus

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"tidemark/internal/rpc"
)

// read is a read that waits for a leadership check.
type read struct {
	done chan readAnswer // one slot
}

type readAnswer struct {
	index uint64
	err   error
}

// reads queues linearizable reads and answers them after a leadership check.
type reads struct {
	*base
	links   *links
	reigns  *reigns
	waiting chan *read
	// command is the index of the newest command in the log up to looked. Both belong to the goroutine of verify.
	command, looked uint64
	// answered counts the answered reads, checks the leadership checks made for them.
	answered, checks atomic.Uint64
}

// ReadIndex returns an index such that a state that contains it contains every write acknowledged before the call, by
// this leader or an earlier one, and everything that earlier reads on any node have shown. Only the leader can return
// it (NotLeaderError); any node may then call WaitApplied with it and read its own state. Waiting reads share one
// leadership check.
func (rd *reads) ReadIndex(ctx context.Context) (uint64, error) {
	if _, err := rd.reigns.awaitServing(ctx); err != nil {
		return 0, err
	}
	r := &read{done: make(chan readAnswer, 1)}
	select {
	case rd.waiting <- r:
	default:
		return 0, fmt.Errorf("%w: %d reads are waiting", ErrBusy, len(rd.waiting))
	}
	select {
	case a := <-r.done:
		return a.index, a.err
	case <-ctx.Done():
		return 0, fmt.Errorf("waiting for a check of leadership: %w", ctx.Err())
	case <-rd.done:
		return 0, ErrClosed
	}
}

// ReadBarrier waits until the leader's own state may serve a linearizable read.
func (rd *reads) ReadBarrier(ctx context.Context) error {
	below, span := rpc.StartSpan(ctx, "raft read barrier")
	index, err := rd.ReadIndex(below)
	if err == nil {
		err = rd.WaitApplied(below, index)
	}
	rpc.EndSpan(ctx, span, err)
	return err
}

// verify answers reads; all waiting reads share one check.
func (rd *reads) verify(ctx context.Context) error {
	waiting := make([]*read, 0, readQueue)
	c := newConfirmer(rd)
	for {
		waiting = waiting[:0]
		select {
		case r := <-rd.waiting:
			waiting = append(waiting, r)
		case <-ctx.Done():
			return nil
		}
		for more := true; more && len(waiting) < readQueue; {
			select {
			case r := <-rd.waiting:
				waiting = append(waiting, r)
			default:
				more = false
			}
		}
		rd.checks.Add(1)
		rd.answered.Add(uint64(len(waiting)))
		a := rd.check(ctx, c)
		for _, r := range waiting {
			r.done <- a
		}
	}
}

// check implements linearizable reads: it takes the index first and then proves that no other node had led until
// then.
func (rd *reads) check(ctx context.Context, c *confirmer) readAnswer {
	rd.reigns.mu.Lock()
	before := rd.reigns.serving
	rd.reigns.mu.Unlock()
	if before.term == 0 {
		return readAnswer{err: rd.notLeader()}
	}
	index, err := rd.committed(before.began)
	if lost := c.confirm(ctx, before); lost != nil {
		err = lost
	}
	return readAnswer{index: index, err: err}
}

// committed returns the index of the newest committed command, in a term whose first command is at began. A follower
// may have applied and shown that command before this node has. Entries without a command are skipped, since no state
// has their index. The entries examined were written in this term, and usually the only one is in the log's cache;
// none is examined twice.
func (rd *reads) committed(began uint64) (uint64, error) {
	commit := rd.raft.CommitIndex()
	newest, end := max(began, rd.command), max(began, rd.looked)
	for i := commit; i > end; i-- {
		var entry raft.Log
		err := rd.links.storage.logs.GetLog(i, &entry)
		if errors.Is(err, raft.ErrLogNotFound) { // compacted into a snapshot, as is all before it
			newest = max(newest, rd.fsm.State().AppliedIndex())
			break
		}
		if err != nil {
			return 0, fmt.Errorf("reading the commit index: %w", err)
		}
		if entry.Type == raft.LogCommand {
			newest = i
			break
		}
	}
	rd.command, rd.looked = newest, max(commit, rd.looked)
	return newest, nil
}

// Barrier waits until everything in this leader's log, and an entry of its own after it, is committed and applied
// here. It waits no longer than leadership lasts.
func (b *base) Barrier(ctx context.Context) error {
	b.activity.signal()
	return b.outcome(b.await(ctx, func() raft.Future { return b.raft.Barrier(proposeTimeout) }))
}
