package rebalance

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"

	"tidemark/index"
	"tidemark/partition"
)

// crowd returns 16,384 copies placed at random on the first nodes of 32, in zones.
func crowd(seed int64, indexes, replicas, zones, on int) *Cluster {
	r := rand.New(rand.NewSource(seed))
	c := &Cluster{Revision: 7}
	for i := range 32 {
		n := Node{ID: index.NodeID(i + 1), Name: fmt.Sprint("i", i+1), Capacity: 1}
		if zones > 0 {
			n.Zone = fmt.Sprint("z", i%zones)
		}
		c.Nodes = append(c.Nodes, n)
	}
	next := index.CopyID(1)
	for i := range indexes {
		x := Index{ID: index.ID(i + 1), Bucket: "b", Name: fmt.Sprint("x", i+1),
			Slices: 16384 / indexes / (replicas + 1), Replicas: replicas}
		for s := range x.Slices {
			at, bytes := r.Perm(on), int64(r.ExpFloat64()*1e9)
			for k := range replicas + 1 {
				x.Copies = append(x.Copies, Copy{ID: next, Slice: index.SliceID(s), Replica: partition.Replica(k),
					Node: c.Nodes[at[k]].ID, Bytes: bytes})
				next++
			}
		}
		c.Indexes = append(c.Indexes, x)
	}
	return c
}

// mixed is a crowd whose nodes and indexes differ in every property.
func mixed(seed int64, indexes, replicas, on int, capacity uint32, restricted bool) *Cluster {
	r := rand.New(rand.NewSource(seed))
	c := crowd(seed, indexes, replicas, 0, on)
	for i := range c.Nodes {
		n := &c.Nodes[i]
		n.Zone, n.Capacity = fmt.Sprint("z", min(r.Intn(4), 2)), 1+uint32(r.Int63n(int64(capacity)))
		if r.Intn(10) == 0 {
			n.Role = []Role{Going, Lost}[r.Intn(2)]
		}
	}
	for i := range c.Indexes {
		if restricted && r.Intn(3) == 0 {
			for _, k := range r.Perm(32)[:8+r.Intn(8)] {
				c.Indexes[i].Nodes = append(c.Indexes[i].Nodes, index.NodeID(k+1))
			}
		}
	}
	return c
}

// TestSearchesAreBounded bounds what determines the time of a plan: the number of searches in the network of all
// slices. It was thousands, and took minutes, where nodes differ in capacity or indexes in their allowed nodes.
func TestSearchesAreBounded(t *testing.T) {
	for _, tc := range []struct {
		indexes, replicas, on int
		capacity              uint32
		restricted            bool
	}{
		{16, 1, 32, 1, false}, {16, 3, 16, 4, false}, {64, 0, 8, 1000, true}, {64, 1, 31, 1, true},
		{512, 0, 32, 1000, false}, {4096, 3, 8, 4, false}, {16384, 0, 16, 1000, false},
	} {
		t.Run(fmt.Sprintf("%+v", tc), func(t *testing.T) {
			m, err := newMaker(mixed(5, tc.indexes, tc.replicas, tc.on, tc.capacity, tc.restricted))
			if err != nil {
				t.Fatal(err)
			}
			if err := m.place(); err != nil {
				t.Fatal(err)
			}
			if t.Logf("%d searches", m.searches); m.searches > 64 {
				t.Errorf("%d searches of the network of all slices", m.searches)
			}
		})
	}
}

// BenchmarkCrowd plans for 16,384 copies on 32 nodes: placed at random; balanced; with a lost node, and with it back;
// all on half of the nodes; with none placed yet; and with nodes and indexes that differ in every property.
func BenchmarkCrowd(b *testing.B) {
	after := func(c *Cluster, role Role) *Cluster {
		p, err := Make(c, Options{})
		if err != nil {
			b.Fatal(err)
		}
		d := c.After(p.Steps, c.Indexes[len(c.Indexes)-1].Copies[0].ID+1<<20)
		d.Nodes = slices.Clone(d.Nodes)
		d.Nodes[4].Role = role
		return d
	}
	for _, indexes := range []int{16, 256, 4096} {
		chance := crowd(1, indexes, 1, 4, 32)
		lost := after(chance, Lost)
		empty := lost.After(nil, 0)
		for i := range empty.Indexes {
			empty.Indexes[i].Copies = nil
		}
		for _, x := range []struct {
			name string
			c    *Cluster
		}{{"chance", chance}, {"even", after(chance, Serving)}, {"lost", lost}, {"back", after(lost, Serving)},
			{"half", crowd(1, indexes, 1, 4, 16)}, {"empty", empty}, {"mixed", mixed(5, indexes, 1, 16, 1000, true)}} {
			b.Run(fmt.Sprintf("indexes=%d/%s", indexes, x.name), func(b *testing.B) {
				for b.Loop() {
					p, err := Make(x.c, Options{})
					if err != nil {
						b.Fatal(err)
					}
					b.ReportMetric(float64(len(p.Steps)), "steps")
				}
			})
		}
	}
}
