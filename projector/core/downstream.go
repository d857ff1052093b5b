package core

import (
	"slices"

	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/timestamp"
)

// Downstream is a vbucket's stream as one endpoint sees it: which of the endpoint's copies it feeds, and how it
// ended. It is not modified once other goroutines can see it.
type Downstream struct {
	VBucket     uint16
	Incarnation index.Incarnation
	VBUUID      uint64
	Opening     keyversion.Begin // the first BEGIN, without its copies
	Copies      []index.CopyID   // ascending
	Ended       bool
	Broken      bool   // of a side stream: it was broken off before its end
	Reach       uint64 // of a side stream that reached its end: how far KV was read
	Sums        keyversion.Sums
}

// Begin returns the BEGIN of a stream that starts after seqno start or continues there: a router repeats BEGIN on
// each new connection.
func (d *Downstream) Begin(start uint64) keyversion.Event {
	b := d.Opening
	b.Start, b.Copies = start, d.Copies
	e := d.event(keyversion.StreamBegin, start)
	e.Begin = &b
	return e
}

// Switch returns the events that change an endpoint's copies from had to the stream's present ones, between two
// mutations of which the first had the seqno last: DEACTIVATE for the copies that leave, then ACTIVATE for those that
// join. So last is the activation timestamp of each copy that joins (docs/architecture.md, "Joining a running
// stream"). begun reports whether the endpoint has received the stream's BEGIN. If not, a BEGIN without copies comes
// first, so that the copies join at last and not where the stream began.
func (d *Downstream) Switch(had []index.CopyID, begun bool, last uint64) (events []keyversion.Event) {
	if !begun {
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

// Leave returns the DEACTIVATE for an endpoint none of whose copies the stream feeds any more.
func (d *Downstream) Leave(last uint64) keyversion.Event {
	e := d.event(keyversion.Deactivate, last)
	e.Copies = d.Copies
	return e
}

// End returns the event that ends the stream at the endpoint: END for a side stream that reached its end, DropData
// from the next seqno on for one that was broken off.
func (d *Downstream) End(last uint64) keyversion.Event {
	if d.Broken {
		return d.Drop(last + 1)
	}
	e := d.event(keyversion.StreamEnd, last)
	e.Window, e.Sums = timestamp.Window{End: d.Reach}, d.Sums
	return e
}

// Drop returns the DropData event: the event at seqno first is the first that the endpoint does not get. Data follows
// again after the next BEGIN.
func (d *Downstream) Drop(first uint64) keyversion.Event { return d.event(keyversion.DropData, first) }

// Sync returns the SYNC event, which states that everything up to seqno complete, the end of a DCP snapshot, has been
// sent.
func (d *Downstream) Sync(vbuuid, complete uint64) keyversion.Event {
	e := d.event(keyversion.Sync, complete)
	e.VBUUID = vbuuid
	return e
}

// Resume returns the events for an endpoint whose data was dropped and that continues after seqno at. first is the
// first seqno that was lost; with 0 nothing was lost that the endpoint has to be notified of.
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

// lacking returns the elements of a that are not in b. Both are ascending.
func lacking(a, b []index.CopyID) (out []index.CopyID) {
	for _, c := range a {
		if _, ok := slices.BinarySearch(b, c); !ok {
			out = append(out, c)
		}
	}
	return out
}
