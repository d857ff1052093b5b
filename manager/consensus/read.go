package consensus

import (
	"context"
	"fmt"

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

// ReadIndex returns an index such that a state which contains it contains every write acknowledged before the call, by
// this leader or an earlier one. Only the leader can give it (NotLeaderError); any node may then WaitApplied for it and
// read its own state. Waiting reads share one check of leadership.
func (n *Node) ReadIndex(ctx context.Context) (uint64, error) {
	if _, err := n.awaitServing(ctx); err != nil {
		return 0, err
	}
	r := &read{done: make(chan readAnswer, 1)}
	select {
	case n.reads <- r:
	default:
		return 0, fmt.Errorf("%w: %d reads wait", ErrBusy, len(n.reads))
	}
	select {
	case a := <-r.done:
		return a.index, a.err
	case <-ctx.Done():
		return 0, fmt.Errorf("waiting for a check of leadership: %w", ctx.Err())
	case <-n.done:
		return 0, ErrClosed
	}
}

// ReadBarrier returns when the leader's own state is one that a linearizable read may use.
func (n *Node) ReadBarrier(ctx context.Context) error {
	below, span := rpc.StartSpan(ctx, "raft read barrier")
	index, err := n.ReadIndex(below)
	if err == nil {
		err = n.WaitApplied(below, index)
	}
	rpc.EndSpan(ctx, span, err)
	return err
}

// verify answers reads, all that wait with one check.
func (n *Node) verify(ctx context.Context) error {
	waiting := make([]*read, 0, readQueue)
	c := newConfirmer(n)
	for {
		waiting = waiting[:0]
		select {
		case r := <-n.reads:
			waiting = append(waiting, r)
		case <-ctx.Done():
			return nil
		}
		for more := true; more && len(waiting) < readQueue; {
			select {
			case r := <-n.reads:
				waiting = append(waiting, r)
			default:
				more = false
			}
		}
		n.readChecks.Add(1)
		n.readsDone.Add(uint64(len(waiting)))
		a := n.check(ctx, c)
		for _, r := range waiting {
			r.done <- a
		}
	}
}

// check is the rule of linearizable reads: the index first, then the proof that nobody else had led until then.
func (n *Node) check(ctx context.Context, c *confirmer) readAnswer {
	n.mu.Lock()
	before := n.serving
	n.mu.Unlock()
	if before.term == 0 {
		return readAnswer{err: n.notLeader()}
	}
	index := max(before.began, n.acked.Load())
	if err := c.confirm(ctx, before); err != nil {
		return readAnswer{err: err}
	}
	return readAnswer{index: index}
}

// Barrier returns when everything that was committed before has been applied on this leader. It waits no longer than
// leadership lasts.
func (n *Node) Barrier() error {
	if err := n.raft.Barrier(proposeTimeout).Error(); err != nil {
		return n.outcome(err)
	}
	return nil
}
