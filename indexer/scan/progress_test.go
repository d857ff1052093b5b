package scan

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"tidemark/errcode"
)

// TestProgressAddsUp: a phase that recurs continues, and all phases together are the scan's time.
func TestProgressAddsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewProgress(func() {})
		for _, step := range []struct {
			phase Phase
			lasts time.Duration
		}{{Opening, 1}, {Waiting, 20}, {Opening, 300}, {Opening, 4000}, {Reading, 50_000}, {Sending, 600_000},
			{Reading, 7_000_000}} {
			p.Enter(step.phase)
			time.Sleep(step.lasts * time.Microsecond)
		}
		if p.Spent(Opening) != 4301*time.Microsecond || p.Spent(Waiting) != 20*time.Microsecond ||
			p.Spent(Reading) != 7_050_000*time.Microsecond || p.Spent(Sending) != 600_000*time.Microsecond ||
			p.Phase() != Reading {
			t.Errorf("%v %v %v %v in %s", p.Spent(Opening), p.Spent(Waiting), p.Spent(Reading), p.Spent(Sending), p.Phase())
		}
	})
}

// TestWaitingForABuildDoesNotSlowIt: a scan that finds no serving copy, only copies being filled, does not slow the
// filling down.
func TestWaitingForABuildDoesNotSlowIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newCluster(2, 1, 2)
		serve := func(ok bool) {
			f.mu.Lock()
			defer f.mu.Unlock()
			for i := range f.view.Held {
				f.view.Held[i].OK = ok
			}
		}
		serve(false)
		spec := openSpec()
		spec.Progress = NewProgress(func() { serve(true) })
		sink := &collect{}
		got, err := NewCoordinator(f, f, f, Options{}).Scan(t.Context(), spec, sink)
		if err != nil || !slices.Equal(sink.rows, f.expect(5, spec.Ranges, false, 0)) {
			t.Errorf("%+v, %d rows, %v", got, len(sink.rows), err)
		}
	})
}

// TestProgressReportsFirstRows: calm is called when the first rows are read, and at the end of a scan without
// rows.
func TestProgressReportsFirstRows(t *testing.T) {
	for _, c := range []struct {
		phases []Phase
		before int // calls before the end
	}{
		{nil, 0}, {[]Phase{Opening, Waiting, Opening}, 0},
		{[]Phase{Waiting, Opening, Reading}, 1}, {[]Phase{Sending}, 1},
	} {
		reported := 0
		p := NewProgress(func() { reported++ })
		for _, phase := range c.phases {
			p.Enter(phase)
		}
		if reported != c.before {
			t.Errorf("%v: reported %d times, want %d", c.phases, reported, c.before)
		}
		if p.End(); reported != c.before+1 {
			t.Errorf("%v, then the end: reported %d times", c.phases, reported)
		}
	}
}

// seen is a sink that reads its scan's progress.
type seen struct {
	p    *Progress
	rows []int64
}

func (s *seen) Row(Row) error {
	if s.p.Phase() != Reading {
		return errors.New("rows come while the scan is " + s.p.Phase().String())
	}
	s.rows = append(s.rows, s.p.Rows())
	return nil
}

// TestProgressOfAScan: a scan waits for its timestamp, then opens copies, then reads, and its rows are counted as
// they arrive.
func TestProgressOfAScan(t *testing.T) {
	f := newCluster(4, 1, 3)
	c := f.coordinator()
	p := NewProgress(func() {})
	waited := Phase(-1)
	var opened atomic.Int32 // several nodes are queried concurrently
	opened.Store(-1)
	f.request = func(NodeRequest) { opened.Store(int32(p.Phase())) }
	f.newest--
	f.refuse = func(int64) error { waited = p.Phase(); return nil }
	spec, err := c.Prepare(5, Request{Consistency: Session, Stability: ScanStability})
	if err != nil {
		t.Fatal(err)
	}
	spec.Progress = p
	sink := &seen{p: p}
	res, err := c.Scan(context.Background(), spec, sink)
	if err != nil || waited != Waiting || Phase(opened.Load()) != Opening || p.Rows() != res.Rows || res.Rows == 0 {
		t.Errorf("%v: waited in %d, opened in %d, %d of %d rows", err, waited, opened.Load(), p.Rows(), res.Rows)
	}
	for i, n := range sink.rows {
		if n != int64(i) {
			t.Fatalf("row %d comes when %d were counted", i, n)
		}
	}
}

// TestBrief: bounds fit in a short line, whatever the request is.
func TestBrief(t *testing.T) {
	long := `"` + strings.Repeat("ö", MaxKeyBytes/2) + `"`
	for body, want := range map[string]string{
		`{}`: "all",
		`{"equal":["FR",1],"limit":5,"offset":2,"reverse":true,"distinct":true}`: `equal ["FR", 1], offset 2, limit 5, ` +
			`reverse, distinct`,
		`{"range":{"low":["A"],"high":["B"],"inclusion":"low"}}`: `["A"] to ["B"] (inclusion low)`,
		`{"range":{"low":["A"]}}`:                                `from ["A"]`,
		`{"range":{"high":["A"]}}`:                               `to ["A"]`,
		`{"ranges":[{"low":["A"],"high":["A"]},{"low":["B"]}]}`:  `2 ranges, the first ["A"] to ["A"]`,
		`{"equal":[` + long + `]}`:                               "",
		`{"ranges":[{"low":[` + long + `],"high":[1]},{}]}`:      "",
	} {
		var r Request
		if err := json.Unmarshal([]byte(body), &r); err != nil {
			t.Fatal(err)
		}
		got := r.Brief()
		if len(got) > maxBrief+len("…") || !utf8.ValidString(got) || want != "" && got != want ||
			want == "" && !strings.HasSuffix(got, "…") {
			t.Errorf("%.80s: %s", body, got)
		}
	}
}

// TestCancelledScanNamesTheUser: the error of a scan whose context is cancelled is the cause of the cancellation.
func TestCancelledScanNamesTheUser(t *testing.T) {
	f := newCluster(2, 1, 3)
	f.current = f.newest + 1
	ctx, cancel := context.WithCancelCause(t.Context())
	f.refuse = func(int64) error {
		cancel(Errorf(errcode.ScanCancelled, "the scan was cancelled by alice"))
		return Errorf(errcode.Timeout, "no timestamp")
	}
	c := f.coordinator()
	spec, err := c.Prepare(5, Request{Consistency: Session, Stability: ScanStability})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	_, err = c.Scan(ctx, spec, NewEncoder(&b, nil, nil, spec))
	if CodeOf(err) != errcode.ScanCancelled || !strings.Contains(err.Error(), "alice") {
		t.Errorf("%v", err)
	}
}
