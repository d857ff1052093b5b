package rebalance

import (
	"fmt"
	"math/rand"
	"testing"

	"tidemark/index"
	"tidemark/partition"
)

// drawn returns a small cluster in which capacities, zones, roles and the nodes of an index differ, and copies are
// missing.
func drawn(r *rand.Rand) *Cluster {
	c := &Cluster{Revision: 1}
	nodes, capacities := 1+r.Intn(9), []int{1, 4, 1000}[r.Intn(3)]
	for i := range nodes {
		n := Node{ID: index.NodeID(i + 1), Capacity: uint32(1 + r.Intn(capacities))}
		if r.Intn(2) == 0 {
			n.Zone = fmt.Sprint("z", r.Intn(4))
		}
		if r.Intn(8) == 0 {
			n.Role = []Role{Going, Lost}[r.Intn(2)]
		}
		c.Nodes = append(c.Nodes, n)
	}
	next := index.CopyID(1)
	for i := range 1 + r.Intn(8) {
		x := Index{ID: index.ID(i + 1), Bucket: "b", Name: fmt.Sprint(i), Slices: 1 + r.Intn(1+r.Intn(40)),
			Replicas: r.Intn(4)}
		if r.Intn(2) == 0 {
			for _, k := range r.Perm(nodes)[:1+r.Intn(nodes)] {
				x.Nodes = append(x.Nodes, index.NodeID(k+1))
			}
		}
		for s := range x.Slices {
			at := r.Perm(nodes)
			for k := range min(x.Replicas+1, nodes) {
				if r.Intn(6) > 0 {
					x.Copies = append(x.Copies, Copy{ID: next, Slice: index.SliceID(s), Replica: partition.Replica(k),
						Node: index.NodeID(at[k] + 1), Bytes: r.Int63n(1e9)})
					next++
				}
			}
		}
		c.Indexes = append(c.Indexes, x)
	}
	return c
}

// TestEverySliceHasItsNodes: a plan that counts as proved places all wanted copies.
func TestEverySliceHasItsNodes(t *testing.T) {
	r := rand.New(rand.NewSource(11))
	for i := range 3000 {
		m, err := newMaker(drawn(r))
		if err != nil {
			t.Fatal(err)
		}
		if err := m.place(); err != nil {
			t.Fatalf("%d: %v", i, err)
		}
		for k := range m.slices {
			if s := &m.slices[k]; len(s.chosen) != s.want {
				t.Fatalf("%d: slice %d has %d nodes, want %d", i, k, len(s.chosen), s.want)
			}
		}
	}
}

// TestPlansOfNothing: without nodes, or without slices, there is nothing to do.
func TestPlansOfNothing(t *testing.T) {
	for i, c := range []*Cluster{{}, {Nodes: []Node{{ID: 1}}}, {Indexes: []Index{{ID: 1, Slices: 2}}},
		{Nodes: []Node{{ID: 1, Role: Lost}}, Indexes: []Index{{ID: 1, Slices: 2}}}} {
		if p, err := Make(c, Options{}); err != nil || len(p.Steps) != 0 {
			t.Errorf("%d: %+v, %v", i, p, err)
		}
	}
}
