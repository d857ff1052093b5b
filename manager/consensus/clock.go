package consensus

import (
	"io"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"tidemark/statecontext"
)

// seenClock is what this node knows of the state's time as it applies the log, also while others lead.
type seenClock struct {
	began time.Time // where its steady clock begins

	mu    sync.Mutex
	clock statecontext.Clock
}

// steadyMS is the node's clock for ages: it begins with the node, does not step, and no wall clock moves it.
func (c *seenClock) steadyMS() int64 { return time.Since(c.began).Milliseconds() }

func (c *seenClock) saw(s *statecontext.State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clock.Saw(s.TimeMS(), c.steadyMS())
}

// stamp returns the state's time of now, as far as this node knows.
func (c *seenClock) stamp() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.clock.Stamp(c.steadyMS())
}

// begin returns the clock of a term; stateMS is the state's time after its first command.
func (c *seenClock) begin(stateMS int64) *termClock {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &termClock{began: c.began, clock: c.clock.Begin(stateMS, c.steadyMS())}
}

// termClock stamps the commands of a term.
type termClock struct {
	began time.Time
	clock statecontext.Clock // does not change
}

func (c *termClock) stamp() int64 { return c.clock.Stamp(time.Since(c.began).Milliseconds()) }

// timed is the state machine as Raft sees it: each change of the state's time is noted as it is applied.
type timed struct {
	StateMachine
	clock *seenClock
	stirs *stirs
}

// Apply implements raft.FSM.
func (t timed) Apply(entry *raft.Log) any {
	answer := t.StateMachine.Apply(entry)
	t.clock.saw(t.State())
	t.stirs.stir()
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
