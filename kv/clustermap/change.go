package clustermap

import (
	"fmt"
	"slices"
	"strings"

	"tidemark/timestamp"
)

// join adds those nodes that are not yet members.
func (m *Map) join(add []Node) error {
	for _, a := range add {
		at := slices.IndexFunc(m.Nodes, func(x Node) bool { return x.ID == a.ID })
		if at >= 0 && m.Nodes[at] != a {
			return fmt.Errorf("%w: node %q is already a member at %s (%s)", ErrMap, a.ID, m.Nodes[at].Memcached,
				m.Nodes[at].Admin)
		}
		if at < 0 {
			m.Nodes = append(m.Nodes, a)
		}
	}
	return nil
}

// StartRebalance plans a rebalance: nodes in add join, nodes in remove leave, and all vbuckets are spread evenly. The
// new map lists the joining nodes; Moves lists the vbuckets to move. A request that equals the operation in progress
// returns the map unchanged.
func (m Map) StartRebalance(id string, add []Node, remove []string) (Map, error) {
	n := m.next()
	if err := n.join(add); err != nil {
		return m, err
	}
	var stay []string
	for _, x := range n.Nodes {
		if !slices.Contains(remove, x.ID) {
			stay = append(stay, x.ID)
		}
	}
	if m.Operation != nil {
		if m.Operation.Bucket == "" && slices.Equal(m.Operation.Nodes, stay) {
			return m, nil
		}
		return m, fmt.Errorf("%w: %s is running: wait for it, or stop it with kv rebalance --stop", ErrMap, m.Operation)
	}
	for _, r := range remove {
		if _, ok := n.Node(r); !ok {
			return m, fmt.Errorf("%w: node %q is to be removed but is not a member (members: %s)", ErrNoMember, r,
				strings.Join(n.ids(), ", "))
		}
	}
	if len(stay) == 0 || len(n.Nodes) > MaxNodes {
		return m, fmt.Errorf("%w: %d nodes would remain, want 1 to %d", ErrMap, len(stay), MaxNodes)
	}
	op, err := n.operation(id, stay)
	if err != nil {
		return m, err
	}
	n.Operation = op
	return n, nil
}

// operation returns the operation that brings all vbuckets to the nodes in stay.
func (m Map) operation(id string, stay []string) (*Operation, error) {
	op := &Operation{ID: id, Nodes: stay}
	for _, b := range m.Buckets {
		if len(b.Chains) < len(stay) {
			return nil, fmt.Errorf("%w: bucket %q has %d vbuckets for %d nodes: want at least one each", ErrMap, b.Name,
				len(b.Chains), len(stay))
		}
		target := place(b.Chains, stay, b.Replicas)
		op.Targets = append(op.Targets, target)
		op.VBuckets += differ(b.Chains, target)
	}
	return op, nil
}

// replicate returns the operation that brings one bucket to its configured number of replicas, as far as there are
// nodes; nil if no vbucket changes. The bucket's active copies and all other buckets stay where they are.
func (m Map) replicate(id string, b *Bucket) *Operation {
	op := &Operation{ID: id, Nodes: m.ids(), Bucket: b.Name, Targets: make([][][]string, len(m.Buckets))}
	active := make([]string, len(b.Chains))
	for v, chain := range b.Chains {
		active[v] = chain[0]
	}
	target := placeReplicas(b.Chains, active, op.Nodes, b.Replicas)
	if op.VBuckets = differ(b.Chains, target); op.VBuckets == 0 {
		return nil
	}
	for i := range m.Buckets {
		if m.Buckets[i].Name == b.Name {
			op.Targets[i] = target
		}
	}
	return op
}

// differ counts the vbuckets whose chain differs from its target.
func differ(chains, targets [][]string) (n int) {
	for v, to := range targets {
		if !slices.Equal(chains[v], to) {
			n++
		}
	}
	return n
}

func (o *Operation) String() string {
	if o.Bucket != "" {
		return fmt.Sprintf("a change of the replicas of bucket %q", o.Bucket)
	}
	return "a rebalance to " + strings.Join(o.Nodes, ", ")
}

func (m Map) ids() (out []string) {
	for _, n := range m.Nodes {
		out = append(out, n.ID)
	}
	return out
}

