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
//
// It is solved three times, each time in more detail: slices that may lie on the same nodes are one row first, which
// says how many copies each node has; then the slices of an index are one row, which says how many of them each node
// has; and then each slice is. A coarse solution, with its potentials, is only where the next one begins: the last one
// alone has to be proved. (Where most indexes have one slice or two, the second would be as large as the third, and is
// left out.) That is what makes it quick: after the first two, what is left to weigh are new copies, whose
// costs are few, and the number of costs is the number of searches.

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
	of       int // the index, or -1
	most     int // arcs
	lo, hi   int
	free     int // the arc that stands for those below lo, -1: none
	first    int // of the others
	arcs     int // how many these are
	flow     int // in the solution
	step     int // copies per arc, 0: one; more only where the solution is not the last
}

// marginal is the cost of the k-th copy, from 0.
func (v *convex) marginal(k int) cost {
	if v.of >= 0 {
		return cost{rest: weightIndex * (int64(2*k+1) * indexScale / v.node.weight())}
	}
	return cost{balance: growth(Node{Capacity: v.node.Capacity}, k)}
}

// row is a slice, or several that have the same choice.
type row struct {
	slice  *sliceOf // nil: several
	of     int      // the index, or -1 when its copies are not spread for themselves
	usable []int    // places of nodes
	want   int      // copies of each slice
	count  int      // slices
	parent int      // its row in the coarser network
}

// network is the graph of one attempt.
type network struct {
	m     *maker
	rows  []row
	g     *graph
	next  int   // vertex
	hubs  []int // of each index: the first of its vertices, one per node; -1: none
	first int   // vertex of a row
	// bundles is of each index with hubs where its bundles begin, one per usable node
	bundles []int
	convex  []convex
	pot     []cost
	total   int32 // copies
	wide    int

	searches int // of all attempts
}

// attempts bounds how often the windows of the convex bundles are widened before everything is weighed.
const attempts = 7

// coarseAttempts is how often they are widened, each time to four times as many, where nothing has to be proved.
const coarseAttempts = 4

// narrowBelow is below how many slices an index has few: it has hardly ever two more of them on a node than expected.
const narrowBelow = 8

// stepsOfLoad is how many arcs the average load of a node has at first, and how much finer each next time is.
const stepsOfLoad = 8

// place chooses the nodes of all slices.
func (m *maker) place() error {
	var before *network
	before = m.coarse(m.alike(), before)
	if 2*len(m.c.Indexes) < len(m.slices) { // else it is no coarser
		before = m.coarse(m.whole(), before)
	}
	n, ok := m.solve(m.each(), before)
	if !ok {
		return fmt.Errorf("%w: %d slices on %d nodes", ErrCertificate, len(m.slices), len(m.nodes))
	}
	m.searches = n.searches
	n.choose()
	return nil
}

// alike makes a row of all slices that may lie on the same nodes.
func (m *maker) alike() (rows []row) {
	m.kind = make([]int, len(m.c.Indexes))
	at := map[string]int{}
	for i := range m.c.Indexes {
		if i > 0 && m.wants[i] == m.wants[i-1] && slices.Equal(m.usable[i], m.usable[i-1]) {
			m.kind[i] = m.kind[i-1]
			rows[m.kind[i]].count += m.c.Indexes[i].Slices
			continue
		}
		name := fmt.Sprint(m.wants[i], m.usable[i])
		k, ok := at[name]
		if !ok {
			k = len(rows)
			at[name] = k
			rows = append(rows, row{of: -1, usable: m.usable[i], want: m.wants[i]})
		}
		m.kind[i] = k
		rows[k].count += m.c.Indexes[i].Slices
	}
	return rows
}

// whole makes a row of each index with several slices, and of all others that may lie on the same nodes.
func (m *maker) whole() (rows []row) {
	single := map[int]int{}
	for i := range m.c.Indexes {
		x := row{of: i, usable: m.usable[i], want: m.wants[i], count: m.c.Indexes[i].Slices, parent: m.kind[i]}
		if x.count < 2 {
			if k, ok := single[m.kind[i]]; ok {
				rows[k].count++
				m.kind[i] = k
				continue
			}
			single[m.kind[i]], x.of = len(rows), -1
		}
		m.kind[i] = len(rows)
		rows = append(rows, x)
	}
	return rows
}

