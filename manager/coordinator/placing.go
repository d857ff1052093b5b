package coordinator

import (
	"context"
	"fmt"

	"tidemark/index"
	"tidemark/rebalance"
	"tidemark/statecontext"
)

// placing asks the loop where the copies of a new index go. The loop decides, so that two statements at once do not
// read the same load: what it has chosen counts as load until the state shows it, or the statement has come to nothing.
type placing struct {
	d     *index.Definition
	reply chan placed
}

// placed is the answer. The reservation is to be settled.
type placed struct {
	placement   []statecontext.Placement
	reservation *reservation
	err         error
}

// reservation is the load of a statement that is not in the state yet.
type reservation struct {
	load    map[index.NodeID]int
	cas     uint64 // the state shows it from here on; 0: it is on its way
	untilMS int64  // nobody may settle it: a statement can be cancelled at any time
}

// reservedFor is how long a statement that nobody settles counts as load.
const reservedFor = 10_000 // ms

// place returns the nodes of a new index's copies, and what is to be called with the outcome of its proposal. Errors
// wrap ErrNoIndexer, those of package rebalance, ErrBusy or ErrNotLeading.
func (c *Coordinator) place(ctx context.Context, l *leader, d *index.Definition) ([]statecontext.Placement,
	func(statecontext.Result, error), error) {
	p := &placing{d: d, reply: make(chan placed, 1)}
	if err := l.post(ctx, p); err != nil {
		return nil, nil, err
	}
	select {
	case a := <-p.reply:
		settle := func(res statecontext.Result, err error) {
			_ = l.post(ctx, answer(func(l *leader) { l.settle(a.reservation, res, err) })) // else it ends by itself
		}
		return a.placement, settle, a.err
	case <-l.ended:
		return nil, nil, ErrNotLeading
	case <-ctx.Done():
		return nil, nil, fmt.Errorf("%w: %w", ErrBusy, ctx.Err())
	}
}

func (p *placing) apply(l *leader) {
	a := placed{}
	if a.placement, a.err = l.choose(p.d); a.err == nil {
		a.reservation = &reservation{load: map[index.NodeID]int{}, untilMS: l.nowMS + reservedFor}
		for _, c := range a.placement {
			a.reservation.load[c.Node]++
		}
		l.reserved[a.reservation] = struct{}{}
	}
	p.reply <- a
}

// settle takes the outcome of a proposal whose load was reserved.
func (l *leader) settle(r *reservation, res statecontext.Result, err error) {
	if r == nil {
		return
	}
	if r.cas = res.CAS; err != nil || r.cas == 0 {
		delete(l.reserved, r)
	}
}

// choose places the copies of a new index on nodes that live, by their load in the newest state and in statements on
// their way.
func (l *leader) choose(d *index.Definition) ([]statecontext.Placement, error) {
	s := l.cfg.Consensus.State()
	load := map[index.NodeID]int{}
	for r := range l.reserved {
		if r.cas != 0 && r.cas <= s.CAS() || l.nowMS >= r.untilMS {
			delete(l.reserved, r)
			continue
		}
		for node, n := range r.load {
			load[node] += n
		}
	}
	nodes := living(s, l.offline, noNode)
	for i := range nodes {
		nodes[i].Load += load[nodes[i].ID]
	}
	registered := 0
	for range s.Indexers() {
		registered++
	}
	if registered > 0 && len(nodes) == 0 {
		return nil, fmt.Errorf("%w: %d registered", ErrNoIndexer, registered)
	}
	nodes, err := rebalance.Allowed(nodes, d.Nodes)
	if err != nil {
		return nil, err
	}
	chosen, err := rebalance.Place(nodes, int(d.Partitions), int(d.Replicas))
	if err != nil {
		return nil, err
	}
	placement := make([]statecontext.Placement, len(chosen))
	for i, p := range chosen {
		placement[i] = statecontext.Placement(p)
	}
	return placement, nil
}
