package rebalance

import (
	"errors"
	"fmt"
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
	if _, err = Place(ns, 3, 3); err != nil { // every node, whatever the zone
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
		{nil, 1, 0, ErrTooFewNodes, "none is active"},
		{nodes(0, 0, 0), 1, 3, ErrTooFewNodes, "num_replica 3 needs 4 indexers, 3 may be used"},
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

// TestOptimal compares with exhaustive search over all placements.
func TestOptimal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 4).Draw(t, "nodes")
		sliceCount := rapid.IntRange(1, 4).Draw(t, "slices")
		replicas := rapid.IntRange(0, n-1).Draw(t, "replicas")
		ns := nodes(rapid.SliceOfN(rapid.IntRange(0, 5), n, n).Draw(t, "loads")...)
		for i := range ns {
			ns[i].Capacity = uint32(rapid.SampledFrom([]int{1, 1, 2, 4}).Draw(t, "capacity"))
		}
		ps, err := Place(ns, sliceCount, replicas)
		if err != nil {
			t.Fatal(err)
		}
		got := spread(ns, check(t, ns, ps, sliceCount, replicas))
		if want := exhaustive(ns, sliceCount, replicas+1, map[index.NodeID]int{}); got != want {
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

func exhaustive(ns []Node, sliceCount, copies int, load map[index.NodeID]int) int64 {
	if sliceCount == 0 {
		return spread(ns, load)
	}
	best := int64(1) << 62
	for set := range 1 << len(ns) {
		count := 0
		for i := range ns {
			count += set >> i & 1
		}
		if count != copies {
			continue
		}
		for i, n := range ns {
			load[n.ID] += set >> i & 1
		}
		best = min(best, exhaustive(ns, sliceCount-1, copies, load))
		for i, n := range ns {
			load[n.ID] -= set >> i & 1
		}
	}
	return best
}

// BenchmarkPlace is the bar of docs/performance.md: 1000 slices x 3 on 64 nodes under 100 ms.
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
