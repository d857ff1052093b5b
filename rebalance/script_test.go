package rebalance

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"tidemark/index"
	"tidemark/partition"
)

// TestScripts runs testdata: "cluster" reads nodes (name, zone, capacity, role) and indexes (name, replicas, then for
// each slice the nodes of its replicas, - for none), and draws them; "change" changes some of it; "plan" plans; "run"
// takes the steps of the plan, or those of some rounds or of a kind; "stale" checks whether the plan can still be
// run.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		s := &script{t: t, c: &Cluster{}}
		datadriven.RunTest(t, path, s.run)
	})
}

type script struct {
	t    *testing.T
	c    *Cluster
	p    *Plan
	next index.CopyID
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	number := func(key string) (n int) {
		d.MaybeScanArgs(t, key, &n)
		return n
	}
	switch d.Cmd {
	case "cluster", "change":
		if d.Cmd == "cluster" {
			s.c = &Cluster{Revision: 1}
		}
		s.c.Revision++
		for _, line := range strings.Split(d.Input, "\n") {
			s.line(strings.Fields(line))
		}
		return s.c.Draw()
	case "plan":
		var err error
		if s.p, err = Make(s.c, Options{Sends: number("sends"), Receives: number("receives")}); err != nil {
			return err.Error() + "\n"
		}
		sound(t, s.c, s.c.After(s.p.Steps, 1<<20), s.p)
		return s.show()
	case "run":
		var steps []Step
		kind := ""
		d.MaybeScanArgs(t, "kind", &kind)
		for _, y := range s.p.Steps {
			if n := number("rounds"); (n == 0 || y.Round <= n) && (kind == "" || kind == string(y.Kind)) {
				steps = append(steps, y)
			}
		}
		s.c = s.c.After(steps, s.next+1000)
		s.next += 1000
		return s.c.Draw()
	case "stale":
		return fmt.Sprintln(s.p.Stale(s.c))
	}
	return "unknown command\n"
}

func (s *script) line(f []string) {
	if f[0] == "index" {
		s.index(f[1:])
		return
	}
	n := Node{Name: f[0]}
	at := len(s.c.Nodes)
	for i := range s.c.Nodes {
		if s.c.Nodes[i].Name == f[0] {
			at, n = i, s.c.Nodes[i]
		}
	}
	if n.ID == 0 {
		n.ID = index.NodeID(at + 1)
		s.c.Nodes = append(s.c.Nodes, n)
	}
	for _, a := range f[1:] {
		k, v, _ := strings.Cut(a, "=")
		switch k {
		case "zone":
			n.Zone = v
		case "capacity":
			c, _ := strconv.Atoi(v)
			n.Capacity = uint32(c)
		case "role":
			if err := n.Role.UnmarshalText([]byte(v)); err != nil {
				s.t.Fatal(err)
			}
		default:
			s.t.Fatalf("%q", a)
		}
	}
	s.c.Nodes[at] = n
}

func (s *script) index(f []string) {
	x := Index{ID: index.ID(len(s.c.Indexes) + 1), Bucket: "b", Name: f[0]}
	at := len(s.c.Indexes)
	for i := range s.c.Indexes {
		if s.c.Indexes[i].Name == f[0] {
			at, x = i, s.c.Indexes[i]
		}
	}
	for _, a := range f[1:] {
		switch k, v, _ := strings.Cut(a, "="); k {
		case "replicas":
			x.Replicas, _ = strconv.Atoi(v)
		case "bytes":
			b, _ := strconv.ParseInt(v, 10, 64)
			for i := range x.Copies {
				x.Copies[i].Bytes = b
			}
		case "on":
			x.Nodes = nil
			for _, name := range strings.Split(v, ",") {
				x.Nodes = append(x.Nodes, s.node(name))
			}
		default:
			for r, name := range strings.Split(a, ",") {
				if name != "-" {
					s.next++
					x.Copies = append(x.Copies, Copy{ID: s.next, Slice: index.SliceID(x.Slices), Replica: partition.Replica(r),
						Node: s.node(name), Bytes: 64 << 20})
				}
			}
			x.Slices++
		}
	}
	if at == len(s.c.Indexes) {
		s.c.Indexes = append(s.c.Indexes, x)
	}
	s.c.Indexes[at] = x
}

func (s *script) node(name string) index.NodeID {
	for _, n := range s.c.Nodes {
		if n.Name == name {
			return n.ID
		}
	}
	s.t.Fatalf("no node %q", name)
	return 0
}

func (s *script) show() string {
	var b strings.Builder
	for _, y := range s.p.Steps {
		source := "KV"
		if y.Source != nil {
			source = s.c.nodeName(y.Source)
		}
		fmt.Fprintf(&b, "%d. %s %s slice %d replica %d to %s, made of %s: %s\n", y.Round, y.Kind, y.Name, y.Slice, y.Replica,
			s.c.nodeName(&y.To), source, y.Why)
	}
	for _, x := range s.p.Short {
		fmt.Fprintf(&b, "short: %s wants %d copies, %d nodes may hold them\n", x.Name, x.Want, x.Usable)
	}
	fmt.Fprintf(&b, "%d steps, %d rounds, %d MiB, %d ms; copies", len(s.p.Steps), s.p.Rounds, s.p.Bytes>>20,
		s.p.Milliseconds)
	for _, n := range s.p.Nodes {
		fmt.Fprintf(&b, " %s %d→%d", n.Name, n.Before, n.After)
	}
	return b.String() + "\n"
}

// A file with any plan or cluster is refused, or it is a plan that fits.
func FuzzPlan(f *testing.F) {
	c := grid(3, 2, 2, 2, 1)
	c.Nodes[0].Role = Going
	p, err := Make(c, Options{})
	if err != nil {
		f.Fatal(err)
	}
	a, _ := json.Marshal(c)
	b, _ := json.Marshal(p)
	f.Add(a, b)
	f.Fuzz(func(t *testing.T, a, b []byte) {
		var c Cluster
		var p Plan
		if json.Unmarshal(a, &c) != nil || json.Unmarshal(b, &p) != nil || len(c.Nodes) > 8 {
			return
		}
		total := 0
		for i := range c.Indexes {
			total += max(0, min(c.Indexes[i].Slices, 1<<20))
		}
		if total > 64 {
			return
		}
		c.Draw()
		if p.Stale(&c) == nil {
			c.After(p.Steps, 1<<20)
		}
		q, err := Make(&c, p.Options)
		if err != nil {
			return
		}
		ids := map[index.ID]bool{}
		copies := map[index.CopyID]bool{}
		for _, x := range c.Indexes {
			if ids[x.ID] {
				return // the meaning of the steps is unclear
			}
			ids[x.ID] = true
			for _, o := range x.Copies {
				if copies[o.ID] || o.ID == 0 || o.ID >= 1<<20 {
					return
				}
				copies[o.ID] = true
			}
		}
		sound(t, &c, c.After(q.Steps, 1<<20), q)
	})
}
