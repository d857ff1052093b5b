package consensus

import (
	"context"
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
	links     *links
	reigns    *reigns
	proposals *proposals
	waiting   chan *read
	// answered counts reads that were answered, checks the checks of leadership for them.
	answered, checks atomic.Uint64
}

// ReadIndex returns an index such that a state which contains it contains every write acknowledged before the call, by
// this leader or an earlier one. Only the leader can give it (NotLeaderError); any node may then WaitApplied for it and
// read its own state. Waiting reads share one check of leadership.
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
	index := max(before.began, rd.proposals.acked.Load())
	if err := c.confirm(ctx, before); err != nil {
		return readAnswer{err: err}
	}
	return readAnswer{index: index}
}

// Barrier returns when all that this leader's log had before, as something of its own after it, is committed and
// applied here. It waits no longer than leadership lasts.
func (b *base) Barrier(ctx context.Context) error {
	b.stirs.stir()
	return b.outcome(b.await(ctx, func() raft.Future { return b.raft.Barrier(proposeTimeout) }))
}
