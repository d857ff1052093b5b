package watch

import (
	"context"
	"fmt"
	"time"

	"tidemark/statecontext"
)

// Watcher is one stream of events. Only one goroutine may use it, except for Close.
type Watcher struct {
	hub        *Hub
	kinds      Kinds
	from       string
	cas        uint64 // everything up to it was delivered
	lineage    Lineage
	generation uint64
	needs      *reason  // why it needs a snapshot; nil: it does not
	takes      *encoded // the newest snapshot it was given, until its next call of Next; guarded by the hub's mu
	idle       *time.Timer
}

// gone is the address of a closed watcher.
const gone = "\x00"

// Close removes the watcher and frees its slot.
func (w *Watcher) Close() {
	h := w.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if w.from == gone {
		return
	}
	h.takeBack(w)
	h.watchers--
	if h.from[w.from]--; h.from[w.from] == 0 {
		delete(h.from, w.from)
	}
	w.from = gone
	if w.idle != nil {
		w.idle.Stop()
	}
}

// Position returns how far the watcher has come.
func (w *Watcher) Position() Position { return Position{CAS: w.cas, Lineage: w.lineage} }

// Next waits for the next changes and returns their bytes, to be written in order; the bytes are shared, and the
// caller must not modify them. If nothing changes, it returns a heartbeat. Calling Next confirms that the previous
// result was taken. Errors wrap ErrSlow, ErrFull, ErrClosed or ctx's error.
func (w *Watcher) Next(ctx context.Context) ([][]byte, error) {
	h := w.hub
	for {
		h.mu.Lock()
		h.takeBack(w)
		if h.closed {
			h.mu.Unlock()
			return nil, ErrClosed
		}
		if w.needs == nil && w.generation != h.generation {
			why := h.why
			w.needs = &why
		}
		if w.needs != nil {
			s, generation, lineage := h.state, h.generation, h.lineage
			h.mu.Unlock()
			return w.snapshot(s, generation, lineage)
		}
		if floor := h.floor(w.kinds); w.cas < floor {
			h.mu.Unlock()
			return nil, fmt.Errorf("%w: it is at cas %d, the kept changes begin after %d", ErrSlow, w.cas, floor)
		}
		out := w.collect()
		changed := h.every
		if w.kinds&LoudKinds() == 0 {
			changed = h.calm
		}
		h.mu.Unlock()
		if len(out) > 0 {
			return out, nil
		}
		if w.idle == nil {
			w.idle = time.NewTimer(Heartbeat)
		} else {
			w.idle.Reset(Heartbeat)
		}
		select {
		case <-changed:
		case <-w.idle.C:
			return [][]byte{w.heartbeat()}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// collect returns units above w.cas, quiet and loud ones in cas order, up to batchBytes, and advances w.cas. The
// caller holds h.mu.
func (w *Watcher) collect() (out [][]byte) {
	h := w.hub
	quiet := h.quiet.after(w.cas)
	var loud []unit
	if w.kinds&LoudKinds() != 0 {
		loud = h.loud.after(w.cas)
	}
	for size := 0; len(quiet)+len(loud) > 0; {
		var u *unit
		if len(loud) == 0 || len(quiet) > 0 && quiet[0].cas < loud[0].cas {
			u, quiet = &quiet[0], quiet[1:]
		} else {
			u, loud = &loud[0], loud[1:]
		}
		if u.kinds&w.kinds != 0 {
			if size > 0 && size+len(u.data) > batchBytes {
				return out
			}
			out, size = append(out, u.of(w.kinds)), size+len(u.data)
		}
		w.cas = u.cas
	}
	w.cas = h.state.CAS() // no wanted update follows up to here
	return out
}

// heartbeat returns a sign of life that also advances the position from which the client resumes: an SSE event
// without data is not dispatched, but its id is used.
func (w *Watcher) heartbeat() []byte {
	return fmt.Appendf(nil, ": alive\nid: %s\n\n", w.Position())
}

// Marker returns the last event of a stream that ends although the connection works; reason is one of v1.WatchEnd.
func (w *Watcher) Marker(reason, detail string) []byte {
	p := w.Position()
	return fmt.Appendf(nil, "id: %s\nevent: end\ndata: {\"reason\":%q,\"last_cas\":%d,\"detail\":%s}\n\n", p, reason,
		p.CAS, quote(detail))
}

// snapshot returns the complete state of the wanted kinds. A slightly older snapshot is reused if all updates since
// then are held. An error leaves the watcher's position unchanged.
func (w *Watcher) snapshot(s *statecontext.State, generation uint64, lineage Lineage) ([][]byte, error) {
	h := w.hub
	e, err := h.encode(s, generation, w.kinds)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	err = h.lend(w, e)
	h.mu.Unlock()
	if err != nil {
		return nil, err
	}
	w.generation, w.lineage = generation, lineage
	head := fmt.Appendf(nil, "id: %s\nevent: snapshot\ndata: {\"reason\":%q,\"detail\":%s,",
		Position{CAS: e.cas, Lineage: w.lineage}, w.needs.code, quote(w.needs.detail))
	w.cas, w.needs = e.cas, nil
	return [][]byte{head, e.data}, nil
}
