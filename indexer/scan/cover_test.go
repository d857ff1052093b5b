package scan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"tidemark/index"
)

// placed returns a plan of slices whose copies are on these nodes, in the order of the plan, and hold timestamp 5, or
// the one that held has for their node.
func placed(copies [][]index.NodeID, held map[index.NodeID]uint64) plan {
	p := plan{ref: refOf(5)}
	id := index.CopyID(0)
	for s, nodes := range copies {
		one := sliceplan{slice: index.SliceID(s)}
		for _, n := range nodes {
			number, ok := held[n]
			if !ok {
				number = 5
			}
			id++
			one.candidates = append(one.candidates, candidate{copy: id, node: n, held: refOf(number)})
		}
		p.slices = append(p.slices, one)
	}
	return p
}

// order orders the copies of all slices as choose does.
func (p *plan) order(turn uint64, suspect func(index.NodeID) bool, busier func(a, b index.NodeID) bool) {
	for i := range p.slices {
		p.slices[i].order(p.ref, turn, suspect, busier)
	}
}

// nodes returns the node that is queried for each slice.
func (p *plan) nodes() (nodes []index.NodeID) {
	for _, s := range p.slices {
		nodes = append(nodes, s.candidates[0].node)
	}
	return nodes
}

// othersOf returns how many nodes other than one there are.
func othersOf(nodes []index.NodeID, one index.NodeID) int {
	nodes = slices.Clone(nodes)
	slices.Sort(nodes)
	return len(slices.DeleteFunc(slices.Compact(nodes), func(n index.NodeID) bool { return n == one }))
}

// only returns a function that reports whether a node is this one.
func only(node index.NodeID) func(index.NodeID) bool {
	return func(n index.NodeID) bool { return n == node }
}

func noNode(index.NodeID) bool { return false }

func neither(_, _ index.NodeID) bool { return false }

// TestTogether checks that slices are read together where copies are equally good: first on this node, then where a
// slice has one copy, then on the node whose turn it is, then where most of the others are.
func TestTogether(t *testing.T) {
	const here = index.NodeID(0)
	copies := [][]index.NodeID{{0, 1}, {2, 1}, {1, 3}, {3, 4}, {4, 5}, {5, 3}, {7}}
	for _, c := range []struct {
		name    string
		here    index.NodeID
		copies  [][]index.NodeID
		held    map[index.NodeID]uint64
		suspect index.NodeID
		busy    index.NodeID
		turn    uint64
		want    []index.NodeID
	}{
		{"turn of node 1", here, copies, nil, 99, 99, 0, []index.NodeID{0, 1, 1, 3, 4, 3, 7}},
		{"turn of node 2", here, copies, nil, 99, 99, 1, []index.NodeID{0, 2, 3, 3, 4, 3, 7}},
		{"turn of node 3", here, copies, nil, 99, 99, 2, []index.NodeID{0, 1, 3, 3, 4, 3, 7}},
		{"this node has none", 9, copies, nil, 99, 99, 0, []index.NodeID{0, 1, 3, 3, 4, 3, 7}},
		{"this node is far behind", here, copies, map[index.NodeID]uint64{here: 1}, 99, 99, 0,
			[]index.NodeID{1, 1, 1, 3, 4, 3, 7}},
		{"this node does not hold it yet", here, copies, map[index.NodeID]uint64{here: 4}, 99, 99, 0,
			[]index.NodeID{1, 1, 1, 3, 4, 3, 7}},
		{"this node is busy", here, copies, nil, 99, here, 0, []index.NodeID{1, 1, 1, 3, 4, 3, 7}},
		{"the node with most copies is suspect", here, copies, nil, 3, 99, 0, []index.NodeID{0, 1, 1, 4, 4, 5, 7}},
		{"the node with most copies is busy", here, copies, nil, 99, 3, 0, []index.NodeID{0, 1, 1, 4, 4, 5, 7}},
		{"all are here", here, [][]index.NodeID{{1, 0}, {0, 2}, {0}}, nil, 99, 99, 0, []index.NodeID{0, 0, 0}},
		{"no choice", here, [][]index.NodeID{{1}, {2}, {0}}, nil, 99, 99, 0, []index.NodeID{1, 2, 0}},
		{"the greedy choice has more", here, [][]index.NodeID{{1, 3}, {1, 4}, {2, 3}, {2, 4}, {1, 5}, {2, 5}}, nil, 99, 99, 2,
			[]index.NodeID{1, 1, 2, 2, 1, 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := placed(c.copies, c.held)
			busier := func(a, b index.NodeID) bool { return a == c.busy && b != c.busy }
			p.order(c.turn, only(c.suspect), busier)
			p.together(c.turn, only(c.here), busier)
			if got := p.nodes(); !slices.Equal(got, c.want) {
				t.Errorf("nodes %v are queried, want %v", got, c.want)
			}
		})
	}
}

