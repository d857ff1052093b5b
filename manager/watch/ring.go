package watch

import (
	"encoding/json"
	"fmt"

	"tidemark/statecontext"
)

// unit is one update as it is sent: all events of one cas in one server-sent event, so that no watcher resumes within
// an update.
type unit struct {
	cas   uint64
	kinds Kinds
	data  []byte
	head  int    // bytes before the first event
	parts []part // positions of the events in data; nil if there is only one
}

// part is the position of one event in a unit's data.
type part struct {
	kind       Kinds
	start, end int
}

const unitTail = "]}\n\n"

// newUnit encodes the events of one cas.
func newUnit(events []statecontext.Event, lineage Lineage) (unit, error) {
	u := unit{cas: events[0].CAS}
	u.data = fmt.Appendf(nil, "id: %s\nevent: change\ndata: {\"cas\":%d,\"events\":[",
		Position{CAS: u.cas, Lineage: lineage}, u.cas)
	u.head = len(u.data)
	for i := range events {
		b, err := json.Marshal(&events[i])
		if err != nil {
			return u, fmt.Errorf("event of cas %d: %w", u.cas, err)
		}
		if i > 0 {
			u.data = append(u.data, ',')
		}
		p := part{kind: kindBit(events[i].Kind), start: len(u.data)}
		u.data = append(u.data, b...)
		p.end = len(u.data)
		u.kinds |= p.kind
		u.parts = append(u.parts, p)
	}
	if len(u.parts) == 1 {
		u.parts = nil
	}
	u.data = append(u.data, unitTail...)
	return u, nil
}

// of returns the data for a watcher of these kinds: the shared encoding if it wants all of the events.
func (u *unit) of(kinds Kinds) []byte {
	if u.kinds&^kinds == 0 {
		return u.data
	}
	out := append(make([]byte, 0, len(u.data)), u.data[:u.head]...)
	for _, p := range u.parts {
		if p.kind&kinds == 0 {
			continue
		}
		if len(out) > u.head {
			out = append(out, ',')
		}
		out = append(out, u.data[p.start:p.end]...)
	}
	return append(out, unitTail...)
}

// ring holds the newest units, ascending by cas, up to a number and a size.
type ring struct {
	maxUnits, maxBytes int
	units              []unit // units before first have been dropped
	first              int
	bytes              int
	floor              uint64 // all units with a cas above floor are held
}

func (r *ring) live() []unit { return r.units[r.first:] }

func (r *ring) push(u unit) {
	r.units, r.bytes = append(r.units, u), r.bytes+len(u.data)
	for n := len(r.units) - r.first; n > 1 && (n > r.maxUnits || r.bytes > r.maxBytes); n-- {
		old := &r.units[r.first]
		r.floor, r.bytes = old.cas, r.bytes-len(old.data)
		*old = unit{}
		r.first++
	}
	if r.first > len(r.units)/2 && r.first > 64 {
		n := copy(r.units, r.units[r.first:])
		clear(r.units[n:])
		r.units, r.first = r.units[:n], 0
	}
}

func (r *ring) reset(floor uint64) { r.units, r.first, r.bytes, r.floor = nil, 0, 0, floor }

// after returns the units above cas.
func (r *ring) after(cas uint64) []unit {
	units := r.live()
	low, high := 0, len(units)
	for low < high {
		if mid := int(uint(low+high) >> 1); units[mid].cas > cas {
			high = mid
		} else {
			low = mid + 1
		}
	}
	return units[low:]
}
