package rebalance

// cost is the cost of a unit of flow. Costs are ordered by balance; rest decides only between costs of equal balance.
// They can be added and compared like numbers, which is all that shortest paths need.
type cost struct{ balance, rest int64 }

func (c cost) plus(d cost) cost  { return cost{c.balance + d.balance, c.rest + d.rest} }
func (c cost) minus(d cost) cost { return cost{c.balance - d.balance, c.rest - d.rest} }

func (c cost) less(d cost) bool {
	return c.balance < d.balance || c.balance == d.balance && c.rest < d.rest
}

// arc is an arc of the residual graph; rev is the position of its reverse arc.
type arc struct {
	to, rev int32
	cost    cost
}

// graph solves minimum-cost maximum flow by successive shortest paths with potentials (Dijkstra, then a blocking flow
// on the arcs of reduced cost zero).
type graph struct {
	at []vertex
	// arcs holds the arcs of each vertex side by side, and caps their residual capacities. They are separate because
	// most arcs that a search passes have no capacity and need not be loaded.
	arcs    []arc
	caps    []int32
	degrees []int32
	added   []added // in the order in which they were added
	memory  *memory // buffers to reuse; nil: allocate

	searches int // number of shortest-path searches made by run
}

// memory holds the buffers that consecutive graphs reuse.
type memory struct {
	added []added
	arcs  []arc
	caps  []int32
}

// vertex groups the fields that searches read together: a graph spends most of its time waiting for memory.
type vertex struct {
	pot    cost
	excess int32 // supply; below zero: demand
	first  int32 // its arcs begin here and end at the next vertex's first
	level  int32 // level in a walk
	next   int32 // in a walk, the arc to examine next
}

// added is an arc before the graph is laid out.
type added struct {
	from, to, cap int32
	cost          cost
}

var unreached = cost{balance: 1 << 60}

// newGraph returns a graph with capacity for the given number of arcs.
func newGraph(vertices, arcs int) *graph {
	return &graph{at: make([]vertex, vertices+1), degrees: make([]int32, vertices), added: make([]added, 0, arcs)}
}

// add adds an arc and returns its position in the arc list of from.
func (g *graph) add(from, to int, capacity int32, c cost) int {
	g.added = append(g.added, added{int32(from), int32(to), capacity, c})
	g.degrees[from]++
	g.degrees[to]++
	return int(g.degrees[from]) - 1
}

// degree returns the number of arcs of a vertex.
func (g *graph) degree(v int) int { return int(g.degrees[v]) }

// of returns the range of the arcs of a vertex.
func (g *graph) of(v int) (first, end int) { return int(g.at[v].first), int(g.at[v+1].first) }

// room returns the residual capacity of the i-th arc of a vertex.
func (g *graph) room(v, i int) int { return int(g.caps[int(g.at[v].first)+i]) }

// layOut places the arcs of each vertex side by side; no arcs may be added afterwards.
func (g *graph) layOut() {
	n := 2 * len(g.added)
	if r := g.memory; r != nil && cap(r.arcs) >= n {
		g.arcs, g.caps = r.arcs[:n], r.caps[:n]
		clear(g.caps)
	} else {
		g.arcs, g.caps = make([]arc, n), make([]int32, n)
	}
	if g.memory != nil {
		g.memory.arcs, g.memory.caps = g.arcs, g.caps
	}
	for v, k := range g.degrees {
		x := &g.at[v]
		g.at[v+1].first, x.next = x.first+k, x.first
	}
	for i := range g.added {
		a := &g.added[i]
		from, to := &g.at[a.from].next, &g.at[a.to].next
		there, back := *from, *to
		*from++
		*to++
		g.arcs[there], g.arcs[back] = arc{a.to, back, a.cost}, arc{a.from, there, cost{}.minus(a.cost)}
		g.caps[there] = a.cap
	}
	g.added = nil
}

// supply adds to the supply of a vertex; a negative number is a demand.
func (g *graph) supply(v int, units int32) { g.at[v].excess += units }

// warm saturates the arcs with negative reduced cost, so that the search can continue with potentials found
// elsewhere. run then balances the excess at their ends.
func (g *graph) warm() {
	for u := range len(g.at) - 1 {
		for i, end := g.of(u); i < end; i++ {
			a, k := &g.arcs[i], g.caps[i]
			if k > 0 && a.cost.plus(g.at[u].pot).less(g.at[a.to].pot) {
				g.caps[a.rev] += k
				g.at[u].excess -= k
				g.at[a.to].excess += k
				g.caps[i] = 0
			}
		}
	}
}

