// Package history keeps the last hour of a process's activity in its memory, in slots of ten seconds, for monitoring.
// Its size is bounded, and whatever exceeds the bounds is counted. It is lost when the process ends.
package history

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"tidemark/index"
	"tidemark/wire"
)

// SlotOf returns the number of the slot that contains t.
func SlotOf(t time.Time) int64 { return t.UnixNano() / int64(wire.HistorySlot) }

// ring holds the records of the newest slots.
type ring[T any] [wire.HistorySlots]struct {
	slot int64
	have T
}

// at returns the record of a slot, a new one if its place holds another slot. That other slot is usually older; it is
// newer after the clock was set back, and is replaced all the same.
func (r *ring[T]) at(slot int64) *T {
	e := &r[slot%wire.HistorySlots]
	if e.slot != slot {
		var none T
		e.slot, e.have = slot, none
	}
	return &e.have
}

// points calls f for each recorded slot of the query, in order, with the number of its point.
func (r *ring[T]) points(q wire.HistoryQuery, f func(point int, have *T)) {
	for i := range q.Points * q.Each {
		slot := q.From + int64(i)
		if e := &r[slot%wire.HistorySlots]; e.slot == slot {
			f(i/q.Each, &e.have)
		}
	}
}

// maxNamed bounds the indexes that are recorded individually in a slot.
const maxNamed = 256

// load counts the scans of an index in a slot or a point.
type load struct{ scans, rows, errors, nanos uint64 }

func (l *load) add(o load) {
	l.scans, l.rows, l.errors, l.nanos = l.scans+o.scans, l.rows+o.rows, l.errors+o.errors, l.nanos+o.nanos
}

// scanned is a slot's record of scans.
type scanned struct {
	took   map[string]*Latencies // by consistency
	loads  map[index.ID]*load
	beyond uint64
}

// Scans records the scans that an indexer has coordinated.
type Scans struct {
	began time.Time
	mu    sync.Mutex
	ring  ring[scanned]
}

// NewScans returns an empty record that begins now.
func NewScans(now time.Time) *Scans { return &Scans{began: now} }

// Note records a scan that has ended. The number of consistencies is bounded by what requests can name.
func (s *Scans) Note(ended time.Time, id index.ID, consistency string, took time.Duration, rows int64, failed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	have := s.ring.at(SlotOf(ended))
	if have.took == nil {
		have.took, have.loads = map[string]*Latencies{}, map[index.ID]*load{}
	}
	l := have.took[consistency]
	if l == nil {
		l = &Latencies{}
		have.took[consistency] = l
	}
	l.Note(took)
	n := have.loads[id]
	if n == nil {
		if len(have.loads) == maxNamed {
			have.beyond++
			return
		}
		n = &load{}
		have.loads[id] = n
	}
	n.add(load{scans: 1, rows: uint64(max(rows, 0)), nanos: uint64(max(took, 0))})
	if failed {
		n.errors++
	}
}

// Report returns the records for the requested points, of the indexes for which wanted returns true; nil means all.
func (s *Scans) Report(q wire.HistoryQuery, wanted func(index.ID) bool) *wire.History {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := &wire.History{SinceMS: s.began.UnixMilli()}
	took := make(map[string][]Latencies)
	loads, sums := map[index.ID][]load{}, map[index.ID]uint64{}
	s.ring.points(q, func(point int, have *scanned) {
		for of, l := range have.took {
			if took[of] == nil {
				took[of] = make([]Latencies, q.Points)
			}
			took[of][point].add(l)
		}
		for id, l := range have.loads {
			if wanted != nil && !wanted(id) {
				continue
			}
			if loads[id] == nil {
				loads[id] = make([]load, q.Points)
			}
			loads[id][point].add(*l)
			sums[id] += l.scans
		}
		h.Beyond += have.beyond
	})
	for _, of := range slices.Sorted(maps.Keys(took)) {
		h.Scans = appendPast(h.Scans, of, took[of])
	}
	busiest := slices.SortedFunc(maps.Keys(loads), func(a, b index.ID) int {
		return cmp.Or(cmp.Compare(sums[b], sums[a]), cmp.Compare(a, b))
	})
	for _, id := range busiest[:min(len(busiest), wire.MaxLoads)] {
		h.Indexes = append(h.Indexes, loadPast(id, loads[id]))
	}
	h.Omitted = len(busiest) - len(h.Indexes)
	return h
}