// TestTogetherChoosesNoWorseNode checks that, whatever copies hold and however busy nodes are, a slice is read from a
// copy as good as the one it would be read from otherwise, on a node that is not busier; that no more other nodes are
// queried than otherwise; that no copy gets lost; and that what scans share stays as it is.
func TestTogetherChoosesNoWorseNode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.IntRange(1, 12).Draw(t, "nodes")
		all := make([]index.NodeID, nodes)
		held, load := map[index.NodeID]uint64{}, map[index.NodeID]int{}
		for i := range all {
			all[i] = index.NodeID(250 + i) // the numbers begin again at 0
			held[all[i]] = rapid.SampledFrom([]uint64{5, 5, 5, 6, 4, 1}).Draw(t, "held")
			load[all[i]] = rapid.IntRange(2, 4).Draw(t, "load")
		}
		copies := make([][]index.NodeID, rapid.IntRange(1, 24).Draw(t, "slices"))
		for i := range copies {
			copies[i] = rapid.Permutation(all).Draw(t, "on")[:rapid.IntRange(1, min(4, nodes)).Draw(t, "copies")]
		}
		one := rapid.SampledFrom(all)
		suspect, here, turn := only(one.Draw(t, "suspect")), one.Draw(t, "here"), rapid.Uint64().Draw(t, "turn")
		busier := func(a, b index.NodeID) bool { return 2*load[a] > 3*load[b] }
		shared, before, p := placed(copies, held), placed(copies, held), placed(copies, held)
		for i := range p.slices {
			p.slices[i].candidates = shared.slices[i].candidates
		}
		before.order(turn, suspect, busier)
		p.order(turn, suspect, busier)
		p.together(turn, only(here), busier)
		for i, s := range p.slices {
			old, newest := before.slices[i].candidates, newestHeld(s.candidates)
			if a, b := s.candidates[0], old[0]; a.rank(p.ref, newest) != b.rank(p.ref, newest) || busier(a.node, b.node) {
				t.Fatalf("slice %d is read from %+v, better is %+v", i, a, b)
			}
			byID := func(a, b candidate) int { return int(a.copy) - int(b.copy) }
			if !slices.Equal(slices.SortedFunc(slices.Values(s.candidates), byID),
				slices.SortedFunc(slices.Values(old), byID)) {
				t.Fatalf("slice %d: copies %+v, want those of %+v", i, s.candidates, old)
			}
			if again := placed(copies, held).slices[i].candidates; !slices.Equal(shared.slices[i].candidates, again) {
				t.Fatalf("the view has %+v now, it had %+v", shared.slices[i].candidates, again)
			}
		}
		if is, was := othersOf(p.nodes(), here), othersOf(before.nodes(), here); is > was {
			t.Fatalf("%d others are queried, %d before: %v, %v", is, was, p.nodes(), before.nodes())
		}
	})
}

// TestTogetherSpreadsLoad checks that over the turns of all nodes that coordinate scans, each reads its part, in
// proportion to the copies that it has.
func TestTogetherSpreadsLoad(t *testing.T) {
	for _, c := range []struct {
		slices, copies, nodes int
		others                float64 // on average, at most
	}{
		{8, 2, 3, 1}, {8, 2, 5, 2.3}, {6, 2, 5, 2.2}, {16, 2, 5, 2.8}, {8, 3, 5, 1.8}, {12, 2, 8, 4.1}, {32, 2, 10, 6.2},
	} {
		t.Run(fmt.Sprintf("%d slices, %d copies, %d nodes", c.slices, c.copies, c.nodes), func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			var requests, otherwise, scans int
			for range 10 {
				copies := balanced(r, c.slices, c.copies, c.nodes)
				read := map[index.NodeID]int{}
				total := 0
				for turn := range uint64(60) {
					for n := range c.nodes {
						here := index.NodeID(n)
						p := placed(copies, nil)
						p.order(turn, noNode, neither)
						otherwise += othersOf(p.nodes(), here)
						p.together(turn, only(here), neither)
						for _, node := range p.nodes() {
							read[node]++
							total++
						}
						requests += othersOf(p.nodes(), here)
						scans++
					}
				}
				for n := range c.nodes {
					has := 0
					for _, on := range copies {
						if slices.Contains(on, index.NodeID(n)) {
							has++
						}
					}
					fair := float64(total) * float64(has) / float64(c.slices*c.copies)
					if share := float64(read[index.NodeID(n)]) / fair; share < 0.4 || share > 1.8 {
						t.Errorf("node %d of %v reads %.2f of its part", n, copies, share)
					}
				}
			}
			mean := float64(requests) / float64(scans)
			if mean > c.others {
				t.Errorf("%.2f others are queried, want at most %.2f", mean, c.others)
			}
			t.Logf("%.2f others are queried, otherwise %.2f", mean, float64(otherwise)/float64(scans))
		})
	}
}