// run sends as many units as possible from vertices with supply to vertices with demand, at the least cost. No arc
// may have a negative reduced cost.
func (g *graph) run() {
	dist := make([]cost, len(g.at)-1)
	w := walk{g: g}
	for v := range dist {
		g.at[v].level = unseen
		switch x := &g.at[v]; {
		case x.excess > 0:
			w.give = append(w.give, int32(v))
		case x.excess < 0:
			w.take = append(w.take, int32(v))
		}
	}
	var q queue
	for {
		far, ok := g.distances(dist, w.give, &q)
		g.searches++
		if !ok {
			return
		}
		for v := range dist {
			d := dist[v]
			if far.less(d) { // vertices beyond keep a reduced cost of at least zero
				d = far
			}
			g.at[v].pot = g.at[v].pot.plus(d)
		}
		for w.sweep() {
		}
	}
}

// distances runs Dijkstra over reduced costs from all vertices with supply. It ends when it reaches a vertex with
// demand: all others are at least as far.
func (g *graph) distances(dist []cost, give []int32, q *queue) (far cost, ok bool) {
	q.far, q.near = q.far[:0], q.near[:0]
	for v := range dist {
		dist[v] = unreached
	}
	for _, v := range give {
		if g.at[v].excess > 0 {
			dist[v] = cost{}
			q.near = append(q.near, v)
		}
	}
	for at := (cost{}); ; {
		v, more := q.next(&at)
		if !more {
			return cost{}, false
		}
		if at != dist[v] {
			continue
		}
		from := &g.at[v]
		if from.excess < 0 {
			return at, true
		}
		near := at.plus(from.pot)
		for i, end := g.of(int(v)); i < end; i++ {
			if g.caps[i] == 0 {
				continue
			}
			a := &g.arcs[i]
			if d := near.plus(a.cost).minus(g.at[a.to].pot); d.less(dist[a.to]) {
				dist[a.to] = d
				q.push(at, reached{d, a.to})
			}
		}
	}
}

// walk finds blocking flows on arcs of reduced cost zero (Dinic). Each follows paths with the fewest arcs, so that
// the search does not wander where many paths have equal cost. It searches from both ends at once, because most of
// the graph can be reached from either end at no cost.
type walk struct {
	g           *graph
	give, take  []int32 // the vertices with supply, and with demand
	fore, back  front
	last, cross int32 // the levels between which the two searches met
}

// front is one side of a search: the vertices it has seen. Those from begin on are the farthest.
type front struct {
	seen  []int32
	begin int
	arcs  int // number of arcs of the farthest vertices
	level int32
}

// Levels count up from 0 at the vertices with supply, and down from lastTaken at those with demand: a vertex has the
// level of its nearest end plus, or minus, the number of arcs between them. unseen lies between the two ranges.
const (
	unseen    = -1
	lastTaken = -3
)

// start begins one side at its vertices that still have supply or demand.
func (s *front) start(g *graph, ends []int32, level int32) {
	*s = front{seen: s.seen[:0], level: level}
	for _, v := range ends {
		if g.at[v].excess != 0 {
			s.add(g, v, level)
		}
	}
}

// add records a vertex at a level.
func (s *front) add(g *graph, v, level int32) {
	x := &g.at[v]
	x.level, x.next = level, x.first
	s.arcs += int(g.at[v+1].first - x.first)
	s.seen = append(s.seen, v)
}

// clear resets the levels of the vertices seen.
func (s *front) clear(g *graph) {
	for _, v := range s.seen {
		g.at[v].level = unseen
	}
}

// sweep pushes a blocking flow; it returns false if no path is left.
func (w *walk) sweep() (some bool) {
	g := w.g
	if w.meet() {
		for _, v := range w.give {
			if have := g.at[v].excess; have > 0 {
				k := w.push(v, have)
				g.at[v].excess -= k
				some = some || k > 0
			}
		}
	}
	w.fore.clear(g)
	w.back.clear(g)
	return some
}

