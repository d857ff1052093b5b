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
	// mayLag is how old the knowledge of users may be by which a manager lets somebody in: so long after a user was
	// removed or demoted at the latest, no manager takes him for what he was.
	mayLag = 5 * time.Second
	// currentEvery is between two looks at whether this manager knows all that was acknowledged.
	currentEvery = time.Second
	// currentPatience bounds one look.
	currentPatience = 2 * time.Second
	// askPause is between two questions to the leader about credentials that are not known here: who tries many passwords
	// does not load it.
	askPause = 20 * time.Millisecond
)

// reasonNotCurrent is why a manager does not let users in.
const reasonNotCurrent = "not_current"

// currency is how current this manager's knowledge is of who may do what.
type currency struct {
	*ground
	// asking is held by who asks the leader how far this manager should be, or proves that it leads; asked is when the
	// last question began that was answered and caught up with, in nanoseconds after began, 0 for never. The clock is one
	// that goes on while the process is stopped.
	asking chan struct{}
	asked  atomic.Int64
	began  time.Time
}

// Run keeps this manager's knowledge of users current, so that requests need not wait for that, until ctx ends. While
// there are none it asks as well: a manager that can take in nothing is told all the same that there are.
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

// noteCurrent notes that the state has all that was acknowledged before a moment.
func (g *currency) noteCurrent(at time.Time) {
	since := int64(at.Sub(g.began))
	for {
		old := g.asked.Load()
		if since <= old || g.asked.CompareAndSwap(old, since) {
			return
		}
	}
}

// currentFor returns how long ago it was certain that the state has all that was acknowledged.
func (g *currency) currentFor() time.Duration {
	return g.now().Sub(g.began) - time.Duration(g.asked.Load())
}

// current reports whether users may be let in by what this manager knows. That it takes itself for the leader proves
// nothing: it may have been stopped while another one was elected, and go on.
func (g *currency) current() bool { return g.asked.Load() > 0 && g.currentFor() <= mayLag }

// currentSince reports whether it is certain that the state has all that was acknowledged before a moment.
func (g *currency) currentSince(at time.Time) bool {
	return g.asked.Load() > 0 && !g.began.Add(time.Duration(g.asked.Load())).Before(at)
}

// catchUpTo returns what brings the state up to what was acknowledged when a request came, and reports whether that is
// certain.
func (g *currency) catchUpTo(ctx context.Context, came time.Time) func() bool {
	return func() bool {
		g.catchUpOnce(context.WithoutCancel(ctx), came)
		return g.currentSince(came)
	}
}

// refuseUnsure is for credentials that may be newer than what this manager knows.
func (g *currency) refuseUnsure() error {
	const what = "manager %s does not know these credentials and cannot make sure that they are not new: the leader is " +
		"out of its reach, or its disk " +
		"takes nothing; try again, or another manager"
	return rpc.Refuse(errcode.ManagerNotCurrent, what, g.cfg.Name)
}

// ensureCurrent refuses to look anybody up in a state that may be older than mayLag, after a try to bring it up to
// date.
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

// notCurrent says what is the matter.
func (g *currency) notCurrent() string {
	const what = "manager %s has not been able to make sure for %s that it knows all users, passwords and tokens as " +
		"they are now, and lets no user in until it has: " +
		"the leader is out of its reach, or its disk takes nothing"
	return fmt.Sprintf(what, g.cfg.Name, g.currentFor().Round(time.Second))
}

// catchUpOnce brings this manager's state up to what it was at the leader when a request came: a follower asks it, the
// leader proves that it is one. Those that come while one asks share the next question. Without an answer the state
// stays as it is.
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
