package rebalance

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"tidemark/index"
)

func nodes(loads ...int) (ns []Node) {
	for i, l := range loads {
		ns = append(ns, Node{ID: index.NodeID(i + 1), UUID: fmt.Sprintf("u%d", i+1), Name: fmt.Sprintf("n%d", i+1), Load: l})
	}
	return ns
}

// check returns the copies per node, and fails unless each slice has all its replicas on different allowed nodes.
func check(t interface {
	Helper()
	Fatalf(string, ...any)
}, ns []Node, ps []Placement, sliceCount, replicas int) map[index.NodeID]int {
	t.Helper()
	if len(ps) != sliceCount*(replicas+1) {
		t.Fatalf("%d placements, want %d", len(ps), sliceCount*(replicas+1))
	}
	allowed := map[index.NodeID]bool{}
	for _, n := range ns {
		allowed[n.ID] = true
	}
	load := map[index.NodeID]int{}
	for i, p := range ps {
		if int(p.Slice) != i/(replicas+1) || int(p.Replica) != i%(replicas+1) || !allowed[p.Node] {
			t.Fatalf("placement %d is %+v", i, p)
		}
		for _, o := range ps[i-int(p.Replica) : i] {
			if o.Node == p.Node {
				t.Fatalf("two replicas of slice %d on node %d", p.Slice, p.Node)
			}
		}
		load[p.Node]++
	}
	return load
}

func TestPlace(t *testing.T) {
	for _, tc := range []struct {
		name             string
		loads            []int
		slices, replicas int
		want             string // new copies per node
	}{
		{"one slice goes to the emptiest node", []int{3, 1, 2}, 1, 0, "0 1 0"},
		{"slices spread", []int{0, 0, 0}, 6, 0, "2 2 2"},
		{"existing load counts", []int{4, 0, 0}, 4, 0, "0 2 2"},
		{"replicas on different nodes although one is empty", []int{9, 9, 0}, 2, 1, "1 1 2"},
		{"as many replicas as nodes", []int{5, 0, 0}, 2, 2, "2 2 2"},
	} {
		ns := nodes(tc.loads...)
		ps, err := Place(ns, tc.slices, tc.replicas)
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		load := check(t, ns, ps, tc.slices, tc.replicas)
		var got []string
		for _, n := range ns {
			got = append(got, fmt.Sprint(load[n.ID]))
		}
		if s := strings.Join(got, " "); s != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, s, tc.want)
		}
	}
}

func TestCapacity(t *testing.T) {
	ns := nodes(0, 0)
	ns[1].Capacity = 3
	ps, err := Place(ns, 8, 0)
	if err != nil {
		t.Fatal(err)
	}
	if load := check(t, ns, ps, 8, 0); load[1] != 2 || load[2] != 6 {
		t.Errorf("capacities 1 and 3 got %v", load)
	}
}

func TestZones(t *testing.T) {
	ns := nodes(0, 0, 0, 0)
	for i := range ns {
		ns[i].Zone = []string{"a", "a", "a", "b"}[i]
	}
	ps, err := Place(ns, 3, 1)
	if err != nil {
		t.Fatal(err)
	}
	if load := check(t, ns, ps, 3, 1); load[4] != 3 {
		t.Errorf("a replica of each slice belongs to zone b: %v", load)
	}
	ps, err = Place(ns, 3, 2) // three copies, two zones: two in zone a
	if err != nil {
		t.Fatal(err)
	}
	if load := check(t, ns, ps, 3, 2); load[4] != 3 {
		t.Errorf("a replica of each slice belongs to zone b: %v", load)
	}
	if _, err = Place(ns, 3, 3); err != nil { // on every node, whatever the zone
		t.Fatal(err)
	}
}

func TestErrors(t *testing.T) {
	for _, tc := range []struct {
		ns               []Node
		slices, replicas int
		want             error
		text             string
	}{
		{nil, 1, 0, ErrTooFewNodes, "no indexer is active"},
		{nodes(0, 0, 0), 1, 3, ErrTooFewNodes, "num_replica 3 needs 4 indexers, but only 3 may be used"},
		{nodes(0), 0, 0, ErrInput, "0 slices"},
		{nodes(0), 5000, 0, ErrInput, "5000 slices"},
		{nodes(0), 1, -1, ErrInput, "-1 replicas"},
		{append(nodes(0), nodes(0)...), 1, 0, ErrInput, "listed twice"},
	} {
		_, err := Place(tc.ns, tc.slices, tc.replicas)
		if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%v", err)
		}
	}
	ns := nodes(0, 0, 0)
	if got, err := Allowed(ns, []string{"n3", "u1", "n1"}); err != nil || len(got) != 2 || got[0].ID != 3 ||
		got[1].ID != 1 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := Allowed(ns, []string{"n4"}); !errors.Is(err, ErrUnknownNode) || !strings.Contains(err.Error(), `"n4"; active are n1, n2, n3`) {
		t.Error(err)
	}
	if got, err := Allowed(ns, nil); err != nil || len(got) != 3 {
		t.Errorf("%v, %v", got, err)
	}
}

