package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/manager/consensus"
	"tidemark/wire"
)

// How long a forwarded request waits for a leader that may be gone.
const (
	leaderWatch   = 50 * time.Millisecond // between two checks who leads
	leaderUnknown = 2 * time.Second       // without any leader
)

// errLeaderGone ends a request to a manager that no longer leads.
var errLeaderGone = errors.New("the manager is no longer the leader, or no longer reachable as such")

// forward sends a request to the leader and its answer back: one hop, never two.
func (g *ground) forward(w http.ResponseWriter, r *http.Request, rt *route) (err error) {
	leader, ok := g.leaderOf(g.cfg.Raft.State())
	if !ok {
		return g.leaderless()
	}
	if r.Header.Get(HeaderForwarded) != "" {
		p := noLeader("the request was forwarded to this manager as the leader, which it is not; try again")
		p.Leader = &leader
		return p
	}
	if leader.REST == g.cfg.REST {
		return noLeader("this manager is taking over leadership; try again")
	}
	body := io.Reader(r.Body)
	if !rt.upload { // read first, so that errors are answered here, and the body can be sent again
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	below, span := rpc.StartSpan(r.Context(), "forward")
	defer func() { rpc.EndSpan(r.Context(), span, err) }()
	ctx, cancel := rt.passedOn(below)
	defer cancel(nil)
	req, err := g.forwarded(ctx, r, rt, leader, body)
	if err != nil {
		return rpc.Refuse(errcode.BadRequest, "%v", err)
	}
	answered := make(chan struct{})
	go g.watchLeader(answered, rt, cancel)
	resp, sent, err := send(g.sender(r, rt), req)
	close(answered)
	if err != nil {
		var unread *rpc.Problem // of an upload: its body could not be read
		if errors.As(err, &unread) {
			return unread
		}
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return forwardFailed(r, rt, sent, err)
	}
	defer resp.Body.Close()
	return passBack(w, r, resp, leader.REST)
}

// passBack sends the leader's answer back. It returns an answer after which the call may be repeated, see untilLed.
func passBack(w http.ResponseWriter, r *http.Request, resp *http.Response, leader string) error {
	if (resp.StatusCode == http.StatusServiceUnavailable || resp.StatusCode == http.StatusGatewayTimeout) &&
		r.Method != http.MethodHead {
		p := rpc.ReadProblem(resp)
		if p.Code == errcode.NoLeader || p.Code == errcode.OutcomeUnknown {
			return p
		}
		w.Header().Set(rpc.HeaderLeader, leader)
		rpc.WriteProblem(w, p)
		return nil
	}
	w.Header().Set(rpc.HeaderLeader, leader)
	copyAnswer(w, resp)
	return nil
}

// passedOn returns the context of a forwarded request. For an upload it ends only at the deadline of ctx: net/http
// ends ctx at the end of a body that was cut off, which has to be reported as such.
func (rt *route) passedOn(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	deadline, bounded := ctx.Deadline()
	if !rt.upload || !bounded {
		return context.WithCancelCause(ctx)
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	ctx, over := context.WithDeadline(ctx, deadline)
	return ctx, func(why error) {
		cancel(why)
		over()
	}
}

// forwarded returns the request to the leader for r.
func (g *ground) forwarded(ctx context.Context, r *http.Request, rt *route, leader wire.Leader, body io.Reader) (
	*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, r.Method, leader.REST+r.URL.RequestURI(), body)
	if err != nil {
		return nil, err
	}
	if rt.upload {
		req.ContentLength = r.ContentLength
	}
	for _, h := range []string{"Content-Type", "Accept", rpc.HeaderFormat, HeaderKey, headerIfMatch, headerIfNoneMatch} {
		if v := r.Header.Get(h); v != "" {
			req.Header.Set(h, v)
		}
	}
	rpc.Outgoing(req)
	g.forwardIdentity(req, r.Context(), r)
	req.Header.Set(HeaderForwarded, g.cfg.Name)
	if id := g.cfg.Raft.ClusterID(); id != "" {
		req.Header.Set(rpc.HeaderCluster, id)
	}
	if deadline, ok := ctx.Deadline(); ok {
		req.Header.Set(HeaderTimeout, strconv.FormatInt(max(time.Until(deadline).Milliseconds(), 1), 10))
	}
	return req, nil
}

// watchLeader cancels a forwarded request when its leader is gone: a leader that is cut off or stopped would
// otherwise make it wait until its deadline.
func (g *ground) watchLeader(answered <-chan struct{}, rt *route, giveUp context.CancelCauseFunc) {
	v := vigil{was: g.cfg.Raft.Leader().ID, handsOn: rt.handsOn}
	tick := time.NewTicker(leaderWatch)
	defer tick.Stop()
	for {
		select {
		case <-answered:
			return
		case <-tick.C:
		}
		if v.gone(g.cfg.Raft.Leader()) {
			giveUp(errLeaderGone)
			return
		}
	}
}

// vigil judges, from one check per leaderWatch, whether a request can still expect an answer of its leader.
type vigil struct {
	was     string
	handsOn bool // the request transfers leadership
	unknown time.Duration
}

// gone reports whether another manager leads, unless the request was to bring that about, or no leader has been known
// for leaderUnknown.
func (v *vigil) gone(now consensus.Leader) bool {
	switch {
	case now.Known && (now.ID == v.was || v.handsOn):
		v.unknown = 0
	case !now.Known && v.unknown < leaderUnknown:
		v.unknown += leaderWatch
	default:
		return true
	}
	return false
}

// send sends a request and reports whether any of it may have left: the transport retries a request with an
// Idempotency-Key when a kept-alive connection breaks, so that the last error may be a refused connection although
// the leader received it.
func send(c *http.Client, req *http.Request) (resp *http.Response, sent bool, err error) {
	var wrote atomic.Bool
	trace := &httptrace.ClientTrace{WroteHeaders: func() { wrote.Store(true) }}
	resp, err = c.Do(req.WithContext(httptrace.WithClientTrace(req.Context(), trace)))
	return resp, wrote.Load(), err
}

// sender returns the client for a request to the leader: a write that must not be repeated gets a connection of its
// own, so that a leader which died a moment ago has certainly not executed it.
func (g *ground) sender(r *http.Request, rt *route) *http.Client {
	if harmless(r, rt) || repeatable(r, rt) {
		return g.rpc.HTTP()
	}
	return g.fresh.HTTP()
}

// harmless reports whether it does not matter if a request was executed: it is a read, a dry run, or sent by a
// component.
func harmless(r *http.Request, rt *route) bool {
	return r.Method == http.MethodGet || r.Method == http.MethodHead || rt.tries(r) || rt.component()
}

// forwardFailed returns the error of a failed forward: the outcome of a write that was sent is unknown; for harmless
// requests it does not matter.
func forwardFailed(r *http.Request, rt *route, sent bool, err error) error {
	again := harmless(r, rt)
	if again && errors.Is(err, context.DeadlineExceeded) {
		return rpc.Refuse(errcode.Timeout, "the leader did not answer in time")
	}
	if !sent || again {
		return noLeader("the leader could not be reached: %v; try again", err)
	}
	return rpc.Refuse(errcode.OutcomeUnknown,
		"the leader did not answer (%v): the write may or may not have been done; send it again with the same %s to learn "+
			"which; without a key, check the state before you repeat it", err, HeaderKey)
}

// paramDryRun makes a write report what it would do, and do nothing.
const paramDryRun = "dry_run"

// tries reports whether a request is a dry run, which has no lasting effect in any case.
func (rt *route) tries(r *http.Request) bool {
	return r.URL.Query().Get(paramDryRun) == "true" &&
		slices.ContainsFunc(rt.doc.params, func(p param) bool { return p.name == paramDryRun })
}

// copyAnswer copies status, relevant headers and body. If an answer of unknown length breaks off, the connection to
// the client is cut as well, so that it does not mistake that for the end; with a known length the client notices by
// itself.
func copyAnswer(w http.ResponseWriter, resp *http.Response) {
	for _, h := range []string{"Content-Type", "Content-Length", "ETag", "Retry-After", "Allow", "WWW-Authenticate",
		HeaderCAS, rpc.HeaderLeader, "Set-Cookie"} {
		if v := resp.Header.Get(h); v != "" {
			w.Header().Set(h, v)
		}
	}
	rpc.BeginAnswer(w)
	w.WriteHeader(resp.StatusCode)
	if _, err := io.Copy(w, resp.Body); err != nil && resp.ContentLength < 0 {
		panic(http.ErrAbortHandler) // net/http's way to cut the connection
	}
}
