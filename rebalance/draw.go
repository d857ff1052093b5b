package rebalance

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"tidemark/index"
)

// Draw returns a placement as text: a row for each node and a column for each slice of each index, with the number of
// the replica that the node holds.
func (c *Cluster) Draw() string {
	nodes := slices.Clone(c.Nodes)
	slices.SortFunc(nodes, func(a, b Node) int { return cmp.Compare(a.ID, b.ID) })
	table := [][]string{{"node", "zone", "copies"}}
	for i := range c.Indexes {
		table[0] = append(table[0], c.Indexes[i].Name)
	}
	for i := range nodes {
		table = append(table, c.row(&nodes[i]))
	}
	width := make([]int, len(table[0]))
	for _, row := range table {
		for i, cell := range row {
			width[i] = max(width[i], len(cell))
		}
	}
	var b strings.Builder
	for _, row := range table {
		line := ""
		for i, cell := range row {
			line += fmt.Sprintf("%-*s  ", width[i], cell)
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String()
}

func (c *Cluster) row(n *Node) []string {
	name := n.label()
	if n.Role != Serving {
		name += " " + n.Role.String()
	}
	count, cells := 0, []string{}
	for i := range c.Indexes {
		x := &c.Indexes[i]
		cell := []byte(strings.Repeat(".", x.Slices))
		for _, o := range x.Copies {
			if o.Node == n.ID && int(o.Slice) < x.Slices {
				cell[o.Slice] = "0123456789abcdefghijklmnopqrstuvwxyz"[min(int(o.Replica), 35)]
				count++
			}
		}
		cells = append(cells, string(cell))
	}
	return append([]string{name, cmp.Or(n.Zone, "-"), fmt.Sprint(count)}, cells...)
}

// After returns the cluster after the given steps of a plan; c does not change. New copies get ids from next on.
func (c *Cluster) After(steps []Step, next index.CopyID) *Cluster {
	d := *c
	d.Indexes = slices.Clone(c.Indexes)
	for i := range d.Indexes {
		d.Indexes[i].Copies = slices.Clone(d.Indexes[i].Copies)
	}
	for _, y := range steps {
		i := slices.IndexFunc(d.Indexes, func(x Index) bool { return x.ID == y.Index })
		if done, err := y.Done(&d); i < 0 || done || err != nil {
			continue
		}
		x := &d.Indexes[i]
		x.Copies = slices.DeleteFunc(x.Copies, func(o Copy) bool { return y.Old != 0 && o.ID == y.Old })
		if !slices.ContainsFunc(x.Copies, func(o Copy) bool { return o.Slice == y.Slice && o.Node == y.To }) {
			x.Copies = append(x.Copies, Copy{ID: next, Slice: y.Slice, Replica: y.Replica, Node: y.To, Bytes: y.Bytes})
			next++
		}
	}
	return &d
}