// meet searches from both ends, always on the side with fewer arcs to examine, until the two sides meet: a vertex not
// seen by then lies on no shortest path.
func (w *walk) meet() (met bool) {
	g := w.g
	w.fore.start(g, w.give, 0)
	w.back.start(g, w.take, lastTaken)
	for !met {
		side, step := &w.fore, w.forward
		if w.back.arcs < w.fore.arcs {
			side, step = &w.back, w.backward
		}
		first, end := side.begin, len(side.seen)
		if first == end {
			return false
		}
		w.last, w.cross = w.fore.level, w.back.level
		side.begin, side.arcs = end, 0
		for i := first; i < end && !met; i++ {
			met = step(side.seen[i])
		}
	}
	return true
}

// forward examines the vertices that can be reached from v at no cost.
func (w *walk) forward(v int32) (met bool) {
	g, from := w.g, &w.g.at[v]
	w.fore.level = from.level + 1
	first, end := g.of(int(v))
	for k, room := range g.caps[first:end] {
		if room == 0 {
			continue
		}
		a := &g.arcs[first+k]
		to := &g.at[a.to]
		if to.level >= 0 || a.cost.plus(from.pot) != to.pot {
			continue
		}
		if to.level <= lastTaken {
			return true
		}
		w.fore.add(g, a.to, from.level+1)
	}
	return false
}

// backward examines the vertices from which v can be reached at no cost.
func (w *walk) backward(v int32) (met bool) {
	g, to := w.g, &w.g.at[v]
	w.back.level = to.level - 1
	first, end := g.of(int(v))
	for i := first; i < end; i++ {
		a := &g.arcs[i]
		from := &g.at[a.to]
		if from.level <= lastTaken || from.pot != to.pot.plus(a.cost) || g.caps[a.rev] == 0 {
			continue
		}
		if from.level >= 0 {
			return true
		}
		w.back.add(g, a.to, to.level-1)
	}
	return false
}

// push sends up to want units from u to vertices with demand, and returns how many it has sent.
func (w *walk) push(u, want int32) int32 {
	g, from := w.g, &w.g.at[u]
	if lacks := -from.excess; lacks > 0 {
		k := min(want, lacks)
		from.excess += k
		return k
	}
	level := from.level + 1
	if from.level == w.last {
		level = w.cross
	}
	_, end := g.of(int(u))
	var done int32
	for ; int(from.next) < end; from.next++ {
		i := from.next
		if g.caps[i] == 0 {
			continue
		}
		a := &g.arcs[i]
		if to := &g.at[a.to]; to.level != level || a.cost.plus(from.pot) != to.pot {
			continue
		}
		if k := w.push(a.to, min(want-done, g.caps[i])); k > 0 {
			g.caps[i] -= k
			g.caps[a.rev] += k
			if done += k; done == want {
				break
			}
		}
	}
	return done
}

// certified reports whether no residual arc has a negative reduced cost, which proves by duality that no cheaper flow
// of this size exists.
func (g *graph) certified() bool {
	for u := range len(g.at) - 1 {
		for i, end := g.of(u); i < end; i++ {
			if a := &g.arcs[i]; g.caps[i] > 0 && a.cost.plus(g.at[u].pot).less(g.at[a.to].pot) {
				return false
			}
		}
	}
	return true
}

type reached struct {
	dist   cost
	vertex int32
}

// queue is a priority queue that returns the nearest vertex first. Vertices at the distance of the last one, of which
// there are many, are kept unordered, the others in a binary heap.
type queue struct {
	near []int32
	far  []reached
}

// next returns the next vertex and raises at to its distance; ok is false if the queue is empty.
func (q *queue) next(at *cost) (v int32, ok bool) {
	if n := len(q.near); n > 0 {
		v, q.near = q.near[n-1], q.near[:n-1]
		return v, true
	}
	if len(q.far) == 0 {
		return 0, false
	}
	x := q.pop()
	*at = x.dist
	return x.vertex, true
}

func (q *queue) push(at cost, r reached) {
	if r.dist == at {
		q.near = append(q.near, r.vertex)
		return
	}
	h := append(q.far, r)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !r.dist.less(h[up].dist) {
			break
		}
		h[i], i = h[up], up
	}
	h[i] = r
	q.far = h
}

func (q *queue) pop() reached {
	h := q.far
	top, last := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	for i := 0; len(h) > 0; {
		down := 2*i + 1
		if down+1 < len(h) && h[down+1].dist.less(h[down].dist) {
			down++
		}
		if down >= len(h) || !h[down].dist.less(last.dist) {
			h[i] = last
			break
		}
		h[i], i = h[down], down
	}
	q.far = h
	return top
}
