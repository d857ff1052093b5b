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

// How a user's call waits for a leader instead of being answered NO_LEADER.
const (
	leaderWait     = 2 * time.Second        // unless the caller's Prefer says another time
	leaderWaitMost = 10 * time.Second       // whatever it says
	leaderLook     = 20 * time.Millisecond  // between two looks at who leads
	leaderAgain    = 250 * time.Millisecond // the same one is asked again: it may have been about to lead, or to listen
	waitersMost    = 256                    // more calls than these are answered NO_LEADER at once
)

// HeaderPrefer is RFC 7240's: "wait=N" is how many seconds a call may wait for a leader.
const HeaderPrefer = "Prefer"

// untilLed does a call as once does. While nobody leads, as in the moments after a leader's death, a user's call waits
// for the next leader and is made again, with the same body.
func (a *API) untilLed(w http.ResponseWriter, r *http.Request, rt *route) (here bool, err error) {
	limit := leaderPatience(r, rt)
	if limit <= 0 {
		return a.once(w, r, rt)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return true, err
	}
	again := repeatable(r, rt)
	p := a.succession.run(r.Context(), limit, func() (*rpc.Problem, bool) {
		r.Body = io.NopCloser(bytes.NewReader(body))
		if here, err = a.once(w, r, rt); err == nil {
			return nil, false
		}
		p := a.problem(err)
		switch {
		case errors.Is(err, consensus.ErrClosed): // this manager ends
			return p, false
		case p.Code == errcode.NoLeader:
			return p, true
		}
		return p, again && p.Code == errcode.OutcomeUnknown
	})
	if p == nil {
		return here, nil
	}
	return here, p
}

// repeatable reports whether a call may be made again though it may have been done: the ledger knows it by its key, or
// twice is as once.
func repeatable(r *http.Request, rt *route) bool {
	return rt.again || r.Header.Get(HeaderKey) != "" && slices.Contains(rt.doc.headers, HeaderKey)
}

// succession lets calls wait for the next leader.
type succession struct {
	leads  func() leading
	places chan struct{} // one for each call that waits
}

// leading is who leads, as far as this manager knows, and whether it is itself.
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

// run calls try until it is not refused for want of a leader, for at most limit after the first time. NO_LEADER says
// that nothing was done; where a leader took the call with it, try is called again only if it is repeatable: try
// reports that.
func (s *succession) run(ctx context.Context, limit time.Duration,
	try func() (p *rpc.Problem, again bool)) *rpc.Problem {
	var until time.Time
	var unknown *rpc.Problem // that it may be done was said: that nothing was done must not be said after it
	for {
		was := s.leads()
		p, again := try()
		switch {
		case p == nil:
			return nil
		case again && p.Code == errcode.OutcomeUnknown:
			unknown = p
		case !again && p.Code == errcode.NoLeader: // this manager ends
			return cmp.Or(unknown, p)
		case !again && (unknown == nil || p.Status < http.StatusInternalServerError):
			return p
		case unknown != nil:
			p = unknown
		}
		if until.IsZero() {
			until = time.Now().Add(limit)
		}
		if !s.await(ctx, was, until) {
			return p
		}
	}
}

// await reports whether a call that was refused while was led is worth another try: as soon as another one leads, or
// the same one after some time; not after until, nor when ctx ends, nor where too many wait.
func (s *succession) await(ctx context.Context, was leading, until time.Time) bool {
	select {
	case s.places <- struct{}{}:
		defer func() { <-s.places }()
	default:
		return false
	}
	tick := time.NewTicker(leaderLook)
	defer tick.Stop()
	for began := time.Now(); ; {
		select {
		case <-ctx.Done():
			return false
		case now := <-tick.C:
			if now.After(until) {
				return false
			}
			is := s.leads()
			if (is.serving || is.leader.Known) && (is != was || now.Sub(began) >= leaderAgain) {
				return true
			}
		}
	}
}

// waits reports whether calls like this one wait for a leader: users' alone. Components have their own way to try
// again, and of an upload nothing is kept that could be sent again.
func (rt *route) waits() bool { return rt.role != RoleNone && !rt.component() && !rt.upload }

// leaderPatience is how long a call waits for a leader. Where it was forwarded, who forwarded it does the waiting.
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
			// What cannot be read is passed over, as RFC 7240 has it.
			if s, err := strconv.ParseUint(value, 10, 32); err == nil {
				return min(time.Duration(s)*time.Second, leaderWaitMost)
			}
		}
	}
	return leaderWait
}
