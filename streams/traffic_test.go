package streams

import (
	"testing"

	"pgregory.net/rapid"

	"tidemark/index"
	_ "tidemark/internal/testing/draws"
)

// TestTraffic checks that rates follow KV's high seqnos, by half at each audit, and start again where those went
// back.
func TestTraffic(t *testing.T) {
	tr := newTraffic(1)
	for _, step := range []struct {
		nowMS int64
		high  uint64
		want  float64
	}{
		{1_000, 5_000, 0},      // the first audit has no rate
		{2_000, 6_000, 500},    // 1,000/s, for half
		{3_000, 7_000, 750},    // the same again
		{3_000, 9_000, 750},    // no time has passed
		{13_000, 7_000, 375},   // nothing for 10 s
		{14_000, 100, 375},     // a failover with loss
		{15_000, 1_100, 687.5}, // 1,000/s from there on
	} {
		tr.note(0, step.nowMS, step.high)
		if got := tr.rates[0]; got != step.want {
			t.Errorf("at %d ms, seqno %d: %v changes/s, want %v", step.nowMS, step.high, got, step.want)
		}
	}
}

// TestDealing checks that moves end, whatever the rates and the initial owners, that none makes the other projector
// the busier one, and that afterwards no move of a vbucket would leave the target less loaded by a quarter of the
// changes.
func TestDealing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 64).Draw(t, "vbuckets")
		projectors := []index.ProjectorID{"p1", "p2", "p3"}[:rapid.IntRange(2, 3).Draw(t, "projectors")]
		l, err := New(DefaultConfig(), n, 1, 1)
		if err != nil {
			t.Fatal(err)
		}
		l.projectors, l.kv.shared = projectors, map[int][]index.ProjectorID{}
		for v := range l.vbs {
			l.vbs[v].Owner = rapid.SampledFrom(projectors).Draw(t, "owner")
			l.kv.shared[v] = projectors
			l.kv.traffic.rates[v] = rapid.SampledFrom([]float64{0, 0, 1, 10, 10, 30, 400, 3_000, 20_000}).Draw(t, "rate")
		}
		for moves := 0; ; moves++ {
			if moves > 20*n {
				t.Fatalf("still moving after %d moves: %v", moves, l.loads())
			}
			loads, best := l.loads(), -1
			for _, v := range l.busiest() {
				if loads[l.vbs[v].Owner].eased(loads[l.idlest(v, loads)], l.kv.traffic.weight(v)) {
					best = v
					break
				}
			}
			if best < 0 {
				break
			}
			from, to := l.vbs[best].Owner, l.idlest(best, loads)
			weight := l.kv.traffic.weight(best)
			if after := loads[to].weight + weight; after >= loads[from].weight {
				t.Fatalf("vbucket %d of %v goes from %v to %v, which becomes the busier one", best, weight, loads[from], loads[to])
			}
			l.vbs[best].Owner = to
		}
		loads := l.loads()
		for v := range l.vbs {
			from, rate := loads[l.vbs[v].Owner], l.kv.traffic.rates[v]
			for _, p := range projectors {
				changes := (from.weight - float64(from.vbuckets)) * dealChanges
				gap, whole := from.weight-loads[p].weight, 1+rate/dealChanges
				if gap > whole+0.501 && gap > whole+changes/dealChanges/4+0.001 {
					t.Fatalf("vbucket %d with %v changes/s stays at %v beside %v", v, rate, from, loads[p])
				}
			}
		}
	})
}
