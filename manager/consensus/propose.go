package consensus

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"tidemark/internal/rpc"
	"tidemark/statecontext"
)

// proposals queues commands for the log and groups many of them into one entry.
type proposals struct {
	*base
	reigns  *reigns
	queue   chan *proposal
	entries chan *entry
	slots   chan struct{} // one for each entry in flight
}

// proposal is one command in the queue or in the log.
type proposal struct {
	command statecontext.Command
	size    int
	term    uint64 // the only term in which it may be proposed
	phase   atomic.Int32
	done    chan answer // one slot
}

// The phases of a proposal. The goroutine that moves it out of phaseQueued decides whether it is proposed.
const (
	phaseQueued int32 = iota
	phaseTaken        // by the proposer: from now on the outcome may be unknown
	phaseGivenUp
)

type answer struct {
	result statecontext.Result
	err    error
}

// entry is a group of proposals that form one log entry.
type entry struct {
	future    raft.ApplyFuture
	proposals []*proposal
}

// Propose replicates a command and returns its result; a rejection is part of the result, not an error. It stamps
// TimeMS and WallMS and, if ctx carries one, the principal (package rpc). The caller must not modify the body
// afterwards. NotLeaderError, ErrBusy, ErrCommand, ErrClosed, and the error of a context that ended before the
// command was taken mean that nothing was proposed; ErrUnknownOutcome means that the outcome is unknown.
func (q *proposals) Propose(ctx context.Context, command statecontext.Command) (statecontext.Result, error) {
	below, span := rpc.StartSpan(ctx, "raft propose")
	res, err := q.replicate(below, command)
	rpc.EndSpan(ctx, span, err)
	return res, err
}

func (q *proposals) replicate(ctx context.Context, command statecontext.Command) (statecontext.Result, error) {
	if by, ok := rpc.OnBehalf(ctx); ok && command.Request == nil {
		command.Request = &statecontext.Request{Principal: strings.ToValidUTF8(by[:min(len(by), statecontext.MaxKeyBytes)],
			"")}
	}
	size, err := q.vet(&command)
	if err != nil {
		return statecontext.Result{}, err
	}
	now, err := q.reigns.awaitServing(ctx)
	if err != nil {
		return statecontext.Result{}, err
	}
	command.TimeMS, command.WallMS = now.clock.stamp(), q.cfg.Now().UnixMilli()
	p := &proposal{command: command, size: size, term: now.term, done: make(chan answer, 1)}
	select {
	case q.queue <- p:
	default:
		return statecontext.Result{}, fmt.Errorf("%w: %d proposals are waiting", ErrBusy, len(q.queue))
	}
	select {
	case a := <-p.done:
		return a.result, a.err
	case <-ctx.Done():
		if p.phase.CompareAndSwap(phaseQueued, phaseGivenUp) {
			return statecontext.Result{}, fmt.Errorf("not proposed: %w", ctx.Err())
		}
	case <-q.done:
		if p.phase.CompareAndSwap(phaseQueued, phaseGivenUp) {
			return statecontext.Result{}, ErrClosed
		}
	}
	select { // already taken; the answer may be there
	case a := <-p.done:
		return a.result, a.err
	default:
		return statecontext.Result{}, fmt.Errorf("%w: Raft has not yet confirmed the command", ErrUnknownOutcome)
	}
}

// vet verifies that every node can decode the command: one that cannot be decoded would stop all nodes.
func (q *proposals) vet(c *statecontext.Command) (size int, err error) {
	if need, level := statecontext.RequiredFormat(c), q.fsm.State().FormatLevel(); need > level {
		return 0, fmt.Errorf("%w: the command needs format level %d, the cluster is at %d: when all managers run the new "+
			"version, run tidemark cluster finalize-upgrade",
			ErrFormatTooOld, need, level)
	}
	data, err := q.encode(*c)
	if err == nil && len(data) > batchBytes {
		err = fmt.Errorf("%d bytes; the limit is %d", len(data), batchBytes)
	}
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrCommand, err)
	}
	return len(data), nil
}

