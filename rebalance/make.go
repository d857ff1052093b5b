package rebalance

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"tidemark/index"
	"tidemark/partition"
)

// ErrStale is wrapped if a plan was made for a placement other than the present one.
var ErrStale = errors.New("the plan is stale")

// Cluster is the input of a plan: the nodes and the places of the copies.
type Cluster struct {
	Revision uint64  `json:"revision"` // of the definitions
	Nodes    []Node  `json:"nodes"`
	Indexes  []Index `json:"indexes"`
}

// Index is an index with its copies.
type Index struct {
	ID       index.ID       `json:"id"`
	Bucket   string         `json:"bucket"`
	Name     string         `json:"name"`
	Slices   int            `json:"slices"`
	Replicas int            `json:"replicas"`        // number wanted beside the first copy
	Nodes    []index.NodeID `json:"nodes,omitempty"` // nodes that may hold it; empty: all
	Copies   []Copy         `json:"copies"`
}

func (x *Index) label() string { return x.Bucket + "/" + x.Name }

// Copy is a copy that is not leaving.
type Copy struct {
	ID      index.CopyID      `json:"id"`
	Slice   index.SliceID     `json:"slice"`
	Replica partition.Replica `json:"replica"`
	Node    index.NodeID      `json:"node"`
	Bytes   int64             `json:"bytes"`
}

// Kind is the kind of a step.
type Kind string

// The kinds.
const (
	Move   Kind = "move"   // a copy changes its node
	Repair Kind = "repair" // a copy takes the place of one that was lost
	Add    Kind = "add"    // an additional replica
)

// Step is one change of one slice's copies. It is done if the index has a copy of the slice and replica on To, and no
// longer the copy Old; taking it again then does nothing.
type Step struct {
	ID      int               `json:"id"` // counted from 1
	Round   int               `json:"round"`
	Kind    Kind              `json:"kind"`
	Index   index.ID          `json:"index"`
	Name    string            `json:"name"` // bucket/name, for display
	Slice   index.SliceID     `json:"slice"`
	Replica partition.Replica `json:"replica"`
	Old     index.CopyID      `json:"old,omitempty"` // removed when the new copy is whole; 0: none
	From    *index.NodeID     `json:"from,omitempty"`
	To      index.NodeID      `json:"to"`
	// Source is a node with a copy from which the new one can be made; nil: it is filled from KV.
	Source *index.NodeID `json:"source,omitempty"`
	Bytes  int64         `json:"bytes"`
	Why    string        `json:"why"`
}

// Share is the effect of a plan on one node.
type Share struct {
	Node     index.NodeID `json:"node"`
	Name     string       `json:"name"`
	Zone     string       `json:"zone,omitempty"`
	Capacity uint32       `json:"capacity"`
	Role     Role         `json:"role"`
	Before   int          `json:"copies_before"`
	After    int          `json:"copies_after"`
	Bytes    [2]int64     `json:"bytes"` // before and after
}

// Short is an index that cannot have as many copies as it should.
type Short struct {
	Index  index.ID `json:"index"`
	Name   string   `json:"name"`
	Want   int      `json:"want"` // wanted copies of each slice
	Usable int      `json:"usable"`
}

// Excluded is a serving node that should get no copies.
type Excluded struct {
	Node   index.NodeID `json:"node"`
	Name   string       `json:"name"`
	Why    string       `json:"why"`
	Copies int          `json:"copies"` // that it gets all the same, because no other node can take them
}

// Plan lists the steps to take, in an order that respects the options.
type Plan struct {
	Revision uint64  `json:"revision"` // definitions revision for which it was made
	Options  Options `json:"options"`
	Steps    []Step  `json:"steps"` // ordered by round
	Rounds   int     `json:"rounds"`
	Bytes    int64   `json:"bytes"` // bytes of the new copies
	// Milliseconds is the expected duration if only bytes and a fixed time per step matter.
	Milliseconds int64   `json:"expected_ms"`
	Nodes        []Share `json:"nodes"`
	Short        []Short `json:"short,omitempty"`
	Balanced     bool    `json:"balanced"` // nothing has to move
	// Excluded lists what is wrong with nodes that get no copies although they serve, or only those that no other node
	// can take.
	Excluded []Excluded `json:"excluded,omitempty"`
	// Left lists indexes of which nothing moves: each is being split, and the plan covers its successor instead.
	Left []string `json:"left_out,omitempty"`
	// Remove and Keep are the indexers named in the request for the plan; running the plan marks them accordingly.
	Remove []string `json:"remove,omitempty"`
	Keep   []string `json:"keep,omitempty"`
}

