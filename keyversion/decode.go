package keyversion

import (
	"fmt"

	"tidemark/index"
	"tidemark/timestamp"
)

// arena is the memory behind a batch's events, reused by the next Decode. If one of these slices has to grow, the
// events decoded before keep the old one.
type arena struct {
	statements []Statement
	keys       [][]byte
	copies     []index.CopyID
	begins     []Begin
	lists      []*Places // of this frame
	// known caches lists of earlier frames, by their bytes. They are few, and a list is the same object in all frames.
	known map[string]*Places
}

const (
	// maxKnown bounds the cached lists, and maxKnownBytes the length of each.
	maxKnown      = 64
	maxKnownBytes = 8 << 10
	// maxPlace is the maximum size of a place in bytes.
	maxPlace = 10 + 3
)

// maxKept bounds the capacity that a slice of a batch keeps for the next frame, so that one huge document does not
// pin its memory.
const maxKept = 1 << 14

// Decode decodes a frame into b, whose memory it reuses: in the steady state it allocates nothing. Everything in b
// aliases frame, and is valid until frame is modified or b is used for another Decode. Errors wrap ErrCorrupt or
// ErrFormat; b is empty then.
func Decode(frame []byte, b *Batch) error {
	b.reset()
	number, body, err := openHeader(frame, frameBatch, BatchFormat, MaxFrame)
	if err != nil {
		return err
	}
	d := decoder{reader: reader{b: body}, batch: b}
	for d.left() > 0 {
		if err := d.event(); err != nil {
			n := len(b.Events)
			b.reset()
			return fmt.Errorf("batch %d, event %d: %w", number, n, err)
		}
	}
	b.Number, b.frame = number, len(frame)
	return nil
}

// Size returns the approximate memory of b including the frame from which it was decoded, in bytes.
func (b *Batch) Size() int { return b.frame + b.Memory() }

// Memory estimates the memory of b without its frame, in bytes.
func (b *Batch) Memory() int {
	const event, statement, key = 184, 40, 24
	return cap(b.Events)*event + cap(b.arena.statements)*statement + cap(b.arena.keys)*key
}

func (b *Batch) reset() {
	b.Number, b.frame = 0, 0
	b.Events = emptied(b.Events)
	b.arena.statements = emptied(b.arena.statements)
	b.arena.keys = emptied(b.arena.keys)
	b.arena.copies = emptied(b.arena.copies)
	b.arena.begins = emptied(b.arena.begins)
	b.arena.lists = emptied(b.arena.lists)
}

func emptied[T any](s []T) []T {
	if cap(s) > maxKept {
		return nil
	}
	return s[:0]
}

// next returns the next event. All fields are zero except those that the decoder sets for every event.
func (b *Batch) next() *Event {
	n := len(b.Events)
	if n == cap(b.Events) {
		b.Events = append(b.Events, Event{})
		return &b.Events[n]
	}
	b.Events = b.Events[:n+1]
	ev := &b.Events[n]
	ev.Window, ev.DocID, ev.Statements, ev.Copies, ev.Begin = timestamp.Window{}, nil, nil, nil, nil
	ev.Part, ev.More, ev.Sums, ev.Rest = 0, false, nil, nil
	return ev
}

type decoder struct {
	reader
	batch  *Batch
	run    run
	places int // in the lists so far
}

func (d *decoder) event() error {
	b := d.batch
	if len(b.Events) == MaxEvents {
		return fmt.Errorf("%w: more than %d events", ErrCorrupt, MaxEvents)
	}
	tag := d.byte()
	kind := Kind(tag & tagKind)
	if kind == 0 || kind > Deactivate || tag&tagNone != 0 || tag&tagPart != 0 && !kind.Data() && kind != StreamEnd {
		return fmt.Errorf("%w: tag %x: kind %d, known: 1 to %d", ErrCorrupt, tag, kind, Deactivate)
	}
	if tag&tagRun != 0 {
		if err := d.startRun(); err != nil {
			return err
		}
	} else if len(b.Events) == 0 {
		return fmt.Errorf("%w: the first event has no run header", ErrCorrupt)
	}
	ev := b.next()
	d.run.seqno += uint64(d.varint())
	ev.Kind, ev.VBucket, ev.Incarnation, ev.VBUUID = kind, d.run.vbucket, d.run.incarnation, d.run.vbuuid
	ev.Seqno = d.run.seqno
	if err := d.window(ev, tag); err != nil {
		return err
	}
	err := d.body(ev, tag)
	if err == nil && d.bad {
		err = fmt.Errorf("%w: %s: a length or number exceeds the data", ErrCorrupt, kind)
	}
	return err
}

// body decodes the part of an event after position and window, which depends on its kind.
func (d *decoder) body(ev *Event, tag byte) error {
	switch kind := ev.Kind; {
	case kind.Data():
		if tag&tagPart != 0 {
			part := d.number(1<<17 - 1)
			ev.Part, ev.More = uint16(part>>1), part&1 != 0
		}
		return d.data(ev)
	case kind == Activate || kind == Deactivate:
		ev.Copies = d.copies()
	case kind == StreamBegin:
		return d.begin(ev)
	case kind == StreamEnd && tag&tagPart != 0:
		ev.Sums = d.sums()
	}
	return nil
}

