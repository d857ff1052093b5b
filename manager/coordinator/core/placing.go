package core

import (
	"fmt"
	"slices"

	"tidemark/index"
	"tidemark/rebalance"
	"tidemark/statecontext"
)

// Placed answers Placing. The Leader decides, so that two concurrent statements do not see the same load: its choice
// counts as load until the state shows it, or the statement has failed. The reservation must be settled by Settled.
type Placed struct {
	Placement   []statecontext.Placement
	Reservation *Reservation
	Err         error
}

// places chooses the places of new indexes' copies.
type places struct {
	*scene
	picture  *picture
	reserved map[*Reservation]struct{} // by statements in progress
}

// Reservation is the load of a statement that the state does not show yet.
type Reservation struct {
	load    map[index.NodeID]int
	cas     uint64 // the state shows the load from this CAS on; 0: in progress
	untilMS int64  // it expires, as a cancelled statement may never be settled
}

// reservedFor is how long an unsettled reservation counts as load.
const reservedFor = 10_000 // ms

// placing chooses places and reserves their load.
func (l *places) placing(p *Placing) {
	a := Placed{}
	if a.Placement, a.Err = l.choose(p); a.Err == nil && p.State == nil {
		a.Reservation = &Reservation{load: map[index.NodeID]int{}, untilMS: l.nowMS + reservedFor}
		for _, c := range a.Placement {
			a.Reservation.load[c.Node]++
		}
		l.reserved[a.Reservation] = struct{}{}
	}
	reply(l.scene, p.Reply, a)
}

// settled takes the outcome of a statement.
func (l *places) settled(s *Settled) {
	if s.Reservation.cas = s.CAS; s.Err != nil || s.CAS == 0 {
		delete(l.reserved, s.Reservation)
	}
}

// coming returns the load of statements in progress. It deletes reservations that the state shows or that have
// expired.
func (l *places) coming() map[index.NodeID]int {
	load := map[index.NodeID]int{}
	for r := range l.reserved {
		if r.cas != 0 && r.cas <= l.now.newest.CAS() || l.nowMS >= r.untilMS {
			delete(l.reserved, r)
			continue
		}
		for node, n := range r.load {
			load[node] += n
		}
	}
	return load
}

// zones returns the number of zones of nodes.
func zones(nodes []rebalance.Node) int {
	all := map[string]bool{}
	for _, n := range nodes {
		all[n.Zone] = true
	}
	return len(all)
}

// choose places the copies of a new index on live nodes, by their load in the newest state and in statements in
// progress: on healthy nodes if there are enough of them, and if replicas do not lose a zone by that.
func (l *places) choose(p *Placing) ([]statecontext.Placement, error) {
	s, d := p.State, p.Definition
	if s == nil {
		s = l.now.newest
	}
	load := l.coming()
	var chosen []rebalance.Placement
	var err error
	avoided := []func(index.NodeID) bool{l.away, l.picture.newest.Offline} // one that has not answered may be alive
	if d.Replicas == 0 || zones(Living(s, l.unhealthy, NoNode)) == zones(Living(s, l.away, NoNode)) {
		avoided = slices.Insert(avoided, 0, l.unhealthy)
	}
	for _, not := range avoided {
		if chosen, err = l.among(Living(s, not, NoNode), s, d, load); err == nil {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	placement := make([]statecontext.Placement, len(chosen))
	for i, p := range chosen {
		placement[i] = statecontext.Placement(p)
	}
	return placement, nil
}

// among chooses from the given nodes, which carry load in addition to that in the state.
func (l *places) among(nodes []rebalance.Node, s *statecontext.State, d *index.Definition,
	load map[index.NodeID]int) ([]rebalance.Placement, error) {
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
	named := d.Nodes
	if d.ID != 0 { // a successor: indexers named when the index was created may have left
		named = rebalance.Present(nodes, named)
	}
	nodes, err := rebalance.Allowed(nodes, named)
	if err != nil {
		return nil, err
	}
	return rebalance.Place(nodes, int(d.Partitions), int(d.Replicas))
}
