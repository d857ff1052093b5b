package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strings"
	"time"

	"tidemark/manager/api/v1"
	"tidemark/wire"
)

const (
	// watchSilence is the time without a byte after which a stream counts as lost; a manager sends a heartbeat every 5
	// s.
	watchSilence = 15 * time.Second
	// watchSettled is how long a stream that brought nothing new must have lasted to reset the pauses between attempts.
	watchSettled = 5 * time.Second
)

// WatchEvent is an event of Watch: a snapshot, or the changes of one update.
type WatchEvent struct {
	// ID is the position after this event; Watch can continue from it later.
	ID  string
	CAS uint64
	// Snapshot is the state of all requested kinds. It comes first, unless the given position is still available, and
	// again whenever the changes since the newest event are no longer available. Reason is the cause, as listed in
	// docs/api.md; Detail is the same as text for people.
	Snapshot       *v1.WatchState
	Reason, Detail string
	// Changes are all changes of one update, if Snapshot is nil.
	Changes []v1.Change
}

// Watch returns the changes of the replicated state in cas order. since is the ID of the newest event seen, or a cas;
// with "" it begins with a snapshot. Without kinds, it returns every kind but stability, backfill and session; "all"
// selects every kind. If a server fails, it continues with another one, and neither misses nor repeats an event. It
// ends with ctx, or with an error of the request, which is its last element. A client opens at most 64 streams to one
// server.
func (c *Client) Watch(ctx context.Context, since string, kinds ...string) iter.Seq2[WatchEvent, error] {
	return func(yield func(WatchEvent, error) bool) {
		if c.bad != nil {
			yield(WatchEvent{}, c.bad)
			return
		}
		w := &watching{client: c, id: since, kinds: strings.Join(kinds, ","), yield: yield, silence: watchSilence}
		if err := w.run(ctx); err != nil && !errors.Is(err, errStopped) {
			yield(WatchEvent{}, err)
		}
	}
}

// errStopped means that the caller has ended the iteration.
var errStopped = errors.New("the caller has stopped")

// watching is one iteration of Watch.
type watching struct {
	client  *Client
	id      string
	cas     uint64 // of the newest event; 0: none yet
	kinds   string
	yield   func(WatchEvent, error) bool
	silence time.Duration
	begun   bool   // a stream has begun
	opened  func() // called when a stream has begun; may be nil
}

// run watches at one server after another.
func (w *watching) run(ctx context.Context) error {
	c, backoff := w.client, firstBackoff
	var before error // of the previous stream
	reach := c.reach()
	for attempt := 1; ; attempt++ {
		at := c.next.Load()
		server := c.servers[int(at)%len(c.servers)]
		cas, began := w.cas, time.Now()
		err := w.stream(reach.attempt(ctx), server)
		if errors.Is(err, errStopped) {
			return err
		}
		err, hopeless := reach.failed(server, err)
		switch {
		case hopeless:
			return err
		case ctx.Err() != nil:
			if !w.hasAny() {
				return operation{op: "watch", of: "the cluster"}.contextError(ctx, server, err, before)
			}
			return ctx.Err()
		case final(err):
			return err
		}
		before = err
		c.waits(err)
		if w.cas != cas || time.Since(began) >= watchSettled {
			backoff = firstBackoff
		}
		c.next.CompareAndSwap(at, at+1)
		if attempt%len(c.servers) == 0 { // every server was tried
			pause(ctx, &backoff)
		}
	}
}

// hasAny reports whether a stream has begun, or an event has arrived.
func (w *watching) hasAny() bool { return w.begun || w.cas > 0 }

// final reports whether another server, or the same one later, would answer the same.
func final(err error) bool {
	var p *wire.Problem
	if errors.As(err, &p) {
		return p.Status != http.StatusTooManyRequests && p.Status < http.StatusInternalServerError
	}
	return errors.Is(err, ErrAnswer)
}

