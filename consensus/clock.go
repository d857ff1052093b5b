package consensus

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"tidemark/statecontext"
)

// seenClock is what this node knows of the state's time as it applies the log, also while others lead.
type seenClock struct {
	began time.Time // where its steady clock begins
	own   uint64    // index up to which the log was on this node's disk when it was opened

	mu    sync.Mutex
	clock statecontext.Clock
}

// openClock begins to look; the store is open and Raft is not.
func (n *Node) openClock() error {
	n.clock = &seenClock{began: time.Now()}
	last, err := n.logs.LastIndex()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStore, err)
	}
	snaps, err := n.snaps.List()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStore, err)
	}
	for _, s := range snaps {
		last = max(last, s.Index)
	}
	n.clock.own = last
	return nil
}

// steadyMS is the node's clock for ages: it begins with the node, does not step, and no wall clock moves it.
func (c *seenClock) steadyMS() int64 { return time.Since(c.began).Milliseconds() }

func (c *seenClock) saw(s *statecontext.State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clock.Saw(s.TimeMS(), c.steadyMS(), s.AppliedIndex() > c.own)
}

// begin gives the clock of a term; stateMS is the state's time after its first command.
func (c *seenClock) begin(stateMS int64, wall time.Time) *termClock {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &termClock{began: c.began, clock: c.clock.Begin(stateMS, c.steadyMS(), wall.UnixMilli())}
}

// termClock stamps the commands of a term.
type termClock struct {
	began time.Time

	mu    sync.Mutex
	clock statecontext.Clock
}

func (c *termClock) stamp(wall time.Time) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.clock.Stamp(time.Since(c.began).Milliseconds(), wall.UnixMilli())
}

// timed is the state machine as Raft sees it: each change of the state's time is noted as it is applied.
type timed struct {
	StateMachine
	clock *seenClock
}

// Apply implements raft.FSM.
func (t timed) Apply(entry *raft.Log) any {
	answer := t.StateMachine.Apply(entry)
	t.clock.saw(t.State())
	return answer
}

// Restore implements raft.FSM.
func (t timed) Restore(r io.ReadCloser) error {
	err := t.StateMachine.Restore(r)
	if err == nil {
		t.clock.saw(t.State())
	}
	return err
}
