package core

import (
	"testing"

	"tidemark/index"
	"tidemark/rebalance"
	"tidemark/statecontext"
	"tidemark/wire"
)

// As much of a plan is begun as one command carries.
func TestAPlanIsBegunInPieces(t *testing.T) {
	p, from := &rebalance.Plan{}, index.NodeID(1)
	for i := range 30_000 {
		p.Steps = append(p.Steps, rebalance.Step{Index: index.ID(1<<20 + i), Slice: 63, Old: index.CopyID(1<<34 + i),
			From: &from, To: 2, Bytes: 1 << 40})
	}
	steps, left := Begun(p, func(y *rebalance.Step) bool { return y.Index > 1<<20 })
	data, err := statecontext.Encode(statecontext.Command{Body: &statecontext.StartRebalance{Cause: "test", Sends: 1,
		Receives: 1, Steps: steps}})
	if err != nil || len(steps) != rebalance.MaxBegun || left != 30_000-1-len(steps) ||
		steps[0].Index != 1<<20+1 || len(data) > commandBytes {
		t.Errorf("%d steps in %d bytes: %v", len(steps), len(data), err)
	}
}

// TestWhatHasComeDoesNotGoBack: what side streams bring behind files is counted anew, and the step is not less done.
func TestWhatHasComeDoesNotGoBack(t *testing.T) {
	var c come
	for _, s := range []struct {
		id   uint64
		step uint32
		part float64
		want float64
	}{{1, 7, 0.5, 0.5}, {1, 7, 1, 1}, {1, 7, 0.1, 1}, {1, 8, 0.1, 0.1}, {2, 7, 0.1, 0.1}} {
		if got := c.most(s.id, s.step, s.part); got != s.want {
			t.Errorf("%+v: %v", s, got)
		}
	}
}

// TestFilled: a copy counts by the files that are sent for it, or else by its side streams.
func TestFilled(t *testing.T) {
	for _, c := range []struct {
		is   wire.CopyReport
		want float64
	}{
		{},
		{wire.CopyReport{Done: 5, Total: 10}, 0.5},
		{wire.CopyReport{Done: 5, Total: 10, Received: 1, Expected: 4}, 0.25},
		{wire.CopyReport{Received: 5, Expected: 4}, 1},
		{wire.CopyReport{Done: 11, Total: 10}, 1},
	} {
		if got := filled(c.is); got != c.want {
			t.Errorf("%+v: %v, want %v", c.is, got, c.want)
		}
	}
}