// Move is a vbucket that has not reached its target. Missing lists the nodes that need a copy before the switch.
type Move struct {
	Bucket  int // place in Map.Buckets
	VBucket uint16
	From    []string
	To      []string
	Missing []string
	// Filling means that the map already lists Missing as incoming.
	Filling bool
}

// Takeover reports whether the move changes the active node.
func (v Move) Takeover() bool { return v.From[0] != v.To[0] }

// Moves lists up to limit vbuckets that have not reached the operation's targets, those being filled first.
func (m Map) Moves(limit int) []Move {
	if m.Operation == nil {
		return nil
	}
	var under, waiting []Move
	for i, b := range m.Buckets {
		for v, to := range m.Operation.Targets[i] {
			from := b.Chains[v]
			if slices.Equal(from, to) {
				continue
			}
			move := Move{Bucket: i, VBucket: uint16(v), From: from, To: to}
			for _, id := range to {
				if !slices.Contains(from, id) {
					move.Missing = append(move.Missing, id)
				}
			}
			move.Filling = slices.Equal(b.Incoming[uint16(v)], move.Missing)
			if move.Filling && len(move.Missing) > 0 {
				under = append(under, move)
			} else if len(waiting) < limit {
				waiting = append(waiting, move)
			}
		}
	}
	all := append(under, waiting...)
	return all[:min(limit, len(all))]
}

// Left returns how many vbuckets have not reached the operation's targets.
func (m Map) Left() (n int) {
	if m.Operation == nil {
		return 0
	}
	for i, b := range m.Buckets {
		n += differ(b.Chains, m.Operation.Targets[i])
	}
	return n
}

// Fill marks the missing nodes of the moves as incoming, so that they take a copy.
func (m Map) Fill(moves []Move) Map {
	n := m.next()
	for _, v := range moves {
		if len(v.Missing) == 0 {
			continue
		}
		b := &n.Buckets[v.Bucket]
		if b.Incoming == nil {
			b.Incoming = map[uint16][]string{}
		}
		b.Incoming[v.VBucket] = v.Missing
	}
	return n
}

// Switch sets the vbuckets of the moves to their target chains.
func (m Map) Switch(moves []Move) Map {
	n := m.next()
	for _, v := range moves {
		b := &n.Buckets[v.Bucket]
		b.Chains[v.VBucket] = v.To
		delete(b.Incoming, v.VBucket)
	}
	return n
}

// Finish ends an operation. If it is complete, the leaving nodes are removed from the members; if it is stopped
// early, they stay. Copies that were being filled are abandoned.
func (m Map) Finish() Map {
	n := m.next()
	if m.Operation == nil {
		return n
	}
	if m.Left() == 0 {
		n.Nodes = slices.DeleteFunc(n.Nodes, func(x Node) bool { return !slices.Contains(m.Operation.Nodes, x.ID) })
		if _, ok := n.Node(n.Leader); !ok {
			n.lead(n.Nodes[0].ID)
		}
	}
	n.abort()
	return n
}

// lead begins an epoch with another leader.
func (m *Map) lead(id string) {
	m.Leader = id
	m.RevEpoch++
	m.Rev = 1
}

// abort removes the operation and all incoming copies.
func (m *Map) abort() {
	m.Operation = nil
	for i := range m.Buckets {
		m.Buckets[i].Incoming = nil
	}
}

// Copy is a surviving node's copy of a vbucket. Log is its failover log, newest first.
type Copy struct {
	Node string
	Log  timestamp.FailoverLog
	High uint64
	// Whole means that the copy ends with a complete snapshot, Joined that its history was checked against the active
	// copy.
	Whole, Joined bool
	// Known is the highest seqno of the active copy that the node has learned of.
	Known uint64
}

// better reports whether a is preferable to b: the newer branch wins, then the longer history.
func (a Copy) better(b Copy) bool {
	switch {
	case len(a.Log) == 0 || len(b.Log) == 0:
		return len(a.Log) > len(b.Log)
	case a.Log[0].VBUUID == b.Log[0].VBUUID:
		return a.High > b.High
	case has(b.Log, a.Log[0].VBUUID): // b has a's branch in its history and has moved on to a newer one
		return false
	case has(a.Log, b.Log[0].VBUUID):
		return true
	case a.Joined != b.Joined:
		return a.Joined
	}
	return a.High > b.High
}