// stream reads one connection to its end.
func (w *watching) stream(ctx context.Context, server string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lost := time.AfterFunc(w.silence, cancel)
	defer lost.Stop()
	q := url.Values{}
	if w.id != "" {
		q.Set("since", w.id)
	}
	if w.kinds != "" {
		q.Set("kinds", w.kinds)
	}
	answer, err := w.client.send(ctx, http.MethodGet, server+"/v1/events?"+q.Encode(),
		http.Header{"Accept": {"text/event-stream"}}, nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if t := answer.Header.Get("Content-Type"); !strings.HasPrefix(t, "text/event-stream") {
		return fmt.Errorf("%w of %s to GET /v1/events: content type %q", ErrAnswer, server, t)
	}
	w.begun = true
	if w.opened != nil {
		w.opened()
	}
	e := serverEvents{from: bufio.NewReaderSize(&watchedReader{answer.Body, lost, w.silence}, 16<<10)}
	for {
		if err := e.next(); err != nil {
			return fmt.Errorf("the event stream of %s has ended: %w", server, err)
		}
		lost.Stop() // while the caller processes the event
		if err := w.take(e.id, e.event, e.data); err != nil {
			return err
		}
		lost.Reset(w.silence)
	}
}

// serverEvents reads server-sent events. An id is valid until the next one.
type serverEvents struct {
	from      *bufio.Reader
	id, event string
	data      []byte
}

// next reads one complete event.
func (e *serverEvents) next() error {
	e.event, e.data = "", nil
	for {
		line, err := readLine(e.from)
		if err != nil {
			return err
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "id":
			e.id = string(value)
		case "event":
			e.event = string(value)
		case "data":
			e.data = append(e.data, value...)
		}
		if len(line) == 0 {
			return nil
		}
	}
}

// watchedReader restarts the timer for a silent stream whenever something is read: a snapshot is one line, and may take
// longer than the timer allows.
type watchedReader struct {
	from    io.Reader
	lost    *time.Timer
	silence time.Duration
}

func (h *watchedReader) Read(p []byte) (int, error) {
	n, err := h.from.Read(p)
	if n > 0 {
		h.lost.Reset(h.silence)
	}
	return n, err
}

// readLine reads one line of at most maxAnswer bytes.
func readLine(r *bufio.Reader) (line []byte, err error) {
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case err == nil:
			return bytes.TrimRight(line, "\r\n"), nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		case len(line) > maxAnswer:
			return nil, fmt.Errorf("%w: a line of more than %d bytes", ErrAnswer, maxAnswer)
		}
	}
}

// take passes an event to the caller. An event without data only moves the position.
func (w *watching) take(id, event string, data []byte) error {
	e := WatchEvent{ID: id}
	var err error
	switch {
	case len(data) == 0:
	case event == "snapshot":
		s := &v1.WatchSnapshot{}
		err = json.Unmarshal(data, s)
		e.Snapshot, e.Reason, e.Detail, e.CAS = &s.WatchState, s.Reason, s.Detail, s.CAS
	case event == "change":
		c := v1.WatchChange{}
		err = json.Unmarshal(data, &c)
		e.CAS, e.Changes = c.CAS, c.Events
	case event == "end":
		var end v1.WatchEnd
		if json.Unmarshal(data, &end) != nil {
			end.Reason = "unknown"
		}
		return fmt.Errorf("%w (%s): %s", io.EOF, end.Reason, end.Detail)
	default: // an event of a kind that a later version sends
	}
	if err != nil {
		return fmt.Errorf("%w: event %s %s: %w", ErrAnswer, event, id, err)
	}
	if id != "" {
		w.id = id
	}
	if isNew := len(e.Changes) > 0 && e.CAS > w.cas; e.Snapshot == nil && !isNew {
		return nil
	}
	w.cas = e.CAS
	if !w.yield(e, nil) {
		return errStopped
	}
	return nil
}
