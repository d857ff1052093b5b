package rebalance

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"tidemark/index"
	"tidemark/partition"
)

// draw draws a small cluster whose copies are anywhere that the state allows.
func draw(t *rapid.T) *Cluster {
	c := &Cluster{Revision: 7}
	n := rapid.IntRange(1, 4).Draw(t, "nodes")
	for i := range n {
		c.Nodes = append(c.Nodes, Node{ID: index.NodeID(i + 1), Name: fmt.Sprint("i", i+1),
			Zone:     rapid.SampledFrom([]string{"", "", "a", "b"}).Draw(t, "zone"),
			Capacity: rapid.SampledFrom([]uint32{0, 1, 1, 2, 3}).Draw(t, "capacity"),
			Role:     rapid.SampledFrom([]Role{0, 0, 0, Going, Lost}).Draw(t, "role"),
			Excluded: rapid.SampledFrom([]string{"", "", "", "full"}).Draw(t, "excluded")})
	}
	for i := range c.Nodes {
		c.Nodes[i].noRoom = c.Nodes[i].Excluded != "" && rapid.Bool().Draw(t, "noRoom")
	}
	next := index.CopyID(1)
	for i := range rapid.IntRange(1, 2).Draw(t, "indexes") {
		x := Index{ID: index.ID(i + 1), Bucket: "b", Name: fmt.Sprint("x", i+1),
			Slices: rapid.IntRange(1, 3).Draw(t, "slices"), Replicas: rapid.IntRange(0, n-1).Draw(t, "replicas")}
		if rapid.IntRange(0, 3).Draw(t, "restricted") == 0 {
			for _, on := range rapid.SliceOfNDistinct(rapid.IntRange(1, n), 1, n, rapid.ID[int]).Draw(t, "on") {
				x.Nodes = append(x.Nodes, index.NodeID(on))
			}
		}
		for s := range x.Slices {
			had := rapid.IntRange(0, x.Replicas+1).Draw(t, "had")
			for r, at := range rapid.Permutation(c.Nodes).Draw(t, "at")[:had] {
				x.Copies = append(x.Copies, Copy{ID: next, Slice: index.SliceID(s), Replica: partition.Replica(r), Node: at.ID,
					Bytes: int64(rapid.IntRange(0, 9).Draw(t, "bytes"))})
				next++
			}
		}
		c.Indexes = append(c.Indexes, x)
	}
	return c
}

// goal ranks a placement, in this order.
type goal [4]int64

func (g goal) less(o goal) bool { return slices.Compare(g[:], o[:]) < 0 }

// judge ranks the copies on usable nodes, given as sets of positions in c.Nodes, one per slice of each index.
func judge(c *Cluster, sets []int) (g goal) {
	load := map[index.NodeID]int{}
	at := 0
	for i := range c.Indexes {
		x := &c.Indexes[i]
		own := map[index.NodeID]int{}
		for s := range x.Slices {
			zone := map[string]int{}
			for k, n := range c.Nodes {
				if sets[at]>>k&1 == 0 {
					continue
				}
				g[0] += int64(zone[n.Zone])
				zone[n.Zone]++
				g[1] += growth(Node{Capacity: n.Capacity}, load[n.ID])
				load[n.ID]++
				g[2] += int64(2*own[n.ID]+1) * indexScale / n.weight()
				own[n.ID]++
				if !slices.ContainsFunc(x.Copies, func(o Copy) bool {
					return o.Slice == index.SliceID(s) && o.Node == n.ID
				}) {
					g[3]++
				}
			}
			at++
		}
		if x.Slices < 2 { // nothing to spread
			for k := range own {
				n := c.Nodes[slices.IndexFunc(c.Nodes, func(n Node) bool { return n.ID == k })]
				g[2] -= int64(own[k]) * indexScale / n.weight()
			}
		}
	}
	return g
}

