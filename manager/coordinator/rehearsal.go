package coordinator

import (
	"bytes"
	"context"
	"fmt"
	"sync"

	"tidemark/errcode"
	"tidemark/manager/coordinator/core"
	"tidemark/statecontext"
)

// Rehearse returns a Coordinator that works on a copy of the state: it proposes nothing, sends no commands, and does
// not store the outcomes of requests. It queries KV as usual and places copies by the same load, so that its refusals
// and places are those of the real request until something else changes. The caller must call end when done; further
// calls do nothing. mostRehearsals may run at once, as each has a copy of the whole state. Errors wrap ErrNotLeading,
// ErrBusy, are a refusal during a restore, or come from the read barrier.
func (c *Coordinator) Rehearse(ctx context.Context) (r *Coordinator, end func(), err error) {
	l, err := c.leading()
	if err != nil {
		return nil, nil, err
	}
	select {
	case c.rehearsing <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, fmt.Errorf("%w: %d other dry runs are running: %w", core.ErrBusy, mostRehearsals, ctx.Err())
	}
	end = sync.OnceFunc(func() { <-c.rehearsing })
	defer func() {
		if err != nil {
			end()
		}
	}()
	if err := c.cfg.Consensus.ReadBarrier(ctx); err != nil {
		return nil, nil, err
	}
	if c.cfg.Consensus.State().Staging() != nil { // it is a part of the state: every request would be refused
		return nil, nil, &statecontext.Rejection{Code: errcode.Restoring, Message: "the cluster is being restored from a " +
			"backup: try again when it is over"}
	}
	private, err := cloned(c.cfg.Consensus.State())
	if err != nil {
		return nil, nil, err
	}
	cfg := c.cfg
	cfg.Consensus = &rehearsal{Consensus: c.cfg.Consensus, state: private, nowMS: c.cfg.Now().UnixMilli}
	return &Coordinator{cfg: cfg, current: l, rehearses: true}, end, nil
}

// State returns the newest state, of a rehearsal its own.
func (c *Coordinator) State() *statecontext.State { return c.cfg.Consensus.State() }

// cloned returns a state that shares nothing with s. Versions of a state share their unchanged parts, which is safe
// only in a single line of versions: a second line that begins at s could write into slices to which the first has
// appended.
func cloned(s *statecontext.State) (*statecontext.State, error) {
	var b bytes.Buffer
	if err := statecontext.WriteSnapshot(&b, s); err != nil {
		return nil, fmt.Errorf("copying the state for a dry run: %w", err)
	}
	private, err := statecontext.ReadSnapshot(&b)
	if err != nil {
		return nil, fmt.Errorf("copying the state for a dry run: %w", err)
	}
	return private, nil
}

// rehearsal is a Consensus of one node whose proposals have no lasting effect. It is used by one goroutine.
type rehearsal struct {
	Consensus
	state *statecontext.State
	nowMS func() int64
}

func (r *rehearsal) State() *statecontext.State { return r.state }

// Propose applies a command to the private state, without its request: a stored outcome would otherwise be returned
// instead of what would happen now.
func (r *rehearsal) Propose(_ context.Context, c statecontext.Command) (statecontext.Result, error) {
	c.TimeMS, c.WallMS, c.Request = r.state.TimeMS(), r.nowMS(), nil
	next, results, _ := statecontext.ApplyCommands(r.state, r.state.AppliedIndex()+1, []statecontext.Command{c})
	r.state = next
	return results[0], nil
}
