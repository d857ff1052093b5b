package rebalance

// cost of a unit of flow. Costs are ordered by balance; what else there is only decides between costs of equal balance.
// They are added and compared like numbers, which is all that shortest paths need.
type cost struct{ balance, rest int64 }

func (c cost) plus(d cost) cost  { return cost{c.balance + d.balance, c.rest + d.rest} }
func (c cost) minus(d cost) cost { return cost{c.balance - d.balance, c.rest - d.rest} }

func (c cost) less(d cost) bool {
	return c.balance < d.balance || c.balance == d.balance && c.rest < d.rest
}

// arc of the residual graph; rev is its opposite's place.
type arc struct {
	to, rev int32
	cost    cost
}

// graph solves minimum-cost maximum flow by successive shortest paths with potentials (Dijkstra, then a blocking flow
// on the arcs of reduced cost zero).
type graph struct {
	at []vertex
	// arcs are those of each vertex side by side, and caps what each has room for: most arcs that a search comes by have
	// none, and are not looked at.
	arcs    []arc
	caps    []int32
	degrees []int32
	added   []added // in the order in which they came

	searches int // for shortest ways, that run took
}

// vertex is what searches look at together: most of a graph's time is spent in waiting for the memory of the next one.
type vertex struct {
	pot    cost
	excess int32 // what it has to give; below zero: to take
	first  int32 // its arcs go from there to the first of the next vertex
	level  int32 // of a walk: arcs from a vertex that gives; -1: none
	next   int32 // of a walk: the arc that is looked at next
}

// added is an arc before the graph is laid out.
type added struct {
	from, to, cap int32
	cost          cost
}

var unreached = cost{balance: 1 << 60}

// newGraph makes a graph with room for so many arcs.
func newGraph(vertices, arcs int) *graph {
	return &graph{at: make([]vertex, vertices+1), degrees: make([]int32, vertices), added: make([]added, 0, arcs)}
}

// add makes an arc and gives its place in the list of from.
func (g *graph) add(from, to int, capacity int32, c cost) int {
	g.added = append(g.added, added{int32(from), int32(to), capacity, c})
	g.degrees[from]++
	g.degrees[to]++
	return int(g.degrees[from]) - 1
}

// degree is how many arcs a vertex has.
func (g *graph) degree(v int) int { return int(g.degrees[v]) }

// of returns where the arcs of a vertex begin and end.
func (g *graph) of(v int) (first, end int) { return int(g.at[v].first), int(g.at[v+1].first) }

// room is what an arc of a vertex, by its place in the list, has room for.
func (g *graph) room(v, i int) int { return int(g.caps[int(g.at[v].first)+i]) }

// layOut puts the arcs of each vertex side by side; no more are added then.
func (g *graph) layOut() {
	g.arcs, g.caps = make([]arc, 2*len(g.added)), make([]int32, 2*len(g.added))
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

// supply lets a vertex give so many units, or take them where the number is negative.
func (g *graph) supply(v int, units int32) { g.at[v].excess += units }

// warm fills the arcs whose reduced cost is negative, so that potentials that were found otherwise can be gone on with.
// What lacks or is over at their ends is made up for by run.
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

// run brings as many units as can be from the vertices that give to those that take, at the least cost. No arc may have
// a negative reduced cost.
func (g *graph) run() {
	dist := make([]cost, len(g.at)-1)
	w := walk{g: g}
	var q queue
	for {
		far, ok := g.distances(dist, &q)
		g.searches++
		if !ok {
			return
		}
		for v := range dist {
			d := dist[v]
			if far.less(d) { // what lies beyond keeps a reduced cost of at least zero
				d = far
			}
			g.at[v].pot = g.at[v].pot.plus(d)
		}
		for w.sweep() {
		}
	}
}

// distances is Dijkstra over reduced costs, from all vertices that give. It ends when one that takes is reached: others
// are then at least as far.
func (g *graph) distances(dist []cost, q *queue) (far cost, ok bool) {
	*q = (*q)[:0]
	for v := range dist {
		dist[v] = unreached
		if g.at[v].excess > 0 {
			dist[v] = cost{}
			*q = append(*q, reached{vertex: int32(v)}) // all are equal: a heap
		}
	}
	for len(*q) > 0 {
		x := q.pop()
		if x.dist != dist[x.vertex] {
			continue
		}
		if g.at[x.vertex].excess < 0 {
			return x.dist, true
		}
		near := x.dist.plus(g.at[x.vertex].pot)
		for i, end := g.of(int(x.vertex)); i < end; i++ {
			if g.caps[i] == 0 {
				continue
			}
			a := &g.arcs[i]
			if d := near.plus(a.cost).minus(g.at[a.to].pot); d.less(dist[a.to]) {
				dist[a.to] = d
				q.push(reached{d, a.to})
			}
		}
	}
	return cost{}, false
}

// walk finds blocking flows on arcs of reduced cost zero (Dinic): each goes along shortest ways, counted in arcs, so
// that a search does not lose itself where many ways cost the same.
type walk struct {
	g     *graph
	queue []int32
}

// sweep pushes a blocking flow; false when no way is left.
func (w *walk) sweep() (some bool) {
	if !w.levels() {
		return false
	}
	for v := range w.g.at {
		if have := w.g.at[v].excess; have > 0 {
			k := w.push(int32(v), have)
			w.g.at[v].excess -= k
			some = some || k > 0
		}
	}
	return some
}

// levels is a breadth-first search, which ends with the level of the first vertex that takes.
func (w *walk) levels() (found bool) {
	g := w.g
	w.queue = w.queue[:0]
	for v := range len(g.at) - 1 {
		x := &g.at[v]
		x.level, x.next = -1, x.first
		if x.excess > 0 {
			x.level = 0
			w.queue = append(w.queue, int32(v))
		}
	}
	last := int32(1 << 30)
	for i := 0; i < len(w.queue); i++ {
		from := &g.at[w.queue[i]]
		if from.level >= last {
			break
		}
		first, end := g.of(int(w.queue[i]))
		for k, room := range g.caps[first:end] {
			if room == 0 {
				continue
			}
			a := &g.arcs[first+k]
			to := &g.at[a.to]
			if to.level >= 0 || a.cost.plus(from.pot) != to.pot {
				continue
			}
			to.level = from.level + 1
			if to.excess < 0 {
				last = to.level
			}
			w.queue = append(w.queue, a.to)
		}
	}
	return last < 1<<30
}

func (w *walk) push(u, want int32) int32 {
	g, from := w.g, &w.g.at[u]
	if lacks := -from.excess; lacks > 0 {
		k := min(want, lacks)
		from.excess += k
		return k
	}
	_, end := g.of(int(u))
	var done int32
	for ; int(from.next) < end; from.next++ {
		i := from.next
		if g.caps[i] == 0 {
			continue
		}
		a := &g.arcs[i]
		if to := &g.at[a.to]; to.level != from.level+1 || a.cost.plus(from.pot) != to.pot {
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

// queue is a binary heap, the nearest first.
type queue []reached

func (q *queue) push(r reached) {
	h := append(*q, r)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !r.dist.less(h[up].dist) {
			break
		}
		h[i], i = h[up], up
	}
	h[i] = r
	*q = h
}

func (q *queue) pop() reached {
	h := *q
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
	*q = h
	return top
}
