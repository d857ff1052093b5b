package scan

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tidemark/errcode"
	"tidemark/index"
)

// TestRangeSlicesAreOpenedOnDemand: a scan with a limit opens slices of an index that is partitioned by range
// only as far as it needs their rows, from the end that it starts at; every other scan opens all of them.
func TestRangeSlicesAreOpenedOnDemand(t *testing.T) {
	f := clusterOf(rangedLayout(5), 1, 2) // below 05, 10, 15, 20, and the rest
	in := func(slice int) int64 { return int64(len(f.rows[5][slice])) }
	for _, c := range []struct {
		name   string
		change func(*Spec)
		opened []index.SliceID
	}{
		{"first row", func(s *Spec) { s.Limit = 1 }, []index.SliceID{0}},
		{"the whole first slice", func(s *Spec) { s.Limit = in(0) }, []index.SliceID{0}},
		{"one row more", func(s *Spec) { s.Limit = in(0) + 1 }, []index.SliceID{0, 1, 2}},
		{"offset", func(s *Spec) { s.Limit, s.Offset = 1, in(0)+in(1)+in(2) }, []index.SliceID{0, 1, 2, 3, 4}},
		{"last row", func(s *Spec) { s.Limit, s.Reverse = 1, true }, []index.SliceID{4}},
		{"backwards", func(s *Spec) { s.Limit, s.Reverse = in(4)+in(3)+in(2), true }, []index.SliceID{2, 3, 4}},
		{"bounds", func(s *Spec) { s.Limit, s.Ranges = 1, []Range{{Low: []byte("11"), High: []byte("19")}} },
			[]index.SliceID{2}},
		{"bounds, backwards", func(s *Spec) {
			s.Limit, s.Reverse, s.Ranges = 1, true, []Range{{Low: []byte("11"), High: []byte("19")}}
		}, []index.SliceID{3}},
		{"empty slices", func(s *Spec) { s.Limit, s.Ranges = 1, []Range{{Low: []byte("049"), High: []byte("19")}} },
			[]index.SliceID{0, 1, 2}},
		{"no stability", func(s *Spec) { s.Limit, s.Stability, s.WantTimestamp = 1, NoStability, false }, []index.SliceID{0}},
		{"no limit", func(*Spec) {}, []index.SliceID{0, 1, 2, 3, 4}},
		{"kept for others", func(s *Spec) { s.Limit, s.Stability = 1, QueryStability }, []index.SliceID{0, 1, 2, 3, 4}},
	} {
		var opened [5]atomic.Int64
		f.request = func(req NodeRequest) {
			for _, id := range req.Copies {
				opened[id-1].Add(1) // one replica: copies count from 1, slices from 0
			}
		}
		spec := openSpec()
		c.change(&spec)
		sink := &collect{}
		res, err := f.coordinator().Scan(context.Background(), spec, sink)
		want := f.expect(5, spec.Ranges, spec.Reverse, 0)[spec.Offset:]
		if spec.Limit > 0 {
			want = want[:min(int(spec.Limit), len(want))]
		}
		if err != nil || !slices.Equal(sink.rows, want) || res.Rows != int64(len(want)) {
			t.Errorf("%s: %d rows, want %d: %v", c.name, len(sink.rows), len(want), err)
		}
		for s := range opened {
			n := int64(0)
			if slices.Contains(c.opened, index.SliceID(s)) {
				n = 1
			}
			if opened[s].Load() != n {
				t.Errorf("%s: slice %d was opened %d times, want %d", c.name, s, opened[s].Load(), n)
			}
		}
	}
}

// TestLateSliceRestartsTheScan: when a slice that is opened later does not hold the timestamp any more, the scan starts
// anew at a newer one, and the client gets rows of that one only.
func TestLateSliceRestartsTheScan(t *testing.T) {
	f := clusterOf(rangedLayout(3), 1, 3)
	f.rows[6] = f.rows[3] // other rows than at 5
	var requests atomic.Int64
	f.request = func(NodeRequest) {
		if requests.Add(1) == 2 { // slices 1 and 2 are requested together, from two nodes
			f.mu.Lock()
			for i := range f.view.Held {
				f.view.Held[i].Ref = refOf(6)
				f.has[f.view.Held[i].Copy] = map[uint64]errcode.Code{6: ""}
			}
			f.mu.Unlock()
		}
	}
	spec := openSpec()
	spec.Limit = 30
	sink := &collect{}
	res, err := NewCoordinator(f, f, f, Options{Wait: 30 * time.Second}).Scan(context.Background(), spec, sink)
	if want := f.expect(6, spec.Ranges, false, 30); err != nil || res.Ref != refOf(6) || res.Rows != 30 ||
		!slices.Equal(sink.rows, want) {
		t.Errorf("%+v, %d rows, %v", res, len(sink.rows), err)
	}
}