// choices returns the possible node sets of each slice.
func choices(c *Cluster) (all [][]int) {
	for i := range c.Indexes {
		x := &c.Indexes[i]
		usable := 0
		for k, n := range c.Nodes {
			if n.Role == Serving && (len(x.Nodes) == 0 || slices.Contains(x.Nodes, n.ID)) {
				usable |= 1 << k
			}
		}
		want := min(x.Replicas+1, count(usable))
		for s := range x.Slices {
			open, roomless := usable, 0
			for k, n := range c.Nodes {
				if n.Excluded != "" && !slices.ContainsFunc(x.Copies, func(o Copy) bool {
					return o.Slice == index.SliceID(s) && o.Node == n.ID
				}) {
					open &^= 1 << k
					if n.noRoom {
						roomless |= usable & (1 << k)
					}
				}
			}
			zones := func(set int) int {
				all := map[string]bool{}
				for k, n := range c.Nodes {
					if set>>k&1 != 0 {
						all[n.Zone] = true
					}
				}
				return min(len(all), want)
			}
			for _, more := range []int{roomless, usable} {
				if count(open) < want || zones(open) < zones(usable) {
					open |= more
				}
			}
			var of []int
			for set := range 1 << len(c.Nodes) {
				if set&^open == 0 && count(set) == want {
					of = append(of, set)
				}
			}
			all = append(all, of)
		}
	}
	return all
}

func count(set int) (n int) {
	for ; set > 0; set &= set - 1 {
		n++
	}
	return n
}

func best(c *Cluster, all [][]int, chosen []int) (g goal) {
	if len(chosen) == len(all) {
		return judge(c, chosen)
	}
	g[0] = 1 << 62
	for _, set := range all[len(chosen)] {
		if o := best(c, all, append(chosen, set)); o.less(g) {
			g = o
		}
	}
	return g
}

// chosen returns the sets of serving, usable nodes that hold each slice.
func chosen(c *Cluster) (sets []int) {
	for i := range c.Indexes {
		x := &c.Indexes[i]
		for s := range x.Slices {
			set := 0
			for k, n := range c.Nodes {
				if n.Role == Serving && (len(x.Nodes) == 0 || slices.Contains(x.Nodes, n.ID)) &&
					slices.ContainsFunc(x.Copies, func(o Copy) bool { return o.Slice == index.SliceID(s) && o.Node == n.ID }) {
					set |= 1 << k
				}
			}
			sets = append(sets, set)
		}
	}
	return sets
}

// TestPlanIsTheBestOfAll compares plans with an exhaustive search on thousands of small clusters.
func TestPlanIsTheBestOfAll(t *testing.T) {
	checks := 0
	for range 20 { // rapid draws a hundred cases each time
		rapid.Check(t, func(t *rapid.T) {
			checks++
			c := draw(t)
			p, err := Make(c, Options{})
			if err != nil {
				t.Fatal(err)
			}
			after := c.After(p.Steps, 1000)
			got := judge(c, chosen(after))
			got[3] = int64(len(p.Steps))
			if want := best(c, choices(c), nil); got != want {
				t.Fatalf("the plan reaches %v, the best is %v\n%s\n%s", got, want, c.Draw(), after.Draw())
			}
			sound(t, c, after, p)
		})
	}
	least := 2000
	if testing.Short() { // then rapid draws a fifth
		least = 400
	}
	if checks < least {
		t.Fatalf("%d clusters", checks)
	}
}

