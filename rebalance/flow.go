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
// on the arcs of reduced cost zero). Costs of new arcs must not be negative.
type graph struct {
	adj [][]arc
	pot []cost
}

var unreached = cost{balance: 1 << 60}

func newGraph(vertices int) *graph {
	return &graph{adj: make([][]arc, vertices), pot: make([]cost, vertices)}
}

// add makes an arc and gives its place in the list of from.
func (g *graph) add(from, to int, capacity int32, c cost) int {
	g.adj[from] = append(g.adj[from], arc{to: int32(to), rev: int32(len(g.adj[to])), cap: capacity, cost: c})
	g.adj[to] = append(g.adj[to], arc{to: int32(from), rev: int32(len(g.adj[from]) - 1), cost: cost{}.minus(c)})
	return len(g.adj[from]) - 1
}

// run pushes a maximum flow of minimum cost from s to t and gives its size.
func (g *graph) run(s, t int) (flow int) {
	dist := make([]cost, len(g.adj))
	w := walk{g: g, t: t, next: make([]int32, len(g.adj)), onPath: make([]bool, len(g.adj))}
	var q queue
	for g.distances(s, t, dist, &q); dist[t] != unreached; g.distances(s, t, dist, &q) {
		for v := range dist {
			d := dist[v]
			if dist[t].less(d) { // what lies beyond t keeps a reduced cost of at least zero
				d = dist[t]
			}
			g.pot[v] = g.pot[v].plus(d)
		}
		for {
			clear(w.next)
			pushed := w.push(s, 1<<30)
			if pushed == 0 {
				break
			}
			flow += int(pushed)
		}
	}
	return flow
}

// distances is Dijkstra over reduced costs. It ends when t is reached: others are then at least as far.
func (g *graph) distances(s, t int, dist []cost, q *queue) {
	for v := range dist {
		dist[v] = unreached
	}
	dist[s] = cost{}
	*q = append((*q)[:0], reached{vertex: int32(s)})
	for len(*q) > 0 {
		x := q.pop()
		if x.dist != dist[x.vertex] {
			continue
		}
		if int(x.vertex) == t {
			return
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
}

// walk is a depth-first search for a blocking flow on arcs of reduced cost zero.
type walk struct {
	g      *graph
	t      int
	next   []int32
	onPath []bool
}

func (w *walk) push(u int, want int32) int32 {
	if u == w.t {
		return want
	}
	w.onPath[u] = true
	var done int32
	for ; int(w.next[u]) < len(w.g.adj[u]) && done < want; w.next[u]++ {
		a := &w.g.adj[u][w.next[u]]
		if a.cap == 0 || w.onPath[a.to] || a.cost.plus(w.g.pot[u]) != w.g.pot[a.to] {
			continue
		}
		if k := w.push(int(a.to), min(want-done, a.cap)); k > 0 {
			a.cap -= k
			w.g.adj[a.to][a.rev].cap += k
			if done += k; done == want {
				break
			}
		}
	}
	w.onPath[u] = false
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
