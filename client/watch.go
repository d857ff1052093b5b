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
	// watchSilence is after how long without a byte a stream counts as lost; a manager sends a heartbeat every 5 s.
	watchSilence = 15 * time.Second
	// watchSettled is how long a stream that has told nothing new must have lasted for the pauses to be short again.
	watchSettled = 5 * time.Second
)

// WatchEvent is what a watcher is told: a snapshot, or what one update has changed.
type WatchEvent struct {
	// ID is the position after this event, to watch on from there later.
	ID  string
	CAS uint64
	// Snapshot is the state of all kinds that were asked for. It comes first, unless there was a position that is still
	// held, and again whenever the changes since the newest event are not known any more; Reason is why, as docs/api.md
	// lists it, Detail the same for people.
	Snapshot       *v1.WatchState
	Reason, Detail string
	// Changes are all changes of one update, when Snapshot is nil.
	Changes []v1.Change
}

// Watch returns the changes of the replicated state in cas order: since is the ID of the newest event that was seen, or
// a cas; "" begins with a snapshot. Without kinds it is every kind but stability, backfill and session; "all" is every
// kind. It goes over to another server by itself when one fails, and misses and repeats nothing thereby. It ends with
// ctx, or with an error of the request, which is the last thing that it gives. A client carries at most 64 streams to
// one server.
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

// errStopped tells that the caller wants no more.
var errStopped = errors.New("the caller has stopped")

// watching is one iteration.
type watching struct {
	client  *Client
	id      string
	cas     uint64 // of the newest event; 0: none yet
	kinds   string
	yield   func(WatchEvent, error) bool
	silence time.Duration
	begun   bool   // a stream has
	opened  func() // is called when a stream has begun; nil: nobody has to know
}

// run goes from server to server.
func (w *watching) run(ctx context.Context) error {
	c, backoff := w.client, firstBackoff
	var before error // why the last stream ended
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
				return question{op: "watch", of: "the cluster"}.gaveUp(ctx, server, err, before)
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
		if attempt%len(c.servers) == 0 { // all have been asked, whatever came
			pause(ctx, &backoff)
		}
	}
}

// hasAny reports whether a stream has begun, or an event come.
func (w *watching) hasAny() bool { return w.begun || w.cas > 0 }

// final reports whether another server, or the same one later, would say the same.
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
	e := serverEvents{from: bufio.NewReaderSize(&heard{answer.Body, lost, w.silence}, 16<<10)}
	for {
		if err := e.next(); err != nil {
			return fmt.Errorf("the event stream of %s has ended: %w", server, err)
		}
		lost.Stop() // while nobody reads
		if err := w.take(e.id, e.event, e.data); err != nil {
			return err
		}
		lost.Reset(w.silence)
	}
}

// serverEvents reads server-sent events. An id stays until there is another one.
type serverEvents struct {
	from      *bufio.Reader
	id, event string
	data      []byte
}

// next reads an event to its end.
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

// heard puts the end of the patience with a stream off whenever something comes of it: a snapshot is one line, and may
// take longer.
type heard struct {
	from    io.Reader
	lost    *time.Timer
	silence time.Duration
}

func (h *heard) Read(p []byte) (int, error) {
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

// take hands an event to the caller. One without data only moves the position.
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
	default: // a kind of event that a later version knows
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
