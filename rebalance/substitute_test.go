package rebalance

import (
	"errors"
	"slices"
	"testing"

	"tidemark/index"
	"tidemark/partition"
)

func TestSubstitute(t *testing.T) {
	p := func(slice, replica, node int) Placement {
		return Placement{Slice: index.SliceID(slice), Replica: partition.Replica(replica), Node: index.NodeID(node)}
	}
	for name, c := range map[string]struct {
		nodes            []Node
		held, lost, want []Placement
		err              error
		on               []index.NodeID
	}{
		"spreads": {[]Node{{ID: 1}, {ID: 2}}, nil, []Placement{p(0, 0, 9), p(1, 0, 9), p(2, 0, 9)},
			[]Placement{p(0, 0, 1), p(1, 0, 2), p(2, 0, 1)}, nil, nil},
		"by capacity": {[]Node{{ID: 1, Load: 2}, {ID: 2, Load: 3, Capacity: 2}}, nil, []Placement{p(0, 0, 9)},
			[]Placement{p(0, 0, 2)}, nil, nil},
		"never beside": {[]Node{{ID: 1}, {ID: 2, Load: 50}}, []Placement{p(0, 0, 1)}, []Placement{p(0, 1, 9)},
			[]Placement{p(0, 1, 2)}, nil, nil},
		"another zone": {[]Node{{ID: 1, Zone: "a"}, {ID: 2, Zone: "a"}, {ID: 3, Zone: "b", Load: 9}},
			[]Placement{p(0, 0, 1)}, []Placement{p(0, 1, 9)}, []Placement{p(0, 1, 3)}, nil, nil},
		"the zone that has fewer, where each has some": {[]Node{{ID: 1, Zone: "a"}, {ID: 2, Zone: "a"}, {ID: 3, Zone: "a"},
			{ID: 4, Zone: "b", Load: 1}, {ID: 5, Zone: "b", Load: 1}}, []Placement{p(0, 0, 1), p(0, 1, 2), p(0, 2, 4)},
			[]Placement{p(0, 3, 9)}, []Placement{p(0, 3, 5)}, nil, nil},
		"of those that may": {[]Node{{ID: 1}, {ID: 2, Load: 50}}, nil, []Placement{p(0, 1, 9)}, []Placement{p(0, 1, 2)}, nil,
			[]index.NodeID{2, 9}},
		"none that may": {[]Node{{ID: 1}, {ID: 2}}, []Placement{p(0, 0, 2)}, []Placement{p(0, 1, 9)}, nil, ErrTooFewNodes,
			[]index.NodeID{2}},
		"nobody":        {nil, nil, []Placement{p(0, 0, 9)}, nil, ErrTooFewNodes, nil},
		"no other node": {[]Node{{ID: 1}}, []Placement{p(0, 0, 1)}, []Placement{p(0, 1, 9)}, nil, ErrTooFewNodes, nil},
		"two of a kind": {[]Node{{ID: 1}, {ID: 2}}, nil, []Placement{p(0, 0, 9), p(0, 1, 9)},
			[]Placement{p(0, 0, 1), p(0, 1, 2)}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Substitute(slices.Clone(c.nodes), c.on, c.held, c.lost)
			if !errors.Is(err, c.err) || !slices.Equal(got, c.want) {
				t.Errorf("got %v, %v; want %v, %v", got, err, c.want, c.err)
			}
		})
	}
}
