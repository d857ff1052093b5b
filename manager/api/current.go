package api

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"tidemark/errcode"
	"tidemark/internal/rpc"
)

const (
	// mayLag limits the age of the user data by which a manager admits a user: after a user was removed or demoted, no
	// manager admits him under the old rights for longer than that.
	mayLag = 5 * time.Second
	// currentEvery is the interval of checks whether this manager has everything that was acknowledged.
	currentEvery = time.Second
	// currentPatience limits one check.
	currentPatience = 2 * time.Second
	// askPause is the least time between two requests to the leader about unknown credentials: guessing many passwords
	// does not load the leader.
	askPause = 20 * time.Millisecond
)

// reasonNotCurrent is the reason code of a manager that does not admit users.
const reasonNotCurrent = "not_current"

// currency tracks how current this manager's user data is.
type currency struct {
	*ground
	// asking is held while a request to the leader for its log index, or a check of own leadership, is in progress.
	// asked is the begin of the last successful one, in nanoseconds after began, 0 for none. The clock must continue
	// while the process is stopped.
	asking chan struct{}
	asked  atomic.Int64
	began  time.Time
}

// Run keeps this manager's user data current until ctx ends, so that requests need not wait for that. It also asks
// the leader while there are no users: a manager that cannot write to its log must still learn that there are some.
func (a *API) Run(ctx context.Context) error {
	tick := time.NewTicker(currentEvery)
	defer tick.Stop()
	for {
		a.noteBuckets(a.now())
		a.catchUpOnce(ctx, a.now())
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// noteCurrent records that the state has everything acknowledged before at.
func (g *currency) noteCurrent(at time.Time) {
	since := int64(at.Sub(g.began))
	for {
		old := g.asked.Load()
		if since <= old || g.asked.CompareAndSwap(old, since) {
			return
		}
	}
}

// currentFor returns the time since the state certainly had everything that was acknowledged.
func (g *currency) currentFor() time.Duration {
	return g.now().Sub(g.began) - time.Duration(g.asked.Load())
}

// current reports whether users may be admitted by this manager's data. Its own belief that it leads proves nothing:
// it may have been stopped while another manager was elected.
func (g *currency) current() bool { return g.asked.Load() > 0 && g.currentFor() <= mayLag }

// currentSince reports whether the state certainly has everything that was acknowledged before at.
func (g *currency) currentSince(at time.Time) bool {
	return g.asked.Load() > 0 && !g.began.Add(time.Duration(g.asked.Load())).Before(at)
}

// catchUpTo returns a function that brings the state up to what was acknowledged when a request arrived, and reports
// whether that has succeeded.
func (g *currency) catchUpTo(ctx context.Context, came time.Time) func() bool {
	return func() bool {
		g.catchUpOnce(context.WithoutCancel(ctx), came)
		return g.currentSince(came)
	}
}

// refuseUnsure returns the error for credentials that may be newer than this manager's data.
func (g *currency) refuseUnsure() error {
	const what = "manager %s has no such credentials and cannot check whether they are new: the leader is " +
		"not reachable from it, or writes to its disk " +
		"fail; try again, or use another manager"
	return rpc.Refuse(errcode.ManagerNotCurrent, what, g.cfg.Name)
}

// ensureCurrent tries to bring the state up to date if it may be older than mayLag, and returns an error if that
// fails.
func (g *currency) ensureCurrent(ctx context.Context) error {
	if g.current() {
		return nil
	}
	g.catchUpOnce(ctx, g.now())
	if g.current() {
		return nil
	}
	return rpc.Refuse(errcode.ManagerNotCurrent, "%s", g.notCurrent())
}

// notCurrent describes why users are not admitted.
func (g *currency) notCurrent() string {
	const what = "manager %s could not check for %s that its users, passwords and tokens are up to date, and accepts no " +
		"user until it has: the leader is not reachable from it, or writes to its disk fail"
	return fmt.Sprintf(what, g.cfg.Name, g.currentFor().Round(time.Second))
}

// catchUpOnce brings this manager's state up to the leader's at the time when a request arrived: a follower asks the
// leader, the leader verifies its leadership. Requests that arrive during that share the next one. If there is no
// answer, the state stays as it is.
func (g *currency) catchUpOnce(ctx context.Context, came time.Time) {
	ctx, cancel := context.WithTimeout(ctx, currentPatience)
	defer cancel()
	select {
	case g.asking <- struct{}{}:
		defer func() { <-g.asking }()
	case <-ctx.Done():
		return
	}
	asked := g.began.Add(time.Duration(g.asked.Load()))
	if asked.After(came) {
		return
	}
	pause := time.NewTimer(askPause - g.now().Sub(asked))
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
		return
	}
	now := g.now()
	if g.catchUp(ctx) == nil {
		g.noteCurrent(now)
	}
}
