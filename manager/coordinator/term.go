package coordinator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"tidemark/manager/coordinator/core"
	"tidemark/wire"
)

// term drives a Leader: it passes inputs and the time to it, one after the other, and carries out its effects, each
// that blocks in a goroutine of its own.
type term struct {
	cfg    Config
	number uint64
	log    hclog.Logger
	gate   *Gateway
	inbox  chan core.Input
	ended  chan struct{} // closed when the loop has ended

	split func(context.Context, core.BeginSplit) *core.SplitTried
	// step, if not nil, takes posted inputs at once: the term has no loop.
	step func(core.Input)

	// used by the loop only
	ctx   context.Context //nolint:containedctx // of the term: what is begun for it ends with it
	group *errgroup.Group
	pace  *time.Timer // fires when a promotion that scans wait for may be made
	lanes map[core.Receiver]*lanes

	mu   sync.Mutex
	left []*core.Stabilize // scans that no longer wait
}

// lanes holds the lanes of one receiver.
type lanes struct {
	of     map[core.Lane]*lane
	cancel context.CancelFunc
}

// Driven is a term whose effects its caller carries out.
type Driven struct {
	Leader *core.Leader
	Gate   *Gateway
	// Split carries out BeginSplit, and returns the input for the Leader.
	Split func(context.Context, core.BeginSplit) *core.SplitTried
}

// Begin begins a term whose effects its caller carries out in place of loop, and returns the Leader's first effects.
// Split passes its requests to the Leader to step. It is for simulations, which have neither goroutines nor a clock.
func (c *Coordinator) Begin(number uint64, step func(core.Input)) (*Driven, []core.Effect) {
	t := c.newTerm(number)
	t.step = step
	l, effects := core.New(t.cfg.Settings, t.gate.self, t.log, t.cfg.now())
	return &Driven{Leader: l, Gate: t.gate, Split: t.split}, effects
}

// now returns the time and the state for a step.
func (c *Config) now() core.Now {
	return core.Now{MS: c.nowMS(), WallMS: c.Now().UnixMilli(), StateMS: c.Consensus.StateTimeMS(),
		State: c.Consensus.State()}
}

// newTerm returns a term that begins automatic splits through c.
func (c *Coordinator) newTerm(number uint64) *term {
	t := newTerm(c.cfg, number)
	t.split = func(ctx context.Context, e core.BeginSplit) *core.SplitTried { return c.splitByItself(ctx, t, &e) }
	return t
}

// newTerm returns a term that answers requests once its loop runs.
func newTerm(cfg Config, number uint64) *term {
	log := cfg.Logger.With("term", number)
	self := wire.Leader{ID: cfg.Consensus.ID(), REST: cfg.REST, Term: number}
	return &term{cfg: cfg, number: number, log: log, gate: newGateway(cfg, self, log),
		inbox: make(chan core.Input, inboxLength), ended: make(chan struct{}), lanes: map[core.Receiver]*lanes{}}
}

// run runs the duties until ctx ends, and returns when all its goroutines have ended.
func (t *term) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	t.group, t.ctx = group, ctx
	group.Go(func() error {
		defer close(t.ended)
		defer t.gate.traces.endFollowed()
		return t.loop()
	})
	return group.Wait()
}

// loop passes inputs and ticks to the Leader.
func (t *term) loop() error {
	changes := t.cfg.Machine.Subscribe()
	defer changes.Close()
	clock := time.NewTicker(tick)
	defer clock.Stop()
	t.pace = time.NewTimer(tick)
	defer t.pace.Stop()
	l, effects := core.New(t.cfg.Settings, t.gate.self, t.log, t.cfg.now())
	for {
		if t.carryOut(effects) {
			return errRestored
		}
		var in core.Input
		select {
		case <-t.ctx.Done():
			return nil
		case in = <-t.inbox:
		case <-changes.C():
			in = core.Changed{}
		case <-clock.C:
			in = core.Tick{Left: t.takeLeft()}
		case <-t.pace.C:
			in = core.Woken{}
		}
		effects = l.Step(t.cfg.now(), in)
	}
}

