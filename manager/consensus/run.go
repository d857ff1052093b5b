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

// leadership is what Raft said last. Gains counts how often it was gained: two more means lost and regained.
type leadership struct {
	leader bool
	gains  uint64
}

// drain does nothing but take changes of leadership from Raft, which would wait for it.
func (n *Node) drain() {
	for {
		select {
		case leader := <-n.notify:
			n.mu.Lock()
			n.leads.leader = leader
			if leader {
				n.leads.gains++
			} else {
				n.setUp = nil
				n.serving = reign{} // at once: nothing more is proposed or read in that term
			}
			n.wake()
			n.mu.Unlock()
			n.signal()
		case <-n.notifyEnd:
			return
		}
	}
}

// signal makes the loop of lead look again.
func (n *Node) signal() {
	select {
	case n.gained <- struct{}{}:
	default:
	}
}

// duty is one term's leader loop at work.
type duty struct {
	gains  uint64
	cancel context.CancelFunc
	done   chan error // one slot
}

// maxPatience bounds the pause before a lone leader tries its set-up again.
const maxPatience = 10 * time.Second

// Run serves proposals and reads, and runs onLeader in every term that this node leads: after LeaderStarted is in the
// state, with a context that ends with the term. One call runs at a time; the next term's begins when it has returned.
// When it returns while the term lasts (a set-up that failed), leadership is handed on. Run returns when ctx ends or
// Close is called, nil in both cases.
func (n *Node) Run(ctx context.Context, onLeader func(ctx context.Context, term uint64) error) error {
	n.mu.Lock()
	if n.running {
		n.mu.Unlock()
		return fmt.Errorf("%w: Run was called before", ErrClosed)
	}
	n.running = true
	n.mu.Unlock()
	defer close(n.done)

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return n.propose(ctx) })
	g.Go(n.complete)
	g.Go(func() error { return n.verify(ctx) })
	g.Go(func() error {
		select {
		case <-n.stop:
			cancel()
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
	}
	return g.Wait()
}

// renew closes the connections of both directions now and then, each after the call that is on it: the next call opens
// a new one, and both sides show their certificates again.
func (n *Node) renew(ctx context.Context, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			n.trans.CloseStreams()
		case <-ctx.Done():
			return nil
		}
	}
}

// lead keeps one leader loop running while, and as often as, this node leads.
func (n *Node) lead(ctx context.Context, onLeader func(context.Context, uint64) error) error {
	var current *duty
	var ended chan error
	began, patience := uint64(0), n.cfg.Heartbeat
	retry := time.NewTimer(0)
	retry.Stop()
	defer retry.Stop()
	end := func() {
		if current != nil {
			n.finish(current)
			current, ended = nil, nil
		}
	}
	defer end()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.gained:
		case <-retry.C:
		case err := <-ended:
			current.cancel()
			current, ended = nil, nil
			n.resign()
			if err := n.handOn(err); err != nil { // there may be nobody else
				n.cfg.Logger.Warn("leadership cannot be handed on; trying again here", "error", err, "in", patience)
				retry.Reset(patience)
				patience = min(2*patience, maxPatience)
			}
			continue
		}
		n.mu.Lock()
		now := n.leads
		now.leader = now.leader && !n.stalled
		n.mu.Unlock()
		if current != nil && (!now.leader || now.gains != current.gains) {
			end()
		}
		if current == nil && now.leader {
			if now.gains != began {
				began, patience = now.gains, n.cfg.Heartbeat
			}
			current = n.begin(ctx, now.gains, onLeader)
			ended = current.done
		}
	}
}

// finish ends the leader loop and waits for it.
func (n *Node) finish(d *duty) {
	d.cancel()
	if err := <-d.done; err != nil && !errors.Is(err, context.Canceled) {
		n.cfg.Logger.Warn("the leader loop ended with an error", "error", err)
	}
	n.resign()
}

// handOn gives leadership, if this node still has it, to another one after the leader loop ended by itself with why.
func (n *Node) handOn(why error) error {
	if n.raft.State() != raft.Leader {
		return nil
	}
	n.mu.Lock()
	n.setUp = why
	n.mu.Unlock()
	n.cfg.Logger.Warn("the leader loop ended by itself; leadership is handed on", "error", why)
	return n.TransferLeadership()
}

// begin starts a leader loop.
func (n *Node) begin(ctx context.Context, gains uint64, onLeader func(context.Context, uint64) error) *duty {
	ctx, cancel := context.WithCancel(ctx)
	d := &duty{gains: gains, cancel: cancel, done: make(chan error, 1)}
	go func() {
		r, err := n.beginTerm()
		if err == nil && !n.serve(r, gains) {
			err = errTermLost
		}
		if err == nil {
			err = onLeader(ctx, r.term)
			if err == nil && ctx.Err() == nil {
				err = errors.New("the leader's duties returned while the term lasts")
			}
		}
		d.done <- err
	}()
	return d
}

// errTermLost is the end of a term that was over before it began.
var errTermLost = errors.New("leadership was lost while the term began")

// beginTerm writes LeaderStarted, the first command of the term, and returns the cluster its id if it has none.
func (n *Node) beginTerm() (reign, error) {
	term := n.raft.CurrentTerm()
	index, err := n.command(&statecontext.LeaderStarted{Term: term, Manager: n.self()})
	if err != nil {
		return reign{}, fmt.Errorf("begin of term %d: %w", term, err)
	}
	if n.fsm.State().ClusterID() == "" {
		var id [8]byte
		if _, err := rand.Read(id[:]); err != nil {
			return reign{}, err
		}
		epoch := max(1, uint64(max(0, n.cfg.Now().Unix())))
		if index, err = n.command(&statecontext.BootstrapCluster{ClusterID: hex.EncodeToString(id[:]), Epoch: epoch,
			FormatLevel: n.cfg.FormatLevel}); err != nil {
			return reign{}, fmt.Errorf("bootstrap of the cluster: %w", err)
		}
	}
	if n.raft.CurrentTerm() != term || n.raft.State() != raft.Leader {
		return reign{}, errTermLost
	}
	return reign{term: term, began: index, clock: n.clock.begin(n.fsm.State().TimeMS())}, nil
}

// command proposes one command outside the queue, which is closed until the term has begun. The state's time stays
// where it is: this node may not have applied all of the log yet.
func (n *Node) command(b statecontext.Body) (index uint64, err error) {
	data, err := n.encode(statecontext.Command{WallMS: n.cfg.Now().UnixMilli(), Body: b})
	if err != nil {
		return 0, err
	}
	f := n.raft.Apply(data, proposeTimeout)
	results, err := n.settle(f, 1)
	if err != nil {
		return 0, err
	}
	return f.Index(), results[0].Err()
}
