package history

import (
	"math"
	"net/http/httptest"
	"testing"
	"time"

	"tidemark/index"
	"tidemark/wire"
)

var began = time.Unix(1_700_000_000, 0)

// hour returns a query for everything kept up to a moment, with points of that many slots.
func hour(now time.Time, each int) wire.HistoryQuery {
	points := wire.HistorySlots / each
	return wire.HistoryQuery{From: SlotOf(now) - wire.HistorySlots + 1, Each: each, Points: points}
}

// TestPercentiles checks over durations of six decades that each percentile has the promised accuracy.
func TestPercentiles(t *testing.T) {
	for _, from := range []time.Duration{200 * time.Microsecond, 3 * time.Millisecond, 700 * time.Millisecond,
		40 * time.Second} {
		var l Latencies
		const n = 1000
		at := func(i int) time.Duration { return from + time.Duration(i)*from/n*4 } // to five times that
		for i := range n {
			l.Note(at(i))
		}
		for _, share := range []float64{0.01, 0.5, 0.95, 0.99, 1} {
			got, want := l.Percentile(share), at(int(share*n)-1)
			if off := math.Abs(float64(got)/float64(want) - 1); off > 0.19 {
				t.Errorf("from %s: %.0f %% is %s, want %s", from, 100*share, got, want)
			}
		}
		if l.Count() != n || l.Mean() != (at(0)+at(n-1))/2 {
			t.Errorf("%d, mean %s", l.Count(), l.Mean())
		}
	}
	var none, short, long Latencies
	short.Note(-time.Second)
	long.Note(time.Hour)
	if none.Percentile(0.5) != 0 || none.Mean() != 0 || short.Percentile(1) > firstBound ||
		long.Percentile(1) < 419*time.Second {
		t.Error(none.Percentile(0.5), short.Percentile(1), long.Percentile(1))
	}
}

// TestLatenciesRoundTrip checks that encoded counts, added again, are the same, and that invalid ones are ignored.
func TestLatenciesRoundTrip(t *testing.T) {
	var l, back Latencies
	for _, took := range []time.Duration{0, time.Millisecond, time.Second, time.Hour} {
		l.Note(took)
	}
	w, some := l.past("any", 3)
	back.Add(&w)
	if !some || w.Of != "any" || w.At != 3 || back != l {
		t.Errorf("%+v, %v", w, back)
	}
	back.Add(&wire.LatencyPast{First: bounds - 1, Counts: []uint64{1, 5, 5}})
	back.Add(&wire.LatencyPast{First: -7, Counts: []uint64{1}})
	if back.Count() != l.Count()+1 {
		t.Error(back.Count())
	}
}

// TestScansAreForgotten checks that scans are forgotten after an hour, and not before; a clock that is set back loses
// only the slots that it overwrites.
func TestScansAreForgotten(t *testing.T) {
	s := NewScans(began)
	scan := func(at time.Time) { s.Note(at, 1, "any", time.Millisecond, 2, false) }
	count := func(now time.Time) (n uint64) {
		for _, l := range s.Report(hour(now, 1), nil).Indexes {
			for i := range l.At {
				n += l.Scans[i]
			}
		}
		return n
	}
	scan(began)
	if end := began.Add(time.Hour - wire.HistorySlot); count(end) != 1 || count(end.Add(wire.HistorySlot)) != 0 {
		t.Error(count(end), count(end.Add(wire.HistorySlot)))
	}
	scan(began.Add(time.Hour)) // in the place of the first
	scan(began.Add(30 * time.Minute))
	if n := count(began.Add(time.Hour)); n != 2 {
		t.Errorf("%d scans, want 2", n)
	}
	scan(began)
	if n := count(began.Add(time.Hour)); n != 1 {
		t.Errorf("%d scans after the clock was set back, want 1", n)
	}
}

// TestPointsOfSlots checks that a point contains its slots, that the busiest indexes are listed, and that the rest is
// counted.
func TestPointsOfSlots(t *testing.T) {
	s := NewScans(began)
	for slot := range 6 {
		at := began.Add(time.Duration(slot) * wire.HistorySlot)
		for id := range index.ID(300) {
			for range map[bool]int{true: 3, false: 1}[id == 299] {
				s.Note(at, 300-id, "session", time.Millisecond, 5, id == 299)
			}
		}
	}
	h := s.Report(wire.HistoryQuery{From: SlotOf(began), Each: 3, Points: 2}, nil)
	if len(h.Scans) != 2 || h.Scans[0].At != 0 || h.Scans[1].At != 1 || h.SinceMS != began.UnixMilli() {
		t.Errorf("%+v", h.Scans)
	}
	var l Latencies
	for i := range h.Scans {
		l.Add(&h.Scans[i])
	}
	if l.Count() != 6*302 || h.Beyond != 6*(300-maxNamed+2) || len(h.Indexes) != wire.MaxLoads ||
		h.Omitted != maxNamed-wire.MaxLoads {
		t.Errorf("%d scans, %d beyond, %d indexes and %d more", l.Count(), h.Beyond, len(h.Indexes), h.Omitted)
	}
	if x := h.Indexes[0]; len(x.At) != 2 || x.Scans[0] != 3 || x.Rows[1] != 15 || x.Nanos[0] != 3e6 {
		t.Errorf("%+v", x)
	}
}

