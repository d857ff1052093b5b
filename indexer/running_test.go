package indexer

import (
	"context"
	"strings"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/indexer/scanport"
	"tidemark/indexer/scanserver"
	"tidemark/wire"
)

// TestRunningScans checks that a scan that waits and one whose client is slow are shown with their user and request,
// and can be cancelled. The client's error names the user who has cancelled it. A slow scan is recorded, with what it
// waited for.
func TestRunningScans(t *testing.T) {
	asked := make(chan struct{}, 1)
	s := goStraight(t, long(manyRows), func(s *straight) {
		s.tune = func(o *scanserver.Options) { o.Slow = time.Nanosecond }
		s.slow = func(ctx context.Context) { // until the caller gives up
			asked <- struct{}{}
			<-ctx.Done()
		}
	})
	if list := s.server.Running(10, 10); list.Running != 0 || len(list.Scans)+len(list.Slow) != 0 {
		t.Errorf("nothing was asked for: %+v", list)
	}
	ws := s.connected()
	ask(t, ws, scanport.Request{Op: scanport.Scan, Index: "1", RequestID: "r-1",
		Body: []byte(`{"consistency":"at_plus","range":{"low":[7]},"limit":3,"tokens":[{"vbucket":1,"vbuuid":"77","seqno":1000000}]}`)})
	select {
	case <-asked:
	case <-time.After(endGuard):
		t.Fatal("no scan requests a timestamp")
	}
	list := s.server.Running(10, 10)
	if len(list.Scans) != 1 || list.Running != 1 {
		t.Fatalf("%+v", list)
	}
	one := list.Scans[0]
	if one.User != "user-1" || one.Index != 1 || one.Op != scanport.Scan || one.RequestID != "r-1" ||
		one.State != "waiting" || one.Consistency != "at_plus" || one.Bounds != "from [7], limit 3" || one.Rows != 0 ||
		!strings.HasPrefix(one.ID, list.Name+".") || one.Cancelled {
		t.Errorf("%+v", one)
	}
	if err := s.server.Cancel(&wire.CancelScan{ID: one.ID + "0", By: "root"}); code(err) != errcode.UnknownScan {
		t.Errorf("a scan that is not there: %v", err)
	}
	if err := s.server.Cancel(&wire.CancelScan{ID: one.ID, By: "root"}); err != nil {
		t.Fatal(err)
	}
	if _, err := answered(ws); code(err) != errcode.ScanCancelled || !strings.Contains(err.Error(), "cancelled by root") {
		t.Errorf("its client gets %v", err)
	}
	// The client gets its answer a moment before the scan is removed from the list.
	s.until("it has ended", func() bool { return s.server.Running(10, 10).Running == 0 })
	if err := s.server.Cancel(&wire.CancelScan{ID: one.ID, By: "root"}); code(err) != errcode.UnknownScan {
		t.Errorf("a scan that has ended: %v", err)
	}

	ask(t, ws, scanport.Request{Op: scanport.Scan, Index: "1", Body: []byte(`{}`)}) // on the same connection
	s.until("the client takes nothing", func() bool {
		list = s.server.Running(10, 10)
		return len(list.Scans) == 1 && list.Scans[0].State == "sending"
	})
	one = list.Scans[0]
	if one.Rows == 0 || one.Rows >= manyRows || one.Bounds != "all" {
		t.Errorf("%+v", one)
	}
	if err := s.server.Cancel(&wire.CancelScan{ID: one.ID, By: "root"}); err != nil {
		t.Fatal(err)
	}
	if list = s.server.Running(10, 0); len(list.Scans) == 1 && !list.Scans[0].Cancelled {
		t.Errorf("%+v", list.Scans[0])
	}
	ids, err := answered(ws)
	if code(err) != errcode.ScanCancelled || len(ids) == 0 || len(ids) >= manyRows {
		t.Errorf("%d rows, then %v", len(ids), err)
	}
	s.places(0)

	s.until("both are remembered", func() bool { return s.server.Running(0, 0).SlowKept == 2 })
	list = s.server.Running(10, 10)
	if len(list.Slow) != 2 || list.SlowTotal != 2 || len(list.Scans) != 0 {
		t.Fatalf("%+v", list)
	}
	newest, first := list.Slow[0], list.Slow[1]
	if newest.ID != one.ID || newest.Code != string(errcode.ScanCancelled) || newest.Rows == 0 || newest.SendingMS <= 0 ||
		newest.WaitingMS != 0 || first.WaitingMS <= 0 || first.Rows != 0 || first.TookMS < first.WaitingMS {
		t.Errorf("%+v\n%+v", newest, first)
	}
	if by := s.scans(); by[errcode.ScanCancelled] != 2 {
		t.Errorf("scans that have ended: %v", by)
	}
}

// TestSlowScansAreBounded checks that the newest slow scans are kept, and their total number is reported, and that
// ids of scans differ between processes.
func TestSlowScansAreBounded(t *testing.T) {
	s := goStraight(t, long(3), func(s *straight) {
		s.tune = func(o *scanserver.Options) { o.Slow = time.Nanosecond }
	})
	ws := s.connected()
	const scans = 300
	for range scans {
		ask(t, ws, scanport.Request{Op: scanport.Count, Index: "1", Body: []byte(`{"limit":1}`)})
		if _, err := answered(ws); err != nil {
			t.Fatal(err)
		}
	}
	s.until("all are counted", func() bool { return s.server.Running(0, 0).SlowTotal == scans })
	list := s.server.Running(0, 1000)
	seen := map[string]bool{}
	for i, one := range list.Slow {
		seen[one.ID] = true
		if i > 0 && one.ID >= list.Slow[i-1].ID || one.Op != scanport.Count || one.Code != "OK" ||
			one.Bounds != "all, limit 1" {
			t.Fatalf("%d: %+v after %+v", i, one, list.Slow[max(i-1, 0)])
		}
	}
	if len(seen) != 256 || list.SlowKept != 256 {
		t.Errorf("%d are kept, %d are counted", len(seen), list.SlowKept)
	}
	if short := s.server.Running(0, 2); len(short.Slow) != 2 || short.Slow[0].ID != list.Slow[0].ID ||
		short.SlowKept != 256 {
		t.Errorf("%+v", short)
	}
}
