package scan

import (
	"slices"
	"testing"

	"tidemark/index"
	"tidemark/timestamp"
	"tidemark/wire"
)

// TestOrderOfCopies: copies that hold the timestamp come first, those far behind another copy come later, those of
// suspect nodes last, and turn spreads scans over equally good ones.
func TestOrderOfCopies(t *testing.T) {
	for _, c := range []struct {
		name string
		held []uint64 // by node, from 0
		ref  uint64
		turn uint64
		want []index.NodeID

		suspect []index.NodeID
		busy    []index.NodeID
	}{
		{"all hold it", []uint64{9, 9, 9}, 9, 0, []index.NodeID{0, 1, 2}, nil, nil},
		{"all hold it, next turn", []uint64{9, 9, 9}, 9, 1, []index.NodeID{1, 2, 0}, nil, nil},
		{"one does not yet", []uint64{8, 9, 9}, 9, 0, []index.NodeID{1, 2, 0}, nil, nil},
		{"no copy does yet, one is far behind", []uint64{5, 9, 8}, 10, 0, []index.NodeID{1, 2, 0}, nil, nil},
		{"the same, next turn", []uint64{5, 9, 8}, 10, 2, []index.NodeID{2, 1, 0}, nil, nil},
		{"no copy does yet, none is far behind", []uint64{7, 9, 8}, 10, 0, []index.NodeID{0, 1, 2}, nil, nil},
		{"an old one that all hold", []uint64{5, 9, 8}, 5, 0, []index.NodeID{0, 1, 2}, nil, nil},
		{"all stand still", []uint64{5, 5, 5}, 90, 0, []index.NodeID{0, 1, 2}, nil, nil},
		{"one alone", []uint64{5}, 90, 7, []index.NodeID{0}, nil, nil},
		{"one is suspect", []uint64{9, 9, 9}, 9, 0, []index.NodeID{1, 2, 0}, []index.NodeID{0}, nil},
		{"the newest is suspect", []uint64{9, 8, 5}, 9, 0, []index.NodeID{1, 2, 0}, []index.NodeID{0}, nil},
		{"all are suspect", []uint64{9, 9, 9}, 9, 1, []index.NodeID{1, 2, 0}, []index.NodeID{0, 1, 2}, nil},
		{"one is busy", []uint64{9, 9, 9}, 9, 0, []index.NodeID{1, 0, 2}, nil, []index.NodeID{0}},
		{"one is busy, not in its turn", []uint64{9, 9, 9}, 9, 1, []index.NodeID{1, 2, 0}, nil, []index.NodeID{0}},
		{"the holder is busy", []uint64{9, 8, 8}, 9, 0, []index.NodeID{0, 1, 2}, nil, []index.NodeID{0}},
		{"the healthy node is busy", []uint64{9, 9}, 9, 0, []index.NodeID{0, 1}, []index.NodeID{1}, []index.NodeID{0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &sliceplan{}
			for i, n := range c.held {
				s.candidates = append(s.candidates, candidate{node: index.NodeID(i),
					held: wire.StabilityRef{Ref: timestamp.Ref{Generation: 2, RollbackID: 1, Number: n}}})
			}
			s.order(wire.StabilityRef{Ref: timestamp.Ref{Generation: 2, RollbackID: 1, Number: c.ref}}, c.turn,
				func(n index.NodeID) bool { return slices.Contains(c.suspect, n) },
				func(a, _ index.NodeID) bool { return slices.Contains(c.busy, a) })
			for i, got := range s.candidates {
				if got.node != c.want[i] {
					t.Fatalf("node %d is queried as number %d of %+v, want %v", got.node, i, s.candidates, c.want)
				}
			}
		})
	}
}
