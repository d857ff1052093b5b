package rebalance

import (
	"fmt"
	"slices"

	"tidemark/index"
)

// Stale returns nil if the plan still fits the cluster: each step is done or can be taken. Otherwise its error wraps
// ErrStale and names the first mismatch.
func (p *Plan) Stale(c *Cluster) error {
	for i := range p.Steps {
		if _, err := p.Steps[i].Done(c); err != nil {
			return fmt.Errorf("%w: made of definitions revision %d, the present one is %d: step %d: %w", ErrStale, p.Revision,
				c.Revision, p.Steps[i].ID, err)
		}
	}
	return nil
}

// Done reports whether a step has already been taken. The error is the reason why it cannot be taken at all.
func (y *Step) Done(c *Cluster) (bool, error) {
	i := slices.IndexFunc(c.Indexes, func(x Index) bool { return x.ID == y.Index })
	if i < 0 {
		return false, fmt.Errorf("index %s (%d) no longer exists", y.Name, y.Index)
	}
	x := &c.Indexes[i]
	if int(y.Slice) >= x.Slices || int(y.Replica) > x.Replicas {
		return false, fmt.Errorf("index %s has %d slices and %d replicas, no slice %d of replica %d", y.Name, x.Slices,
			x.Replicas, y.Slice, y.Replica)
	}
	old, held, doubled := y.find(x)
	switch {
	case old == nil && held != nil:
		return true, nil
	case y.Old != 0 && (old == nil || y.From == nil || old.Node != *y.From || old.Slice != y.Slice):
		return false, fmt.Errorf("copy %d of slice %d of %s is no longer on %s", y.Old, y.Slice, y.Name, c.nodeName(y.From))
	case held == nil && y.Old == 0 && doubled:
		return false, fmt.Errorf("replica %d of slice %d of %s is already on another node", y.Replica, y.Slice, y.Name)
	}
	return false, y.fits(c, x)
}

// find returns the copy to remove, the copy to add, and whether the replica has another copy.
func (y *Step) find(x *Index) (old, held *Copy, doubled bool) {
	for i := range x.Copies {
		o := &x.Copies[i]
		switch {
		case y.Old != 0 && o.ID == y.Old:
			old = o
		case o.Slice != y.Slice:
		case o.Node == y.To && o.Replica == y.Replica:
			held = o
		case o.Replica == y.Replica:
			doubled = true
		}
	}
	return old, held, doubled
}

// fits returns an error if the node may not take the copy.
func (y *Step) fits(c *Cluster, x *Index) error {
	n := slices.IndexFunc(c.Nodes, func(n Node) bool { return n.ID == y.To })
	if n < 0 || c.Nodes[n].Role != Serving {
		return fmt.Errorf("%s accepts no copies: it is gone, leaving or lost", c.nodeName(&y.To))
	}
	if len(x.Nodes) > 0 && !slices.Contains(x.Nodes, y.To) {
		return fmt.Errorf("%s may not be placed on %s", y.Name, c.nodeName(&y.To))
	}
	for _, o := range x.Copies {
		if o.Slice == y.Slice && o.Node == y.To && o.Replica != y.Replica {
			return fmt.Errorf("%s already has replica %d of slice %d of %s", c.nodeName(&y.To), o.Replica, y.Slice, y.Name)
		}
	}
	return nil
}

func (c *Cluster) nodeName(n *index.NodeID) string {
	if n == nil {
		return "no node"
	}
	for i := range c.Nodes {
		if c.Nodes[i].ID == *n {
			return c.Nodes[i].label()
		}
	}
	return fmt.Sprintf("node %d", *n)
}
