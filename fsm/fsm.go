// Package fsm is a thin raft.FSM around statecontext: decode, apply, publish, snapshot, restore.
//
// The published state is exactly the log up to its AppliedIndex, readers never block Raft and never see an incomplete
// state, and a committed entry that this program cannot decode stops the node; it is never skipped. The package
// decides nothing: every rule is in package statecontext.
package fsm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"tidemark/statecontext"
)

// ErrStopped is wrapped by every result after an entry that could not be decoded.
var ErrStopped = errors.New("the state machine has stopped")

// eventRing is the number of newest events that are kept. A consumer that streams them must read before that many new
// events have come. An event holds no vectors; a definition takes about a kilobyte and is usually shared with the
// state.
const eventRing = 8192

// FSM applies committed entries to a State. Use New.
type FSM struct {
	logger hclog.Logger
	fatal  func(error)
	level  uint64 // newest supported format level

	state atomic.Pointer[statecontext.State]

	mu          sync.Mutex // guards the fields below; held for short times only
	stopped     error
	events      []statecontext.Event // a ring: the newest is at next-1
	next        int
	floor       uint64 // all events with a cas above floor are held
	restores    uint64
	waiters     waiterHeap
	subscribers map[*Subscription]struct{}
}

// New returns a state machine with the empty state. fatal is called once, from Raft's goroutine, if a committed entry
// cannot be decoded; it must terminate the process and must not wait for Raft.
func New(logger hclog.Logger, fatal func(error)) *FSM {
	return NewUpTo(statecontext.FormatLevel, logger, fatal)
}

// NewUpTo is New for a program that behaves as one whose newest format level is level.
func NewUpTo(level uint64, logger hclog.Logger, fatal func(error)) *FSM {
	f := &FSM{logger: logger, fatal: fatal, level: level, subscribers: make(map[*Subscription]struct{})}
	f.state.Store(statecontext.New())
	return f
}

// State returns the newest state. It is immutable; call State again for a newer one.
func (f *FSM) State() *statecontext.State { return f.state.Load() }

// Apply implements raft.FSM. It returns []statecontext.Result, one for each command of the entry, or an error.
func (f *FSM) Apply(l *raft.Log) any {
	if err := f.Stopped(); err != nil {
		return err
	}
	commands, err := statecontext.DecodeUpTo(f.level, l.Data)
	if err != nil {
		err = fmt.Errorf("%w: log entry %d of term %d: %w", ErrStopped, l.Index, l.Term, err)
		f.stop(err)
		return err
	}
	next, results, events := statecontext.ApplyCommands(f.state.Load(), l.Index, commands)
	f.publish(next, events)
	return results
}

// Stopped returns why entries are no longer applied, or nil while they are.
func (f *FSM) Stopped() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stopped
}

func (f *FSM) stop(err error) {
	f.mu.Lock()
	f.stopped = err
	waiting := f.waiters
	f.waiters = nil
	f.mu.Unlock()
	for _, w := range waiting {
		w.done <- err
	}
	f.logger.Error("state machine stops: a committed command cannot be decoded", "error", err)
	f.fatal(err)
}

// publish makes a state visible and wakes the goroutines that wait for it.
func (f *FSM) publish(next *statecontext.State, events []statecontext.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.state.Swap(next)
	for _, e := range events {
		if e.Restored { // events do not lead across a restore: only a reader at the state right before it may continue
			f.events, f.next, f.floor = nil, 0, max(before.CAS(), e.CAS-1)
		}
		if len(f.events) < eventRing {
			f.events = append(f.events, e)
		} else {
			f.floor = max(f.floor, f.events[f.next%eventRing].CAS)
			f.events[f.next%eventRing] = e
		}
		f.next++
	}
	f.wake(next.AppliedIndex())
	for s := range f.subscribers {
		s.notify()
	}
}

// Snapshot implements raft.FSM. It only copies a pointer.
func (f *FSM) Snapshot() (raft.FSMSnapshot, error) {
	if err := f.Stopped(); err != nil { // its log must not be compacted
		return nil, err
	}
	return &snapshot{state: f.state.Load()}, nil
}

type snapshot struct{ state *statecontext.State }