// sound verifies what holds for every plan.
func sound(t interface {
	Helper()
	Fatalf(string, ...any)
}, c, after *Cluster, p *Plan) {
	t.Helper()
	if err := p.Stale(c); err != nil {
		t.Fatalf("%v", err)
	}
	sends, receives := map[[2]int]int{}, map[[2]int]int{}
	busiest := 1
	load := map[index.NodeID][2]int{}
	for i, y := range p.Steps {
		if y.ID != i+1 || y.Round < 1 || y.Round > p.Rounds || y.Why == "" || i > 0 && y.Round < p.Steps[i-1].Round {
			t.Fatalf("step %d of %d rounds is %+v", i, p.Rounds, y)
		}
		if y.Source != nil {
			sends[[2]int{y.Round, int(*y.Source)}]++
			l := load[*y.Source]
			l[0]++
			load[*y.Source] = l
		}
		receives[[2]int{y.Round, int(y.To)}]++
		l := load[y.To]
		l[1]++
		load[y.To] = l
	}
	for _, l := range load {
		busiest = max(busiest, (l[0]+p.Options.Sends-1)/p.Options.Sends, (l[1]+p.Options.Receives-1)/p.Options.Receives)
	}
	if len(p.Steps) > 0 && p.Rounds != busiest {
		t.Fatalf("%d rounds, %d are enough", p.Rounds, busiest)
	}
	for k, n := range sends {
		if n > p.Options.Sends {
			t.Fatalf("node %d sends %d at a time in round %d", k[1], n, k[0])
		}
	}
	for k, n := range receives {
		if n > p.Options.Receives {
			t.Fatalf("node %d receives %d at a time in round %d", k[1], n, k[0])
		}
	}
	for i := range after.Indexes {
		x := &after.Indexes[i]
		type place struct{ slice, other int }
		node, replica := map[place]bool{}, map[place]bool{}
		for _, o := range x.Copies {
			a, b := place{int(o.Slice), int(o.Node)}, place{int(o.Slice), int(o.Replica)}
			if node[a] || replica[b] || int(o.Replica) > x.Replicas {
				t.Fatalf("copy %+v of %s\n%s", o, x.Name, after.Draw())
			}
			node[a], replica[b] = true, true
		}
		if len(x.Copies) < len(c.Indexes[i].Copies) {
			t.Fatalf("%s has fewer copies than before\n%s\n%s", x.Name, c.Draw(), after.Draw())
		}
	}
	for _, n := range p.Nodes {
		have, bytes := 0, int64(0)
		for i := range after.Indexes {
			for _, o := range after.Indexes[i].Copies {
				if o.Node == n.Node {
					have, bytes = have+1, bytes+o.Bytes
				}
			}
		}
		if n.After != have || n.Bytes[1] != bytes {
			t.Fatalf("%s has %d copies, %d bytes; reported: %+v", n.Name, have, bytes, n)
		}
	}
	// A completed plan needs nothing: steps taken twice change nothing, and a new plan is empty.
	if again := after.After(p.Steps, 2000); !reflect.DeepEqual(again, after) {
		t.Fatalf("taken twice:\n%s\n%s", after.Draw(), again.Draw())
	}
	if q, err := Make(after, p.Options); err != nil || !q.Balanced {
		t.Fatalf("made again after it was done: %+v, %v\n%s", q, err, after.Draw())
	}
	b, err := json.Marshal(p)
	if err != nil {
		t.Fatalf("%v", err)
	}
	var q Plan
	if err := json.Unmarshal(b, &q); err != nil || !reflect.DeepEqual(&q, p) {
		t.Fatalf("through JSON: %v\n%+v\n%+v", err, p, q)
	}
}

// After any prefix of the steps, in any order within a round, the rest still fits the placement.
func TestPlansCanBeRunInPart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := draw(t)
		p, err := Make(c, Options{Sends: 2, Receives: 2})
		if err != nil {
			t.Fatal(err)
		}
		taken := slices.DeleteFunc(slices.Clone(p.Steps), func(Step) bool { return rapid.Bool().Draw(t, "left out") })
		part := c.After(taken, 1000)
		if err := p.Stale(part); err != nil {
			t.Fatal(err)
		}
		if all := part.After(p.Steps, 2000); !slices.Equal(chosen(all), chosen(c.After(p.Steps, 1000))) {
			t.Fatalf("in two parts:\n%s", all.Draw())
		}
	})
}

// TestPartsOfAPlanSpreadOverZones: an automatic repair takes only the repairs of a plan, ALTER INDEX only the
// additional replicas. No zone that receives these then has more copies of a slice that are not lost than the fullest
// zone after the whole plan.
func TestPartsOfAPlanSpreadOverZones(t *testing.T) {
	for range 5 { // rapid draws a hundred cases each time
		rapid.Check(t, func(t *rapid.T) {
			c := draw(t)
			kind, not := Repair, Role(255)
			if rapid.Bool().Draw(t, "adds") {
				kind, not = Add, Lost // the repairs come first
			}
			for i := range c.Nodes {
				if c.Nodes[i].Role == not {
					c.Nodes[i].Role = Serving
				}
			}
			p, err := Make(c, Options{})
			if err != nil {
				t.Fatal(err)
			}
			part := c.After(slices.DeleteFunc(slices.Clone(p.Steps), func(y Step) bool { return y.Kind != kind }), 1000)
			done := inZones(c.After(p.Steps, 1000))
			then := inZones(part)
			for _, y := range p.Steps {
				k := sliceKey{y.Index, y.Slice}
				short := slices.ContainsFunc(p.Short, func(s Short) bool { return s.Index == y.Index })
				if zone := c.Nodes[y.To-1].Zone; y.Kind == kind && !short && then[k][zone] > most(done[k]) {
					t.Fatalf("%d copies of slice %d of %s in zone %q\n%s\n%s", then[k][zone], y.Slice, y.Name, zone, c.Draw(),
						part.Draw())
				}
			}
		})
	}
}

