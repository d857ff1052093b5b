package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/manager/api/v1"
	"tidemark/manager/consensus"
)

const (
	// unstoredAfter is how long a write waits before the leader asks the managers whether they can store it; unstoredLook
	// is the pause between such questions, of which two in a row must have the same answer. An answer serves all calls
	// for less than that, so that two in a row are two answers.
	unstoredAfter = 2 * time.Second
	unstoredLook  = time.Second
	// unstoredOld is the age from which an answer of the managers no longer explains a call that does not wait for
	// another one. Callers that do not wait ask again earlier.
	unstoredOld = 5 * time.Second
	// unstoredWord begins each text of unstored.
	unstoredWord = "nothing can be stored now: "
	// reasonUnstored is the reason code of a problem whose call has ended because certainly nothing can be stored.
	reasonUnstored = "unstored"
)

// fault is why a manager may store nothing; each is less certain than the one before it.
type fault int

const (
	diskFails fault = iota
	diskHangs       // it may continue at any moment
	silent          // it does not answer; it may only be late
)

// unstored describes why a majority of the managers cannot store anything: their disks fail, or have another fault up
// to upTo. It returns "" if it may, as far as the managers have told.
func unstored(all []v1.ManagerStatus, upTo fault) string {
	voters, lost, disks := 0, 0, false
	var what []string
	for i := range all {
		m := &all[i]
		if m.Role == roleNonvoter {
			continue
		}
		voters++
		switch why := diskFault(m, upTo); {
		case why != "":
			what = append(what, fmt.Sprintf("manager %s cannot write (%s)", m.ID, why))
			disks = true
		case upTo >= silent && !m.Alive && m.REST != "": // without an address it could not be asked
			what = append(what, fmt.Sprintf("manager %s does not answer", m.ID))
		default:
			continue
		}
		lost++
	}
	if !disks || voters-lost > voters/2 {
		return ""
	}
	return fmt.Sprintf(unstoredWord+"%s, and %d of the %d managers must store it: make room on these disks, or repair "+
		"them; the managers continue by themselves within seconds", strings.Join(what, ", "), voters/2+1, voters)
}

// diskFault returns why a manager that answers cannot write to its disk, "" if it can.
func diskFault(m *v1.ManagerStatus, upTo fault) string {
	for _, r := range m.NotReady {
		if strings.HasPrefix(r.Detail, consensus.DiskFails) ||
			upTo >= diskHangs && strings.HasPrefix(r.Detail, consensus.DiskHangs) {
			return r.Detail
		}
	}
	return ""
}

// managerStatuses is what the managers have answered. All calls share it: many that fail at once ask no more than one
// does.
type managerStatuses struct {
	ask  func(context.Context) []v1.ManagerStatus // takes no longer than aliveTimeout
	turn chan struct{}                            // held by the one who asks
	last atomic.Pointer[toldStatuses]
	// running ends with Close, and with it a question in the background.
	running context.Context
	stop    context.CancelFunc
}

// toldStatuses is one answer of the managers.
type toldStatuses struct {
	at  time.Time
	all []v1.ManagerStatus
}

func newManagerStatuses(ask func(context.Context) []v1.ManagerStatus) *managerStatuses {
	s := &managerStatuses{ask: ask, turn: make(chan struct{}, 1)}
	s.running, s.stop = context.WithCancel(context.Background())
	return s
}

// present returns an answer at most unstoredLook old; nil if ctx ends while another one asks.
func (s *managerStatuses) present(ctx context.Context) []v1.ManagerStatus {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return nil
	}
	// The answer serves others, too.
	return s.renewed(context.WithoutCancel(ctx))
}

// renewed returns the last answer, or asks if that is too old. The caller holds the turn.
func (s *managerStatuses) renewed(ctx context.Context) []v1.ManagerStatus {
	if all := s.within(unstoredLook); all != nil {
		return all
	}
	told := &toldStatuses{all: s.ask(ctx)}
	if ctx.Err() != nil { // they had no time to answer
		return nil
	}
	told.at = time.Now()
	s.last.Store(told)
	return told.all
}

// within returns the last answer if it is less than age old, otherwise nil.
func (s *managerStatuses) within(age time.Duration) []v1.ManagerStatus {
	if told := s.last.Load(); told != nil && time.Since(told.at) < age {
		return told.all
	}
	return nil
}

// known returns the last answer at once, nil if it is unstoredOld. If it is not at most unstoredLook old, and nobody
// asks yet, the managers are asked in the background, for the next call.
func (s *managerStatuses) known() []v1.ManagerStatus {
	select {
	case s.turn <- struct{}{}:
		if s.running.Err() != nil || s.within(unstoredLook) != nil {
			<-s.turn
			break
		}
		go func() {
			defer func() { <-s.turn }()
			s.renewed(s.running)
		}()
	default: // another call asks
	}
	return s.within(unstoredOld)
}

