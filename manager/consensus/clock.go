package consensus

import (
	"io"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"tidemark/statecontext"
)

// seenClock tracks the state time as this node applies the log, also while other nodes lead.
type seenClock struct {
	began time.Time // origin of its monotonic clock

	mu    sync.Mutex
	clock statecontext.Clock
}

// steadyMS returns the node's clock for ages in milliseconds. It starts at 0 with the node and is monotonic.
func (c *seenClock) steadyMS() int64 { return time.Since(c.began).Milliseconds() }

func (c *seenClock) saw(s *statecontext.State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clock.Saw(s.TimeMS(), c.steadyMS())
}

// stamp returns the present state time as far as this node can tell.
func (c *seenClock) stamp() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.clock.Stamp(c.steadyMS())
}

// begin returns the clock of a term; stateMS is the state time after the term's first command.
func (c *seenClock) begin(stateMS int64) *termClock {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &termClock{began: c.began, clock: c.clock.Begin(stateMS, c.steadyMS())}
}

// termClock stamps the commands of one term.
type termClock struct {
	began time.Time
	clock statecontext.Clock // never modified
}

func (c *termClock) stamp() int64 { return c.clock.Stamp(time.Since(c.began).Milliseconds()) }

// timed wraps the state machine for Raft: it records each change of the state time as it is applied, and that the
// entry is committed before the state, or a caller, shows what it does.
type timed struct {
	StateMachine
	clock     *seenClock
	activity  *activity
	committed *committed
}

// Apply implements raft.FSM.
func (t timed) Apply(entry *raft.Log) any {
	t.committed.note(byMachine, position{entry.Index, entry.Term})
	answer := t.StateMachine.Apply(entry)
	t.clock.saw(t.State())
	t.activity.signal()
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