func loadPast(id index.ID, points []load) wire.LoadPast {
	w := wire.LoadPast{Index: id}
	for at, l := range points {
		if l != (load{}) {
			w.At, w.Scans, w.Rows = append(w.At, at), append(w.Scans, l.scans), append(w.Rows, l.rows)
			w.Errors, w.Nanos = append(w.Errors, l.errors), append(w.Nanos, l.nanos)
		}
	}
	return w
}

// appendPast appends the points that have any records.
func appendPast(to []wire.LatencyPast, of string, points []Latencies) []wire.LatencyPast {
	for at := range points {
		if w, some := points[at].past(of, at); some {
			to = append(to, w)
		}
	}
	return to
}

// maxBuckets bounds the buckets that are recorded in a slot.
const maxBuckets = 64

// led is a slot's record of the time in which a manager led.
type led struct {
	buckets map[string]*wire.BucketPast
	unnoted int
}

// Cluster records the changes that a manager has made, and the state of buckets while it led.
type Cluster struct {
	began   time.Time
	mu      sync.Mutex
	changes ring[Latencies]
	led     ring[led]
}

// NewCluster returns an empty record that begins now.
func NewCluster(now time.Time) *Cluster { return &Cluster{began: now} }

// Changed records a change of indexes that was answered.
func (c *Cluster) Changed(ended time.Time, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes.at(SlotOf(ended)).Note(took)
}

// Buckets records the state of all buckets, in the given order: up to maxBuckets for each slot.
func (c *Cluster) Buckets(now time.Time, all []wire.BucketPast) {
	c.mu.Lock()
	defer c.mu.Unlock()
	have := c.led.at(SlotOf(now))
	if have.buckets == nil {
		have.buckets = map[string]*wire.BucketPast{}
	}
	unnoted := 0
	for i := range all {
		b := have.buckets[all[i].Name]
		if b == nil && len(have.buckets) == maxBuckets {
			unnoted++
			continue
		}
		if b == nil {
			b = &wire.BucketPast{Name: all[i].Name}
			have.buckets[b.Name] = b
		}
		Worse(b, &all[i])
	}
	have.unnoted = max(have.unnoted, unnoted)
}

// Report returns the records for the requested points.
func (c *Cluster) Report(q wire.HistoryQuery) *wire.History {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := &wire.History{SinceMS: c.began.UnixMilli()}
	changes := make([]Latencies, q.Points)
	c.changes.points(q, func(point int, l *Latencies) { changes[point].add(l) })
	h.Changes = appendPast(nil, "", changes)
	points := map[string][]wire.BucketPast{}
	c.led.points(q, func(point int, have *led) {
		h.Unnoted = max(h.Unnoted, have.unnoted)
		for name, b := range have.buckets {
			if q.Bucket != "" && name != q.Bucket {
				continue
			}
			all := points[name]
			if len(all) == 0 || all[len(all)-1].At != point {
				all = append(all, wire.BucketPast{Name: name, At: point})
			}
			Worse(&all[len(all)-1], b)
			points[name] = all
		}
	})
	for _, name := range slices.Sorted(maps.Keys(points)) {
		h.Buckets = append(h.Buckets, points[name]...)
	}
	return h
}

// Worse merges into p a later record of the same bucket and point. It keeps the records of the leader with the newest
// term: the worst values, and the newest timestamp.
func Worse(p, later *wire.BucketPast) {
	switch {
	case later.Term < p.Term:
		return
	case later.Term > p.Term:
		*p = wire.BucketPast{Name: p.Name, At: p.At, Term: later.Term}
	}
	p.Lag, p.Waiting, p.Number = max(p.Lag, later.Lag), max(p.Waiting, later.Waiting), max(p.Number, later.Number)
}