func has(log timestamp.FailoverLog, vbuuid uint64) bool {
	return slices.ContainsFunc(log, func(b timestamp.LogEntry) bool { return b.VBUUID == vbuuid })
}

// Promotion is a vbucket to which a failover assigns a new active node.
type Promotion struct {
	Bucket  string `json:"bucket"`
	VBucket uint16 `json:"vbucket"`
	// Node is the new active node, Seqno the highest seqno of its copy. Empty means that no copy was left and the
	// vbucket starts without documents.
	Node  string `json:"node"`
	Seqno uint64 `json:"seqno"`
	Empty bool   `json:"empty,omitempty"`
}

// Failover removes nodes from the map and promotes the best remaining copies. copies returns the surviving copies of
// a vbucket. Unless lose is set, it refuses (ErrMap) as soon as one vbucket would lose writes that are known of. An
// operation in progress is aborted.
func (m Map) Failover(nodes []string, copies func(bucket string, vb uint16) []Copy, lose bool) (Map, []Promotion,
	error) {
	n := m.next()
	for _, id := range nodes {
		if _, ok := m.Node(id); !ok {
			return m, nil, fmt.Errorf("%w: node %q (members: %s)", ErrNoMember, id, strings.Join(m.ids(), ", "))
		}
	}
	gone := func(id string) bool { return slices.Contains(nodes, id) }
	n.Nodes = slices.DeleteFunc(n.Nodes, func(x Node) bool { return gone(x.ID) })
	if len(n.Nodes) == 0 {
		return m, nil, fmt.Errorf("%w: no node would remain", ErrMap)
	}
	n.abort()
	var all []Promotion
	for i := range n.Buckets {
		b := &n.Buckets[i]
		for v, chain := range b.Chains {
			left := slices.DeleteFunc(slices.Clone(chain), gone)
			if gone(chain[0]) {
				p, err := n.promote(b.Name, uint16(v), copies(b.Name, uint16(v)), left, lose)
				if err != nil {
					return m, nil, fmt.Errorf("%w: vbucket %d of bucket %q on node %q: %w; wait, or use --lose to give up writes "+
						"that are not replicated", ErrMap, v, b.Name, chain[0], err)
				}
				all = append(all, p)
				left = append([]string{p.Node}, slices.DeleteFunc(left, func(id string) bool { return id == p.Node })...)
			}
			b.Chains[v] = left
		}
	}
	if gone(n.Leader) {
		n.lead(n.Nodes[0].ID)
	}
	return n, all, nil
}

// bestOf returns the best copy on these nodes, nil if there is none, and the highest Known of all copies.
func bestOf(copies []Copy, nodes []string) (best *Copy, known uint64) {
	for i, c := range copies {
		known = max(known, c.Known, c.High)
		if slices.Contains(nodes, c.Node) && (best == nil || c.better(*best)) {
			best = &copies[i]
		}
	}
	return best, known
}

// promote chooses the new active node of a vbucket from the nodes left in its chain.
func (m Map) promote(bucket string, vb uint16, copies []Copy, left []string, lose bool) (Promotion, error) {
	p := Promotion{Bucket: bucket, VBucket: vb}
	best, known := bestOf(copies, left)
	if best == nil {
		p.Node, p.Empty = m.Nodes[int(vb)%len(m.Nodes)].ID, true
		if len(left) > 0 {
			p.Node = left[0]
		}
		if lose {
			return p, nil
		}
		return p, fmt.Errorf("%w: it has no replica", errLoss)
	}
	p.Node, p.Seqno = best.Node, best.High
	switch {
	case lose:
	case !best.Joined:
		return p, fmt.Errorf("%w: the replica on %q has not connected to it", errLoss, best.Node)
	case !best.Whole:
		return p, fmt.Errorf("%w: the replica on %q is in the middle of a snapshot, at seqno %d", errLoss, best.Node,
			best.High)
	case best.High < known:
		return p, fmt.Errorf("%w: the replica on %q has seqno %d of %d", errLoss, best.Node, best.High, known)
	}
	return p, nil
}

// errLoss is the reason why a failover without --lose is refused.
var errLoss = fmt.Errorf("writes would be lost")
