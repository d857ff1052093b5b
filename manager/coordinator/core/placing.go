package core

import (
	"fmt"

	"tidemark/index"
	"tidemark/rebalance"
	"tidemark/statecontext"
)

// Placed answers Placing. The Leader decides, so that two statements at once do not read the same load: what it has
// chosen counts as load until the state shows it, or the statement has come to nothing. The reservation is to be
// settled.
type Placed struct {
	Placement   []statecontext.Placement
	Reservation *Reservation
	Err         error
}

// places are where the copies of new indexes go.
type places struct {
	*scene
	picture  *picture
	reserved map[*Reservation]struct{} // by statements on their way
}

// Reservation is the load of a statement that is not in the state yet.
type Reservation struct {
	load    map[index.NodeID]int
	cas     uint64 // the state shows it from here on; 0: it is on its way
	untilMS int64  // nobody may settle it: a statement can be cancelled at any time
}

// reservedFor is how long a statement that nobody settles counts as load.
const reservedFor = 10_000 // ms

// placing chooses, and counts what was chosen as load from now on.
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

// settled takes what came of a statement.
func (l *places) settled(s *Settled) {
	if s.Reservation.cas = s.CAS; s.Err != nil || s.CAS == 0 {
		delete(l.reserved, s.Reservation)
	}
}

// coming is the load of statements on their way. It forgets those that the state shows, or that nobody has settled.
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

// choose places the copies of a new index on nodes that live, by their load in the newest state and in statements on
// their way.
func (l *places) choose(p *Placing) ([]statecontext.Placement, error) {
	s, d := p.State, p.Definition
	if s == nil {
		s = l.now.newest
	}
	load := l.coming()
	chosen, err := l.among(Living(s, l.away, NoNode), s, d, load)
	if err != nil { // who has not answered yet may be there all the same
		chosen, err = l.among(Living(s, l.picture.newest.Offline, NoNode), s, d, load)
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

// among chooses of these nodes, which have this load beside that of the state.
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
	if d.ID != 0 { // a successor: who made the index named indexers that may have left since
		named = rebalance.Present(nodes, named)
	}
	nodes, err := rebalance.Allowed(nodes, named)
	if err != nil {
		return nil, err
	}
	return rebalance.Place(nodes, int(d.Partitions), int(d.Replicas))
}