// Options controls a plan; zero fields have the defaults given here.
type Options struct {
	Sends    int `json:"sends"`    // copies that one node sends at a time; default 1
	Receives int `json:"receives"` // copies that one node receives at a time; default 1
	// BytesPerSecond is per node; default 4/5 of the cluster's transfer rate, or of 64 MiB if it has none.
	BytesPerSecond int64 `json:"bytes_per_second"`
	StepMS         int64 `json:"step_ms"` // milliseconds per step in addition to its bytes; default 2000
}

// DefaultRate is the presumed number of bytes per second and node: files are sent at 64 MiB per second, and verifying
// them and the work that follows takes a fifth of the time.
const DefaultRate = 64 << 20 * 4 / 5

// MaxBegun bounds how many steps of a plan are begun at a time, so that they fit into one command; the next plan
// contains the rest.
const MaxBegun = 16_000

// MaxParallel bounds how many copies one node may send or receive at a time.
const MaxParallel = 64

func (o Options) withDefaults() (Options, error) {
	o.Sends, o.Receives = cmp.Or(o.Sends, 1), cmp.Or(o.Receives, 1)
	o.BytesPerSecond, o.StepMS = cmp.Or(o.BytesPerSecond, DefaultRate), cmp.Or(o.StepMS, 2000)
	if o.Sends < 0 || o.Sends > MaxParallel || o.Receives < 0 || o.Receives > MaxParallel || o.BytesPerSecond < 0 ||
		o.StepMS < 0 {
		return o, fmt.Errorf("%w: sends %d, receives %d, %d bytes per second, %d ms per step; the limit is %d for sends and "+
			"receives, and no value may be negative", ErrInput, o.Sends, o.Receives, o.BytesPerSecond, o.StepMS, MaxParallel)
	}
	return o, nil
}

// Check rejects options that Make would not accept. Errors wrap ErrInput.
func (o Options) Check() error { _, err := o.withDefaults(); return err }

// Make returns a plan for c, which does not change. Errors wrap ErrTooFewNodes, ErrInput or ErrCertificate. If a plan
// brings a node more than it has room for, the node is excluded and the next plan is made: each is the best for the
// nodes that are not excluded.
func Make(c *Cluster, o Options) (*Plan, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	roomy := *c
	roomy.Nodes = slices.Clone(c.Nodes)
	for {
		p, err := makeOnce(&roomy, o)
		if err != nil || !excludeFull(&roomy, p) {
			return p, err
		}
	}
}

// excludeFull excludes the nodes that have no room for what a plan brings them, and reports whether there are new ones.
func excludeFull(c *Cluster, p *Plan) (some bool) {
	brings := map[index.NodeID]int64{}
	for i := range p.Steps {
		brings[p.Steps[i].To] += p.Steps[i].Bytes
	}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		if need := brings[n.ID] + brings[n.ID]/4; n.Excluded == "" && n.Free > 0 && need > n.Free { // merges need room, too
			n.Excluded = fmt.Sprintf("its share needs %d MiB with what merges need, and it has %d MiB of room", need>>20,
				n.Free>>20)
			n.noRoom, some = true, true
		}
	}
	return some
}

func makeOnce(c *Cluster, o Options) (*Plan, error) {
	m, err := newMaker(c)
	if err != nil {
		return nil, err
	}
	if err := m.place(); err != nil {
		return nil, err
	}
	p := &Plan{Revision: c.Revision, Options: o, Short: m.short}
	for i := range m.slices {
		p.Steps = append(p.Steps, m.steps(&m.slices[i])...)
	}
	m.sources(p.Steps)
	schedule(p)
	m.shares(p)
	m.listExcluded(p)
	p.Balanced = len(p.Steps) == 0
	return p, nil
}

