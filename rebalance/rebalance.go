// Package rebalance decides where copies of slices are placed (IM-18, IM-19): as balanced as the nodes allow, never
// two replicas of a slice on one node, spread over zones as far as possible. Place chooses nodes for a new index,
// Substitute for the copies of an indexer that was removed, and Make plans what has to move when nodes were added,
// are to leave or were lost, or when indexes are to have more or fewer replicas.
//
// The same input always gives the same result. Place and Make are exact: a minimum-cost flow whose optimality is
// certified on every call. In this order, no other placement
//   - has the copies of fewer slices close together in zones,
//   - has a smaller sum over nodes of copies² / capacity,
//   - has a smaller sum over indexes and nodes of copies² / capacity, so that each of several nodes of one capacity
//     holds of each index its share rounded up or down where the rest allows it; where the slices of each index are of
//     one size too, the bytes of a node differ from its share by less than one slice of each index (of a few slices, a
//     node of a much larger capacity than the others may hold more),
//   - needs fewer new copies, or, with equally many, fewer bytes, up to a 4096th of all.
//
// The package moves nothing and reads no clock. A plan is a list of idempotent steps; it records the placement for
// which it was made, and Stale rejects it for any other.
package rebalance

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sort"

	"tidemark/index"
	"tidemark/partition"
)

var (
	// ErrTooFewNodes is wrapped if there are not enough indexers for the requested replicas.
	ErrTooFewNodes = errors.New("not enough indexers")
	// ErrUnknownNode is wrapped if a requested indexer does not exist or is not active.
	ErrUnknownNode = errors.New("no such active indexer")
	// ErrInput is wrapped if the requested numbers are invalid.
	ErrInput = errors.New("bad placement request")
	// ErrCertificate is wrapped if a solution could not be proved optimal, which is a defect of this package.
	ErrCertificate = errors.New("placement without proof of optimality")
)

// Node is an active indexer that may hold copies.
type Node struct {
	ID       index.NodeID
	UUID     string // of its data folder
	Name     string // from its --id; the WITH clause's "nodes" may use UUID or Name
	Zone     string // "" is a zone like any other
	Capacity uint32 // relative weight; 0 counts as 1
	Load     int    // copies that it already has; Make computes it
	Role     Role   // Place expects serving nodes only
	// Excluded, if not empty, is why Make gives the node no further copies while other nodes can take them: the trouble
	// that it reports, such as a full disk. It keeps the copies that it has.
	Excluded string
	// Free is the number of bytes that new copies may occupy; 0: not reported. Make shuts a node to which it would bring
	// more.
	Free int64
	// noRoom is set if Make excluded the node, only for lack of room.
	noRoom bool
}

// Role determines how a node may be used.
type Role uint8

// The roles.
const (
	Serving Role = iota // receives copies and sends them
	Going               // is to be emptied; its copies can be copied
	Lost                // is to be emptied; nothing can be copied from it
)

// String returns the word used in the API.
func (r Role) String() string {
	switch r {
	case Serving:
		return "serving"
	case Going:
		return "leaving"
	case Lost:
		return "lost"
	}
	return fmt.Sprintf("role(%d)", r)
}

// MarshalText encodes the role as its word.
func (r Role) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText decodes what MarshalText wrote.
func (r *Role) UnmarshalText(b []byte) error {
	for _, x := range []Role{Serving, Going, Lost} {
		if x.String() == string(b) {
			*r = x
			return nil
		}
	}
	return fmt.Errorf("%w: role %q", ErrInput, b)
}

func (n *Node) label() string {
	if n.Name != "" {
		return n.Name
	}
	if n.UUID != "" {
		return n.UUID
	}
	return fmt.Sprintf("node %d", n.ID)
}

func (n *Node) weight() int64 { return int64(max(n.Capacity, 1)) }

// Placement is one copy to create.
type Placement struct {
	Slice   index.SliceID
	Replica partition.Replica
	Node    index.NodeID
}

// MaxCopies bounds the copies of one request: slices times replicas.
const MaxCopies = 64 << 10

// Allowed returns the nodes that a list of names or uuids allows (the WITH clause's "nodes"); an empty list allows
// all. Errors wrap ErrUnknownNode.
func Allowed(nodes []Node, wanted []string) ([]Node, error) {
	if len(wanted) == 0 {
		return nodes, nil
	}
	var allowed []Node
	for _, w := range wanted {
		i := slices.IndexFunc(nodes, func(n Node) bool { return n.UUID == w || n.Name == w })
		if i < 0 {
			return nil, fmt.Errorf("%w: %q; active are %s", ErrUnknownNode, w, names(nodes))
		}
		if !slices.ContainsFunc(allowed, func(n Node) bool { return n.ID == nodes[i].ID }) {
			allowed = append(allowed, nodes[i])
		}
	}
	return allowed, nil
}