// each makes a row of every slice.
func (m *maker) each() []row {
	rows := make([]row, len(m.slices))
	for i := range m.slices {
		s := &m.slices[i]
		rows[i] = row{slice: s, of: s.index, usable: m.usable[s.index], want: s.want, count: 1, parent: m.kind[s.index]}
		if m.c.Indexes[s.index].Slices < 2 {
			rows[i].of = -1
		}
	}
	return rows
}

// newNetwork makes the vertices of the rows; what the coarser network has found is where it begins.
func (m *maker) newNetwork(rows []row, before *network) *network {
	n := &network{m: m, rows: rows, next: 2 + len(m.nodes), hubs: slices.Repeat([]int{-1}, len(m.c.Indexes)),
		bundles: make([]int, len(m.c.Indexes))}
	counts, total := make([]int, len(m.nodes)), 0
	for i := range rows {
		total += rows[i].want * rows[i].count
		for _, at := range rows[i].usable {
			counts[at] += rows[i].count
		}
	}
	n.total = int32(total)
	for at := range m.nodes {
		n.convex = append(n.convex, convex{from: 2 + at, to: 1, node: &m.nodes[at], of: -1, most: counts[at], step: 1})
	}
	level(n.convex, total)
	hubs := 0
	for i := range rows {
		if rows[i].of >= 0 && (i == 0 || rows[i].of != rows[i-1].of) {
			hubs += len(rows[i].usable)
		}
	}
	n.convex = slices.Grow(n.convex, hubs)
	spread := make([]cost, len(m.c.Indexes)) // what the dearest copy of each index costs
	found := map[spreadKey]spreadFlow{}
	for i := range rows {
		if of := rows[i].of; of >= 0 && n.hubs[of] < 0 {
			spread[of] = n.addHubs(&rows[i], before, found)
		}
	}
	n.first = n.next
	n.next += len(rows) * (1 + m.zones)
	n.pot = make([]cost, n.next)
	if before != nil {
		n.begin(before, spread)
	}
	return n
}

// spreadKey is of indexes that are spread alike: of as many slices, in one row of the coarser network.
type spreadKey struct{ parent, slices int }

// spreadFlow is what level has found of the first of these.
type spreadFlow struct {
	first int // of its bundles
	costs int64
}

// addHubs makes the vertices of a row's index on its nodes, and tells what its dearest copy costs; nothing where the
// coarser network has that in its potentials.
func (n *network) addHubs(r *row, before *network, found map[spreadKey]spreadFlow) (dearest cost) {
	m, of := n.m, r.of
	n.hubs[of] = n.next
	n.next += len(m.nodes)
	first, most := len(n.convex), m.c.Indexes[of].Slices
	known := before != nil && before.hubs[of] >= 0
	for k, at := range m.usable[of] {
		v := convex{from: n.hubs[of] + at, to: 2 + at, node: &m.nodes[at], of: of, most: most, step: 1}
		if known {
			v.flow = before.convex[before.bundles[of]+k].flow
		}
		n.convex = append(n.convex, v)
	}
	n.bundles[of] = first
	if known {
		return dearest
	}
	x, done := found[spreadKey{r.parent, most}]
	if done {
		for k := range m.usable[of] {
			n.convex[first+k].flow = n.convex[x.first+k].flow
		}
	} else {
		x = spreadFlow{first, level(n.convex[first:], most*m.wants[of])}
		found[spreadKey{r.parent, most}] = x
	}
	return cost{rest: x.costs}
}