// listExcluded lists the excluded nodes.
func (m *maker) listExcluded(p *Plan) {
	gets := map[index.NodeID]int{}
	for i := range p.Steps {
		gets[p.Steps[i].To]++
	}
	for i := range m.nodes {
		if n := &m.nodes[i]; n.Excluded != "" && n.Role == Serving {
			p.Excluded = append(p.Excluded, Excluded{Node: n.ID, Name: n.label(), Why: n.Excluded, Copies: gets[n.ID]})
		}
	}
}

// open returns the nodes that a slice may have copies on: the usable ones of its index without excluded ones that hold
// none of it. If there are too few others, or replicas would lose a zone by that, which is worse (as for a new index),
// those that are excluded only for lack of room are added, and those in trouble only if that is still not enough.
func (m *maker) open(s *sliceOf) []int {
	usable := m.usable[s.index]
	excluded := func(at int) bool { return m.nodes[at].Excluded != "" && !s.holds(m.nodes[at].ID) }
	inTrouble := func(at int) bool { return excluded(at) && !m.nodes[at].noRoom }
	for _, without := range []func(int) bool{excluded, inTrouble} {
		if !slices.ContainsFunc(usable, without) {
			return usable
		}
		open := slices.DeleteFunc(slices.Clone(usable), without)
		if len(open) >= s.want && m.zonesFor(s, open) >= m.zonesFor(s, usable) {
			return open
		}
	}
	return usable
}

// zonesFor returns over how many zones a slice's copies can be spread on some nodes.
func (m *maker) zonesFor(s *sliceOf, nodes []int) int {
	var all []int
	for _, at := range nodes {
		if z := m.zoneOf[at]; !slices.Contains(all, z) {
			all = append(all, z)
		}
	}
	return min(len(all), s.want)
}

// maker holds the cluster with positions in lists in place of ids.
type maker struct {
	c      *Cluster
	nodes  []Node // ordered by id
	at     map[index.NodeID]int
	usable [][]int // per index: positions of the serving nodes that may hold it
	wants  []int   // per index: copies of each slice on these nodes
	kind   []int   // per index: its row in the network solved last
	slices []sliceOf
	short  []Short
	zoneOf []int
	zones  int
	before []int                  // copies per node
	on     []map[index.NodeID]int // per index: copies per node

	searches int    // number of searches for the last network
	memory   memory // buffers shared by its graphs
}

// sliceOf is one slice of one index.
type sliceOf struct {
	index  int
	slice  index.SliceID
	want   int // wanted copies on usable nodes
	copies []Copy
	chosen []int // positions of nodes, ascending
}

func newMaker(c *Cluster) (*maker, error) {
	m := &maker{c: c, nodes: slices.Clone(c.Nodes), at: map[index.NodeID]int{}}
	slices.SortFunc(m.nodes, func(a, b Node) int { return cmp.Compare(a.ID, b.ID) })
	for i, n := range m.nodes {
		if i > 0 && m.nodes[i-1].ID == n.ID {
			return nil, fmt.Errorf("%w: node %d is listed twice", ErrInput, n.ID)
		}
		m.at[n.ID], m.nodes[i].Load = i, 0
	}
	m.zoneOf, m.zones = zones(m.nodes)
	m.before = make([]int, len(m.nodes))
	total := 0
	for i := range c.Indexes {
		if err := m.addIndex(i); err != nil {
			return nil, err
		}
		if total += c.Indexes[i].Slices * (c.Indexes[i].Replicas + 1); total > MaxCopies {
			return nil, fmt.Errorf("%w: more than %d copies", ErrInput, MaxCopies)
		}
	}
	return m, nil
}

func (m *maker) addIndex(i int) error {
	x := &m.c.Indexes[i]
	if x.Slices < 1 || x.Slices > partition.MaxPartitions || x.Replicas < 0 || x.Replicas > 255 {
		return fmt.Errorf("%w: %s has %d slices with %d replicas", ErrInput, x.label(), x.Slices, x.Replicas)
	}
	var usable []int
	for at, n := range m.nodes {
		if n.Role == Serving && (len(x.Nodes) == 0 || slices.Contains(x.Nodes, n.ID)) {
			usable = append(usable, at)
		}
	}
	m.usable = append(m.usable, usable)
	want := min(x.Replicas+1, len(usable))
	if want <= x.Replicas {
		m.short = append(m.short, Short{Index: x.ID, Name: x.label(), Want: x.Replicas + 1, Usable: len(usable)})
	}
	m.wants = append(m.wants, want)
	first := len(m.slices)
	for s := range x.Slices {
		m.slices = append(m.slices, sliceOf{index: i, slice: index.SliceID(s), want: want})
	}
	return m.addCopies(x, m.slices[first:])
}

