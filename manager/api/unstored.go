package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/manager/api/v1"
	"tidemark/manager/consensus"
)

const (
	// unstoredAfter is how long a write waits before the leader asks the managers whether they can store it; unstoredLook
	// is the pause between such questions, of which two in a row must have the same answer.
	unstoredAfter = 2 * time.Second
	unstoredLook  = time.Second
	// unstoredWord begins each text of unstored.
	unstoredWord = "nothing can be stored now: "
)

// unstored describes why a majority of the managers cannot store anything: their disks fail, or hang, and others do
// not answer. It returns "" if it may, as far as the managers have told. With failing alone, a disk that hangs does not
// count: it may continue at any moment.
func unstored(all []v1.ManagerStatus, failing bool) string {
	voters, lost, disks := 0, 0, false
	var what []string
	for i := range all {
		m := &all[i]
		if m.Role == roleNonvoter {
			continue
		}
		voters++
		switch fault := diskFault(m, failing); {
		case fault != "":
			what = append(what, fmt.Sprintf("manager %s cannot write (%s)", m.ID, fault))
			disks = true
		case !m.Alive && m.REST != "": // without an address it could not be asked
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
func diskFault(m *v1.ManagerStatus, failing bool) string {
	for _, r := range m.NotReady {
		if strings.HasPrefix(r.Detail, consensus.DiskFails) || !failing && strings.HasPrefix(r.Detail, consensus.DiskHangs) {
			return r.Detail
		}
	}
	return ""
}

// unstored asks all managers, and returns why nothing can be stored.
func (a *API) unstored(ctx context.Context, failing bool) string {
	var st v1.Status
	health{a.ground, a.currency}.addManagers(ctx, a.cfg.Raft.State(), &st)
	return unstored(st.Managers, failing)
}

// errUnstored ends the wait of a write that cannot be stored.
var errUnstored = errors.New("the disks of a majority of the managers fail")

// outOfTime is the context of a write. It ends with the error of a deadline when errUnstored ends it, and so do
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
	if errors.Is(context.Cause(c.Context), errUnstored) {
		return context.DeadlineExceeded
	}
	return c.Context.Err()
}

// whileStorable returns a user's write with a context that ends soon after it has become certain, at the leader, that
// nothing can be stored because disks fail: the write would wait for all its time. end has to be called.
func (a *API) whileStorable(r *http.Request, rt *route) (again *http.Request, end func()) {
	if !rt.leader || !rt.waits() || r.Method == http.MethodGet || r.Method == http.MethodHead {
		return r, func() {}
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	ends := newOutOfTime(ctx)
	go watchStorable(ctx, func() bool { // the leader does this for a write that was sent to it
		_, serving := a.cfg.Raft.Serving()
		return serving && a.unstored(ctx, true) != ""
	}, cancel)
	return r.WithContext(ends), func() { cancel(nil) }
}

// watchStorable gives up when fails has been true twice in a row.
func watchStorable(ctx context.Context, fails func() bool, giveUp context.CancelCauseFunc) {
	next := time.NewTimer(unstoredAfter)
	defer next.Stop()
	for seen := false; ; next.Reset(unstoredLook) {
		select {
		case <-next.C:
		case <-ctx.Done():
			return
		}
		was := seen
		if seen = fails(); was && seen {
			giveUp(errUnstored)
			return
		}
	}
}

// explained adds to the answer to a call that waited in vain why nothing can be stored, if that is so.
func (a *API) explained(r *http.Request, rt *route, p *rpc.Problem) *rpc.Problem {
	switch p.Code {
	case errcode.NoLeader, errcode.OutcomeUnknown, errcode.Timeout:
	default:
		return p
	}
	if !rt.leader || !rt.waits() || strings.Contains(p.Detail, unstoredWord) { // the leader has said it
		return p
	}
	if why := a.unstored(context.WithoutCancel(r.Context()), false); why != "" {
		p.Detail += "; " + why
	}
	return p
}
