package feed

import "fmt"

// Position is what a consumer must keep of a stream to open it again: the last seqno it has, and the window that
// contains it.
type Position struct {
	Seqno, SnapStart, SnapEnd uint64
}

// Progress is the state of a stream after an event.
type Progress struct {
	// Position is where the stream could be opened again if the consumer has processed everything up to the event.
	Position
	// Complete is the newest seqno at which the consumer's state is a state that the node once had: the end of the last
	// window that was reached.
	Complete uint64
	// Completed is set if this event moved Complete.
	Completed bool
}

// Tracker follows one stream event by event: its open window and its complete seqno. It is plain data, for one
// goroutine.
//
// A window takes effect with its first item, not with its marker: until then the previous one stays, because a memory
// window may start above the last received seqno, and a seqno must not be combined with a window that starts above
// it. A window that a newer marker cuts short (the node dropped its cursor and continues from disk) never completes;
// the next one continues it.
type Tracker struct {
	pos      Position
	complete uint64
	marker   window
	pending  bool // marker waits for its first item
	open     bool // pos's window is of this stream, not the one it began with
}

// window is the range of a marker.
type window struct{ start, end uint64 }

// NewTracker returns the tracker of a stream that was opened at start. If start is at the end of its window, the
// state there is complete; otherwise the last complete state is at the window's start.
func NewTracker(start Position) Tracker {
	t := Tracker{pos: start, complete: start.SnapStart}
	if start.Seqno == start.SnapEnd {
		t.complete = start.Seqno
	}
	return t
}

// Progress returns the present state of the stream.
func (t *Tracker) Progress() Progress { return Progress{Position: t.pos, Complete: t.complete} }

// Observe processes the stream's next event. Errors (ErrOrder) mean that the stream cannot be relied on any more:
// close it and open it again from the last complete seqno. The Tracker is unchanged then.
func (t *Tracker) Observe(e *Event) (Progress, error) {
	var err error
	before := t.complete
	switch e.Kind {
	case SnapshotMarker:
		err = t.mark(e)
	case Mutation, Deletion, Expiration, SystemEvent:
		err = t.item(e, false)
	case SeqnoAdvanced:
		err = t.item(e, true)
	case OSO:
		err = fmt.Errorf("%w: vbucket %d: an out-of-order snapshot that was not requested", ErrOrder, e.VBucket)
	}
	p := t.Progress()
	p.Completed = t.complete != before
	return p, err
}

// mark keeps a marker until its first item.
func (t *Tracker) mark(e *Event) error {
	if e.SnapStart > e.SnapEnd || e.SnapEnd < t.pos.Seqno {
		return fmt.Errorf("%w: vbucket %d: a window from %d to %d after seqno %d", ErrOrder, e.VBucket, e.SnapStart,
			e.SnapEnd, t.pos.Seqno)
	}
	t.marker, t.pending = window{e.SnapStart, e.SnapEnd}, true
	return nil
}

// item moves to an item's seqno. Seqnos have gaps but rise. An advance without an item may repeat the seqno.
func (t *Tracker) item(e *Event, advance bool) error {
	w := window{t.pos.SnapStart, t.pos.SnapEnd}
	if t.pending {
		w = t.marker
	}
	switch {
	case !t.pending && !t.open:
		return fmt.Errorf("%w: vbucket %d: seqno %d before any window", ErrOrder, e.VBucket, e.Seqno)
	case e.Seqno < t.pos.Seqno || e.Seqno == t.pos.Seqno && !advance:
		return fmt.Errorf("%w: vbucket %d: seqno %d after %d", ErrOrder, e.VBucket, e.Seqno, t.pos.Seqno)
	case e.Seqno > w.end || e.Seqno < w.start:
		return fmt.Errorf("%w: vbucket %d: seqno %d outside its window %d to %d", ErrOrder, e.VBucket, e.Seqno, w.start,
			w.end)
	}
	if t.pending {
		// If the state is not complete, the window extends back to the previous window's start.
		if t.complete < t.pos.Seqno {
			w.start = min(w.start, t.pos.SnapStart)
		}
		t.pos.SnapStart, t.pos.SnapEnd = w.start, w.end
		t.pending, t.open = false, true
	}
	t.pos.Seqno = e.Seqno
	if e.Seqno == t.pos.SnapEnd {
		t.complete = e.Seqno
	}
	return nil
}
