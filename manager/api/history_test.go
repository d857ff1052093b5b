package api

import (
	"testing"
	"time"

	"tidemark/internal/history"
	"tidemark/manager/api/v1"
	"tidemark/statecontext"
	"tidemark/wire"
)

// TestHistoryOfMany checks that records of several processes are combined: sums by index and consistency, for a
// bucket the newest leader's; timestamps are counted where both ends are known, and missing processes are listed.
func TestHistoryOfMany(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	scans := history.NewScans(now)
	for range 3 {
		scans.Note(now, 7, "any", 20*time.Millisecond, 5, false)
	}
	scans.Note(now.Add(-time.Minute), 7, "session", time.Second, 1, true)
	scans.Note(now, 8, "any", time.Millisecond, 0, false)
	old, led := history.NewCluster(now), history.NewCluster(now)
	old.Buckets(now.Add(-40*time.Second), []wire.BucketPast{{Name: "b", Term: 2, Lag: 1, Number: 10}})
	old.Buckets(now.Add(-30*time.Second), []wire.BucketPast{{Name: "b", Term: 2, Lag: 50, Number: 14},
		{Name: "c", Term: 2}})
	led.Buckets(now.Add(-30*time.Second), []wire.BucketPast{{Name: "b", Term: 3, Lag: 2, Number: 15}})
	led.Buckets(now, []wire.BucketPast{{Name: "b", Term: 3, Number: 20}})
	led.Changed(now, 30*time.Millisecond)
	p := newPast(now, 2, 1, "")
	for name, h := range map[string]*wire.History{"i1": scans.Report(p.asked, nil), "i2": scans.Report(p.asked, nil)} {
		p.take("indexer", name, h, nil)
	}
	p.take("manager", "m2", led.Report(p.asked), nil)
	p.take("manager", "m1", old.Report(p.asked), nil)
	p.take("manager", "m3", nil, errNobody())
	h := p.answer(statecontext.New(), 1)
	if h.ToMS-h.FromMS != 120_000 || h.StepMS != 10_000 || h.ToMS < now.UnixMilli() ||
		len(h.Of) != 4 || len(h.Unreachable) != 1 {
		t.Errorf("%+v", h)
	}
	if len(h.Scans) != 2 || h.Scans[0].Consistency != "any" || h.Scans[0].Count != 8 || len(h.Scans[0].Points) != 1 ||
		h.Scans[0].P95MS < 16 || h.Scans[0].P95MS > 24 || h.Scans[1].Count != 2 || h.DDL.Count != 1 {
		t.Errorf("%+v, %+v", h.Scans, h.DDL)
	}
	want := v1.IndexLoad{Scans: 8, Rows: 32, Errors: 2, MeanMS: 265}
	if len(h.Indexes) != 1 || h.IndexesOmitted != 1 || h.Indexes[0].ID != 7 || h.Indexes[0].IndexLoad != want ||
		len(h.Indexes[0].Points) != 2 {
		t.Errorf("%+v and %d more", h.Indexes, h.IndexesOmitted)
	}
	if len(h.Buckets) != 2 || len(h.Buckets[0].Points) != 3 {
		t.Fatalf("%+v", h.Buckets)
	}
	first, second, third := h.Buckets[0].Points[0], h.Buckets[0].Points[1], h.Buckets[0].Points[2]
	if first.Timestamps != nil || second.Timestamps == nil || *second.Timestamps != 5 || second.Lag != 2 ||
		third.Timestamps != nil || third.Lag != 0 {
		t.Errorf("%+v, %+v, %+v", first, second, third)
	}
	p.asked.Bucket = "c"
	if only := p.answer(statecontext.New(), 64); len(only.Buckets) != 1 || len(only.Indexes) != 0 {
		t.Errorf("%+v", only)
	}
}
