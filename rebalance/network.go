package rebalance

import (
	"fmt"
	"slices"
	"sort"
)

// The network: source → slice (→ slice and zone) (→ index and node) → node → sink. How many copies of a slice lie in
// each zone is settled beforehand but for which of the zones get one more, so that all flows of the greatest size are
// spread over zones as far as possible. What is left is weighed by costs: copies per node, copies of an index per node,
// new copies.

// weights of the rest of a cost: a new copy weighs more than all bytes together, the spread of an index more than all
// new copies.
const (
	bytesTotal  = 1 << 12
	weightCopy  = bytesTotal
	weightIndex = weightCopy * 2 * MaxCopies
	indexScale  = 1 << 6
)

// convex is a bundle of arcs of capacity one between two vertices, whose costs rise: those below lo are taken to cost
// nothing, those from hi on to be too dear. Whether that was right is seen afterwards.
type convex struct {
	from, to int
	node     *Node
	ofIndex  bool
	most     int // arcs
	lo, hi   int
	free     int // the arc that stands for those below lo, -1: none
	first    int // of the others
	flow     int // in the solution
}

// marginal is the cost of the k-th copy, from 0.
func (v *convex) marginal(k int) cost {
	if v.ofIndex {
		return cost{rest: weightIndex * (int64(2*k+1) * indexScale / v.node.weight())}
	}
	return cost{balance: growth(Node{Capacity: v.node.Capacity}, k)}
}

// network is the graph of one attempt.
type network struct {
	m      *maker
	g      *graph
	next   int // vertex
	convex []convex
	wide   int
}

// attempts bounds how often the windows of the convex bundles are widened before everything is weighed.
const attempts = 7

// place chooses the nodes of all slices.
func (m *maker) place() error {
	var windows []convex
	for try := range attempts {
		n := &network{m: m, wide: 2 << try}
		n.build(windows, try == attempts-1)
		want := 0
		for i := range m.slices {
			want += m.slices[i].want
		}
		flow := n.g.run(0, 1)
		n.read()
		if flow == want && n.g.certified() && n.proves() {
			n.choose()
			return nil
		}
		windows = n.convex
	}
	return fmt.Errorf("%w: %d slices on %d nodes", ErrCertificate, len(m.slices), len(m.nodes))
}

func (n *network) vertex() int { n.next++; return n.next - 1 }

// build makes vertices and arcs; windows are those of the attempt before.
func (n *network) build(windows []convex, all bool) {
	m := n.m
	n.next = 2
	total, totals := 0, make([]int, len(m.c.Indexes))
	counts := make([]int, len(m.nodes))
	for i := range m.slices {
		s := &m.slices[i]
		total += s.want
		totals[s.index] += s.want
		for _, at := range m.usable[s.index] {
			counts[at]++
		}
	}
	nodes := make([]int, len(m.nodes))
	for at := range m.nodes {
		nodes[at] = n.vertex()
		n.convex = append(n.convex, convex{from: nodes[at], to: 1, node: &m.nodes[at], most: counts[at]})
	}
	level(n.convex, total)
	into := make([][]int, len(m.c.Indexes)) // of each index and node, where its slices' arcs lead
	for i := range m.c.Indexes {
		into[i] = slices.Clone(nodes)
		if m.c.Indexes[i].Slices < 2 {
			continue
		}
		first := len(n.convex)
		for _, at := range m.usable[i] {
			into[i][at] = n.vertex()
			n.convex = append(n.convex, convex{from: into[i][at], to: nodes[at], node: &m.nodes[at], ofIndex: true,
				most: m.c.Indexes[i].Slices})
		}
		level(n.convex[first:], totals[i])
	}
	sliceAt := n.next
	n.next += len(m.slices) * (1 + m.zones)
	n.g = newGraph(n.next)
	var held int64
	for i := range m.slices {
		held += m.slices[i].bytes() * int64(m.slices[i].want)
	}
	for i := range m.slices {
		n.addSlice(&m.slices[i], sliceAt+i*(1+m.zones), into[m.slices[i].index], held, i)
	}
	for i := range n.convex {
		n.addConvex(&n.convex[i], windows, i, all)
	}
}