// Present returns the elements of a list of names or uuids that name existing nodes, or the whole list if none does.
func Present(nodes []Node, wanted []string) []string {
	present := slices.DeleteFunc(slices.Clone(wanted), func(w string) bool {
		return !slices.ContainsFunc(nodes, func(n Node) bool { return n.UUID == w || n.Name == w })
	})
	if len(present) == 0 {
		return wanted
	}
	return present
}

func names(nodes []Node) string {
	if len(nodes) == 0 {
		return "none"
	}
	s := ""
	for i, n := range nodes {
		if i > 0 {
			s += ", "
		}
		if s += n.Name; n.Name == "" {
			s += n.UUID
		}
	}
	return s
}

// Place chooses nodes for a new index: sliceCount slices, each with 1 + replicas copies on different nodes. The
// result is ordered by slice, then replica. nodes does not change. Errors wrap ErrTooFewNodes, ErrInput or
// ErrCertificate.
func Place(nodes []Node, sliceCount, replicas int) ([]Placement, error) {
	copies := replicas + 1
	nodes = slices.Clone(nodes)
	slices.SortFunc(nodes, func(a, b Node) int { return cmp.Compare(a.ID, b.ID) })
	if err := checkInput(nodes, sliceCount, replicas); err != nil {
		return nil, err
	}
	// Be as strict about zones as possible: at most perZone copies of a slice in one zone, and more only if necessary. A
	// zone has perZone copies only if every other zone has as many copies as nodes, or at most one copy fewer.
	for perZone := 1; ; perZone++ {
		hosts, full, err := solve(nodes, sliceCount, copies, perZone)
		if err != nil {
			return nil, err
		}
		if full {
			return number(hosts, copies), nil
		}
		if perZone >= copies {
			return nil, fmt.Errorf("%w: %d slices of %d copies on %d nodes have no placement", ErrInput, sliceCount, copies,
				len(nodes))
		}
	}
}

// checkInput rejects input for which there is no placement. The nodes are sorted.
func checkInput(nodes []Node, sliceCount, replicas int) error {
	copies := replicas + 1
	switch {
	case sliceCount < 1 || sliceCount > partition.MaxPartitions || replicas < 0 || sliceCount*copies > MaxCopies:
		return fmt.Errorf("%w: %d slices with %d replicas", ErrInput, sliceCount, replicas)
	case len(nodes) == 0:
		return fmt.Errorf("%w: no indexer is active", ErrTooFewNodes)
	case copies > len(nodes):
		return fmt.Errorf("%w: num_replica %d needs %d indexers, but only %d may be used; lower num_replica or add indexers",
			ErrTooFewNodes, replicas, copies, len(nodes))
	}
	for i, n := range nodes {
		if n.Load < 0 || i > 0 && nodes[i-1].ID == n.ID {
			return fmt.Errorf("%w: node %d is listed twice or has a load of %d", ErrInput, n.ID, n.Load)
		}
	}
	return nil
}

// solve finds the hosts of each slice. full is false if the copies do not fit with at most perZone copies of a slice
// in a zone.
func solve(nodes []Node, sliceCount, copies, perZone int) (hosts [][]index.NodeID, full bool, err error) {
	p := newProblem(nodes, sliceCount, perZone)
	// Nearly all copies go where plain water-filling puts them; only the rest needs to be weighed one by one. If zones
	// forbid that, all copies are weighed.
	level := fillLevel(nodes, sliceCount, sliceCount*copies)
	for _, base := range []int64{level, -1} {
		g := p.graph(copies, base)
		want := int32(sliceCount * copies)
		g.layOut()
		g.supply(p.source, want)
		g.supply(p.sink, -want)
		g.run()
		flow := int(want - g.at[p.source].excess)
		switch {
		case flow == sliceCount*copies && g.certified() && p.proves(g, base):
			return p.hosts(g), true, nil
		case flow < sliceCount*copies && base < 0:
			return nil, false, nil
		}
	}
	return nil, false, fmt.Errorf("%w: %d slices of %d copies on %d nodes", ErrCertificate, sliceCount, copies, len(nodes))
}