// inZones returns the number of copies of each slice per zone, without lost ones.
func inZones(c *Cluster) map[sliceKey]map[string]int {
	all := map[sliceKey]map[string]int{}
	for _, x := range c.Indexes {
		for _, o := range x.Copies {
			k, n := sliceKey{x.ID, o.Slice}, c.Nodes[o.Node-1]
			if all[k] == nil {
				all[k] = map[string]int{}
			}
			if n.Role != Lost {
				all[k][n.Zone]++
			}
		}
	}
	return all
}

func most(of map[string]int) (n int) {
	for _, k := range of {
		n = max(n, k)
	}
	return n
}

func TestStalePlans(t *testing.T) {
	c := grid(3, 0, 2, 4, 1)
	c.Nodes[2].Role = Going
	p, err := Make(c, Options{})
	if err != nil || len(p.Steps) == 0 {
		t.Fatal(p, err)
	}
	first := &p.Steps[0]
	for name, tc := range map[string]struct {
		change func(c *Cluster)
		text   string
	}{
		"index gone": {func(c *Cluster) {
			c.Indexes = slices.DeleteFunc(c.Indexes, func(x Index) bool { return x.ID == first.Index })
		}, "no longer exists"},
		"copy moved": {func(c *Cluster) {
			for i := range c.Indexes {
				for k := range c.Indexes[i].Copies {
					if o := &c.Indexes[i].Copies[k]; o.ID == first.Old {
						o.ID = 999
					}
				}
			}
		}, fmt.Sprintf("copy %d of slice %d of %s is no longer on i3", first.Old, first.Slice, first.Name)},
		"target lost": {func(c *Cluster) { c.Nodes[first.To-1].Role = Lost }, "accepts no copies"},
		"target removed": {func(c *Cluster) { c.Nodes = slices.Delete(c.Nodes, int(first.To-1), int(first.To)) },
			"accepts no copies"},
		"not wanted there": {func(c *Cluster) {
			for i := range c.Indexes {
				c.Indexes[i].Nodes = []index.NodeID{3}
			}
		}, "may not be placed on"},
		"fewer replicas": {func(c *Cluster) {
			for i := range c.Indexes {
				c.Indexes[i].Replicas = int(first.Replica) - 1
			}
		}, "no slice"},
		"another replica there": {func(c *Cluster) {
			for i := range c.Indexes {
				if x := &c.Indexes[i]; x.ID == first.Index {
					x.Copies = append(x.Copies, Copy{ID: 77, Slice: first.Slice, Replica: first.Replica + 1, Node: first.To})
				}
			}
		}, "already"},
	} {
		t.Run(name, func(t *testing.T) {
			d := c.After(nil, 0)
			d.Nodes, d.Revision = slices.Clone(d.Nodes), 9
			tc.change(d)
			if err := p.Stale(d); !errors.Is(err, ErrStale) || !strings.Contains(err.Error(), tc.text) ||
				!strings.Contains(err.Error(), "revision 7, the present one is 9") {
				t.Errorf("%v", err)
			}
		})
	}
	if err := p.Stale(c); err != nil {
		t.Error(err)
	}
}

func TestBadInput(t *testing.T) {
	for name, change := range map[string]func(c *Cluster, o *Options){
		"no slices":         func(c *Cluster, _ *Options) { c.Indexes[0].Slices = 0 },
		"too many slices":   func(c *Cluster, _ *Options) { c.Indexes[0].Slices = partition.MaxPartitions + 1 },
		"negative replicas": func(c *Cluster, _ *Options) { c.Indexes[0].Replicas = -1 },
		"unknown node":      func(c *Cluster, _ *Options) { c.Indexes[0].Copies[0].Node = 99 },
		"slice of no index": func(c *Cluster, _ *Options) { c.Indexes[0].Copies[0].Slice = 99 },
		"node twice":        func(c *Cluster, _ *Options) { c.Nodes[1].ID = c.Nodes[0].ID },
		"two on a node": func(c *Cluster, _ *Options) {
			c.Indexes[0].Copies = append(c.Indexes[0].Copies, Copy{ID: 99, Replica: 9, Node: c.Indexes[0].Copies[0].Node})
		},
		"negative bytes":   func(c *Cluster, _ *Options) { c.Indexes[0].Copies[0].Bytes = -1 },
		"negative sends":   func(_ *Cluster, o *Options) { o.Sends = -1 },
		"too much at once": func(_ *Cluster, o *Options) { o.Receives = MaxParallel + 1 },
		"too many copies": func(c *Cluster, _ *Options) {
			for len(c.Indexes) < 100 {
				c.Indexes = append(c.Indexes, Index{ID: index.ID(len(c.Indexes) + 1), Slices: 1024, Replicas: 2})
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, o := grid(3, 0, 2, 4, 1), Options{}
			change(c, &o)
			if p, err := Make(c, o); !errors.Is(err, ErrInput) {
				t.Errorf("%+v, %v", p, err)
			}
		})
	}
}

