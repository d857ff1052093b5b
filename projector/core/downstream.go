package core

import (
	"slices"

	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/timestamp"
)

// Downstream is a vbucket's stream as one endpoint is told of it: which of the endpoint's copies it feeds, and how it
// has ended. Nothing of it changes once others can see it.
type Downstream struct {
	VBucket     uint16
	Incarnation index.Incarnation
	VBUUID      uint64
	Opening     keyversion.Begin // the first BEGIN, but for copies
	Copies      []index.CopyID   // ascending
	Ended       bool
	Broken      bool   // of a side stream: it has ended before its end
	Reach       uint64 // of a side stream that came to its end: how far KV was read
	Sums        keyversion.Sums
}

// Begin is BEGIN of a stream that starts after a seqno, or goes on there: a router repeats it over each new connection.
func (d *Downstream) Begin(start uint64) keyversion.Event {
	b := d.Opening
	b.Start, b.Copies = start, d.Copies
	e := d.event(keyversion.StreamBegin, start)
	e.Begin = &b
	return e
}

// Switch is what takes an endpoint from one set of copies to the stream's present one, between two mutations of which
// the first had the seqno last: what leaves, then what joins. So last is the activation timestamp of each copy that
// joins (docs/architecture.md, "Joining a running stream"). An endpoint that was not told of the stream is told of it
// first, without copies, so that those join here and not where the stream began.
func (d *Downstream) Switch(had []index.CopyID, told bool, last uint64) (events []keyversion.Event) {
	if !told {
		empty := *d
		empty.Copies = nil
		events = append(events, empty.Begin(last))
	}
	if gone := lacking(had, d.Copies); len(gone) > 0 {
		e := d.event(keyversion.Deactivate, last)
		e.Copies = gone
		events = append(events, e)
	}
	if came := lacking(d.Copies, had); len(came) > 0 {
		e := d.event(keyversion.Activate, last)
		e.Copies = came
		events = append(events, e)
	}
	return events
}

// Leave is said to an endpoint none of whose copies the stream feeds any more.
func (d *Downstream) Leave(last uint64) keyversion.Event {
	e := d.event(keyversion.Deactivate, last)
	e.Copies = d.Copies
	return e
}

// End is what ends the stream at the endpoint: a side stream that came to its end says so, one that did not says from
// where on it brings nothing.
func (d *Downstream) End(last uint64) keyversion.Event {
	if d.Broken {
		return d.Drop(last + 1)
	}
	e := d.event(keyversion.StreamEnd, last)
	e.Window, e.Sums = timestamp.Window{End: d.Reach}, d.Sums
	return e
}

// Drop says that the event at a seqno is the first one that the endpoint does not get; data follows again after the
// next BEGIN.
func (d *Downstream) Drop(first uint64) keyversion.Event { return d.event(keyversion.DropData, first) }

// Sync says that everything up to a seqno, the end of a DCP snapshot, has been sent.
func (d *Downstream) Sync(vbuuid, complete uint64) keyversion.Event {
	e := d.event(keyversion.Sync, complete)
	e.VBUUID = vbuuid
	return e
}

// Resume is what an endpoint is told to which the stream was dropped, and which takes it again after a seqno. first is
// what was lost first; 0: nothing that it would have to know of.
func (d *Downstream) Resume(first, at uint64) (events []keyversion.Event) {
	if first != 0 {
		events = append(events, d.Drop(first))
	}
	events = append(events, d.Begin(at))
	if d.Ended {
		events = append(events, d.End(at))
	}
	return events
}

func (d *Downstream) event(kind keyversion.Kind, seqno uint64) keyversion.Event {
	return keyversion.Event{Kind: kind, VBucket: d.VBucket, Incarnation: d.Incarnation, VBUUID: d.VBUUID, Seqno: seqno}
}

// lacking returns the elements of a that b lacks; both ascending.
func lacking(a, b []index.CopyID) (out []index.CopyID) {
	for _, c := range a {
		if _, ok := slices.BinarySearch(b, c); !ok {
			out = append(out, c)
		}
	}
	return out
}
