package rebalance

import (
	"cmp"
	"slices"

	"tidemark/index"
)

// schedule assigns a round to every step such that in one round no node sends or receives more copies than the
// options allow. The number of rounds is minimal (a bipartite graph can be coloured with as many colours as its
// busiest vertex has edges, Kőnig 1916), and repairs come as early as possible. It then numbers the steps.
func schedule(p *Plan) {
	slices.SortStableFunc(p.Steps, func(a, b Step) int {
		return cmp.Or(cmp.Compare(urgency(&a), urgency(&b)), cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Index, b.Index),
			cmp.Compare(a.Slice, b.Slice),
			cmp.Compare(a.Replica, b.Replica))
	})
	c := newColouring(p.Steps, p.Options.Sends, p.Options.Receives)
	for i := range p.Steps {
		c.colour(int32(i))
	}
	c.number(p)
	slices.SortStableFunc(p.Steps, func(a, b Step) int { return cmp.Compare(a.Round, b.Round) })
	longest := make([]int64, p.Rounds)
	for i := range p.Steps {
		y := &p.Steps[i]
		y.ID = i + 1
		longest[y.Round-1] = max(longest[y.Round-1], y.milliseconds(&p.Options))
	}
	p.Milliseconds = 0
	for _, ms := range longest {
		p.Milliseconds += ms
	}
}

func (y *Step) milliseconds(o *Options) int64 {
	return o.StepMS + int64(float64(y.Bytes)*1000/float64(o.BytesPerSecond))
}

// urgency orders steps: those that restore lost copies come first.
func urgency(y *Step) int {
	switch y.Kind {
	case Repair:
		return 0
	case Add:
		return 1
	}
	return 2
}

// colouring colours the edges of a bipartite multigraph of senders and receivers, with one vertex for each copy that
// a node may send or receive at a time. A step without a source has no sender.
type colouring struct {
	ends [][2]int32 // per step: sender and receiver, -1 for none
	at   [][]int32  // per vertex: the step of each colour, -1 for none
	of   []int32    // colour of each step, -1 for none
}

func newColouring(steps []Step, sends, receives int) *colouring {
	c := &colouring{ends: make([][2]int32, len(steps)), of: make([]int32, len(steps))}
	type port struct {
		node index.NodeID
		side int
		lane int
	}
	ports, turn := map[port]int32{}, map[port]int{}
	var degree []int
	vertex := func(n *index.NodeID, side, lanes int) int32 {
		if n == nil {
			return -1
		}
		p := port{node: *n, side: side}
		p.lane, turn[p] = turn[p]%lanes, turn[p]+1
		v, ok := ports[p]
		if !ok {
			v = int32(len(degree))
			ports[p] = v
			degree = append(degree, 0)
		}
		degree[v]++
		return v
	}
	for i := range steps {
		c.of[i], c.ends[i] = -1, [2]int32{vertex(steps[i].Source, 0, sends), vertex(&steps[i].To, 1, receives)}
	}
	colours := 0
	for _, d := range degree {
		colours = max(colours, d)
	}
	c.at = make([][]int32, len(degree))
	for v := range c.at {
		c.at[v] = slices.Repeat([]int32{-1}, colours)
	}
	return c
}

// colour colours one step. If no colour is free at both ends, it swaps the colours on the path that alternates
// between a colour free at the sender and one free at the receiver; that path cannot return to its start.
func (c *colouring) colour(i int32) {
	from, to := c.ends[i][0], c.ends[i][1]
	if from < 0 {
		c.set(i, c.free(to))
		return
	}
	for k := range c.at[from] {
		if c.at[from][k] < 0 && c.at[to][k] < 0 {
			c.set(i, int32(k))
			return
		}
	}
	a, b := c.free(from), c.free(to)
	c.flip(to, a, b)
	c.set(i, a)
}

func (c *colouring) free(v int32) int32 { return int32(slices.Index(c.at[v], -1)) }

func (c *colouring) set(i, k int32) {
	c.of[i] = k
	for _, v := range c.ends[i] {
		if v >= 0 {
			c.at[v][k] = i
		}
	}
}

// flip swaps the colours a and b on the path that begins at v with a.
func (c *colouring) flip(v, a, b int32) {
	var path []int32
	for k := a; v >= 0 && c.at[v][k] >= 0; k = a + b - k {
		i := c.at[v][k]
		path = append(path, i)
		v = c.ends[i][0] + c.ends[i][1] - v
	}
	for _, i := range path {
		for _, v := range c.ends[i] {
			if v >= 0 && c.at[v][c.of[i]] == i {
				c.at[v][c.of[i]] = -1
			}
		}
	}
	for _, i := range path {
		c.set(i, a+b-c.of[i])
	}
}

// number turns the colours into rounds; those with the most repairs come first.
func (c *colouring) number(p *Plan) {
	type round struct{ colour, urgent, steps int }
	var rounds []round
	of := map[int32]int{}
	for i := range p.Steps {
		k := c.of[i]
		r, ok := of[k]
		if !ok {
			r = len(rounds)
			of[k] = r
			rounds = append(rounds, round{colour: int(k)})
		}
		rounds[r].steps++
		if urgency(&p.Steps[i]) < 2 {
			rounds[r].urgent++
		}
	}
	slices.SortStableFunc(rounds, func(a, b round) int {
		return cmp.Or(cmp.Compare(b.urgent, a.urgent), cmp.Compare(b.steps, a.steps), cmp.Compare(a.colour, b.colour))
	})
	for r, x := range rounds {
		of[int32(x.colour)] = r + 1
	}
	p.Rounds = len(rounds)
	for i := range p.Steps {
		p.Steps[i].Round = of[c.of[i]]
	}
}