// encode encodes an entry and decodes it again: an entry that cannot be decoded would stop every node for ever.
func (b *base) encode(commands ...statecontext.Command) ([]byte, error) {
	data, err := statecontext.EncodeAs(b.cfg.Version, commands...)
	if err == nil {
		_, err = statecontext.DecodeUpTo(b.cfg.FormatLevel, data)
	}
	return data, err
}

// propose is the loop of the proposer, the only goroutine that passes commands to Raft, many at a time (group
// commit).
func (q *proposals) propose(ctx context.Context) error {
	defer close(q.entries)
	var left *proposal // did not fit into the previous entry
	for {
		first := left
		for first == nil {
			select {
			case first = <-q.queue:
			case <-ctx.Done():
				q.refuseQueued()
				return nil
			}
		}
		q.slots <- struct{}{} // wait for a slot first: the group grows meanwhile
		var group []*proposal
		group, left = q.gather(first)
		q.hand(group)
	}
}

// gather takes waiting proposals up to the bounds of one entry.
func (q *proposals) gather(first *proposal) (group []*proposal, left *proposal) {
	serving, _ := q.reigns.Serving()
	bytes := 0
	for p := first; ; {
		if bytes += p.size; len(group) > 0 && bytes > batchBytes {
			return group, p
		}
		if p.phase.CompareAndSwap(phaseQueued, phaseTaken) {
			if p.term == serving {
				group = append(group, p)
			} else {
				p.done <- answer{err: q.notLeader()}
			}
		}
		if len(group) >= batchCommands {
			return group, nil
		}
		select {
		case p = <-q.queue:
		default:
			return group, nil
		}
	}
}

// hand passes a group to Raft, or releases the slot.
func (q *proposals) hand(group []*proposal) {
	if len(group) == 0 {
		<-q.slots
		return
	}
	commands := make([]statecontext.Command, len(group))
	for i, p := range group {
		commands[i] = p.command
	}
	data, err := q.encode(commands...)
	if err != nil {
		for _, p := range group {
			p.done <- answer{err: fmt.Errorf("%w: %w", ErrCommand, err)}
		}
		<-q.slots
		return
	}
	q.activity.signal()
	q.entries <- &entry{future: q.raft.Apply(data, proposeTimeout), proposals: group}
}

// refuseQueued answers proposals left in the queue with ErrClosed.
func (q *proposals) refuseQueued() {
	for {
		select {
		case p := <-q.queue:
			if p.phase.CompareAndSwap(phaseQueued, phaseTaken) {
				p.done <- answer{err: ErrClosed}
			}
		default:
			return
		}
	}
}

// complete answers proposals in log order.
func (q *proposals) complete() error {
	for e := range q.entries {
		results, err := q.settle(context.Background(), e.future, len(e.proposals)) // ends no later than Raft
		<-q.slots
		for i, p := range e.proposals {
			if err != nil {
				p.done <- answer{err: err}
				continue
			}
			p.done <- answer{result: results[i]}
		}
	}
	return nil
}

// settle waits for an entry and returns the results of its commands.
func (q *proposals) settle(ctx context.Context, f raft.ApplyFuture, commands int) ([]statecontext.Result, error) {
	if err := q.await(ctx, func() raft.Future { return f }); err != nil {
		return nil, q.outcome(err)
	}
	switch response := f.Response().(type) {
	case []statecontext.Result:
		if len(response) == commands {
			return response, nil
		}
		return nil, fmt.Errorf("%w: the state machine gave %d results for %d "+
			"commands", ErrUnknownOutcome, len(response), commands)
	case error:
		return nil, fmt.Errorf("%w: %w", ErrUnknownOutcome, response)
	}
	return nil, fmt.Errorf("%w: the state machine gave no result", ErrUnknownOutcome)
}