// close ends a question in the background; there is none after it.
func (s *managerStatuses) close() {
	s.stop()
	s.turn <- struct{}{} // the last one has ended
	<-s.turn
}

// unstored asks all managers, unless they have just been asked, and returns why nothing can be stored.
func (a *API) unstored(ctx context.Context, upTo fault) string {
	return unstored(a.managers.present(ctx), upTo)
}

// unstoredError ends the wait of a write that certainly cannot be stored, and says why.
type unstoredError string

func (e unstoredError) Error() string { return string(e) }

// outOfTime is the context of a write. It ends with the error of a deadline when an unstoredError ends it, and so do
// contexts made of it, because its channel is its own.
type outOfTime struct {
	context.Context
	done chan struct{}
}

func newOutOfTime(ctx context.Context) *outOfTime {
	c := &outOfTime{Context: ctx, done: make(chan struct{})}
	context.AfterFunc(ctx, func() { close(c.done) })
	return c
}

// Done implements context.Context.
func (c *outOfTime) Done() <-chan struct{} { return c.done }

// Err implements context.Context.
func (c *outOfTime) Err() error {
	select {
	case <-c.done:
	default:
		return nil
	}
	if errors.As(context.Cause(c.Context), new(unstoredError)) {
		return context.DeadlineExceeded
	}
	return c.Context.Err()
}

// whileStorable returns a user's write with a context that ends soon after it has become certain, at the leader, that
// nothing can be stored because disks fail: the write would wait for all its time. An upload does: there may be room
// again before all of it has arrived. end has to be called.
func (a *API) whileStorable(r *http.Request, rt *route) (again *http.Request, end func()) {
	if !rt.leader || !rt.waits() || r.Method == http.MethodGet || r.Method == http.MethodHead {
		return r, func() {}
	}
	ctx, end := endingUnstored(r.Context(), func(ctx context.Context) string {
		if _, serving := a.cfg.Raft.Serving(); !serving { // the leader does this for a write that was sent to it
			return ""
		}
		return a.unstored(ctx, diskFails)
	})
	return r.WithContext(ctx), end
}

// endingUnstored returns a context that ends with an unstoredError when two looks in a row have said why nothing can
// be stored. The first look is after unstoredAfter: a write that ends before has only a timer. end has to be called.
func endingUnstored(parent context.Context, look func(context.Context) string) (ends *outOfTime, end func()) {
	ctx, cancel := context.WithCancelCause(parent)
	first := time.AfterFunc(unstoredAfter, func() { watchStorable(ctx, look, cancel) })
	return newOutOfTime(ctx), func() {
		first.Stop()
		cancel(nil)
	}
}

// watchStorable looks, and looks again, until ctx ends; it gives up when two looks in a row have said why nothing can
// be stored.
func watchStorable(ctx context.Context, look func(context.Context) string, giveUp context.CancelCauseFunc) {
	next := time.NewTimer(0)
	defer next.Stop()
	for seen := false; ; next.Reset(unstoredLook) {
		select {
		case <-next.C:
		case <-ctx.Done():
			return
		}
		why := look(ctx)
		if seen && why != "" {
			giveUp(unstoredError(why))
			return
		}
		seen = why != ""
	}
}

// explained adds to the answer to a call that waited in vain why nothing can be stored, if that is so. If the wait has
// ended because of that, the answer has it among its reasons, too. A call that was not to wait does not wait for this,
// either: it is told what the managers have answered before.
func (a *API) explained(r *http.Request, rt *route, p *rpc.Problem) *rpc.Problem {
	switch p.Code {
	case errcode.NoLeader, errcode.OutcomeUnknown, errcode.Timeout:
	default:
		return p
	}
	if !rt.leader || !rt.ofUsers() || strings.Contains(p.Detail, unstoredWord) { // the leader has said it
		return p
	}
	var why unstoredError
	switch ctx := r.Context(); {
	case errors.As(context.Cause(ctx), &why):
		p.Reasons = append(p.Reasons, rpc.Reason{Code: reasonUnstored, Detail: string(why)})
	case errors.Is(ctx.Err(), context.Canceled): // nobody waits for the answer
	case p.Code == errcode.NoLeader && impatient(r, rt):
		why = unstoredError(unstored(a.managers.known(), silent))
	default:
		why = unstoredError(a.unstored(context.WithoutCancel(ctx), silent)) // its time may be over
	}
	if why != "" {
		p.Detail += "; " + string(why)
	}
	return p
}

// endedUnstored reports whether a call has ended, here or at the leader, because certainly nothing can be stored.
func endedUnstored(p *rpc.Problem) bool {
	return slices.ContainsFunc(p.Reasons, func(r rpc.Reason) bool { return r.Code == reasonUnstored })
}
