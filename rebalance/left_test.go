package rebalance

import (
	"math"
	"testing"

	"tidemark/index"
	"tidemark/partition"
)

// leftRun is a rebalance in steps of time, as Advance lets it go: a step takes its overhead, beside others, and then
// its bytes, one copy at a time at each node.
type leftRun struct {
	work     []Work
	steps    world
	waits    []float64 // seconds of overhead that are still to come
	got      []float64 // bytes
	bounds   Bounds
	overhead float64 // seconds
	speed    float64 // bytes a second
}

func (r *leftRun) tick(dt float64) (over bool) {
	for _, t := range r.steps.advance(r.bounds, "") {
		y, w := &r.steps.steps[t.Step-1], &r.work[t.Step-1]
		if y.State, w.Begun = partition.RebalanceCatchup, true; w.Skipped {
			y.State = partition.RebalanceGivenUp
		}
	}
	over = true
	sending, receiving := map[index.NodeID]bool{}, map[index.NodeID]bool{}
	for i := range r.steps.steps {
		y, w := &r.steps.steps[i], &r.work[i]
		over = over && y.State.Over()
		if y.State != partition.RebalanceCatchup {
			continue
		}
		if r.waits[i] > 0 {
			r.waits[i] -= dt
			continue
		}
		if !sending[w.Src] && !receiving[w.Dst] {
			sending[w.Src], receiving[w.Dst] = !w.Lost, true
			r.got[i] += r.speed * dt
			w.Part = min(r.got[i]/w.Bytes, 1)
		}
		if w.Part == 1 {
			y.State = partition.RebalanceDone
		}
	}
	return over
}

// TestLeft: what is said of the time that is left is right within a quarter from the first tenth on (near the end,
// where a quarter is next to nothing, within a twentieth of the whole time).
func TestLeft(t *testing.T) {
	const MiB, speed = 1 << 20, 64 << 20
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
	for name, c := range map[string]struct {
		work   []Work
		bounds Bounds
	}{
		"two nodes come":  {spread(40, same(512*MiB), nodes{1, 2, 3}, nodes{4, 5}), one},
		"a node goes":     {spread(30, same(512*MiB), nodes{4}, nodes{1, 2, 3}), one},
		"small slices":    {spread(60, same(2*MiB), nodes{1, 2, 3}, nodes{4, 5}), one},
		"of several size": {spread(60, func(i int) float64 { return float64(1+i*7%13) * 64 * MiB }, nodes{1, 2, 3}, nodes{4, 5}), one},
		"the large last":  {spread(40, func(i int) float64 { return float64(1+i/10) * 128 * MiB }, nodes{1, 2, 3}, nodes{4, 5}), one},
		"most to one":     {append(spread(4, same(256*MiB), nodes{1}, nodes{5}), spread(30, same(256*MiB), nodes{2, 3}, nodes{4})...), one},
		"some given up":   {skipped, one},
		"a node was lost": {lost, Bounds{Sends: 8, Receives: 8, AtOnce: 64}},
	} {
		t.Run(name, func(t *testing.T) {
			r := &leftRun{work: c.work, bounds: c.bounds, overhead: 0.5, speed: speed,
				steps: world{nodes: map[index.NodeID]SeenNode{}},
				waits: make([]float64, len(c.work)), got: make([]float64, len(c.work))}
			for i := range c.work {
				r.waits[i] = r.overhead
				r.steps.nodes[c.work[i].Src] = SeenNode{Lost: c.work[i].Lost}
				r.steps.add(partition.Rebalance{State: partition.RebalanceStart, Src: partition.Shard{Node: c.work[i].Src},
					Dst: partition.Shard{Node: c.work[i].Dst}}, Seen{})
			}
			type said struct{ at, left float64 }
			var all []said
			now := 0.0
			for !r.tick(0.05) {
				if now += 0.05; now > 1e5 {
					t.Fatal("it never ends")
				}
				if times, known := Left(r.work, r.bounds, r.overhead*r.speed); known {
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
				if worst = max(worst, off*b2f(s.at >= now/10)); s.at >= now/10 && off > 0.25 {
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
