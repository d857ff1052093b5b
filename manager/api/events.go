package api

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/manager/api/v1"
	"tidemark/manager/watch"
)

// Limits of an event stream.
const (
	WatchTimeout = time.Hour // after which the client must reconnect
	// watchPatience is how long a watcher may take to accept watchPiece bytes.
	watchPatience = 30 * time.Second
	watchPiece    = 64 << 10
	// markerPatience is how long a watcher may take to accept the last event.
	markerPatience = time.Second
	watchRetryMS   = 2000
)

// mediaEvents is the media type of server-sent events.
const mediaEvents = "text/event-stream"

func (g events) watchRoutes() []route {
	return []route{
		{method: "GET", path: "/v1/events", handle: g.events, role: RoleRead, limit: WatchTimeout, stream: true,
			doc: operation{
				id: "watchEvents", tag: tagReads, summary: "Watch the replicated state: a snapshot, then every change in cas " +
					"order, as server-sent events",
				params: []param{
					{name: "since", means: "the id of the newest event received, or a cas; the header Last-Event-ID takes " +
						"precedence. Without either, a snapshot comes first"},
					{name: "kinds", means: "a list of kinds separated by commas, or all; the default is all but " +
						"stability, backfill and session"},
					{name: "consistency", enum: []string{"linearizable", "stale"}, means: "has no effect here: the stream is this " +
						"manager's own"},
				},
				answers: []answer{{status: 200, means: "events snapshot, change and end", media: mediaEvents,
					lines: []any{v1.WatchSnapshot{}, v1.WatchChange{}, v1.WatchEnd{}}}},
				codes: []errcode.Code{errcode.TooManyWatchers, errcode.Busy, errcode.Unavailable}}},
	}
}

// events streams the changes of this manager's own state (server-sent events); it needs no leader.
func (g events) events(w http.ResponseWriter, r *http.Request) error {
	req, err := watchRequest(r)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), patience(r, WatchTimeout))
	defer cancel()
	stream, err := g.cfg.Watch.Join(ctx, req)
	if err != nil {
		return watchProblem(err)
	}
	defer stream.Close()
	w.Header().Set("Content-Type", mediaEvents)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no") // for proxies that would buffer events
	if r.Method == http.MethodHead {
		return nil
	}
	out := eventWriter{w: w, control: http.NewResponseController(w), now: g.now,
		may: func() bool { return ctx.Err() == nil && g.stillMay(r.Context()) }}
	if !out.send(watchPatience, []byte("retry: 1000\n\n")) {
		return nil
	}
	for {
		chunks, err := stream.Next(ctx)
		if err != nil {
			if reason, detail, ok := whyEnded(err); ok {
				_ = out.send(markerPatience, stream.Marker(reason, detail)) // an error means that the client has gone
			}
			return nil
		}
		if !g.stillMay(r.Context()) {
			_ = out.send(markerPatience, stream.Marker("refused", "the user, password, role or token has changed, "+
				"users were added, or this manager cannot check that at present; connect again"))
			return nil
		}
		if !out.send(watchPatience, chunks...) {
			return nil
		}
	}
}

// eventWriter is the connection to a watcher.
type eventWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
	now     func() time.Time
	may     func() bool // reports whether more may be sent
}

// send writes chunks one after the other, and reports whether the watcher has accepted them: each watchPiece bytes
// within patience. Before each further piece, of which a snapshot may have hundreds, it checks whether more may be
// sent.
func (o *eventWriter) send(patience time.Duration, chunks ...[]byte) bool {
	room, begun := 0, false
	for _, b := range chunks {
		for len(b) > 0 {
			if room == 0 {
				if begun && !o.may() || o.control.SetWriteDeadline(o.now().Add(patience)) != nil {
					return false
				}
				room, begun = watchPiece, true
			}
			n := min(len(b), room)
			if _, err := o.w.Write(b[:n]); err != nil {
				return false
			}
			b, room = b[n:], room-n
		}
	}
	return o.control.Flush() == nil
}

// whyEnded returns the reason for the end of a stream; ok is false if the client has gone.
func whyEnded(err error) (reason, detail string, ok bool) {
	switch {
	case errors.Is(err, watch.ErrSlow):
		return "slow", err.Error() + "; connect again for a new snapshot", true
	case errors.Is(err, watch.ErrFull), errors.Is(err, watch.ErrAddressFull):
		return "busy", err.Error() + "; connect again later", true
	case errors.Is(err, watch.ErrClosed):
		return "stopping", "this manager is stopping; connect to another one", true
	case errors.Is(err, context.DeadlineExceeded):
		return "age", "the stream has reached its maximum age; connect again", true
	case errors.Is(err, context.Canceled):
		return "", "", false
	}
	return "failed", err.Error(), true
}

func watchRequest(r *http.Request) (watch.Request, error) {
	q := r.URL.Query()
	bad := func(err error) (watch.Request, error) {
		return watch.Request{}, rpc.Refuse(errcode.BadRequest, "%v", err)
	}
	req := watch.Request{}
	var err error
	if req.Kinds, err = watch.ParseKinds(q.Get("kinds")); err != nil {
		return bad(err)
	}
	since := r.Header.Get("Last-Event-ID") // it is newer than the position in the URL
	if since == "" {
		since = q.Get("since")
	}
	if since != "" {
		p, err := watch.ParsePosition(since)
		if err != nil {
			return bad(err)
		}
		req.Since = &p
	}
	if req.From, _, err = net.SplitHostPort(r.RemoteAddr); err != nil {
		req.From = r.RemoteAddr
	}
	return req, nil
}

func watchProblem(err error) error {
	retry := func(p *rpc.Problem) error {
		p.RetryAfterMS = watchRetryMS
		return p
	}
	switch {
	case errors.Is(err, watch.ErrAddressFull):
		return retry(rpc.Refuse(errcode.TooManyWatchers, "%v", err))
	case errors.Is(err, watch.ErrFull):
		return retry(rpc.Refuse(errcode.Busy, "%v", err))
	case errors.Is(err, watch.ErrBehind), errors.Is(err, watch.ErrClosed):
		p := rpc.Refuse(errcode.Unavailable, "%v", err)
		p.RetryAfterMS = leaderRetryMS
		return p
	}
	return err
}
