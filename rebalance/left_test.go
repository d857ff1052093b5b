package rebalance

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"testing"

	"tidemark/index"
	"tidemark/partition"
)

// leftRun simulates a rebalance as Advance runs it: a step takes the first half of its overhead, in parallel with
// others, then its bytes, one copy at a time per node, and then the rest of its overhead.
type leftRun struct {
	work   []Work
	steps  world
	waits  [][2]float64 // remaining seconds of overhead
	got    []float64    // bytes transferred
	bounds Bounds
	speed  float64 // bytes per second
	watch  Watch
}

func newLeftRun(work []Work, b Bounds, speed float64, overhead func(i int) float64) *leftRun {
	r := &leftRun{work: work, bounds: b, speed: speed, steps: world{nodes: map[index.NodeID]SeenNode{}},
		waits: make([][2]float64, len(work)), got: make([]float64, len(work))}
	for i, w := range work {
		r.waits[i] = [2]float64{overhead(i) / 2, overhead(i) / 2}
		r.steps.nodes[w.Src] = SeenNode{Lost: w.Lost}
		r.steps.add(partition.Rebalance{State: partition.RebalanceStart, Src: partition.Shard{Node: w.Src},
			Dst: partition.Shard{Node: w.Dst}}, Seen{})
	}
	return r
}

func (r *leftRun) tick(dt float64) (over bool) {
	for _, t := range r.steps.advance(r.bounds, "") {
		if y := &r.steps.steps[t.Step-1]; r.work[t.Step-1].Skipped {
			y.State = partition.RebalanceGivenUp
		} else {
			y.State = partition.RebalanceCatchup
		}
	}
	over = true
	sending, receiving := map[index.NodeID]bool{}, map[index.NodeID]bool{}
	for i := range r.steps.steps {
		y, w, waits := &r.steps.steps[i], &r.work[i], &r.waits[i]
		over = over && y.State.Over()
		switch {
		case y.State != partition.RebalanceCatchup:
		case waits[0] > 0:
			waits[0] -= dt
		case r.got[i] < w.Bytes:
			if !sending[w.Src] && !receiving[w.Dst] {
				sending[w.Src], receiving[w.Dst] = !w.Lost, true
				r.got[i] += r.speed * dt
			}
		case waits[1] > 0:
			waits[1] -= dt
		default:
			y.State = partition.RebalanceDone
		}
	}
	return over
}

// left returns the estimated remaining time; presumed is the presumed pace.
func (r *leftRun) left(nowMS int64, presumed Pace) (times float64, known bool) {
	var works []Work
	r.watch.Look(1, nowMS)
	for i, w := range r.work {
		state := r.steps.steps[i].State
		switch w.Begun = state != partition.RebalanceStart; {
		case state == partition.RebalanceDone:
			w.Part = 1
			r.watch.See(uint32(i+1), &w, true)
		case w.Begun && !w.Skipped:
			w.Part = 0.8 * min(r.got[i]/w.Bytes, 1)
			r.watch.See(uint32(i+1), &w, false)
		}
		works = append(works, w)
	}
	return Left(works, r.bounds, r.watch.Pace(presumed))
}

// Rebalances of TestGrow in package e2e/data with 60,000 documents, on two busy cores: source and destination of each
// step, KiB, and seconds.
const (
	threeToFive = "0>4 1507 1.13, 1>3 1479 0.86, 2>3 1245 0.98, 0>4 1245 1.12, 2>3 1208 0.85, 0>4 1146 0.61, " +
		"2>4 1191 1.01, 0>3 1076 0.76, 2>3 1147 0.89, 1>4 1076 0.73, 1>3 1047 1.19, 2>4 1047 1.36, " +
		"2>3 1007 0.72, 0>4 989 0.60, 2>3 989 0.57, 1>4 907 0.78, 1>3 959 0.60, 2>4 959 0.80, 0>3 907 0.74, " +
		"1>4 857 0.82, 0>3 857 0.94, 1>4 801 0.94, 0>3 801 0.58, 2>4 717 0.93, 1>3 717 0.81"
	fiveToFour = "3>0 1827 0.55, 3>1 1580 0.85, 3>4 1565 0.90, 3>4 1425 1.10, 3>2 1287 0.75, 3>0 1267 0.71, " +
		"3>4 1237 0.70, 3>1 1216 0.84, 3>4 1200 1.63, 3>1 1173 0.83, 3>0 1151 1.12, 3>2 1015 1.01, " +
		"3>2 903 1.48"
)

// measured parses one of them for leftRun.
func measured(t *testing.T, steps string) (work []Work, overhead func(i int) float64) {
	var seconds []float64
	for _, step := range strings.Split(steps, ", ") {
		var w Work
		var s float64
		if _, err := fmt.Sscanf(step, "%d>%d %g %g", &w.Src, &w.Dst, &w.Bytes, &s); err != nil {
			t.Fatal(step, err)
		}
		w.Bytes *= 1 << 10
		work, seconds = append(work, w), append(seconds, s)
	}
	return work, func(i int) float64 { return seconds[i] }
}

