package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/rebalance"
	"tidemark/statecontext"
)

var (
	// ErrUnknownComponent is wrapped when no indexer or projector has that name.
	ErrUnknownComponent = errors.New("no such node")
	// ErrAlive is wrapped when a node that lives is to be removed.
	ErrAlive = errors.New("the node lives")
	// ErrLastCopies is wrapped when an indexer has the only copies of something.
	ErrLastCopies = errors.New("it has the only copies")
	// ErrAmbiguous is wrapped when several indexers have a name.
	ErrAmbiguous = errors.New("several indexers have that name")
)

// RemoveIndexerRequest asks for an indexer to be removed for good.
type RemoveIndexerRequest struct {
	ID     string // uuid, name or node number
	Force  bool   // also when it lives, or has the only copies of something
	DryRun bool   // only tell
}

// Loss is what the removal means for an index.
type Loss struct {
	Index        index.ID
	Name, Bucket string
	Copies       int  // that the indexer had
	LastCopies   int  // of them: no other living indexer has an allocated copy of the slice
	Rebuilt      bool // slices are built anew from KV; until then the index cannot be scanned
}

// Removal is what the removal of an indexer means.
type Removal struct {
	Indexer statecontext.Indexer
	Alive   bool
	Losses  []Loss
}

// removeTries is how often a removal is planned anew when definitions change meanwhile.
const removeTries = 5

// RemoveIndexer removes an indexer, with everything that it held, in one update: what it had is placed on other living
// indexers, which fill it from KV, and its uuid never registers again. Errors wrap ErrUnknownComponent, ErrAmbiguous,
// ErrAlive, ErrLastCopies, rebalance.ErrTooFewNodes or ErrNotLeading, or come from the proposal.
func (c *Coordinator) RemoveIndexer(ctx context.Context, req RemoveIndexerRequest) (Removal, error) {
	l, err := c.leading()
	if err != nil {
		return Removal{}, err
	}
	if err := c.cfg.Consensus.ReadBarrier(ctx); err != nil {
		return Removal{}, err
	}
	for try := 1; ; try++ {
		s := c.cfg.Consensus.State()
		r, command, err := c.planRemoval(l, s, req)
		if err != nil || req.DryRun {
			return r, err
		}
		_, err = c.proposeFor(ctx, command)
		var rejected *statecontext.Rejection
		if errors.As(err, &rejected) && rejected.Code == statecontext.StaleRevision && try < removeTries {
			continue
		}
		if err == nil {
			c.cfg.Logger.Warn("an indexer was removed", "indexer", r.Indexer.Name, "node", r.Indexer.Node, "uuid", r.Indexer.UUID, "indexes", len(r.Losses))
		}
		return r, err
	}
}

// planRemoval decides on one state.
func (c *Coordinator) planRemoval(l *leader, s *statecontext.State, req RemoveIndexerRequest) (Removal, *statecontext.EvictIndexer, error) {
	i, err := findIndexer(s, req.ID)
	if err != nil {
		return Removal{}, nil, err
	}
	r := Removal{Indexer: *i, Alive: !l.offline(i.Node)}
	nodes := c.livingBut(l, s, i.Node)
	command := &statecontext.EvictIndexer{Node: i.Node, UUID: i.UUID, Revision: s.DefinitionsRevision()}
	var lonely []string
	for x := range s.Indexes() {
		loss, held, lost := lossOf(x, i.Node, nodes)
		if loss.Copies == 0 {
			continue
		}
		add, err := rebalance.Substitute(nodes, held, lost)
		if err != nil {
			return r, nil, fmt.Errorf("index %s on %s: %w", loss.Name, loss.Bucket, err)
		}
		e := statecontext.Eviction{ID: loss.Index}
		for _, p := range add {
			e.Add = append(e.Add, statecontext.Placement(p))
		}
		command.Indexes, r.Losses = append(command.Indexes, e), append(r.Losses, loss)
		if loss.LastCopies > 0 {
			lonely = append(lonely, fmt.Sprintf("%s/%s (%d slices)", loss.Bucket, loss.Name, loss.LastCopies))
		}
	}
	switch {
	case req.Force || req.DryRun:
	case r.Alive:
		return r, nil, fmt.Errorf("%w: indexer %s (node %d) was heard lately; stop it first, and wait until it counts as offline, or force it", ErrAlive, i.Name, i.Node)
	case len(lonely) > 0:
		return r, nil, fmt.Errorf("%w: indexer %s (node %d) has the only copies of %s; bring it back, or force it: they are then built anew from KV, and cannot be scanned until that is done",
			ErrLastCopies, i.Name, i.Node, shorten(lonely))
	}
	return r, command, nil
}

