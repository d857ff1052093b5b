package core

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"tidemark/index"
	"tidemark/timestamp"
)

// TestFleet runs the golden file. "map BUCKET REV t=S NODE..." is a map that was seen; a node is NAME, NAME=ADDR, or
// NAME=- for one without an address. "step t=S" decides; projectors that it starts or stops run or have ended at
// once, unless "slow" is given. "failed NODE ran=S t=S": a projector has ended by itself. seed=NAME, registered=(IDS)
// and troubled are facts.
func TestFleet(t *testing.T) {
	datadriven.RunTest(t, "testdata/fleet", func() func(t *testing.T, d *datadriven.TestData) string {
		w := &fleetWorld{}
		return func(t *testing.T, d *datadriven.TestData) string { return w.run(t, d) }
	}())
}

// fleetWorld is a process that carries out what a Fleet decides.
type fleetWorld struct {
	fleet   Fleet
	running map[string]FleetMember
}

func (w *fleetWorld) run(t *testing.T, d *datadriven.TestData) string {
	var nowMS int64
	var words []string
	var registered []index.ProjectorID
	var seed KVNode
	troubled, slow := false, false
	for _, a := range d.CmdArgs {
		switch {
		case a.Key == "t":
			if _, err := fmt.Sscan(a.Vals[0], &nowMS); err != nil {
				t.Fatal(err)
			}
			nowMS *= 1000
		case a.Key == "registered":
			for _, id := range a.Vals {
				registered = append(registered, index.ProjectorID(id))
			}
		case a.Key == "seed":
			seed = KVNode{Name: a.Vals[0], Addr: a.Vals[0]}
		case a.Key == "troubled":
			troubled = true
		case a.Key == "slow":
			slow = true
		case len(a.Vals) == 1:
			words = append(words, a.Key+"="+a.Vals[0])
		default:
			words = append(words, a.Key)
		}
	}
	switch d.Cmd {
	case "new":
		*w = fleetWorld{running: map[string]FleetMember{}}
		return ""
	case "ended":
		for _, name := range words {
			delete(w.running, name)
		}
		return ""
	case "failed": // failed NODE ran=S t=S
		delete(w.running, words[0])
		var ranMS int64
		if _, err := fmt.Sscan(strings.TrimPrefix(words[1], "ran="), &ranMS); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("backoff %d ms\n", w.fleet.Failed(nowMS, words[0], ranMS*1000, "it panics"))
	case "map":
		var rev uint64
		if _, err := fmt.Sscan(words[1], &rev); err != nil {
			t.Fatal(err)
		}
		var nodes []KVNode
		for _, word := range words[2:] {
			nodes = append(nodes, nodesOfWord(word)...)
		}
		return fmt.Sprintf("news: %v\n", w.fleet.Saw(nowMS, words[0], timestamp.MapRevision{Rev: rev}, nodes))
	case "step":
		return w.step(FleetFacts{NowMS: nowMS, Running: w.running, Process: "p1", Registered: registered,
			Seed: seed, Troubled: troubled}, slow)
	}
	t.Fatalf("unknown command %s", d.Cmd)
	return ""
}

// nodesOfWord parses a node, or "many:N" for N of them.
func nodesOfWord(word string) (nodes []KVNode) {
	var n int
	if _, err := fmt.Sscanf(word, "many:%d", &n); err == nil {
		for i := range n {
			nodes = append(nodes, KVNode{Name: fmt.Sprintf("n%02d", i), Addr: fmt.Sprintf("n%02d", i)})
		}
		return nodes
	}
	name, addr, at := strings.Cut(word, "=")
	switch {
	case !at:
		addr = name
	case addr == "-":
		return []KVNode{{Name: name, Why: "it has no address"}}
	}
	return []KVNode{{Name: name, Addr: addr}}
}

func (w *fleetWorld) step(x FleetFacts, slow bool) string {
	s := w.fleet.Step(x)
	var out []string
	for _, n := range s.Start {
		w.running[n.Name] = FleetMember{Node: n}
		out = append(out, "start "+n.Name+" at "+n.Addr)
	}
	for _, name := range s.Stop {
		if delete(w.running, name); slow {
			w.running[name] = FleetMember{Node: x.Running[name].Node, Ending: true}
		}
		out = append(out, "stop "+name)
	}
	for _, name := range s.Leave {
		out = append(out, "leave "+name)
	}
	for _, n := range s.Unserved {
		out = append(out, "unserved "+n.Name+": "+n.Why)
	}
	if s.Aside > 0 {
		out = append(out, fmt.Sprintf("%d aside", s.Aside))
	}
	if len(out) > 8 {
		out = append(slices.Clone(out[:2]), append([]string{fmt.Sprintf("… %d more", len(out)-4)}, out[len(out)-2:]...)...)
	}
	return strings.Join(append(out, ""), "\n")
}
