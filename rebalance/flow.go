package rebalance

// cost of a unit of flow. Costs are ordered by balance; what else there is only decides between costs of equal balance.
// They are added and compared like numbers, which is all that shortest paths need.
type cost struct{ balance, rest int64 }

func (c cost) plus(d cost) cost  { return cost{c.balance + d.balance, c.rest + d.rest} }
func (c cost) minus(d cost) cost { return cost{c.balance - d.balance, c.rest - d.rest} }

func (c cost) less(d cost) bool {
	return c.balance < d.balance || c.balance == d.balance && c.rest < d.rest
}

// arc of the residual graph; rev is its opposite's place in the other end's list.
type arc struct {
	to, rev int32
	cap     int32
	cost    cost
}

// graph solves minimum-cost maximum flow by successive shortest paths with potentials (Dijkstra, then a blocking flow
// on the arcs of reduced cost zero).
type graph struct {
	adj     [][]arc
	pot     []cost
	excess  []int32 // what a vertex has to give; below zero: to take
	degrees []int32
	added   []added // in the order in which they came

	searches int // for shortest ways, that run took
}

// added is an arc before the graph is laid out.
type added struct {
	from, to, cap int32
	cost          cost
}

var unreached = cost{balance: 1 << 60}

// newGraph makes a graph with room for so many arcs.
func newGraph(vertices, arcs int) *graph {
	return &graph{adj: make([][]arc, vertices), pot: make([]cost, vertices), excess: make([]int32, vertices),
		degrees: make([]int32, vertices), added: make([]added, 0, arcs)}
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

// layOut puts the arcs of each vertex side by side; no more are added then.
func (g *graph) layOut() {
	all := make([]arc, 2*len(g.added))
	for v, k := range g.degrees {
		g.adj[v], all = all[:0:k], all[k:]
	}
	for i := range g.added {
		a := &g.added[i]
		from, to := &g.adj[a.from], &g.adj[a.to]
		*from = append(*from, arc{to: a.to, rev: int32(len(*to)), cap: a.cap, cost: a.cost})
		*to = append(*to, arc{to: a.from, rev: int32(len(*from) - 1), cost: cost{}.minus(a.cost)})
	}
	g.added = nil
}

// supply lets a vertex give so many units, or take them where the number is negative.
func (g *graph) supply(v int, units int32) { g.excess[v] += units }

// warm fills the arcs whose reduced cost is negative, so that potentials that were found otherwise can be gone on with.
// What lacks or is over at their ends is made up for by run.
func (g *graph) warm() {
	for u := range g.adj {
		for i := range g.adj[u] {
			a := &g.adj[u][i]
			if a.cap > 0 && a.cost.plus(g.pot[u]).less(g.pot[a.to]) {
				g.adj[a.to][a.rev].cap += a.cap
				g.excess[u] -= a.cap
				g.excess[a.to] += a.cap
				a.cap = 0
			}
		}
	}
}

// run brings as many units as can be from the vertices that give to those that take, at the least cost. No arc may have
// a negative reduced cost.
func (g *graph) run() {
	dist := make([]cost, len(g.adj))
	w := walk{g: g, next: make([]int32, len(g.adj)), level: make([]int32, len(g.adj))}
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
			g.pot[v] = g.pot[v].plus(d)
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
		if g.excess[v] > 0 {
			dist[v] = cost{}
			*q = append(*q, reached{vertex: int32(v)}) // all are equal: a heap
		}
	}
	for len(*q) > 0 {
		x := q.pop()
		if x.dist != dist[x.vertex] {
			continue
		}
		if g.excess[x.vertex] < 0 {
			return x.dist, true
		}
		near := x.dist.plus(g.pot[x.vertex])
		for i := range g.adj[x.vertex] {
			a := &g.adj[x.vertex][i]
			if a.cap == 0 {
				continue
			}
			if d := near.plus(a.cost).minus(g.pot[a.to]); d.less(dist[a.to]) {
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
	next  []int32
	level []int32 // of each vertex: arcs from one that gives; -1: none
	queue []int32
}

// sweep pushes a blocking flow; false when no way is left.
func (w *walk) sweep() (some bool) {
	if !w.levels() {
		return false
	}
	clear(w.next)
	for v := range w.g.excess {
		if have := w.g.excess[v]; have > 0 {
			k := w.push(int32(v), have)
			w.g.excess[v] -= k
			some = some || k > 0
		}
	}
	return some
}

// levels is a breadth-first search, which ends with the level of the first vertex that takes.
func (w *walk) levels() (found bool) {
	w.queue = w.queue[:0]
	for v := range w.level {
		w.level[v] = -1
		if w.g.excess[v] > 0 {
			w.level[v] = 0
			w.queue = append(w.queue, int32(v))
		}
	}
	last := int32(1 << 30)
	for i := 0; i < len(w.queue); i++ {
		u := w.queue[i]
		if w.level[u] >= last {
			break
		}
		for k := range w.g.adj[u] {
			a := &w.g.adj[u][k]
			if a.cap == 0 || w.level[a.to] >= 0 || a.cost.plus(w.g.pot[u]) != w.g.pot[a.to] {
				continue
			}
			w.level[a.to] = w.level[u] + 1
			if w.g.excess[a.to] < 0 {
				last = w.level[a.to]
			}
			w.queue = append(w.queue, a.to)
		}
	}
	return last < 1<<30
}

func (w *walk) push(u, want int32) int32 {
	if lacks := -w.g.excess[u]; lacks > 0 {
		k := min(want, lacks)
		w.g.excess[u] += k
		return k
	}
	var done int32
	for ; int(w.next[u]) < len(w.g.adj[u]) && done < want; w.next[u]++ {
		a := &w.g.adj[u][w.next[u]]
		if a.cap == 0 || w.level[a.to] != w.level[u]+1 || a.cost.plus(w.g.pot[u]) != w.g.pot[a.to] {
			continue
		}
		if k := w.push(a.to, min(want-done, a.cap)); k > 0 {
			a.cap -= k
			w.g.adj[a.to][a.rev].cap += k
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
	for u := range g.adj {
		for _, a := range g.adj[u] {
			if a.cap > 0 && a.cost.plus(g.pot[u]).less(g.pot[a.to]) {
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
