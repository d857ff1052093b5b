package projector

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/keyversion"
	"tidemark/wire"
)

// completes returns the complete seqno of each vbucket in a report, including the short form of moved ones.
func completes(t testing.TB, r *wire.ProjectorReport) map[uint16]uint64 {
	t.Helper()
	all := map[uint16]uint64{}
	for i := range r.Buckets {
		s := r.Buckets[i]
		if err := s.Expand(); err != nil {
			t.Fatal(err)
		}
		for j := range s.Streams {
			all[s.Streams[j].VBucket] = s.Streams[j].Complete
		}
	}
	return all
}

// streamed returns the vbuckets in a report, and ended whether the report states that the stream at that position has
// ended.
func streamed(r *wire.ProjectorReport) (all []uint16) {
	for i := range r.Buckets[0].Streams {
		all = append(all, r.Buckets[0].Streams[i].VBucket)
	}
	return all
}

func ended(r *wire.ProjectorReport, place int) bool { return r.Buckets[0].Streams[place].Ended }

// TestSyncWaitsForWantedSeqnos: the answer comes when all running streams are complete up to the wanted seqnos, or
// with the present state when its time is over; it is a full report of one bucket.
func TestSyncWaitsForWantedSeqnos(t *testing.T) {
	e := newEngine(t)
	w := newWorldAt(t, e.Addr())
	w.define(1, 1)
	w.startAt(3, 1, 0)
	w.startAt(4, 1, 0)
	w.startAt(5, 1, 0)
	for _, vb := range []uint16{3, 4, 5} {
		w.expect(vb, "1:STREAM_BEGIN@0")
	}
	fence := w.fence()
	ask := func(waitMS int64, want ...uint64) (*wire.ProjectorReport, time.Duration) {
		t.Helper()
		began := time.Now()
		r, err := w.client.Sync(context.Background(), w.url, &wire.SyncRequest{Fence: fence, Bucket: testBucket, Want: want,
			WaitMS: waitMS})
		if err != nil {
			t.Fatal(err)
		}
		if r.ID != "p1" || r.BootID == "" || r.ClusterID != "c1" || r.Base != 0 || len(r.Buckets) != 1 ||
			!r.Buckets[0].Full ||
			r.Buckets[0].Bucket != testBucket || r.Buckets[0].BucketUUID != testUUID ||
			fmt.Sprint(streamed(r)) != "[3 4 5]" || len(r.Buckets[0].Streams[0].Log) != 1 {
			t.Fatalf("%+v", r)
		}
		return r, time.Since(began)
	}
	r, _ := ask(0, 0, 0, 0, 7, 7)
	if got := fmt.Sprint(completes(t, r)); got != "map[3:0 4:0 5:0]" {
		t.Errorf("at first %s", got)
	}
	// The wanted seqno of vbucket 3 is its present one, that of 4 lower, and there is none for 5.
	e.stream(3).write(0, 7)
	e.stream(4).write(0, 6)
	for reached := false; !reached; {
		r, _ := ask(maxSyncWait.Milliseconds(), 0, 0, 0, 7)
		reached = completes(t, r)[3] == 7 // a busy machine may need several
	}
	r, took := ask(20, 0, 0, 0, 7, 7)
	if c := completes(t, r); c[3] != 7 || c[4] > 6 || c[5] != 0 || took < 20*time.Millisecond {
		t.Errorf("%v after %v, although vbucket 4 cannot be complete up to 7", c, took)
	}
	// The wanted seqno arrives during the wait. Streams that have ended or are not here are not waited for.
	got := make(chan map[uint16]uint64, 1)
	go func() {
		defer close(got) // when a query fails, too
		for {
			r, took := ask(maxSyncWait.Milliseconds(), 9, 9, 9, 7, 7, 0, 9, 9, 9, 9)
			c := completes(t, r)
			if c[4] < 7 && took < maxSyncWait {
				t.Errorf("%v was the answer after %v", c, took)
			}
			if c[4] >= 7 {
				got <- c
				return
			}
		}
	}()
	e.stream(4).write(6, 7)
	if c := <-got; c[4] != 7 {
		t.Errorf("%v", c)
	}
	e.stream(5).end(0)
	w.expect(5, "1:STREAM_BEGIN@0", "1:STREAM_END@0")
	w.eventually("the end is reported", func() bool { r, _ := ask(0); return ended(r, 2) })
	if r, _ := ask(time.Hour.Milliseconds(), 0, 0, 0, 0, 0, 100); ended(r, 0) || ended(r, 1) || !ended(r, 2) {
		t.Errorf("%+v", r)
	}

	old := fence
	old.Term, fence = 0, w.fence()
	if _, err := w.client.Sync(context.Background(), w.url, &wire.SyncRequest{Fence: old,
		Bucket: testBucket}); rpc.AsProblem(err).Code != errcode.Fenced {
		t.Errorf("of an older leader: %v", err)
	}
	if r, err := w.client.Sync(context.Background(), w.url, &wire.SyncRequest{Fence: fence, Bucket: "nowhere",
		Want: []uint64{1}, WaitMS: time.Hour.Milliseconds()}); err != nil || len(r.Buckets) != 0 || r.Sequence == 0 {
		t.Errorf("of a bucket that is not here: %+v, %v", r, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	gone := make(chan error, 1)
	go func() {
		_, err := w.client.Sync(ctx, w.url, &wire.SyncRequest{Fence: fence, Bucket: testBucket, Want: []uint64{0, 0, 0, 100},
			WaitMS: time.Hour.Milliseconds()})
		gone <- err
	}()
	cancel()
	if err := <-gone; err == nil {
		t.Error("an answer without a request")
	}
}

// TestReportNumbers: reports, SYNC answers and answers to a hello share one sequence of numbers. No number is used
// twice, and a later one never goes with an earlier state. Each report names the one that it is based on, whatever
// was numbered in between.
func TestReportNumbers(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	w := newWorldAt(t, e.Addr())
	w.define(1, 1)
	w.startAt(3, 1, 0)
	w.startAt(4, 1, 0)
	w.expect(3, "1:STREAM_BEGIN@0")
	w.expect(4, "1:STREAM_BEGIN@0")
	fence := w.fence()
	const windows, asks = 150, 40
	var mu sync.Mutex
	var all []*wire.ProjectorReport
	keep := func(r *wire.ProjectorReport, err error) {
		if err != nil {
			t.Error(err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, r)
	}
	var group sync.WaitGroup
	for _, vb := range []uint16{3, 4} {
		group.Go(func() {
			for i := range uint64(windows) {
				e.stream(vb).write(2*i, 2*i+2)
			}
		})
	}
	for range 3 {
		group.Go(func() {
			for range asks {
				keep(w.client.Sync(context.Background(), w.url, &wire.SyncRequest{Fence: fence, Bucket: testBucket}))
			}
		})
	}
	group.Go(func() {
		for range asks {
			hello, err := w.client.Hello(context.Background(), w.url, &wire.HelloRequest{Fence: fence})
			keep(&hello.Report, err)
		}
	})
	group.Wait()
	reported := func() []wire.ProjectorReport {
		w.manager.mu.Lock()
		defer w.manager.mu.Unlock()
		return slices.Clone(w.manager.reports)
	}
	answered := slices.MaxFunc(all, func(a, b *wire.ProjectorReport) int {
		return cmp.Compare(a.Sequence,
			b.Sequence)
	}).Sequence
	w.eventually("a report of the last window, and one after the last answer", func() bool {
		return slices.ContainsFunc(reported(), func(r wire.ProjectorReport) bool { return r.Sequence > answered }) &&
			slices.ContainsFunc(reported(), func(r wire.ProjectorReport) bool { return completes(t, &r)[3] == 2*windows }) &&
			slices.ContainsFunc(reported(), func(r wire.ProjectorReport) bool { return completes(t, &r)[4] == 2*windows })
	})
	reports, gaps := reported(), 0
	for i := range reports {
		r := &reports[i]
		full, listed := r.Base == 0, i > 0 && len(reports[i-1].Buckets) > 0
		for _, s := range r.Buckets {
			if full && !s.Full || !full && s.Full && listed { // a bucket is new once
				t.Errorf("report %d: based on %d, full %v", r.Sequence, r.Base, s.Full)
			}
		}
		if i > 0 && (!full && r.Base != reports[i-1].Sequence || r.Sequence <= reports[i-1].Sequence) {
			t.Errorf("report %d, based on %d, comes after %d", r.Sequence, r.Base, reports[i-1].Sequence)
		}
		if i > 0 && r.Sequence > reports[i-1].Sequence+1 {
			gaps++
		}
		all = append(all, r)
	}
	if gaps == 0 {
		t.Error("no other answer was numbered between two reports: nothing was shown")
	}
	slices.SortFunc(all, func(a, b *wire.ProjectorReport) int { return int(a.Sequence) - int(b.Sequence) })
	known := map[uint16]uint64{}
	for i, r := range all {
		if r.BootID != all[0].BootID || i > 0 && r.Sequence == all[i-1].Sequence {
			t.Errorf("number %d twice", r.Sequence)
		}
		for v, c := range completes(t, r) {
			if c < known[v] {
				t.Errorf("number %d: vbucket %d is complete up to %d, it was up to %d before", r.Sequence, v, c, known[v])
			}
			known[v] = c
		}
	}
}

// TestALostReport: after a report without an answer, the next one is full, without a request.
func TestALostReport(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	w := newWorldAt(t, e.Addr())
	w.define(1, 1)
	w.startAt(3, 1, 0)
	w.expect(3, "1:STREAM_BEGIN@0")
	based := func() bool {
		n := len(w.manager.reports)
		return n > 0 && w.manager.reports[n-1].Base > 0
	}
	w.eventually("reports contain what is new",
		func() bool { w.manager.mu.Lock(); defer w.manager.mu.Unlock(); return based() })
	w.manager.mu.Lock()
	w.manager.lose, w.manager.lost = 1, nil
	before := len(w.manager.reports)
	w.manager.mu.Unlock()
	var next wire.ProjectorReport
	w.eventually("the report after the lost one", func() bool {
		w.manager.mu.Lock()
		defer w.manager.mu.Unlock()
		if len(w.manager.lost) == 0 {
			return false
		}
		for _, r := range w.manager.reports[before:] {
			if r.Sequence > w.manager.lost[0].Sequence {
				next = r
				return true
			}
		}
		return false
	})
	if next.Base != 0 || len(next.Buckets) != 1 || !next.Buckets[0].Full ||
		fmt.Sprint(streamed(&next)) != "[3]" || !next.FaultsToo {
		t.Errorf("%+v", next)
	}
	w.eventually("and then what is new again",
		func() bool { w.manager.mu.Lock(); defer w.manager.mu.Unlock(); return based() })
}

// TestReportedDataIsSent: even if data gathers forever, data that a report declares complete is sent, and there is
// a report whenever something becomes complete.
func TestReportedDataIsSent(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	w := newWorldWith(t, e.Addr(), FeedNative, func(c *Config) { c.calmLinger = time.Hour })
	w.define(1, 1)
	w.startAt(3, 1, 0)
	synced := func(seqno uint64) func() bool {
		return func() bool {
			return slices.ContainsFunc(w.data.kinds(keyversion.Sync),
				func(ev keyversion.Event) bool { return ev.VBucket == 3 && ev.Seqno == seqno })
		}
	}
	for seqno := uint64(1); seqno <= 5; seqno++ {
		e.stream(3).write(seqno-1, seqno)
		w.eventually(fmt.Sprintf("SYNC up to %d after a report", seqno), synced(seqno))
	}
}