// balanced returns a placement in which each node has as many copies as any other, or one more.
func balanced(r *rand.Rand, count, copies, nodes int) [][]index.NodeID {
	has := make([]int, nodes)
	all := make([][]index.NodeID, count)
	for s := range all {
		for range copies {
			best := -1
			for _, n := range r.Perm(nodes) {
				if !slices.Contains(all[s], index.NodeID(n)) && (best < 0 || has[n] < has[best]) {
					best = n
				}
			}
			has[best]++
			all[s] = append(all[s], index.NodeID(best))
		}
		r.Shuffle(copies, func(i, j int) { all[s][i], all[s][j] = all[s][j], all[s][i] })
	}
	return all
}

// TestSmallScans checks that few nodes are queried where few rows are read, and where later requests read nothing of
// what the nodes keep.
func TestSmallScans(t *testing.T) {
	f := newCluster(8, 2, 5)
	at := refOf(5)
	for name, c := range map[string]struct {
		change func(*Spec)
		small  bool
	}{
		"few rows":          {func(s *Spec) { s.Limit = fewRows }, true},
		"few behind others": {func(s *Spec) { s.Limit, s.Offset = 10, fewRows-10 }, true},
		"session":           {func(s *Spec) { s.Limit, s.Consistency = 10, Session }, true},
		"no stability":      {func(s *Spec) { s.Limit, s.Stability, s.WantTimestamp = 10, NoStability, false }, true},
		"no limit":          {func(*Spec) {}, false},
		"many rows":         {func(s *Spec) { s.Limit = fewRows + 1 }, false},
		"few behind many":   {func(s *Spec) { s.Limit, s.Offset = 10, fewRows }, false},
		"kept for a query":  {func(s *Spec) { s.Limit, s.Stability = 10, QueryStability }, false},
		"of a query":        {func(s *Spec) { s.Limit, s.At = 10, &at }, false},
		"a page":            {func(s *Spec) { s.Limit, s.Page = 10, &Page{} }, false},
		"distinct":          {func(s *Spec) { s.Limit, s.Distinct = 10, 1 }, false},
		"with a condition":  {func(s *Spec) { s.Limit, s.Where = 10, []Filter{{}} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			spec := openSpec()
			c.change(&spec)
			if spec.small() != c.small {
				t.Fatalf("small: %v", spec.small())
			}
			if spec.Page != nil || spec.Where != nil || spec.Distinct > 0 {
				return // such a scan needs more than this
			}
			spec.Explain = true
			synctest.Test(t, func(t *testing.T) { // all nodes answer in no time, so that none is busier
				coordinator, others := f.coordinator(), 0
				const scans = 20
				for range scans {
					res, err := coordinator.Scan(t.Context(), spec, &collect{})
					if err != nil {
						t.Fatal(err)
					}
					for _, p := range res.Explain.Parts {
						if p.Indexer != f.Name(here) {
							others++
						}
					}
				}
				if c.small != (others <= 2*scans) {
					t.Errorf("%d scans use %d other nodes", scans, others)
				}
			})
		})
	}
}

// BenchmarkTogether measures what it takes to choose the copies of a small scan, with and without together.
func BenchmarkTogether(b *testing.B) {
	for _, c := range []struct{ slices, nodes int }{{8, 5}, {64, 20}, {1024, 40}} {
		copies := placed(balanced(rand.New(rand.NewPCG(1, 2)), c.slices, 2, c.nodes), nil)
		for name, few := range map[string]bool{"few": true, "any": false} {
			b.Run(fmt.Sprintf("%d-slices/%s", c.slices, name), func(b *testing.B) {
				b.ReportAllocs()
				turn := uint64(0)
				for b.Loop() {
					p := plan{ref: copies.ref, slices: slices.Clone(copies.slices)}
					p.order(turn, noNode, neither)
					if few {
						p.together(turn, only(0), neither)
					}
					turn++
				}
			})
		}
	}
}