// Persist implements raft.FSMSnapshot; it runs concurrently with Apply.
func (s *snapshot) Persist(sink raft.SnapshotSink) error {
	if err := statecontext.WriteSnapshot(sink, s.state); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	if err := sink.Close(); err != nil {
		return fmt.Errorf("state snapshot %s: %w", sink.ID(), err)
	}
	return nil
}

// Release implements raft.FSMSnapshot.
func (s *snapshot) Release() {}

// Restore implements raft.FSM: it replaces the whole state, or nothing if the snapshot is invalid.
func (f *FSM) Restore(r io.ReadCloser) error {
	state, err := statecontext.ReadSnapshotUpTo(f.level, r)
	err = errors.Join(err, r.Close())
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state.Store(state)
	f.events, f.next, f.floor = nil, 0, state.CAS()
	f.restores++
	f.wake(state.AppliedIndex())
	for s := range f.subscribers {
		s.notify()
	}
	f.logger.Info("state restored", "cas", state.CAS(), "index", state.AppliedIndex(), "indexes", state.IndexCount())
	return nil
}

// Wait waits until the entry with this Raft index has been applied. index must be that of an entry with commands:
// Raft's own no-ops never reach a state machine.
func (f *FSM) Wait(ctx context.Context, index uint64) error {
	if f.state.Load().AppliedIndex() >= index {
		return nil
	}
	f.mu.Lock()
	if f.stopped != nil || f.state.Load().AppliedIndex() >= index {
		defer f.mu.Unlock()
		return f.stopped
	}
	w := &waiter{index: index, done: make(chan error, 1)}
	f.waiters.push(w)
	f.mu.Unlock()
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
		f.mu.Lock()
		f.waiters.remove(w)
		f.mu.Unlock()
		return fmt.Errorf("waiting for log entry %d, applied up to %d: %w", index, f.state.Load().AppliedIndex(), ctx.Err())
	}
}

// wake wakes the waiters for indexes up to index. The caller holds f.mu.
func (f *FSM) wake(index uint64) {
	for len(f.waiters) > 0 && f.waiters[0].index <= index {
		f.waiters.pop().done <- nil
	}
}

// Feed is what has changed after a given cas.
type Feed struct {
	// State is the newest state, to which the last of Events led.
	State *statecontext.State
	// Events holds all events with a cas above the given one, in order. They are shared; callers must not modify them.
	Events []statecontext.Event
	// Held is false if some of those events are no longer kept, or never were (after a restore). Events is then empty,
	// and the reader has to start again from State.
	Held bool
	// Restores counts how often the whole state was replaced; the reader passes it to the next call.
	Restores uint64
}

// Feed returns what has changed after cas since; restores and since are those of the reader's previous Feed.
func (f *FSM) Feed(restores, since uint64) Feed {
	f.mu.Lock()
	defer f.mu.Unlock()
	feed := Feed{State: f.state.Load(), Restores: f.restores}
	if restores != f.restores || since < f.floor || since > feed.State.CAS() {
		return feed
	}
	feed.Held = true
	low, high := max(0, f.next-eventRing), f.next
	for low < high { // the first event above since
		mid := int(uint(low+high) >> 1)
		if f.events[mid%eventRing].CAS > since {
			high = mid
		} else {
			low = mid + 1
		}
	}
	feed.Events = make([]statecontext.Event, 0, f.next-low)
	for ; low < f.next; low++ {
		feed.Events = append(feed.Events, f.events[low%eventRing])
	}
	return feed
}

// Subscription signals changes of the state. Any number of changes between two receives make one signal.
type Subscription struct {
	fsm *FSM
	c   chan struct{}
}

// Subscribe begins to signal changes of the state. The caller must close the subscription.
func (f *FSM) Subscribe() *Subscription {
	s := &Subscription{fsm: f, c: make(chan struct{}, 1)}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.subscribers[s] = struct{}{}
	return s
}

// C returns a channel that receives once after any number of changes.
func (s *Subscription) C() <-chan struct{} { return s.c }

// Close ends the signals.
func (s *Subscription) Close() {
	s.fsm.mu.Lock()
	defer s.fsm.mu.Unlock()
	delete(s.fsm.subscribers, s)
}

func (s *Subscription) notify() {
	select {
	case s.c <- struct{}{}:
	default:
	}
}