// carryOut starts carrying out effects. It reports whether the Leader must be created anew.
func (t *term) carryOut(effects []core.Effect) (anew bool) {
	for _, e := range effects {
		switch e := e.(type) {
		case core.Open:
			t.close(e.Instead)
			t.gate.Do(e)
			t.open(e)
		case core.Close:
			t.close(e.To)
			t.gate.Do(e)
		case core.Send:
			if r := t.lanes[e.To]; r != nil {
				r.of[e.Lane].put(e)
			}
		case core.Propose:
			t.group.Go(func() error {
				_ = t.post(t.ctx, t.gate.Propose(t.ctx, e)) // an error means that the term is over
				return nil
			})
		case core.BeginSplit:
			t.group.Go(func() error {
				_ = t.post(t.ctx, t.split(t.ctx, e)) // an error means that the term is over
				return nil
			})
		case core.PlanRepair:
			t.group.Go(func() error {
				_ = t.post(t.ctx, e.Plan()) // an error means that the term is over
				return nil
			})
		case core.Wake:
			t.pace.Reset(e.After)
		case core.Anew:
			anew = true
		default:
			t.gate.Do(e)
		}
	}
	return anew
}

// open starts a receiver's lanes, which end with the receiver or the term.
func (t *term) open(o core.Open) {
	ctx, cancel := context.WithCancel(t.ctx)
	r := &lanes{of: map[core.Lane]*lane{}, cancel: cancel}
	for _, name := range o.Lanes() {
		workers := 1
		if name == core.Queries || name == core.Commands {
			workers = sendsAtOnce
		}
		q := newLane(workers)
		r.of[name] = q
		for range workers {
			t.begin(func() {
				q.run(ctx, func(m core.Send) {
					if in := t.gate.Send(ctx, m); in != nil {
						_ = t.post(ctx, in) // else the receiver is closed
					}
				}, t.begin)
			})
		}
	}
	t.lanes[o.To] = r
}

// begin starts a goroutine that the term waits for.
func (t *term) begin(do func()) {
	t.group.Go(func() error {
		do()
		return nil
	})
}

func (t *term) close(id core.Receiver) {
	if r := t.lanes[id]; r != nil {
		r.cancel()
		delete(t.lanes, id)
	}
}

// post passes an input to the loop; it waits for room until the term or ctx ends.
func (t *term) post(ctx context.Context, in core.Input) error {
	if t.step != nil {
		t.step(in)
		return nil
	}
	select {
	case t.inbox <- in:
		return nil
	case <-t.ended:
		return ErrNotLeading
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", core.ErrBusy, ctx.Err())
	}
}

// await waits for the answer to a posted request. Errors wrap ErrNotLeading or ctx's error.
func await[T any](ctx context.Context, t *term, what string, reply chan T) (v T, err error) {
	select {
	case v = <-reply:
		return v, nil
	case <-t.ended:
		return v, ErrNotLeading
	case <-ctx.Done():
		return v, fmt.Errorf("%s: %w", what, ctx.Err())
	}
}

// query posts a request and waits for its answer. Errors wrap ErrNotLeading, ErrBusy or ctx's error.
func query[T any](ctx context.Context, t *term, what string, in core.Input, reply chan T) (v T, err error) {
	if err := t.post(ctx, in); err != nil {
		return v, err
	}
	return await(ctx, t, what, reply)
}

// leave removes a scan that no longer waits, with the next tick.
func (t *term) leave(s *core.Stabilize) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.left = append(t.left, s)
}

func (t *term) takeLeft() []*core.Stabilize {
	t.mu.Lock()
	defer t.mu.Unlock()
	left := t.left
	t.left = nil
	return left
}

// errRestored is returned by a term's loop when the epoch has risen: a new Leader starts from the restored state.
var errRestored = errors.New("the state was restored from a backup")
