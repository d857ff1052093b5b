package api

import (
	"context"
	"fmt"
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

// Run keeps this manager's knowledge of users current, so that requests need not wait for that, until ctx ends. While
// there are none it asks as well: a manager that can take in nothing is told all the same that there are.
func (a *API) Run(ctx context.Context) error {
	tick := time.NewTicker(currentEvery)
	defer tick.Stop()
	for {
		if a.serves() {
			a.noteBuckets(a.now())
		} else {
			a.catchUpOnce(ctx, a.now())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// serves reports whether this manager leads, and notes that its state was current then.
func (a *API) serves() bool {
	now := a.now()
	_, serving := a.cfg.Raft.Serving()
	if serving {
		a.noteCurrent(now)
	}
	return serving
}

// noteCurrent notes that the state has all that was acknowledged before a moment.
func (a *API) noteCurrent(at time.Time) {
	since := int64(at.Sub(a.began))
	for {
		old := a.asked.Load()
		if since <= old || a.asked.CompareAndSwap(old, since) {
			return
		}
	}
}

// currentFor returns how long ago it was certain that the state has all that was acknowledged.
func (a *API) currentFor() time.Duration { return a.now().Sub(a.began) - time.Duration(a.asked.Load()) }

// current reports whether users may be let in by what this manager knows.
func (a *API) current() bool { return a.serves() || a.asked.Load() > 0 && a.currentFor() <= mayLag }

// currentSince reports whether it is certain that the state has all that was acknowledged before a moment.
func (a *API) currentSince(at time.Time) bool {
	return a.serves() || a.asked.Load() > 0 && !a.began.Add(time.Duration(a.asked.Load())).Before(at)
}

// catchUpTo returns what brings the state up to what was acknowledged when a request came, and reports whether that is
// certain.
func (a *API) catchUpTo(ctx context.Context, came time.Time) func() bool {
	return func() bool {
		a.catchUpOnce(context.WithoutCancel(ctx), came)
		return a.currentSince(came)
	}
}

// refuseUnsure is for credentials that may be newer than what this manager knows.
func (a *API) refuseUnsure() error {
	const what = "manager %s does not know these credentials and cannot make sure that they are not new: the leader is " +
		"out of its reach, or its disk " +
		"takes nothing; try again, or another manager"
	return rpc.Refuse(errcode.ManagerNotCurrent, what, a.cfg.Name)
}

// ensureCurrent refuses to look anybody up in a state that may be older than mayLag, after a try to bring it up to
// date.
func (a *API) ensureCurrent(ctx context.Context) error {
	if a.current() {
		return nil
	}
	a.catchUpOnce(ctx, a.now())
	if a.current() {
		return nil
	}
	return rpc.Refuse(errcode.ManagerNotCurrent, "%s", a.notCurrent())
}

// notCurrent says what is the matter.
func (a *API) notCurrent() string {
	const what = "manager %s has not been able to make sure for %s that it knows all users, passwords and tokens as " +
		"they are now, and lets no user in until it has: " +
		"the leader is out of its reach, or its disk takes nothing"
	return fmt.Sprintf(what, a.cfg.Name, a.currentFor().Round(time.Second))
}

// catchUpOnce brings a follower's state up to what it was at the leader when a request came. Those that come while one
// asks share the next question. Without an answer the state stays as it is.
func (a *API) catchUpOnce(ctx context.Context, came time.Time) {
	if a.serves() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, currentPatience)
	defer cancel()
	select {
	case a.asking <- struct{}{}:
		defer func() { <-a.asking }()
	case <-ctx.Done():
		return
	}
	asked := a.began.Add(time.Duration(a.asked.Load()))
	if asked.After(came) {
		return
	}
	pause := time.NewTimer(askPause - a.now().Sub(asked))
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
		return
	}
	now := a.now()
	if a.catchUp(ctx) == nil {
		a.noteCurrent(now)
	}
}
