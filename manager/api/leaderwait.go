package api

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/manager/consensus"
)

// How a user's call waits for a leader before it is answered NO_LEADER.
const (
	leaderWait     = 2 * time.Second        // unless the caller's Prefer sets another time
	leaderWaitMost = 10 * time.Second       // the longest time that it may set
	leaderLook     = 20 * time.Millisecond  // between two checks who leads
	leaderAgain    = 250 * time.Millisecond // before the same leader is asked again: it may not have been ready
	waitersMost    = 256                    // further calls are answered NO_LEADER at once
)

// HeaderPrefer is that of RFC 7240: "wait=N" is how many seconds a call may wait for a leader.
const HeaderPrefer = "Prefer"

// attempt answers a call like untilLed. If a write cannot be stored, the answer comes soon and says why.
func (a *API) attempt(w http.ResponseWriter, r *http.Request, rt *route) (here bool, err error) {
	r, end := a.whileStorable(r, rt)
	defer end()
	return a.untilLed(w, r, rt)
}

// untilLed answers a call like once. While there is no leader, as in the moments after a leader's death, a user's
// call waits for the next leader and is repeated, with the same body. One that failed is told why nothing can be
// stored, if that is so; one for which there is no room among those that wait is answered at once.
func (a *API) untilLed(w http.ResponseWriter, r *http.Request, rt *route) (here bool, err error) {
	limit := leaderPatience(r, rt)
	if limit <= 0 {
		if here, err = a.once(w, r, rt); err != nil {
			err = a.explained(r, rt, a.problem(err))
		}
		return here, err
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return true, err
	}
	again := repeatable(r, rt)
	p, full := a.succession.run(r.Context(), limit, func() (*rpc.Problem, bool) {
		r.Body = io.NopCloser(bytes.NewReader(body))
		if here, err = a.once(w, r, rt); err == nil {
			return nil, false
		}
		p := a.problem(err)
		return p, !errors.Is(err, consensus.ErrClosed) && worthAgain(p, again) // closed: this manager is shutting down
	})
	switch {
	case p == nil:
		return here, nil
	case full:
		return here, p
	}
	return here, a.explained(r, rt, p)
}

// worthAgain reports whether another attempt may have a better answer than p. The next leader could not store what the
// last one certainly could not.
func worthAgain(p *rpc.Problem, repeatable bool) bool {
	return p.Code == errcode.NoLeader || p.Code == errcode.OutcomeUnknown && repeatable && !endedUnstored(p)
}

// repeatable reports whether a call may be repeated though it may have been executed: the ledger knows its key, or it
// is idempotent.
func repeatable(r *http.Request, rt *route) bool {
	return rt.again || r.Header.Get(HeaderKey) != "" && slices.Contains(rt.doc.headers, HeaderKey)
}

// succession makes calls wait for the next leader.
type succession struct {
	leads  func() leading
	places chan struct{} // holds one element per waiting call
}

// leading is the leader that this manager knows, and whether it is this manager itself.
type leading struct {
	leader  consensus.Leader
	serving bool
}

func newSuccession(node *consensus.Node) succession {
	return succession{places: make(chan struct{}, waitersMost), leads: func() leading {
		_, serving := node.Serving()
		return leading{leader: node.Leader(), serving: serving}
	}}
}

// run calls try until its error is not the lack of a leader, for at most limit after the first time. NO_LEADER means
// that nothing was done; if a leader may have executed the call, run calls try again only if try reports that the
// call is repeatable. full is set if too many calls wait for this one to go on.
func (s *succession) run(ctx context.Context, limit time.Duration,
	try func() (p *rpc.Problem, again bool)) (last *rpc.Problem, full bool) {
	var until time.Time
	var unknown *rpc.Problem // set once the outcome was unknown: NO_LEADER, that nothing was done, must not follow it
	for {
		was := s.leads()
		p, again := try()
		switch {
		case p == nil:
			return nil, false
		case again && p.Code == errcode.OutcomeUnknown:
			unknown = p
		case !again && p.Code == errcode.NoLeader: // this manager is shutting down
			return cmp.Or(unknown, p), false
		case !again && (unknown == nil || p.Status < http.StatusInternalServerError || p.Code == errcode.OutcomeUnknown):
			return p, false
		case unknown != nil:
			p = unknown
		}
		if until.IsZero() {
			until = time.Now().Add(limit)
		}
		if more, full := s.await(ctx, was, until); !more {
			return p, full
		}
	}
}

// await reports whether a call that failed under leader was is worth another attempt: as soon as another manager
// leads, or the same one after some time; not after until, nor when ctx ends, nor if too many calls wait (full).
func (s *succession) await(ctx context.Context, was leading, until time.Time) (more, full bool) {
	select {
	case s.places <- struct{}{}:
		defer func() { <-s.places }()
	default:
		return false, true
	}
	tick := time.NewTicker(leaderLook)
	defer tick.Stop()
	for began := time.Now(); ; {
		select {
		case <-ctx.Done():
			return false, false
		case now := <-tick.C:
			if now.After(until) {
				return false, false
			}
			is := s.leads()
			if (is.serving || is.leader.Known) && (is != was || now.Sub(began) >= leaderAgain) {
				return true, false
			}
		}
	}
}

// waits reports whether calls of this route wait for a leader: only those of users do. Components retry in their own
// way, and the body of an upload cannot be sent again.
func (rt *route) waits() bool { return rt.ofUsers() && !rt.upload }

// ofUsers reports whether users make the call, rather than components, load balancers and the like.
func (rt *route) ofUsers() bool { return rt.role != RoleNone && !rt.component() }

// impatient reports whether the caller has asked not to wait for a leader, as each try of the product's client does.
func impatient(r *http.Request, rt *route) bool {
	return rt.waits() && r.Header.Get(HeaderForwarded) == "" && leaderPatience(r, rt) <= 0
}

// leaderPatience returns how long a call waits for a leader. A forwarded call does not wait: the forwarding manager
// does.
func leaderPatience(r *http.Request, rt *route) time.Duration {
	if !rt.waits() || r.Header.Get(HeaderForwarded) != "" {
		return 0
	}
	for _, list := range r.Header.Values(HeaderPrefer) {
		for one := range strings.SplitSeq(list, ",") {
			one, _, _ = strings.Cut(one, ";")
			name, value, _ := strings.Cut(one, "=")
			if !strings.EqualFold(strings.TrimSpace(name), "wait") {
				continue
			}
			value = strings.Trim(strings.TrimSpace(value), `"`)
			// RFC 7240: a value that cannot be parsed is ignored.
			if s, err := strconv.ParseUint(value, 10, 32); err == nil {
				return min(time.Duration(s)*time.Second, leaderWaitMost)
			}
		}
	}
	return leaderWait
}