// TestRepeatedlyLateSlicesAreOpenedAtOnce: reading the first slice takes longer than nodes hold a timestamp, for
// example because few rows meet a condition or many are skipped, and longer than scans wait. The scan starts anew
// once, and then opens all slices at once.
func TestRepeatedlyLateSlicesAreOpenedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := clusterOf(rangedLayout(3), 1, 3)
		for i := range 2 { // the first two slices are read while the scan continues
			f.view.Topology.Copies[i].Node, f.view.Held[i].Node = here, here
		}
		for n := uint64(6); n < 20; n++ {
			f.rows[n] = f.rows[3]
		}
		f.read = func(slice index.SliceID) {
			if slice != 0 {
				return
			}
			time.Sleep(DefaultWait + time.Second)
			f.mu.Lock()
			defer f.mu.Unlock()
			for i := range f.view.Held {
				h := &f.view.Held[i]
				h.Ref = refOf(h.Ref.Number + 1)
				f.has[h.Copy] = map[uint64]errcode.Code{h.Ref.Number: ""}
			}
		}
		spec := openSpec()
		spec.Limit = 30
		sink := &collect{}
		res, err := NewCoordinator(f, f, f, Options{}).Scan(t.Context(), spec, sink)
		if want := f.expect(6, spec.Ranges, false, 30); err != nil || res.Ref != refOf(6) || res.Rows != 30 ||
			!slices.Equal(sink.rows, want) {
			t.Errorf("%+v, %d rows, %v", res, len(sink.rows), err)
		}
	})
}

// slowSink records, before each row, how many slices were open.
type slowSink struct {
	opened func() int64
	least  int64
	rows   int
}

func (s *slowSink) Row(Row) error {
	if n := s.opened(); s.rows == 0 || n < s.least {
		s.least = n
	}
	s.rows++
	return nil
}

// TestHeldRowsAreBounded: no more than maxHeld bytes of rows are held in memory: then the remaining slices are opened,
// and the client gets its first row when no slice has to be opened any more.
func TestHeldRowsAreBounded(t *testing.T) {
	f := clusterOf(rangedLayout(3), 1, 1)
	f.rows[5] = make([][]Row, 3)
	for s := range f.rows[5] {
		for i := range 2 * maxHeld / 400 {
			f.rows[5][s] = append(f.rows[5][s], Row{fmt.Appendf(nil, "%02d.%0400d", 5*s+1, i), []byte("doc")})
		}
	}
	var opened atomic.Int64
	f.request = func(req NodeRequest) { opened.Add(int64(len(req.Copies))) }
	spec := openSpec()
	spec.Limit = int64(len(f.rows[5][0])) // the first slice would suffice
	sink := &slowSink{opened: opened.Load}
	held := 0
	res, err := f.coordinator().Scan(context.Background(), spec, sink)
	if err != nil || res.Rows != spec.Limit || int64(sink.rows) != spec.Limit || sink.least != 3 {
		t.Errorf("%d rows, %d given when %d slices were open, %v", res.Rows, sink.rows, sink.least, err)
	}
	// A scan that needs little returns it without opening more.
	opened.Store(0)
	spec.Limit = 10
	sink = &slowSink{opened: opened.Load}
	if _, err := f.coordinator().Scan(context.Background(), spec, sink); err != nil || sink.least != 1 ||
		opened.Load() != 1 {
		t.Errorf("%d slices opened, %v", opened.Load(), err)
	}
	// Held rows are counted.
	o := &output{sink: &collect{}}
	o.held.begin(true)
	for !o.held.full() {
		if err := o.row(Row{Key: bytes.Repeat([]byte("k"), 1000), DocID: []byte("d")}); err != nil {
			t.Fatal(err)
		}
		held++
	}
	if held > maxHeld/1000+1 || o.given {
		t.Errorf("%d rows of 1000 bytes are held", held)
	}
}