// grid returns a cluster of nodes in zones whose indexes have their copies on consecutive nodes.
func grid(nodes, zones, indexes, slicesOf, replicas int) *Cluster {
	c := &Cluster{Revision: 7}
	for i := range nodes {
		n := Node{ID: index.NodeID(i + 1), Name: fmt.Sprint("i", i+1)}
		if zones > 0 {
			n.Zone = fmt.Sprint("z", i%zones)
		}
		c.Nodes = append(c.Nodes, n)
	}
	next, at := index.CopyID(1), 0
	for i := range indexes {
		x := Index{ID: index.ID(i + 1), Bucket: "b", Name: fmt.Sprint("x", i+1), Slices: slicesOf, Replicas: replicas}
		for s := range slicesOf {
			for r := range replicas + 1 {
				x.Copies = append(x.Copies, Copy{ID: next, Slice: index.SliceID(s), Replica: partition.Replica(r),
					Node: c.Nodes[at%nodes].ID, Bytes: int64(i+1) << 20})
				next, at = next+1, at+1
			}
		}
		c.Indexes = append(c.Indexes, x)
	}
	return c
}

// A new node gets its share and no more; a leaving node gives all it has; a lost node is replaced.
func TestMovesAreMinimal(t *testing.T) {
	c := grid(4, 0, 5, 8, 1) // 80 copies, 20 on each
	c.Nodes = append(c.Nodes, Node{ID: 5, Name: "i5"})
	p, err := Make(c, Options{})
	if err != nil || len(p.Steps) != 16 || p.Nodes[4].After != 16 {
		t.Fatalf("%d steps, %+v, %v", len(p.Steps), p.Nodes, err)
	}
	sound(t, c, c.After(p.Steps, 1000), p)
	c = c.After(p.Steps, 1000)
	for _, role := range []Role{Going, Lost} {
		c.Nodes[0].Role = role
		if p, err = Make(c, Options{}); err != nil || len(p.Steps) != 16 || p.Nodes[0].After != 0 {
			t.Fatalf("%s: %d steps, %+v, %v", role, len(p.Steps), p.Nodes, err)
		}
		for _, y := range p.Steps {
			if (y.Kind == Repair) != (role == Lost) || y.Source == nil || (*y.Source == 1) != (role == Going) {
				t.Fatalf("%s: %+v", role, y)
			}
		}
	}
}

// TestBytesFollowTheShares: if the slices of each index have one size and the nodes one capacity, the bytes of each
// node differ from its share by less than one slice of each index.
func TestBytesFollowTheShares(t *testing.T) {
	for seed := range int64(200) {
		r := rand.New(rand.NewSource(seed))
		c := grid(2+r.Intn(8), 0, 1+r.Intn(6), 1+r.Intn(20), 0)
		all, one := int64(0), int64(0)
		for i := range c.Indexes {
			x := &c.Indexes[i]
			x.Slices = 1 + r.Intn(len(x.Copies))
			x.Copies = x.Copies[:x.Slices]
			size := int64(1 + r.Intn(1000))
			for k := range x.Copies {
				x.Copies[k].Bytes, x.Copies[k].Node = size, c.Nodes[r.Intn(len(c.Nodes))].ID
			}
			all, one = all+size*int64(x.Slices), one+size
		}
		p, err := Make(c, Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range p.Nodes {
			nodes := int64(len(c.Nodes))
			if off := n.Bytes[1]*nodes - all; off >= one*nodes || off <= -one*nodes {
				t.Errorf("%d: %s has %d bytes of %d on %d nodes, a slice of each index are %d\n%s", seed, n.Name, n.Bytes[1], all,
					nodes, one, c.After(p.Steps, 10_000).Draw())
			}
		}
	}
}

// large is the target in docs/performance.md: 1000 slices with two replicas on 64 nodes in 8 zones, four of them new.
func large(seed int64) *Cluster {
	r := rand.New(rand.NewSource(seed))
	c := grid(64, 8, 125, 8, 2)
	for i := range c.Indexes {
		x := &c.Indexes[i]
		for s := range x.Slices {
			at := r.Perm(60)
			for k := range x.Copies {
				if int(x.Copies[k].Slice) == s {
					x.Copies[k].Node = c.Nodes[at[x.Copies[k].Replica]].ID
				}
			}
		}
	}
	return c
}

func TestLarge(t *testing.T) {
	for seed := range int64(3) {
		c := large(seed)
		c.Nodes[3].Role, c.Nodes[7].Role = Lost, Going
		p, err := Make(c, Options{Sends: 1, Receives: 2})
		if err != nil {
			t.Fatal(err)
		}
		sound(t, c, c.After(p.Steps, 10000), p)
	}
}

// BenchmarkPlan plans for four new nodes in addition to sixty.
func BenchmarkPlan(b *testing.B) {
	for _, random := range []bool{false, true} {
		c := large(1)
		if !random {
			p, err := Make(c, Options{})
			if err != nil {
				b.Fatal(err)
			}
			c = c.After(p.Steps, 10000)
			for i := 60; i < 64; i++ {
				c.Nodes[i].Role = Lost
			}
		}
		b.Run(fmt.Sprintf("random=%v", random), func(b *testing.B) {
			for b.Loop() {
				p, err := Make(c, Options{})
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(len(p.Steps)), "steps")
			}
		})
	}
}