func (d *decoder) startRun() error {
	vb, flags, vbuuid := d.uvarint(), d.byte(), d.uint64()
	if d.bad || vb >= timestamp.MaxVBuckets || flags&^runIncarnation != 0 {
		return fmt.Errorf("%w: run of vbucket %d, flags %x, at most %d vbuckets", ErrCorrupt, vb, flags,
			timestamp.MaxVBuckets)
	}
	next := run{vbucket: uint16(vb), incarnation: d.run.incarnation, vbuuid: vbuuid}
	if flags&runIncarnation != 0 {
		next.incarnation = index.Incarnation{Epoch: d.uvarint(), Term: d.uvarint(), Counter: d.uvarint()}
	}
	d.run = next
	return nil
}

func (d *decoder) window(ev *Event, tag byte) error {
	if tag&tagWindow != 0 {
		if !ev.hasWindow() {
			return fmt.Errorf("%w: %s with a window", ErrCorrupt, ev.Kind)
		}
		start := ev.Seqno - uint64(d.varint())
		d.run.window = timestamp.Window{Start: start, End: start + d.uvarint()}
	}
	if ev.hasWindow() {
		ev.Window = d.run.window
	}
	return nil
}

func (d *decoder) data(ev *Event) error {
	a := &d.batch.arena
	ev.DocID = d.bytes(MaxDocID)
	n := d.count(MaxStatements)
	if len(a.statements)+d.places+n > MaxBatchStatements {
		return fmt.Errorf("%w: more than %d statements", ErrCorrupt, MaxBatchStatements)
	}
	first := len(a.statements)
	for range n {
		id, slice, keys := d.uvarint(), d.uvarint(), d.count(MaxKeys)
		if d.bad || slice > uint64(index.AllSlices) || len(a.keys)+keys > MaxBatchKeys {
			return fmt.Errorf("%w: statement of index %d, slice+1 %d, %d keys", ErrCorrupt, id, slice, keys)
		}
		s := Statement{Index: index.ID(id), Slice: index.SliceID(slice) - 1}
		if keys > 0 {
			at := len(a.keys)
			for range keys {
				a.keys = append(a.keys, d.bytes(MaxKey))
			}
			s.Keys = a.keys[at:len(a.keys):len(a.keys)]
		}
		a.statements = append(a.statements, s)
	}
	if n > 0 {
		ev.Statements = a.statements[first:len(a.statements):len(a.statements)]
	}
	return d.rest(ev)
}

// rest decodes the number of the event's Rest list, and the list if it is new in the frame.
func (d *decoder) rest(ev *Event) error {
	a := &d.batch.arena
	no := d.uvarint()
	switch known := uint64(len(a.lists)); {
	case d.bad || no == 0:
		return nil
	case ev.Part > 0 || ev.More:
		return fmt.Errorf("%w: a part with a list of places", ErrCorrupt)
	case no <= known:
		ev.Rest = a.lists[no-1]
		return nil
	case no > known+1:
		return fmt.Errorf("%w: list %d of places, the frame has %d", ErrCorrupt, no, known)
	}
	b := d.bytes(MaxStatements * maxPlace)
	p := a.known[string(b)]
	if p == nil {
		var err error
		if p, err = places(b); err != nil {
			return err
		}
		if a.known == nil || len(a.known) >= maxKnown {
			a.known = make(map[string]*Places)
		}
		if len(b) <= maxKnownBytes {
			a.known[string(b)] = p
		}
	}
	if d.places += len(p.all); len(a.statements)+d.places > MaxBatchStatements {
		return fmt.Errorf("%w: more than %d statements and places", ErrCorrupt, MaxBatchStatements)
	}
	a.lists = append(a.lists, p)
	ev.Rest = p
	return nil
}

// places decodes a list of places.
func places(b []byte) (*Places, error) {
	r := reader{b: b}
	all := make([]Place, r.count(MaxStatements))
	for i := range all {
		id, slice := r.uvarint(), r.uvarint()
		r.bad = r.bad || slice > uint64(index.AllSlices)
		all[i] = Place{Index: index.ID(id), Slice: index.SliceID(slice) - 1}
	}
	if r.bad || r.left() > 0 || len(all) == 0 {
		return nil, fmt.Errorf("%w: a list of %d places in %d bytes", ErrCorrupt, len(all), len(b))
	}
	return NewPlaces(all), nil
}

func (d *decoder) copies() []index.CopyID {
	a := &d.batch.arena
	n := d.count(MaxCopies)
	if n == 0 {
		return nil
	}
	first := len(a.copies)
	for range n {
		a.copies = append(a.copies, index.CopyID(d.uvarint()))
	}
	return a.copies[first:len(a.copies):len(a.copies)]
}

// sums decodes sums. They have memory of their own, because a stream ends only once.
func (d *decoder) sums() Sums {
	all := make(Sums, d.count(MaxCopies))
	for i := range all {
		id, slice := d.uvarint(), d.uvarint()
		d.bad = d.bad || slice > uint64(index.AllSlices)
		all[i] = Sum{Index: index.ID(id), Slice: index.SliceID(slice), Keys: d.uvarint(), Hash: d.uint64()}
	}
	return all
}

func (d *decoder) begin(ev *Event) error {
	a := &d.batch.arena
	b := Begin{Start: d.uvarint()}
	log, rest, err := timestamp.DecodeLog(d.b[d.at:])
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrCorrupt, ev.Kind, err)
	}
	b.Log, d.at = log, len(d.b)-len(rest)
	b.Purge = d.uvarint()
	b.Revision = timestamp.MapRevision{Epoch: d.uvarint(), Rev: d.uvarint()}
	b.Copies = d.copies()
	a.begins = append(a.begins, b)
	ev.Begin = &a.begins[len(a.begins)-1]
	return nil
}
