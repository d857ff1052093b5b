package rebalance

import (
	"fmt"
	"slices"
	"sort"
)

// The network: source → slice (→ slice and zone) (→ index and node) → node → sink. The number of copies of a slice in
// each zone is fixed beforehand, except which of the zones get one more, so that every maximum flow is spread over
// zones as far as possible. The rest is weighed by costs: copies per node, copies of an index per node, new copies.
//
// It is solved three times, each time in more detail. First all slices that may be placed on the same nodes form one
// row, which determines how many copies each node has; then the slices of an index form one row, which determines how
// many of them each node has; then each slice has a row. A coarse solution, with its potentials, is only the starting
// point of the next; only the last one has to be proved. (If most indexes have one or two slices, the second network
// would be as large as the third and is left out.) That makes it fast: after the first two, only new copies are left
// to weigh, which have few distinct costs, and the number of distinct costs is the number of searches.

// Weights of cost.rest: a new copy weighs more than all bytes together, the spread of an index more than all new
// copies.
const (
	bytesTotal  = 1 << 12
	weightCopy  = bytesTotal
	weightIndex = weightCopy * 2 * MaxCopies
	indexScale  = 1 << 6
)

// convex is a bundle of unit-capacity arcs between two vertices with rising costs. Arcs below lo are taken to cost
// nothing, those from hi on to be too expensive; the solution is checked afterwards for whether that was right.
type convex struct {
	from, to int
	node     *Node
	of       int // position of the index, or -1
	most     int // number of arcs
	lo, hi   int
	free     int // the arc that stands for those below lo, -1: none
	first    int // first of the other arcs
	arcs     int // number of the other arcs
	flow     int // flow in the solution
	step     int // copies per arc; more than one only in a network that is not the last
}

// marginal returns the cost of the k-th copy, counted from 0.
func (v *convex) marginal(k int) cost {
	if v.of >= 0 {
		return cost{rest: weightIndex * (int64(2*k+1) * indexScale / v.node.weight())}
	}
	return cost{balance: growth(Node{Capacity: v.node.Capacity}, k)}
}

// row is a slice, or several slices with the same choice of nodes.
type row struct {
	slice  *sliceOf // nil: several slices
	of     int      // position of the index, or -1 if its copies are not spread separately
	usable []int    // positions of nodes
	want   int      // copies of each slice
	count  int      // number of slices
	parent int      // the row that contains it in the coarser network
}

// network is the graph of one attempt.
type network struct {
	m     *maker
	rows  []row
	g     *graph
	next  int   // next free vertex
	hubs  []int // per index: the first of its vertices, one per node; -1: none
	first int   // vertex of the first row
	// bundles holds, for each index with hubs, the position of its first bundle; there is one bundle per usable node.
	bundles []int
	convex  []convex
	pot     []cost
	total   int32 // number of copies
	wide    int

	searches int // in all attempts
}

// attempts bounds how often the windows of the convex bundles are widened before all arcs are included.
const attempts = 7

// coarseAttempts bounds how often they are widened, fourfold each time, in a network that need not be proved.
const coarseAttempts = 4

// narrowBelow is the number of slices below which an index hardly ever has two more of them on a node than expected.
const narrowBelow = 8

// stepsOfLoad is the initial number of arcs for the average load of a node, and the factor by which each following
// network is finer.
const stepsOfLoad = 8

// place chooses the nodes of all slices.
func (m *maker) place() error {
	var before *network
	before = m.coarse(m.alike(), before)
	if 2*len(m.c.Indexes) < len(m.slices) { // otherwise it is no coarser than the last
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

// alike returns one row for all slices that may be placed on the same nodes.
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

// whole returns one row for each index with several slices, and one for all other slices that may be placed on the
// same nodes.
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

// each returns one row for every slice.
func (m *maker) each() []row {
	rows := make([]row, len(m.slices))
	for i := range m.slices {
		s := &m.slices[i]
		rows[i] = row{slice: s, of: s.index, usable: m.open(s), want: s.want, count: 1, parent: m.kind[s.index]}
		if m.c.Indexes[s.index].Slices < 2 {
			rows[i].of = -1
		}
	}
	return rows
}

// newNetwork creates the vertices of the rows, with the solution of the coarser network as the starting point.
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
	spread := make([]cost, len(m.c.Indexes)) // per index: cost of its most expensive copy
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

// spreadKey identifies indexes that are spread alike: same number of slices, same row in the coarser network.
type spreadKey struct{ parent, slices int }

// spreadFlow is the result of level for the first of these indexes.
type spreadFlow struct {
	first int // its first bundle
	costs int64
}

// addHubs creates the vertices of a row's index, one per node, and returns the cost of its most expensive copy, or
// zero if the potentials of the coarser network contain it.
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

// begin takes over flows and potentials. spread is how much more the copies of each index cost than in the coarser
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

// attempt builds the graph around the expected flows and solves it.
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
	if before == nil { // first several copies per arc
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

// stepwise sets the number of copies per arc of the bundles.
func (n *network) stepwise(step int) {
	for i := range n.convex {
		n.convex[i].step = step
	}
}

// solve solves a network; ok is false if the solution could not be proved.
func (m *maker) solve(rows []row, before *network) (*network, bool) {
	n := m.newNetwork(rows, before)
	for try := range attempts {
		if n.attempt(2<<try, try == attempts-1); n.proved() {
			return n, true
		}
	}
	return n, false
}

// proved reports whether every copy has a place and no other solution is better.
func (n *network) proved() bool {
	stuck := func(v vertex) bool { return v.excess != 0 }
	return n.g != nil && !slices.ContainsFunc(n.g.at, stuck) && n.g.certified() && n.proves()
}

// addRow creates the arcs of a row with vertex v; the vertices of its zones follow it.
func (n *network) addRow(r *row, v int, held int64, turn int) {
	m := n.m
	inZone := make([]int, m.zones)
	for _, at := range r.usable {
		inZone[m.zoneOf[at]]++
	}
	high, fixed := 0, 0 // copies that each zone has in any case: min(its nodes, high)
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

// level sets the expected flows of the bundles by plain water-filling, and returns the cost at the water level.
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

// below returns the number of arcs that cost at most most.
func (v *convex) below(most int64) int {
	return sort.Search(v.most, func(k int) bool {
		c := v.marginal(k)
		return c.balance+c.rest > most
	})
}

// addConvex creates the arcs of a bundle around its expected flow, one arc for all copies of equal cost.
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

// read reads the flow of each bundle from the solution.
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

// proves reports whether the solution is also optimal at the true costs: in each bundle the most expensive copy pays
// off, and one more would not.
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

// choose assigns the chosen nodes to the slices.
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