// TestZonesOfManyCopies: if a slice has more copies than there are zones, each zone has some of them.
func TestZonesOfManyCopies(t *testing.T) {
	for name, tc := range map[string]struct {
		zones    string
		loads    []int
		replicas int
	}{
		"four copies in three zones": {"abcabc", make([]int, 6), 3},
		"five copies in three zones": {"abcabc", make([]int, 6), 4},
		"a zone that is full":        {"aabbc", []int{0, 0, 0, 0, 30}, 3},
	} {
		ns := nodes(tc.loads...)
		for i := range ns {
			ns[i].Zone = tc.zones[i : i+1]
		}
		ps, err := Place(ns, 12, tc.replicas)
		if err != nil {
			t.Fatal(err)
		}
		check(t, ns, ps, 12, tc.replicas)
		in := map[index.SliceID]map[string]bool{}
		for _, p := range ps {
			if in[p.Slice] == nil {
				in[p.Slice] = map[string]bool{}
			}
			in[p.Slice][ns[p.Node-1].Zone] = true
		}
		for slice, zones := range in {
			if len(zones) != 3 {
				t.Errorf("%s: slice %d lies in %d of 3 zones", name, slice, len(zones))
			}
		}
	}
}

// TestOptimal compares with an exhaustive search over all placements.
func TestOptimal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "nodes")
		sliceCount := rapid.IntRange(1, 3).Draw(t, "slices")
		replicas := rapid.IntRange(0, n-1).Draw(t, "replicas")
		ns := nodes(rapid.SliceOfN(rapid.IntRange(0, 5), n, n).Draw(t, "loads")...)
		for i := range ns {
			ns[i].Capacity = uint32(rapid.SampledFrom([]int{1, 1, 2, 4}).Draw(t, "capacity"))
			ns[i].Zone = rapid.SampledFrom([]string{"", "", "a", "b"}).Draw(t, "zone")
		}
		ps, err := Place(ns, sliceCount, replicas)
		if err != nil {
			t.Fatal(err)
		}
		got := spread(ns, check(t, ns, ps, sliceCount, replicas))
		sets := apart(ns, replicas+1)
		for s := range sliceCount {
			set := 0
			for _, p := range ps[s*(replicas+1) : (s+1)*(replicas+1)] {
				set |= 1 << (p.Node - 1)
			}
			if !slices.Contains(sets, set) {
				t.Fatalf("slice %d could be spread further over zones: %+v", s, ps)
			}
		}
		if want := exhaustive(ns, sliceCount, sets, map[index.NodeID]int{}); got != want {
			t.Fatalf("cost %d, the best is %d: %+v", got, want, ps)
		}
		again, err := Place(ns, sliceCount, replicas)
		if err != nil || fmt.Sprint(again) != fmt.Sprint(ps) {
			t.Fatalf("asked twice: %v and %v, %v", ps, again, err)
		}
	})
}

func spread(ns []Node, load map[index.NodeID]int) (sum int64) {
	for _, n := range ns {
		for k := range load[n.ID] {
			sum += growth(n, k)
		}
	}
	return sum
}

// apart returns the sets of nodes with the fewest pairs in one zone.
func apart(ns []Node, copies int) (sets []int) {
	fewest := 1 << 30
	for set := range 1 << len(ns) {
		if count(set) != copies {
			continue
		}
		in, pairs := map[string]int{}, 0
		for i, n := range ns {
			if set>>i&1 == 1 {
				pairs += in[n.Zone]
				in[n.Zone]++
			}
		}
		if pairs < fewest {
			fewest, sets = pairs, nil
		}
		if pairs == fewest {
			sets = append(sets, set)
		}
	}
	return sets
}

// exhaustive returns the lowest cost if each slice is placed on one of these sets of nodes.
func exhaustive(ns []Node, sliceCount int, sets []int, load map[index.NodeID]int) int64 {
	if sliceCount == 0 {
		return spread(ns, load)
	}
	best := int64(1) << 62
	for _, set := range sets {
		for i, n := range ns {
			load[n.ID] += set >> i & 1
		}
		best = min(best, exhaustive(ns, sliceCount-1, sets, load))
		for i, n := range ns {
			load[n.ID] -= set >> i & 1
		}
	}
	return best
}

// BenchmarkPlace is the target in docs/performance.md: 1000 slices x 3 on 64 nodes in under 100 ms.
func BenchmarkPlace(b *testing.B) {
	ns := nodes(make([]int, 64)...)
	for i := range ns {
		ns[i].Zone = fmt.Sprint(i % 8)
		ns[i].Load = i % 5
	}
	for b.Loop() {
		if _, err := Place(ns, 1000, 2); err != nil {
			b.Fatal(err)
		}
	}
}