// TestIndexesOfOneBucket checks that indexes of other buckets are removed before the busiest are selected, and are
// not counted in the rest.
func TestIndexesOfOneBucket(t *testing.T) {
	s := NewScans(began)
	for id := range index.ID(200) {
		for range map[bool]int{true: 9, false: 1}[id < 100] {
			s.Note(began, id, "any", time.Millisecond, 1, false)
		}
	}
	for _, most := range []struct {
		from            index.ID
		listed, omitted int
	}{{0, wire.MaxLoads, 200 - wire.MaxLoads}, {150, 50, 0}, {130, wire.MaxLoads, 70 - wire.MaxLoads}} {
		h := s.Report(hour(began, 1), func(id index.ID) bool { return id >= most.from })
		if len(h.Indexes) != most.listed || h.Omitted != most.omitted || h.Indexes[0].Index != most.from {
			t.Errorf("from %d on: %d listed, %d omitted, first %+v", most.from, len(h.Indexes), h.Omitted, h.Indexes[0])
		}
	}
}

// TestQueriesRoundTrip checks queries with any bucket name.
func TestQueriesRoundTrip(t *testing.T) {
	for _, bucket := range []string{"", "world", "a&each=9 %"} {
		q := wire.HistoryQuery{From: 7, Each: 2, Points: 5, Bucket: bucket}
		if got, err := ParseQuery(httptest.NewRequest("GET", "/"+Query(q), nil)); err != nil || got != q {
			t.Errorf("%+v, %v; want %+v", got, err, q)
		}
	}
}

// TestBucketsOfLeaders checks that of two managers that both led, the newer term counts, and of a point the worst
// values; with too many buckets the first ones are recorded, and the others counted.
func TestBucketsOfLeaders(t *testing.T) {
	c := NewCluster(began)
	c.Changed(began, time.Millisecond)
	c.Buckets(began, []wire.BucketPast{{Name: "b", Term: 3, Lag: 9, Waiting: 1, Number: 5}})
	c.Buckets(began, []wire.BucketPast{{Name: "b", Term: 3, Lag: 4, Waiting: 2, Number: 6}})
	c.Buckets(began.Add(wire.HistorySlot), []wire.BucketPast{{Name: "b", Term: 4, Lag: 1, Number: 7}})
	q := wire.HistoryQuery{From: SlotOf(began), Each: 1, Points: 2}
	h := c.Report(q)
	if want := (wire.BucketPast{Name: "b", Term: 3, Lag: 9, Waiting: 2, Number: 6}); len(h.Buckets) != 2 ||
		h.Buckets[0] != want || len(h.Changes) != 1 || h.Unnoted != 0 {
		t.Errorf("%+v", h)
	}
	q.Each, q.Points = 2, 1
	if got := c.Report(q).Buckets; len(got) != 1 || got[0] != (wire.BucketPast{Name: "b", Term: 4, Lag: 1, Number: 7}) {
		t.Errorf("%+v", got)
	}
	many := make([]wire.BucketPast, 100)
	for i := range many {
		many[i].Name = string(rune('A' + i))
	}
	c.Buckets(began.Add(time.Hour), many)
	if h := c.Report(hour(began.Add(time.Hour), 1)); len(h.Buckets) != 1+maxBuckets || h.Unnoted != 100-maxBuckets {
		t.Errorf("%d buckets, %d not", len(h.Buckets), h.Unnoted)
	}
}

// TestQuery checks that a query is decoded as it was encoded, and cannot request more than is kept.
func TestQuery(t *testing.T) {
	q := wire.HistoryQuery{From: 17, Each: 3, Points: 120}
	got, err := ParseQuery(httptest.NewRequest("GET", "/x"+Query(q), nil))
	if err != nil || got != q {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{"", "?from=1&each=2&points=181", "?from=-1&each=1&points=1", "?from=1&each=0&points=1",
		"?from=1&each=1&points=x", "?from=1&each=361&points=1"} {
		if _, err := ParseQuery(httptest.NewRequest("GET", "/x"+bad, nil)); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
