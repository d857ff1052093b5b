package rebalance

import "container/heap"

// arc of the residual graph; rev is its opposite's place in the other end's list.
type arc struct {
	to, rev int32
	cap     int32
	cost    int64
}

// graph solves minimum-cost maximum flow by successive shortest paths with potentials (Dijkstra, then a blocking flow on
// the arcs of reduced cost zero). Costs of new arcs must not be negative.
type graph struct {
	adj [][]arc
	pot []int64
}

const unreached = int64(1) << 60

func newGraph(vertices int) *graph {
	return &graph{adj: make([][]arc, vertices), pot: make([]int64, vertices)}
}

func (g *graph) add(from, to int, capacity int32, cost int64) {
	g.adj[from] = append(g.adj[from], arc{to: int32(to), rev: int32(len(g.adj[to])), cap: capacity, cost: cost})
	g.adj[to] = append(g.adj[to], arc{to: int32(from), rev: int32(len(g.adj[from]) - 1), cost: -cost})
}

// run pushes a maximum flow of minimum cost from s to t and gives its size.
func (g *graph) run(s, t int) (flow int) {
	dist := make([]int64, len(g.adj))
	w := walk{g: g, t: t, next: make([]int, len(g.adj)), onPath: make([]bool, len(g.adj))}
	for g.distances(s, dist); dist[t] < unreached; g.distances(s, dist) {
		for v := range dist {
			g.pot[v] += min(dist[v], dist[t]) // what lies beyond t keeps a reduced cost of at least zero
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

// distances is Dijkstra over reduced costs.
func (g *graph) distances(s int, dist []int64) {
	for v := range dist {
		dist[v] = unreached
	}
	dist[s] = 0
	q := queue{{0, int32(s)}}
	for len(q) > 0 {
		x := heap.Pop(&q).(reached)
		if x.dist > dist[x.vertex] {
			continue
		}
		for i := range g.adj[x.vertex] {
			a := &g.adj[x.vertex][i]
			if a.cap == 0 {
				continue
			}
			if d := x.dist + a.cost + g.pot[x.vertex] - g.pot[a.to]; d < dist[a.to] {
				dist[a.to] = d
				heap.Push(&q, reached{d, a.to})
			}
		}
	}
}

// walk is a depth-first search for a blocking flow on arcs of reduced cost zero.
type walk struct {
	g      *graph
	t      int
	next   []int
	onPath []bool
}

func (w *walk) push(u int, want int32) int32 {
	if u == w.t {
		return want
	}
	w.onPath[u] = true
	var done int32
	for ; w.next[u] < len(w.g.adj[u]) && done < want; w.next[u]++ {
		a := &w.g.adj[u][w.next[u]]
		if a.cap == 0 || w.onPath[a.to] || a.cost+w.g.pot[u]-w.g.pot[a.to] != 0 {
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

// certified tells whether no residual arc has a negative reduced cost, which proves by duality that no cheaper flow of
// this size exists.
func (g *graph) certified() bool {
	for u := range g.adj {
		for _, a := range g.adj[u] {
			if a.cap > 0 && a.cost+g.pot[u]-g.pot[a.to] < 0 {
				return false
			}
		}
	}
	return true
}

type reached struct {
	dist   int64
	vertex int32
}

type queue []reached

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].dist < q[j].dist }
func (q queue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }

// Push implements heap.Interface.
func (q *queue) Push(x any) { *q = append(*q, x.(reached)) }

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	old := *q
	x := old[len(old)-1]
	*q = old[:len(old)-1]
	return x
}