// begin takes flows and potentials over. spread is by how much the copies of an index cost more than in the coarser
// network.
func (n *network) begin(before *network, spread []cost) {
	m := n.m
	copy(n.pot, before.pot[:2+len(m.nodes)])
	for at := range m.nodes {
		n.convex[at].flow = before.convex[at].flow
	}
	for of, hub := range n.hubs {
		if hub < 0 {
			continue
		}
		for at := range m.nodes {
			if was := before.hubs[of]; was >= 0 {
				n.pot[hub+at] = before.pot[was+at]
			} else {
				n.pot[hub+at] = n.pot[2+at].minus(spread[of])
			}
		}
	}
	for i := range n.rows {
		r := &n.rows[i]
		for z := range 1 + m.zones {
			p := before.pot[before.first+r.parent*(1+m.zones)+z]
			if r.of >= 0 {
				p = p.minus(spread[r.of])
			}
			n.pot[n.first+i*(1+m.zones)+z] = p
		}
	}
}

// attempt builds the graph around the flows that are expected, and solves it.
func (n *network) attempt(wide int, all bool) {
	n.wide = wide
	arcs := min(8, 1+wide+wide/2) * len(n.convex)
	for i := range n.rows {
		arcs += len(n.rows[i].usable) + 2*n.m.zones + 1
	}
	n.g = newGraph(n.next, 0)
	n.g.memory, n.g.added = &n.m.memory, slices.Grow(n.m.memory.added, arcs)
	for v := range n.pot {
		n.g.at[v].pot = n.pot[v]
	}
	var held int64
	for i := range n.m.slices {
		held += n.m.slices[i].bytes() * int64(n.m.slices[i].want)
	}
	for i := range n.rows {
		n.addRow(&n.rows[i], n.first+i*(1+n.m.zones), held, i)
	}
	for i := range n.convex {
		n.addConvex(&n.convex[i], all)
	}
	n.m.memory.added = n.g.added[:0]
	n.g.layOut()
	n.g.supply(0, n.total)
	n.g.supply(1, -n.total)
	n.g.warm()
	n.g.run()
	for v := range n.pot {
		n.pot[v] = n.g.at[v].pot
	}
	n.searches += n.g.searches
	n.read()
}

// coarse solves a network whose solution need not be proved.
func (m *maker) coarse(rows []row, before *network) *network {
	n := m.newNetwork(rows, before)
	if before == nil { // several copies at a time first
		step := max(1, int(n.total)/(stepsOfLoad*max(1, len(m.nodes))))
		n.stepwise(step)
		n.attempt(0, true)
		for step > 1 {
			wide := 4 * step
			step = max(1, step/stepsOfLoad)
			n.stepwise(step)
			n.attempt(wide, false)
		}
	}
	for try := 0; try < coarseAttempts && !n.proved(); try++ {
		n.attempt(2<<(2*try), false)
	}
	return n
}

// stepwise sets how many copies an arc of a bundle stands for.
func (n *network) stepwise(step int) {
	for i := range n.convex {
		n.convex[i].step = step
	}
}

// solve solves a network; false when it could not be proved.
func (m *maker) solve(rows []row, before *network) (*network, bool) {
	n := m.newNetwork(rows, before)
	for try := range attempts {
		if n.attempt(2<<try, try == attempts-1); n.proved() {
			return n, true
		}
	}
	return n, false
}

// proved reports whether every copy has its place, and no other solution is better.
func (n *network) proved() bool {
	stuck := func(v vertex) bool { return v.excess != 0 }
	return n.g != nil && !slices.ContainsFunc(n.g.at, stuck) && n.g.certified() && n.proves()
}

