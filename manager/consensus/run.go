package consensus

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sync/errgroup"

	"tidemark/internal/tlsconf"
	"tidemark/statecontext"
)

// terms runs the leader's duties, one term after another.
type terms struct {
	*base
	storage   *storage
	reigns    *reigns
	proposals *proposals
}

// duty is the running leader loop of one term.
type duty struct {
	gains  uint64
	cancel context.CancelFunc
	done   chan error // one slot
}

const (
	// maxPatience bounds the pause before a leader that has no successor retries its set-up.
	maxPatience = 10 * time.Second
	// endPatience bounds the wait for entries in flight when Run ends: if the disks of a majority hang while their
	// servers still answer, the entries never complete.
	endPatience = 5 * time.Second
)

// Run serves proposals and reads. In every term that this node leads, once LeaderStarted is in the state, it calls
// onLeader with a context that ends with the term. Calls never overlap: the next term's begins after the previous one
// has returned. If onLeader returns while the term lasts (a failed set-up), leadership is transferred. Run returns
// when ctx ends or Close is called, nil in both cases, and ErrContradicted when a leader lacks what was committed here.
func (n *Node) Run(ctx context.Context, onLeader func(ctx context.Context, term uint64) error) error {
	if !n.running.CompareAndSwap(false, true) {
		return fmt.Errorf("%w: Run was called before", ErrClosed)
	}
	defer close(n.done)

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return n.propose(ctx) })
	completed := make(chan struct{})
	g.Go(func() error {
		defer close(completed)
		return n.complete()
	})
	g.Go(func() error {
		<-ctx.Done()
		n.endEntries(completed)
		return nil
	})
	g.Go(func() error { return n.verify(ctx) })
	g.Go(func() error {
		select {
		case <-n.stop:
			cancel()
		case err := <-n.contradictions.ended:
			return err
		case <-ctx.Done():
		}
		return nil
	})
	g.Go(func() error { return n.keepCluster(ctx) })
	g.Go(func() error { return n.watchSpace(ctx) })
	g.Go(func() error { return n.watchDisk(ctx) })
	g.Go(func() error { return n.lead(ctx, onLeader) })
	if n.cfg.TLS != nil {
		g.Go(func() error { return n.renew(ctx, tlsconf.RenewAfter) })
		g.Go(func() error { return n.recheck(ctx, recheckEvery) })
	}
	return g.Wait()
}

// endEntries waits up to endPatience for entries in flight to complete, then shuts Raft down: the outcome of the
// remaining ones is unknown to their callers.
func (n *Node) endEntries(completed <-chan struct{}) {
	late := time.NewTimer(endPatience)
	defer late.Stop()
	select {
	case <-completed:
	case <-late.C:
		n.cfg.Logger.Warn("log entries are still not committed; no longer waiting for them", "for", endPatience)
		_ = n.end() // Close returns its error
	}
}

// lead runs one leader loop whenever this node leads.
func (t *terms) lead(ctx context.Context, onLeader func(context.Context, uint64) error) error {
	var current *duty
	var ended chan error
	began, patience := uint64(0), t.cfg.Heartbeat
	retry := time.NewTimer(0)
	retry.Stop()
	defer retry.Stop()
	end := func() {
		if current != nil {
			t.finish(current)
			current, ended = nil, nil
		}
	}
	defer end()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.reigns.gained:
		case <-retry.C:
		case err := <-ended:
			current.cancel()
			current, ended = nil, nil
			t.reigns.resign()
			if err := t.handOn(ctx, err); err != nil { // there may be no other voter
				t.cfg.Logger.Warn("leadership cannot be transferred; starting the term again here", "error", err, "in", patience)
				retry.Reset(patience)
				patience = min(2*patience, maxPatience)
			}
			continue
		}
		t.reigns.mu.Lock()
		now := t.reigns.leads
		now.leader = now.leader && !t.reigns.stalled
		t.reigns.mu.Unlock()
		if current != nil && (!now.leader || now.gains != current.gains) {
			end()
		}
		if current == nil && now.leader {
			if now.gains != began {
				began, patience = now.gains, t.cfg.Heartbeat
			}
			current = t.begin(ctx, now.gains, onLeader)
			ended = current.done
		}
	}
}

// finish cancels the leader loop and waits for it.
func (t *terms) finish(d *duty) {
	d.cancel()
	if err := <-d.done; err != nil && !errors.Is(err, context.Canceled) {
		t.cfg.Logger.Warn("leader loop failed", "error", err)
	}
	t.reigns.resign()
}

// handOn transfers leadership, if this node still has it, after the leader loop ended by itself with the error why.
func (t *terms) handOn(ctx context.Context, why error) error {
	if t.raft.State() != raft.Leader {
		return nil
	}
	t.reigns.mu.Lock()
	t.reigns.setUp = why
	t.reigns.mu.Unlock()
	t.cfg.Logger.Warn("leader loop ended early; transferring leadership", "error", why)
	return t.TransferLeadership(ctx)
}

// begin starts a leader loop.
func (t *terms) begin(ctx context.Context, gains uint64, onLeader func(context.Context, uint64) error) *duty {
	ctx, cancel := context.WithCancel(ctx)
	d := &duty{gains: gains, cancel: cancel, done: make(chan error, 1)}
	go func() {
		r, err := t.beginTerm(ctx)
		if err == nil && !t.reigns.serve(r, gains) {
			err = errTermLost
		}
		if err == nil {
			err = onLeader(ctx, r.term)
			if err == nil && ctx.Err() == nil {
				err = errors.New("the leader loop returned during its term")
			}
		}
		d.done <- err
	}()
	return d
}

// errTermLost is returned for a term that ended before it began.
var errTermLost = errors.New("leadership was lost at the start of the term")

// beginTerm proposes LeaderStarted, the first command of the term, and BootstrapCluster with a new id if the cluster
// has none.
func (t *terms) beginTerm(ctx context.Context) (reign, error) {
	term := t.raft.CurrentTerm()
	index, err := t.proposals.command(ctx, &statecontext.LeaderStarted{Term: term, Manager: t.self()})
	if err != nil {
		return reign{}, fmt.Errorf("starting term %d: %w", term, err)
	}
	if t.fsm.State().ClusterID() == "" {
		var id [8]byte
		if _, err := rand.Read(id[:]); err != nil {
			return reign{}, err
		}
		epoch := max(1, uint64(max(0, t.cfg.Now().Unix())))
		if index, err = t.proposals.command(ctx, &statecontext.BootstrapCluster{ClusterID: hex.EncodeToString(id[:]),
			Epoch: epoch, FormatLevel: t.cfg.FormatLevel}); err != nil {
			return reign{}, fmt.Errorf("bootstrap of the cluster: %w", err)
		}
	}
	if t.raft.CurrentTerm() != term || t.raft.State() != raft.Leader {
		return reign{}, errTermLost
	}
	return reign{term: term, began: index, clock: t.clock.begin(t.fsm.State().TimeMS())}, nil
}

// command proposes one command outside the queue, which is closed until the term has begun. It does not advance the
// state time: this node may not have applied all of the log yet.
func (q *proposals) command(ctx context.Context, b statecontext.Body) (index uint64, err error) {
	data, err := q.encode(statecontext.Command{WallMS: q.cfg.Now().UnixMilli(), Body: b})
	if err != nil {
		return 0, err
	}
	q.activity.signal()
	f := q.raft.Apply(data, proposeTimeout)
	results, err := q.settle(ctx, f, 1)
	if err != nil {
		return 0, err
	}
	return f.Index(), results[0].Err()
}