// TestRemainingTime: the estimated remaining time is right within a quarter from the first tenth on (near the end,
// where a quarter is next to nothing, within a twentieth of the total). A slowdown during the rebalance cannot be
// foreseen: where there was one, the estimate is less exact.
func TestRemainingTime(t *testing.T) {
	const MiB, presumed = 1 << 20, 64 << 20
	slowing := map[string]float64{"five to four, measured": 0.35}
	one := Bounds{Sends: 1, Receives: 1, AtOnce: 64}
	spread := func(n int, bytes func(i int) float64, src, dst []index.NodeID) (w []Work) {
		for i := range n {
			w = append(w, Work{Src: src[i%len(src)], Dst: dst[i%len(dst)], Bytes: bytes(i)})
		}
		return w
	}
	same := func(b float64) func(int) float64 { return func(int) float64 { return b } }
	type nodes = []index.NodeID
	skipped := spread(40, same(256*MiB), nodes{1, 2, 3}, nodes{4, 5})
	for i := range skipped {
		skipped[i].Skipped = i%3 == 2
	}
	lost := spread(24, same(128*MiB), nodes{9}, nodes{1, 2, 3})
	for i := range lost {
		lost[i].Lost = true
	}
	grows, grew := measured(t, threeToFive)
	shrinks, shrank := measured(t, fiveToFour)
	for name, c := range map[string]struct {
		work     []Work
		bounds   Bounds
		overhead func(i int) float64
		speed    float64 // 0: as presumed
	}{
		"two nodes come":          {spread(40, same(512*MiB), nodes{1, 2, 3}, nodes{4, 5}), one, nil, 0},
		"a node goes":             {spread(30, same(512*MiB), nodes{4}, nodes{1, 2, 3}), one, nil, 0},
		"small slices":            {spread(60, same(2*MiB), nodes{1, 2, 3}, nodes{4, 5}), one, nil, 0},
		"of several size":         {spread(60, func(i int) float64 { return float64(1+i*7%13) * 64 * MiB }, nodes{1, 2, 3}, nodes{4, 5}), one, nil, 0},
		"the large last":          {spread(40, func(i int) float64 { return float64(1+i/10) * 128 * MiB }, nodes{1, 2, 3}, nodes{4, 5}), one, nil, 0},
		"most to one":             {append(spread(4, same(256*MiB), nodes{1}, nodes{5}), spread(30, same(256*MiB), nodes{2, 3}, nodes{4})...), one, nil, 0},
		"some given up":           {skipped, one, nil, 0},
		"a node was lost":         {lost, Bounds{Sends: 8, Receives: 8, AtOnce: 64}, nil, 0},
		"three to five, measured": {grows, one, grew, 0},
		"five to four, measured":  {shrinks, one, shrank, 0},
		"slow steps, the large ones first": {spread(40, func(i int) float64 { return float64(40-i) * 16 * MiB },
			nodes{1, 2, 3}, nodes{4, 5}), one, func(int) float64 { return 4 }, 0},
		"slow disks, the large ones first": {spread(40, func(i int) float64 { return float64(40-i) * 16 * MiB },
			nodes{1, 2, 3}, nodes{4, 5}), one, nil, 12 * MiB},
	} {
		t.Run(name, func(t *testing.T) {
			overhead := func(int) float64 { return 0.5 }
			if c.overhead != nil {
				overhead = c.overhead
			}
			r := newLeftRun(c.work, c.bounds, cmp.Or(c.speed, presumed), overhead)
			type said struct{ at, left float64 }
			var all []said
			now := 0.0
			for i := 0; !r.tick(0.05); i++ {
				if now += 0.05; now > 1e5 {
					t.Fatal("it never ends")
				}
				if i%4 != 0 { // indexers report every 200 ms
					continue
				}
				times, known := r.left(int64(1000*now), Pace{BytesPerSecond: presumed, Overhead: 0.5})
				if known {
					all = append(all, said{now, now * times})
				}
			}
			if first := all[0].at; first > now/10 {
				t.Errorf("nothing is said before %.0f s of %.0f", first, now)
			}
			worst := 0.0
			for _, s := range all {
				is := now - s.at
				off := math.Abs(s.left-is) / max(is, now/5)
				if worst = max(worst, off*b2f(s.at >= now/10)); s.at >= now/10 && off > cmp.Or(slowing[name], 0.25) {
					t.Fatalf("after %.1f s of %.1f: %.1f s are left, it says %.1f", s.at, now, is, s.left)
				}
			}
			t.Logf("%.0f s, at most %.0f %% off", now, 100*worst)
		})
	}
}

func b2f(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