// addCopies records the places of an index's copies; of holds its slices.
func (m *maker) addCopies(x *Index, of []sliceOf) error {
	on := map[index.NodeID]int{}
	m.on = append(m.on, on)
	for _, y := range x.Copies {
		at, known := m.at[y.Node]
		if int(y.Slice) >= x.Slices || int(y.Replica) > x.Replicas || !known || y.Bytes < 0 {
			return fmt.Errorf("%w: %s has replica %d of slice %d on node %d", ErrInput, x.label(), y.Replica, y.Slice, y.Node)
		}
		m.before[at]++
		on[y.Node]++
		s := &of[y.Slice]
		if slices.ContainsFunc(s.copies, func(o Copy) bool { return o.Node == y.Node || o.Replica == y.Replica }) {
			return fmt.Errorf("%w: %s has two copies of slice %d on node %d, or two of replica %d", ErrInput, x.label(), y.Slice,
				y.Node, y.Replica)
		}
		s.copies = append(s.copies, y)
	}
	return nil
}

// holds reports whether a node has a copy of the slice.
func (s *sliceOf) holds(n index.NodeID) bool {
	return slices.ContainsFunc(s.copies, func(c Copy) bool { return c.Node == n })
}

// bytes returns the size of a copy of the slice: the largest that is known.
func (s *sliceOf) bytes() (most int64) {
	for _, c := range s.copies {
		most = max(most, c.Bytes)
	}
	return most
}

// steps returns the steps that move a slice to its chosen nodes. Copies on nodes that were not chosen go to newly
// chosen ones, lost copies first, then those of leaving nodes. Each goes to the zone that then has the fewest copies,
// so that the slice is spread over zones as far as possible even if only the first steps are taken, such as those of
// a repair, or those that add copies.
func (m *maker) steps(s *sliceOf) (steps []Step) {
	x := &m.c.Indexes[s.index]
	var given []Copy
	var missing []partition.Replica
	for r := range x.Replicas + 1 {
		i := slices.IndexFunc(s.copies, func(c Copy) bool { return int(c.Replica) == r })
		if i < 0 {
			missing = append(missing, partition.Replica(r))
		} else if !slices.Contains(s.chosen, m.at[s.copies[i].Node]) {
			given = append(given, s.copies[i])
		}
	}
	slices.SortStableFunc(given, func(a, b Copy) int { return cmp.Compare(m.role(b.Node), m.role(a.Node)) })
	step := func(k Kind, r partition.Replica) Step {
		return Step{Kind: k, Index: x.ID, Name: x.label(), Slice: s.slice, Replica: r}
	}
	targets := slices.DeleteFunc(slices.Clone(s.chosen), func(at int) bool { return s.holds(m.nodes[at].ID) })
	inZone := m.living(s)
	for len(targets) > 0 {
		at := slices.MinFunc(targets, func(a, b int) int { return cmp.Compare(inZone[m.zoneOf[a]], inZone[m.zoneOf[b]]) })
		targets = slices.DeleteFunc(targets, func(t int) bool { return t == at })
		inZone[m.zoneOf[at]]++
		to := m.nodes[at].ID
		var y Step
		switch {
		case len(given) > 0 && m.role(given[0].Node) == Lost:
			y = step(Repair, given[0].Replica)
		case len(missing) > 0:
			y = step(Add, missing[0])
			missing = missing[1:]
		default:
			y = step(Move, given[0].Replica)
		}
		if y.Kind != Add {
			y.Old, y.From = given[0].ID, &given[0].Node
			given = given[1:]
		}
		y.To, y.Bytes = to, s.bytes()
		y.Why = m.why(s, &y)
		steps = append(steps, y)
	}
	return steps
}

// living returns the number of copies of a slice per zone, without lost ones.
func (m *maker) living(s *sliceOf) []int {
	inZone := make([]int, m.zones)
	for _, c := range s.copies {
		if at := m.at[c.Node]; m.nodes[at].Role != Lost {
			inZone[m.zoneOf[at]]++
		}
	}
	return inZone
}