// addSlice makes the arcs of a slice, whose vertex is v; those of its zones follow it.
func (n *network) addSlice(s *sliceOf, v int, into []int, held int64, turn int) {
	m := n.m
	usable := m.usable[s.index]
	inZone := make([]int, m.zones)
	for _, at := range usable {
		inZone[m.zoneOf[at]]++
	}
	high, fixed := 0, 0 // as many copies in each zone as it has nodes, but at most high
	for sum := 0; sum < s.want; {
		fixed, sum = sum, 0
		high++
		for _, k := range inZone {
			sum += min(k, high)
		}
	}
	if s.want > fixed {
		n.g.add(0, v, int32(s.want-fixed), cost{})
	}
	for z, k := range inZone {
		if low := min(k, high-1); low > 0 {
			n.g.add(0, v+1+z, int32(low), cost{})
		}
		if k >= high {
			n.g.add(v, v+1+z, 1, cost{})
		}
	}
	fresh := cost{rest: weightCopy}
	if held > 0 {
		fresh.rest += int64(float64(s.bytes()) / float64(held) * (bytesTotal - 1))
	}
	for k := range usable {
		at := usable[(k+turn)%len(usable)] // spread equal choices over the nodes
		c := fresh
		if s.holds(m.nodes[at].ID) {
			c = cost{}
		}
		n.g.add(v+1+m.zoneOf[at], into[at], 1, c)
	}
}

// level sets windows around where a plain water-filling of the bundles ends.
func level(all []convex, total int) {
	count := func(most int64) (sum int) {
		for i := range all {
			sum += all[i].below(most)
		}
		return sum
	}
	low, high := int64(-1), int64(1)
	for count(high) < total && high < 1<<60 {
		high *= 2
	}
	for low+1 < high {
		if mid := low + (high-low)/2; count(mid) < total {
			low = mid
		} else {
			high = mid
		}
	}
	for i := range all {
		all[i].flow = all[i].below(low)
	}
}

// below counts the arcs that cost at most this.
func (v *convex) below(most int64) int {
	return sort.Search(v.most, func(k int) bool {
		c := v.marginal(k)
		return c.balance+c.rest > most
	})
}

// addConvex makes the arcs of a bundle whose flow is expected to be as in the attempt before, or as the level says.
func (n *network) addConvex(v *convex, windows []convex, i int, all bool) {
	if windows != nil {
		v.flow = windows[i].flow
	}
	v.lo, v.hi, v.free = max(0, v.flow-n.wide/2), min(v.most, v.flow+n.wide), -1
	if all {
		v.lo, v.hi = 0, v.most
	}
	if v.lo > 0 {
		v.free = n.g.add(v.from, v.to, int32(v.lo), cost{})
	}
	v.first = len(n.g.adj[v.from])
	for k := v.lo; k < v.hi; k++ {
		n.g.add(v.from, v.to, 1, v.marginal(k))
	}
}

// read takes the flow of each bundle out of the solution.
func (n *network) read() {
	for i := range n.convex {
		v := &n.convex[i]
		v.flow = 0
		if v.free >= 0 {
			v.flow = v.lo - int(n.g.adj[v.from][v.free].cap)
		}
		for k := range v.hi - v.lo {
			if n.g.adj[v.from][v.first+k].cap == 0 {
				v.flow++
			}
		}
	}
}

// proves reports whether the solution is optimal at the true costs too: of each bundle, the dearest copy that there is
// pays, and the next one would not.
func (n *network) proves() bool {
	for i := range n.convex {
		v := &n.convex[i]
		gap := n.g.pot[v.to].minus(n.g.pot[v.from])
		if v.flow > 0 && gap.less(v.marginal(v.flow-1)) || v.flow < v.most && v.marginal(v.flow).less(gap) {
			return false
		}
	}
	return true
}

// choose tells the slices their nodes.
func (n *network) choose() {
	m := n.m
	v := n.next - len(m.slices)*(1+m.zones)
	for i := range m.slices {
		s := &m.slices[i]
		s.chosen = s.chosen[:0]
		usable := m.usable[s.index]
		seen := make([]int, m.zones) // arcs of each zone's vertex that were looked at
		for k := range usable {
			at := usable[(k+i)%len(usable)]
			z := v + 1 + m.zoneOf[at]
			a := n.forward(z, &seen[m.zoneOf[at]])
			if a.cap == 0 {
				s.chosen = append(s.chosen, at)
			}
		}
		slices.Sort(s.chosen)
		v += 1 + m.zones
	}
}

// forward returns the next arc that leads on from a zone's vertex, in the order in which they were made.
func (n *network) forward(z int, seen *int) *arc {
	for {
		a := &n.g.adj[z][*seen]
		*seen++
		if a.cost.rest >= 0 && int(a.to) < n.firstSlice() && int(a.to) > 0 {
			return a
		}
	}
}

// firstSlice is the first vertex that is a slice's or one of its zones'.
func (n *network) firstSlice() int { return n.next - len(n.m.slices)*(1+n.m.zones) }