// maxNamed is how many indexes an error names.
const maxNamed = 8

func shorten(names []string) string {
	if len(names) > maxNamed {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), len(names)-maxNamed)
	}
	return strings.Join(names, ", ")
}

// findIndexer finds one by its uuid, its node number or its name.
func findIndexer(s *statecontext.State, id string) (*statecontext.Indexer, error) {
	if i := s.IndexerByUUID(id); i != nil {
		return i, nil
	}
	var found *statecontext.Indexer
	for i := range s.Indexers() {
		if i.Name != id {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("%w: nodes %d and %d are called %s; give the uuid", ErrAmbiguous, found.Node, i.Node, id)
		}
		found = i
	}
	if found != nil {
		return found, nil
	}
	if n, err := strconv.ParseUint(id, 10, 8); err == nil && s.Indexer(index.NodeID(n)) != nil {
		return s.Indexer(index.NodeID(n)), nil
	}
	return nil, fmt.Errorf("%w: no indexer has the uuid, name or node number %q; tidemark cluster status lists them", ErrUnknownComponent, id)
}

// livingBut lists indexers that may take copies.
func (c *Coordinator) livingBut(l *leader, s *statecontext.State, but index.NodeID) (nodes []rebalance.Node) {
	for i := range s.Indexers() {
		if i.Node != but && !l.offline(i.Node) {
			nodes = append(nodes, rebalance.Node{ID: i.Node, UUID: i.UUID, Name: i.Name, Zone: i.Zone, Capacity: i.Capacity, Load: s.Load(i.Node)})
		}
	}
	return nodes
}

// lossOf tells what an index loses with a node: what it keeps elsewhere, and the copies to be placed anew. An index that
// is being dropped loses nothing.
func lossOf(x *statecontext.Index, node index.NodeID, living []rebalance.Node) (loss Loss, held, lost []rebalance.Placement) {
	d := &x.Definition
	loss = Loss{Index: d.ID, Name: d.Name, Bucket: d.Bucket}
	if d.State == index.Dropping {
		return loss, nil, nil
	}
	safe := map[index.SliceID]bool{}
	for _, o := range x.Topology.Copies {
		p := rebalance.Placement{Slice: o.Slice, Replica: o.Replica, Node: o.Node}
		switch {
		case o.Node != node:
			if o.State == partition.Leaving {
				continue
			}
			held = append(held, p)
			if o.State == partition.Allocated && slices.ContainsFunc(living, func(n rebalance.Node) bool { return n.ID == o.Node }) {
				safe[o.Slice] = true
			}
		case o.State != partition.Leaving && !slices.ContainsFunc(x.Topology.Copies, func(m partition.Copy) bool { // it is not moving away
			return m.Node != node && m.Slice == o.Slice && m.Replica == o.Replica && m.State != partition.Leaving
		}):
			lost = append(lost, p)
			loss.Copies++
		}
	}
	for _, p := range lost {
		if !safe[p.Slice] && d.State != index.Pending && d.State != index.Error { // those have nothing to lose
			loss.LastCopies++
		}
	}
	loss.Rebuilt = loss.LastCopies > 0
	return loss, held, lost
}

// RemoveProjector forgets a projector and gives how many vbuckets it streamed and whether it lives: then, with force, it
// registers again until it is stopped. Errors wrap ErrUnknownComponent, ErrAlive or ErrNotLeading, or come from the
// proposal.
func (c *Coordinator) RemoveProjector(ctx context.Context, id index.ProjectorID, force bool) (streams int, alive bool, err error) {
	l, err := c.leading()
	if err != nil {
		return 0, false, err
	}
	if err := c.cfg.Consensus.ReadBarrier(ctx); err != nil {
		return 0, false, err
	}
	if c.cfg.Consensus.State().Projector(id) == nil {
		return 0, false, fmt.Errorf("%w: no projector has the id %q; tidemark cluster status lists them", ErrUnknownComponent, id)
	}
	if s := l.shown.Load(); s != nil {
		for _, p := range s.Projectors {
			if p.ID == id {
				streams, alive = p.Streams, p.Life != Offline
			}
		}
	}
	if alive && !force {
		return streams, alive, fmt.Errorf("%w: projector %s was heard lately; stop it first, and wait until it counts as offline, or force it", ErrAlive, id)
	}
	_, err = c.proposeFor(ctx, &statecontext.RemoveProjector{ID: id})
	return streams, alive, err
}