// addRow makes the arcs of a row, whose vertex is v; those of its zones follow it.
func (n *network) addRow(r *row, v int, held int64, turn int) {
	m := n.m
	inZone := make([]int, m.zones)
	for _, at := range r.usable {
		inZone[m.zoneOf[at]]++
	}
	high, fixed := 0, 0 // as many copies in each zone as it has nodes, but at most high
	for sum := 0; sum < r.want; {
		fixed, sum = sum, 0
		high++
		for _, k := range inZone {
			sum += min(k, high)
		}
	}
	count := int32(r.count)
	if r.want > fixed {
		n.g.add(0, v, int32(r.want-fixed)*count, cost{})
	}
	for z, k := range inZone {
		if low := min(k, high-1); low > 0 {
			n.g.add(0, v+1+z, int32(low)*count, cost{})
		}
		if k >= high {
			n.g.add(v, v+1+z, count, cost{})
		}
	}
	hub := 2
	if r.of >= 0 {
		hub = n.hubs[r.of]
	}
	fresh := cost{}
	if r.slice != nil {
		fresh.rest = weightCopy
		if held > 0 {
			fresh.rest += int64(float64(r.slice.bytes()) / float64(held) * (bytesTotal - 1))
		}
	}
	for k := range r.usable {
		at := r.usable[(k+turn)%len(r.usable)] // spread equal choices over the nodes
		c := fresh
		if r.slice != nil && r.slice.holds(m.nodes[at].ID) {
			c = cost{}
		}
		n.g.add(v+1+m.zoneOf[at], hub+at, count, c)
	}
}

// level sets windows around where a plain water-filling of the bundles ends, and tells what it costs there.
func level(all []convex, total int) int64 {
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
	return low
}

// below counts the arcs that cost at most this.
func (v *convex) below(most int64) int {
	return sort.Search(v.most, func(k int) bool {
		c := v.marginal(k)
		return c.balance+c.rest > most
	})
}

// addConvex makes the arcs of a bundle around the flow that is expected of it: one for all copies of one cost.
func (n *network) addConvex(v *convex, all bool) {
	wide := n.wide
	if v.of >= 0 && v.most < narrowBelow {
		wide /= 2
	}
	v.lo, v.hi, v.free = max(0, v.flow-n.wide/2), min(v.most, v.flow+wide), -1
	if all {
		v.lo, v.hi = 0, v.most
	}
	for v.lo > 0 && v.marginal(v.lo-1) == v.marginal(v.lo) {
		v.lo--
	}
	if v.lo > 0 {
		v.free = n.g.add(v.from, v.to, int32(v.lo), cost{})
	}
	v.first, v.arcs = n.g.degree(v.from), 0
	for k := v.lo; k < v.hi; v.arcs++ {
		size := min(v.step, v.hi-k)
		c := v.marginal(k + size/2)
		for k+size < v.most && v.marginal(k+size) == c {
			size++
		}
		n.g.add(v.from, v.to, int32(size), c)
		k += size
		v.hi = max(v.hi, k)
	}
}

// read takes the flow of each bundle out of the solution.
func (n *network) read() {
	for i := range n.convex {
		v := &n.convex[i]
		v.flow = v.hi
		if v.free >= 0 {
			v.flow -= n.g.room(v.from, v.free)
		}
		for i := range v.arcs {
			v.flow -= n.g.room(v.from, v.first+i)
		}
	}
}

// proves reports whether the solution is optimal at the true costs too: of each bundle, the dearest copy that there is
// pays, and the next one would not.
func (n *network) proves() bool {
	for i := range n.convex {
		v := &n.convex[i]
		gap := n.g.at[v.to].pot.minus(n.g.at[v.from].pot)
		if v.flow > 0 && gap.less(v.marginal(v.flow-1)) || v.flow < v.most && v.marginal(v.flow).less(gap) {
			return false
		}
	}
	return true
}

// choose tells the slices their nodes.
func (n *network) choose() {
	m := n.m
	for i := range n.rows {
		s, v := n.rows[i].slice, n.first+i*(1+m.zones)
		s.chosen = s.chosen[:0]
		hub := 2
		if of := n.rows[i].of; of >= 0 {
			hub = n.hubs[of]
		}
		for z := range m.zones {
			for a, end := n.g.of(v + 1 + z); a < end; a++ {
				if to := int(n.g.arcs[a].to); to >= hub && to < n.first && n.g.caps[a] == 0 {
					s.chosen = append(s.chosen, to-hub)
				}
			}
		}
		slices.Sort(s.chosen)
	}
}
