package consensus

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"tidemark/internal/rpc"
)

// read waits for a leadership check.
type read struct {
	done chan readAnswer // one slot
}

type readAnswer struct {
	index uint64
	err   error
}

// reads are linearizable reads that wait for a check of leadership.
type reads struct {
	*base
	links   *links
	reigns  *reigns
	waiting chan *read
	// command is the newest command of the log up to looked; both belong to the goroutine of verify.
	command, looked uint64
	// answered counts reads that were answered, checks the checks of leadership for them.
	answered, checks atomic.Uint64
}

// ReadIndex returns an index such that a state which contains it contains every write acknowledged before the call, by
// this leader or an earlier one, and all that a read on any node has shown before. Only the leader can give it
// (NotLeaderError); any node may then WaitApplied for it and read its own state. Waiting reads share one check of
// leadership.
func (rd *reads) ReadIndex(ctx context.Context) (uint64, error) {
	if _, err := rd.reigns.awaitServing(ctx); err != nil {
		return 0, err
	}
	r := &read{done: make(chan readAnswer, 1)}
	select {
	case rd.waiting <- r:
	default:
		return 0, fmt.Errorf("%w: %d reads wait", ErrBusy, len(rd.waiting))
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

// ReadBarrier returns when the leader's own state is one that a linearizable read may use.
func (rd *reads) ReadBarrier(ctx context.Context) error {
	below, span := rpc.StartSpan(ctx, "raft read barrier")
	index, err := rd.ReadIndex(below)
	if err == nil {
		err = rd.WaitApplied(below, index)
	}
	rpc.EndSpan(ctx, span, err)
	return err
}

// verify answers reads, all that wait with one check.
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

// check is the rule of linearizable reads: the index first, then the proof that nobody else had led until then.
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

// committed returns the index of the newest command that is committed, in a term that began with the one at began: a
// follower may have applied it, and shown it, before this node has. No state has the index of an entry without a
// command. What is looked at was written in this term, and is most often one entry, which the log's cache has; none is
// looked at twice.
func (rd *reads) committed(began uint64) (uint64, error) {
	commit := rd.raft.CommitIndex()
	newest, end := max(began, rd.command), max(began, rd.looked)
	for i := commit; i > end; i-- {
		var entry raft.Log
		err := rd.links.storage.logs.GetLog(i, &entry)
		if errors.Is(err, raft.ErrLogNotFound) { // as a state snapshot of this node has it, and so all before it
			newest = max(newest, rd.fsm.State().AppliedIndex())
			break
		}
		if err != nil {
			return 0, fmt.Errorf("what is committed: %w", err)
		}
		if entry.Type == raft.LogCommand {
			newest = i
			break
		}
	}
	rd.command, rd.looked = newest, max(commit, rd.looked)
	return newest, nil
}

// Barrier returns when all that this leader's log had before, as something of its own after it, is committed and
// applied here. It waits no longer than leadership lasts.
func (b *base) Barrier(ctx context.Context) error {
	b.stirs.stir()
	return b.outcome(b.await(ctx, func() raft.Future { return b.raft.Barrier(proposeTimeout) }))
}