// fillLevel returns the highest cost such that fewer than total copies cost at most that much; -1 if there is none.
func fillLevel(nodes []Node, sliceCount, total int) int64 {
	count := func(cost int64) (n int) {
		for _, node := range nodes {
			n += below(node, sliceCount, cost)
		}
		return n
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
	return low
}

// below returns the number of new copies of a node that cost at most cost.
func below(n Node, sliceCount int, cost int64) int {
	return sort.Search(sliceCount, func(k int) bool { return growth(n, k) > cost })
}

// problem defines the vertices: source → slice → (slice, zone) → node → sink, where the k-th copy of a node costs the
// growth of its squared load. The copies of a slice that a zone has in any case reach it directly from the source.
type problem struct {
	nodes         []Node
	slices        int
	perZone       int
	zoneOf        []int
	zones         int
	source, first int
	sink          int
}

func newProblem(nodes []Node, sliceCount, perZone int) *problem {
	p := &problem{nodes: nodes, slices: sliceCount, perZone: perZone}
	p.zoneOf, p.zones = zones(nodes)
	p.first = 1 + sliceCount + sliceCount*p.zones
	p.sink = p.first + len(nodes)
	return p
}

func (p *problem) slice(s int) int   { return 1 + s }
func (p *problem) zone(s, z int) int { return 1 + p.slices + s*p.zones + z }

// graph creates the arcs; copies that cost at most base are free and share one arc per node.
func (p *problem) graph(copies int, base int64) *graph {
	g := newGraph(p.sink+1, p.slices*(1+2*p.zones+len(p.nodes))+len(p.nodes)*(aboveLevel+1))
	inZone := make([]int, p.zones) // number of nodes
	for _, z := range p.zoneOf {
		inZone[z]++
	}
	open := copies // copies of a slice that are not fixed to a zone
	for _, n := range inZone {
		open -= min(n, p.perZone-1)
	}
	for s := range p.slices {
		g.add(p.source, p.slice(s), int32(open), cost{})
		for z, n := range inZone {
			if p.perZone > 1 {
				g.add(p.source, p.zone(s, z), int32(min(n, p.perZone-1)), cost{})
			}
			if n >= p.perZone {
				g.add(p.slice(s), p.zone(s, z), 1, cost{})
			}
		}
		for i := range p.nodes {
			i = (i + s) % len(p.nodes) // spread equal choices over the nodes
			g.add(p.zone(s, p.zoneOf[i]), p.first+i, 1, cost{})
		}
	}
	for i, n := range p.nodes {
		free := below(n, p.slices, base)
		g.add(p.first+i, p.sink, int32(free), cost{})
		for k := free; k < p.weighed(free, base); k++ {
			g.add(p.first+i, p.sink, 1, cost{balance: growth(n, k)})
		}
	}
	return g
}

// weighed returns up to which copy of a node the graph has arcs: all copies, or a few above the level.
func (p *problem) weighed(free int, base int64) int {
	if base < 0 {
		return p.slices
	}
	return min(p.slices, free+aboveLevel)
}

// aboveLevel is the number of copies of a node that are weighed above the level; one is enough unless zones forbid
// the level.
const aboveLevel = 3

// proves reports whether the solution is also optimal at the true costs: every free copy is used and would be worth
// its true cost, and the copies left out of the graph would not pay off.
func (p *problem) proves(g *graph, base int64) bool {
	for i, n := range p.nodes {
		free, u := below(n, p.slices, base), p.first+i
		if k := p.weighed(free, base); k < p.slices && growth(n, k)+g.at[u].pot.balance-g.at[p.sink].pot.balance < 0 {
			return false
		}
		if free == 0 {
			continue
		}
		for i, end := g.of(u); i < end; i++ {
			if a := &g.arcs[i]; int(a.to) == p.sink && a.cost == (cost{}) && (g.caps[i] > 0 ||
				growth(n, free-1)+g.at[u].pot.balance-g.at[p.sink].pot.balance > 0) {
				return false
			}
		}
	}
	return true
}

// hosts reads the solution.
func (p *problem) hosts(g *graph) [][]index.NodeID {
	hosts := make([][]index.NodeID, p.slices)
	for s := range hosts {
		for z := range p.zones {
			for i, end := g.of(p.zone(s, z)); i < end; i++ {
				if to := int(g.arcs[i].to); to >= p.first && g.caps[i] == 0 {
					hosts[s] = append(hosts[s], p.nodes[to-p.first].ID)
				}
			}
		}
		slices.Sort(hosts[s])
	}
	return hosts
}

// capacityScale makes weights integers: on a node of capacity c each copy weighs capacityScale/c.
const capacityScale = 1 << 20

// growth returns the growth of (load/capacity)² times capacity when a node gets its k-th new copy (k from 0):
// (2·(load+k)+1)/capacity.
func growth(n Node, k int) int64 {
	return int64(2*(n.Load+k)+1) * capacityScale / int64(max(n.Capacity, 1))
}

// zones numbers the zones in the order of their first node.
func zones(nodes []Node) (of []int, count int) {
	seen := map[string]int{}
	for _, n := range nodes {
		z, ok := seen[n.Zone]
		if !ok {
			z = len(seen)
			seen[n.Zone] = z
		}
		of = append(of, z)
	}
	return of, len(seen)
}

// number assigns replica numbers to the copies of each slice so that each node holds about equally many of each
// number.
func number(hosts [][]index.NodeID, copies int) []Placement {
	var used [1 << 8][]int // per node: copies by replica number
	ps := make([]Placement, 0, len(hosts)*copies)
	for s, ns := range hosts {
		left := slices.Clone(ns)
		for r := range copies {
			best := 0
			for i, n := range left {
				if used[n] == nil {
					used[n] = make([]int, copies)
				}
				if used[n][r] < used[left[best]][r] {
					best = i
				}
			}
			n := left[best]
			used[n][r]++
			left = slices.Delete(left, best, best+1)
			ps = append(ps, Placement{Slice: index.SliceID(s), Replica: partition.Replica(r), Node: n})
		}
	}
	return ps
}
