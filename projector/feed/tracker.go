package feed

import "fmt"

// Position is what a consumer must keep of a stream to open it again: the last
// seqno it has, and the window that seqno is in.
type Position struct {
	Seqno, SnapStart, SnapEnd uint64
}

// Progress is where a stream stands after an event.
type Progress struct {
	// Position is from where the stream could be opened again, if the consumer has
	// processed everything up to the event.
	Position
	// Complete is the newest seqno at which the consumer's state is a state the node
	// once had: the last window's end, when it was reached.
	Complete uint64
	// Completed says that this event moved Complete.
	Completed bool
}

// Tracker follows one stream event by event: which window is open, which seqno is
// complete. It is plain data, for one goroutine.
//
// A window is adopted with its first item, not with its marker: until then the
// old one stays, because a memory window may start above the last received seqno
// and must not be claimed with a seqno below its start. A window that a newer
// marker cuts short (the node dropped its cursor and goes on from disk) never
// completes; the next one continues it.
type Tracker struct {
	pos      Position
	complete uint64
	marker   window
	pending  bool // marker waits for its first item
	open     bool // pos's window is of this stream, not where it began
}

// window is what a marker says.
type window struct{ start, end uint64 }

// NewTracker begins a stream at the position it was opened with. If start is at
// an end of its window, the state there is complete; else the last complete state
// is the window's start.
func NewTracker(start Position) Tracker {
	t := Tracker{pos: start, complete: start.SnapStart}
	if start.Seqno == start.SnapEnd {
		t.complete = start.Seqno
	}
	return t
}

// Progress is where the stream stands.
func (t *Tracker) Progress() Progress { return Progress{Position: t.pos, Complete: t.complete} }

// Observe takes the stream's next event. Errors (ErrOrder) mean that the stream
// cannot be trusted any more: close it and open it again from the last complete
// seqno. The Tracker is then unchanged.
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
		err = fmt.Errorf("%w: vbucket %d: an out-of-order snapshot nobody asked for", ErrOrder, e.VBucket)
	}
	p := t.Progress()
	p.Completed = t.complete != before
	return p, err
}

// mark remembers a marker until its first item.
func (t *Tracker) mark(e *Event) error {
	if e.SnapStart > e.SnapEnd || e.SnapEnd < t.pos.Seqno {
		return fmt.Errorf("%w: vbucket %d: a window from %d to %d after seqno %d", ErrOrder, e.VBucket, e.SnapStart,
			e.SnapEnd, t.pos.Seqno)
	}
	t.marker, t.pending = window{e.SnapStart, e.SnapEnd}, true
	return nil
}

// item moves to an item's seqno. Seqnos have gaps but rise. An advance without an
// item may repeat the seqno.
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
		// Where the state is not complete, the window reaches back to where it was.
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