// TestExcludedNodes checks that a node in trouble, or without room for its share, gets nothing while others can take
// it, that the plan names it, and that it gets what no other node can take.
func TestExcludedNodes(t *testing.T) {
	cluster := func(nodes ...Node) *Cluster {
		c := &Cluster{Nodes: []Node{{ID: 1, Name: "i1"}}}
		for i, n := range nodes {
			n.ID, n.Name = index.NodeID(i+2), fmt.Sprint("i", i+2)
			c.Nodes = append(c.Nodes, n)
		}
		x := Index{ID: 1, Bucket: "b", Name: "x", Slices: 12}
		for s := range x.Slices {
			x.Copies = append(x.Copies, Copy{ID: index.CopyID(s + 1), Slice: index.SliceID(s), Node: 1, Bytes: 100 << 20})
		}
		c.Indexes = []Index{x}
		return c
	}
	for _, d := range []struct {
		name     string
		nodes    []Node
		role     Role // of i1
		gets     []int
		excluded string
	}{
		{"nothing is wrong", []Node{{Free: 500 << 20}, {}}, Serving, []int{4, 4}, ""},
		{"a disk in trouble", []Node{{Excluded: "its disk hangs"}, {}}, Serving, []int{0, 6}, "i2 its disk hangs 0"},
		{"no room for the share", []Node{{Free: 499 << 20}, {}}, Serving, []int{0, 6},
			"i2 its share needs 500 MiB with what merges need, and it has 499 MiB of room 0"},
		{"no room on either node", []Node{{Free: 499 << 20}, {Free: 749 << 20}}, Serving, []int{0, 0},
			"i2 its share needs 500 MiB with what merges need, and it has 499 MiB of room 0; " +
				"i3 its share needs 750 MiB with what merges need, and it has 749 MiB of room 0"},
		{"no room beside a disk in trouble", []Node{{Excluded: "its disk hangs"}, {Free: 1400 << 20}}, Going, []int{0, 12},
			"i2 its disk hangs 0; i3 its share needs 1500 MiB with what merges need, and it has 1400 MiB of room 12"},
		{"no room on one of those without trouble",
			[]Node{{Excluded: "its disk hangs"}, {Free: 700 << 20}, {Free: 2000 << 20}},
			Going, []int{0, 0, 12}, "i2 its disk hangs 0; " +
				"i3 its share needs 750 MiB with what merges need, and it has 700 MiB of room 0"},
		{"no other node can take it", []Node{{Excluded: "its disk hangs"}}, Going, []int{12}, "i2 its disk hangs 12"},
	} {
		c := cluster(d.nodes...)
		c.Nodes[0].Role = d.role
		p, err := Make(c, Options{})
		if err != nil {
			t.Fatal(d.name, err)
		}
		gets := make([]int, len(d.nodes))
		for _, y := range p.Steps {
			gets[y.To-2]++
		}
		var excluded []string
		for _, s := range p.Excluded {
			excluded = append(excluded, fmt.Sprint(s.Name, " ", s.Why, " ", s.Copies))
		}
		if got := strings.Join(excluded, "; "); !slices.Equal(gets, d.gets) || got != d.excluded {
			t.Errorf("%s: they get %v, want %v; excluded are %q, want %q", d.name, gets, d.gets, got, d.excluded)
		}
		if c.Nodes[1].Excluded != d.nodes[0].Excluded {
			t.Errorf("%s: the input has changed", d.name)
		}
	}
}