func (m *maker) role(n index.NodeID) Role { return m.nodes[m.at[n]].Role }

// why returns a sentence with the purpose of a step.
func (m *maker) why(s *sliceOf, y *Step) string {
	x, to := &m.c.Indexes[s.index], &m.nodes[m.at[y.To]]
	if y.Kind == Add {
		return fmt.Sprintf("%s needs %d replicas", x.label(), x.Replicas)
	}
	from := &m.nodes[m.at[*y.From]]
	switch {
	case from.Role != Serving:
		return fmt.Sprintf("%s is %s", from.label(), from.Role)
	case !slices.Contains(m.usable[s.index], m.at[from.ID]):
		return fmt.Sprintf("%s may not be placed on %s", x.label(), from.label())
	case m.inZone(s, to.ID) == 0 && m.inZone(s, from.ID) > 1:
		return fmt.Sprintf("zone %q has no copy of this slice, %q has %d", to.Zone, from.Zone, m.inZone(s, from.ID))
	}
	if a, b := m.before[m.at[from.ID]], m.before[m.at[to.ID]]; int64(a)*to.weight() > int64(b+1)*from.weight() {
		return fmt.Sprintf("%s has %d copies, %s %d", from.label(), a, to.label(), b)
	}
	on := m.on[s.index]
	return fmt.Sprintf("spreads %s: %s has %d of its copies, %s %d", x.label(), from.label(), on[from.ID], to.label(),
		on[to.ID])
}

// inZone returns the number of copies of a slice in the zone of a node.
func (m *maker) inZone(s *sliceOf, n index.NodeID) (count int) {
	for _, c := range s.copies {
		if m.zoneOf[m.at[c.Node]] == m.zoneOf[m.at[n]] {
			count++
		}
	}
	return count
}

// sources chooses the source of each new copy: the copy that is removed, or else one on the node with the least to
// send.
func (m *maker) sources(steps []Step) {
	sends := make([]int, len(m.nodes))
	by := map[sliceKey]*sliceOf{}
	for i := range m.slices {
		by[sliceKey{m.c.Indexes[m.slices[i].index].ID, m.slices[i].slice}] = &m.slices[i]
	}
	for i := range steps {
		if y := &steps[i]; y.Kind == Move {
			y.Source = y.From
			sends[m.at[*y.From]]++
		}
	}
	for i := range steps {
		y := &steps[i]
		if y.Kind != Repair && y.Kind != Add {
			continue
		}
		best := -1
		for _, c := range by[sliceKey{y.Index, y.Slice}].copies {
			if at := m.at[c.Node]; m.nodes[at].Role != Lost && (best < 0 || sends[at] < sends[best]) {
				best = at
			}
		}
		if best >= 0 {
			sends[best]++
			y.Source = &m.nodes[best].ID
		}
	}
}

type copyKey struct {
	index index.ID
	copy  index.CopyID
}

type sliceKey struct {
	index index.ID
	slice index.SliceID
}

// shares sets what each node holds before and after.
func (m *maker) shares(p *Plan) {
	all := make([]Share, len(m.nodes))
	for i, n := range m.nodes {
		all[i] = Share{Node: n.ID, Name: n.label(), Zone: n.Zone, Capacity: max(n.Capacity, 1), Role: n.Role}
	}
	bytes := map[copyKey]int64{}
	for i := range m.c.Indexes {
		x := &m.c.Indexes[i]
		for _, c := range x.Copies {
			bytes[copyKey{x.ID, c.ID}] = c.Bytes
			s := &all[m.at[c.Node]]
			s.Before++
			s.After++
			s.Bytes[0] += c.Bytes
			s.Bytes[1] += c.Bytes
		}
	}
	for i := range p.Steps {
		y := &p.Steps[i]
		p.Bytes += y.Bytes
		to := &all[m.at[y.To]]
		to.After++
		to.Bytes[1] += y.Bytes
		if y.From != nil {
			s := &all[m.at[*y.From]]
			s.After--
			s.Bytes[1] -= bytes[copyKey{y.Index, y.Old}]
		}
	}
	p.Nodes = all
}
