package core

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"tidemark/index"
	"tidemark/rebalance"
	"tidemark/statecontext"
	"tidemark/wire"
)

// stateOf applies commands to an empty state.
func stateOf(t *testing.T, commands ...statecontext.Body) *statecontext.State {
	t.Helper()
	s := statecontext.New()
	for i, c := range commands {
		data, err := statecontext.Encode(statecontext.Command{TimeMS: 1, WallMS: 1, Body: c})
		if err != nil {
			t.Fatal(err)
		}
		next, results, _, err := statecontext.Apply(s, uint64(i+1), data)
		if err != nil || results[0].Err() != nil {
			t.Fatal(c, err, results)
		}
		s = next
	}
	return s
}

// member returns the command that registers an indexer.
func member(name string) statecontext.Body {
	return &statecontext.RegisterIndexer{Indexer: statecontext.Indexer{UUID: "uuid-" + name, Name: name, BootID: "boot",
		Admin: "http://" + name, Scan: "http://" + name, Data: statecontext.DataAddrs{Maintenance: name}}}
}

// TestPlacesChosenInARowDiffer checks that two statements that request places before either is in the state do not
// see the same load. Reservations end when the statement fails, when the state shows it, or when they expire.
func TestPlacesChosenInARowDiffer(t *testing.T) {
	commands := []statecontext.Body{&statecontext.BootstrapCluster{ClusterID: "c1", Epoch: 1}}
	for i := range 4 {
		commands = append(commands, member(fmt.Sprint("i", i+1)))
	}
	now := Now{MS: 1_000_000, WallMS: 1_000_000, State: stateOf(t, commands...)}
	l, _ := New(DefaultSettings(), wire.Leader{ID: "m1", Term: 1}, hclog.NewNullLogger(), now)
	chosen := func() (index.NodeID, *Reservation) {
		t.Helper()
		p := &Placing{Definition: &index.Definition{Name: "x", Bucket: "world", Partitions: 1}, Reply: make(chan Placed, 1)}
		for _, e := range l.Step(now, p) {
			if a, is := e.(Answer); is {
				a.Deliver(nil)
			}
		}
		a := <-p.Reply
		if a.Err != nil || len(a.Placement) != 1 {
			t.Fatal(a.Placement, a.Err)
		}
		return a.Placement[0].Node, a.Reservation
	}
	var reserved [4]*Reservation
	used := map[index.NodeID]int{}
	for i := range reserved {
		node, r := chosen()
		used[node]++
		reserved[i] = r
	}
	if len(used) != 4 {
		t.Errorf("four statements in a row chose %v, of the same state", used)
	}
	l.Step(now, &Settled{Reservation: reserved[2], Err: ErrTermOver})
	freed := index.NodeID(0)
	for node := range reserved[2].load {
		freed = node
	}
	if node, _ := chosen(); node != freed {
		t.Errorf("node %d was chosen, though the statement that had %d came to nothing", node, freed)
	}
	l.Step(now, &Settled{Reservation: reserved[0], CAS: now.State.CAS()})
	if chosen(); len(l.places.reserved) != 4 { // three of the first four, one more, this one; without what the state shows
		t.Errorf("%d reservations, want 4", len(l.places.reserved))
	}
	now.MS += reservedFor
	if chosen(); len(l.places.reserved) != 1 {
		t.Errorf("%d reservations are left of statements that were never settled", len(l.places.reserved)-1)
	}
}

// TestNoCopiesOnOfflineIndexers checks that a new leader places nothing on an indexer that was offline for the
// previous leader and has not answered this one, nor on one that has not answered in time, unless there are too few
// others. An indexer that has answered is used, whatever is recorded.
func TestNoCopiesOnOfflineIndexers(t *testing.T) {
	commands := []statecontext.Body{&statecontext.BootstrapCluster{ClusterID: "c1", Epoch: 1},
		member("i1"), member("i2"), member("i3")}
	away := &statecontext.NoteAbsences{}
	for i := range stateOf(t, commands...).Indexers() {
		if i.Name == "i1" {
			away.Offline = append(away.Offline, statecontext.SeenIndexer{Node: i.Node, ModifiedCAS: i.ModifiedCAS})
		}
	}
	now := Now{MS: 1_000_000, WallMS: 1_000_000, State: stateOf(t, append(commands, away)...)}
	l, _ := New(DefaultSettings(), wire.Leader{ID: "m1", Term: 2}, hclog.NewNullLogger(), now)
	where := func(replicas uint8) string {
		t.Helper()
		p := &Placing{Definition: &index.Definition{Name: "x", Bucket: "world", Partitions: 6, Replicas: replicas},
			Reply: make(chan Placed, 1)}
		for _, e := range l.Step(now, p) {
			if a, is := e.(Answer); is {
				a.Deliver(nil)
			}
		}
		a := <-p.Reply
		l.Step(now, &Settled{Reservation: a.Reservation, Err: ErrTermOver})
		used := map[string]bool{}
		for _, c := range a.Placement {
			used[now.State.Indexer(c.Node).Name] = true
		}
		for id, n := range l.components.indexers {
			s := l.picture.indexerStatus(now.State.Indexer(id), n)
			if shown := (&Status{Indexers: []IndexerStatus{s}}).Away(id); shown != l.away(id) {
				t.Errorf("%s: shown as away: %v, placed as if: %v", n.name, shown, !shown)
			}
		}
		return fmt.Sprint(slices.Sorted(maps.Keys(used)), a.Err)
	}
	answerHello := func(name string) {
		for id, n := range l.components.indexers {
			if n.name == name {
				l.Step(now, &IndexerHelloAnswered{Hello: Hello{Node: id}, From: n.receiver,
					Answer: &wire.IndexerHello{Report: wire.IndexerReport{BootID: "boot"}}})
			}
		}
	}
	if got := where(0); got != "[i2 i3] <nil>" {
		t.Errorf("at the begin of the term: %s", got)
	}
	answerHello("i2")
	for range DefaultSettings().SuspectAfter.Milliseconds() / 100 {
		now.MS += 100
		l.Step(now, Tick{})
	}
	if got := where(0); got != "[i2] <nil>" {
		t.Errorf("when i2 alone has answered: %s", got)
	}
	if got := where(1); got != "[i1 i2 i3] <nil>" {
		t.Errorf("when i2 alone has answered, which is too few: %s", got)
	}
	answerHello("i1")
	answerHello("i3")
	if got := where(0); got != "[i1 i2 i3] <nil>" {
		t.Errorf("when all have answered: %s", got)
	}
}

// TestOfflineComponentsAreNotAwaited checks that a leader becomes active when all components have answered except those
// that were offline for the previous leader and did not answer the first attempt; it waits up to HelloWait for
// others.
func TestOfflineComponentsAreNotAwaited(t *testing.T) {
	for _, noted := range []bool{true, false} {
		commands := []statecontext.Body{&statecontext.BootstrapCluster{ClusterID: "c1", Epoch: 1}, member("i1"), member("i2")}
		if first := stateOf(t, commands...).Indexer(0); noted {
			commands = append(commands, &statecontext.NoteAbsences{
				Offline: []statecontext.SeenIndexer{{Node: first.Node, ModifiedCAS: first.ModifiedCAS}}})
		}
		now := Now{MS: 1_000_000, WallMS: 1_000_000, State: stateOf(t, commands...)}
		l, _ := New(DefaultSettings(), wire.Leader{ID: "m1", Term: 2}, hclog.NewNullLogger(), now)
		answered := func(node index.NodeID, err error) {
			h := &IndexerHelloAnswered{Hello: Hello{Node: node}, From: l.components.indexers[node].receiver, Err: err}
			if err == nil {
				h.Answer = &wire.IndexerHello{Report: wire.IndexerReport{BootID: "boot"}}
			}
			l.Step(now, h)
		}
		answered(1, nil)
		if l.active {
			t.Errorf("noted %v: it has begun before the first was queried", noted)
		}
		answered(0, context.DeadlineExceeded)
		if l.active != noted {
			t.Errorf("noted %v: it has begun %v when the first could not be queried", noted, l.active)
		}
		for now.MS < 1_000_000+l.settings.HelloWait.Milliseconds() {
			now.MS += 100
			l.Step(now, Tick{})
		}
		if !l.active {
			t.Errorf("noted %v: it waits for ever", noted)
		}
	}
}

// TestStepIsPure checks that the Leader reads no clock, starts nothing, and writes to no channel except that of an
// answer, which a driver delivers. (internal/layers checks its imports.)
func TestStepIsPure(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt, *ast.SendStmt, *ast.SelectStmt:
				if name != "effects.go" { // Deliver
					t.Errorf("%s: %T", name, n)
				}
			case *ast.SelectorExpr:
				if x, is := n.X.(*ast.Ident); is && x.Name == "time" && n.Sel.Name == "Now" {
					t.Errorf("%s reads the clock", name)
				}
			}
			return true
		})
	}
}

// TestHealthyIndexersArePreferred: a new index is placed on indexers that are well, as others may not be able to make
// its copies: their disks are full, or hang. Where these are too few, or the statement names another, that one is
// taken, too.
func TestHealthyIndexersArePreferred(t *testing.T) {
	now := Now{MS: 1_000_000, WallMS: 1_000_000, State: stateOf(t,
		&statecontext.BootstrapCluster{ClusterID: "c1", Epoch: 1}, member("i1"), member("i2"), member("i3"))}
	l, _ := New(DefaultSettings(), wire.Leader{ID: "m1", Term: 2}, hclog.NewNullLogger(), now)
	reports := func(name, health string) {
		for id, n := range l.components.indexers {
			if n.name == name {
				l.Step(now, &IndexerHelloAnswered{Hello: Hello{Node: id}, From: n.receiver,
					Answer: &wire.IndexerHello{Report: wire.IndexerReport{BootID: "boot", Health: health}}})
				if n.health != health {
					t.Fatalf("of %s is known %q, it reported %q", name, n.health, health)
				}
			}
		}
	}
	for _, name := range []string{"i1", "i2", "i3"} {
		reports(name, "")
	}
	for _, c := range []struct {
		full     []string
		replicas uint8
		nodes    []string
		want     string
	}{
		{nil, 0, nil, "[i1 i2 i3]"},
		{[]string{"i1"}, 0, nil, "[i2 i3]"},
		{[]string{"i1"}, 1, nil, "[i2 i3]"},
		{[]string{"i1"}, 2, nil, "[i1 i2 i3]"},
		{[]string{"i1"}, 0, []string{"i1"}, "[i1]"},
		{[]string{"i1", "i2", "i3"}, 0, nil, "[i1 i2 i3]"},
	} {
		for _, name := range c.full {
			reports(name, "copy 7: no room on the disk")
		}
		p := &Placing{Definition: &index.Definition{Name: "x", Bucket: "world", Partitions: 6, Replicas: c.replicas,
			Nodes: c.nodes}, Reply: make(chan Placed, 1)}
		for _, e := range l.Step(now, p) {
			if a, is := e.(Answer); is {
				a.Deliver(nil)
			}
		}
		a := <-p.Reply
		l.Step(now, &Settled{Reservation: a.Reservation, Err: ErrTermOver})
		used := map[string]bool{}
		for _, x := range a.Placement {
			used[now.State.Indexer(x.Node).Name] = true
		}
		if got := fmt.Sprint(slices.Sorted(maps.Keys(used))); got != c.want || a.Err != nil {
			t.Errorf("%v are full, %d replicas, nodes %v: placed on %s (%v), want %s", c.full, c.replicas, c.nodes, got, a.Err,
				c.want)
		}
		for _, name := range c.full {
			reports(name, "")
		}
	}
}

// TestReplicasKeepTheirZones checks that replicas are spread over all zones, although the only indexer of a zone
// reports a problem: to lose a zone would be worse.
func TestReplicasKeepTheirZones(t *testing.T) {
	var commands []statecontext.Body
	commands = append(commands, &statecontext.BootstrapCluster{ClusterID: "c1", Epoch: 1})
	for name, zone := range map[string]string{"i1": "a", "i2": "a", "i3": "b"} {
		commands = append(commands, &statecontext.RegisterIndexer{Indexer: statecontext.Indexer{UUID: name, Name: name,
			Zone: zone, Admin: "http://" + name, BootID: "boot"}})
	}
	now := Now{MS: 1_000_000, WallMS: 1_000_000, State: stateOf(t, commands...)}
	l, _ := New(DefaultSettings(), wire.Leader{ID: "m1", Term: 2}, hclog.NewNullLogger(), now)
	for id, n := range l.components.indexers {
		health := ""
		if n.name == "i3" {
			health = "copy 7: no room on the disk"
		}
		l.Step(now, &IndexerHelloAnswered{Hello: Hello{Node: id}, From: n.receiver,
			Answer: &wire.IndexerHello{Report: wire.IndexerReport{BootID: "boot", Health: health}}})
	}
	p := &Placing{Definition: &index.Definition{Name: "x", Bucket: "world", Partitions: 1, Replicas: 1},
		Reply: make(chan Placed, 1)}
	for _, e := range l.Step(now, p) {
		if a, is := e.(Answer); is {
			a.Deliver(nil)
		}
	}
	a := <-p.Reply
	zones := map[string]bool{}
	for _, x := range a.Placement {
		zones[now.State.Indexer(x.Node).Zone] = true
	}
	if a.Err != nil || len(a.Placement) != 2 || len(zones) != 2 {
		t.Errorf("placed as %+v: %v", a.Placement, a.Err)
	}
}

// TestPlansSeeHealthAndRoom checks that what a plan is made of has the trouble and the room that indexers report.
func TestPlansSeeHealthAndRoom(t *testing.T) {
	var commands []statecontext.Body
	commands = append(commands, &statecontext.BootstrapCluster{ClusterID: "c1", Epoch: 1})
	for _, name := range []string{"i1", "i2"} {
		commands = append(commands, &statecontext.RegisterIndexer{Indexer: statecontext.Indexer{UUID: name, Name: name,
			Admin: "http://" + name, BootID: "boot"}})
	}
	now := Now{MS: 1_000_000, WallMS: 1_000_000, State: stateOf(t, commands...)}
	l, _ := New(DefaultSettings(), wire.Leader{ID: "m1", Term: 2}, hclog.NewNullLogger(), now)
	for id, n := range l.components.indexers {
		r := wire.IndexerReport{BootID: "boot", Room: 7 << 30}
		if n.name == "i2" {
			r.Health, r.Room = "copy 7: no room on the disk", 1
		}
		l.Step(now, &IndexerHelloAnswered{Hello: Hello{Node: id}, From: n.receiver, Answer: &wire.IndexerHello{Report: r}})
	}
	q := &ClusterQuery{Reply: make(chan *rebalance.Cluster, 1)}
	for _, e := range l.Step(now, q) {
		if a, is := e.(Answer); is {
			a.Deliver(nil)
		}
	}
	for _, n := range (<-q.Reply).Nodes {
		excluded, free := "", int64(7<<30)
		if n.Name == "i2" {
			excluded, free = "copy 7: no room on the disk", 1
		}
		if n.Excluded != excluded || n.Free != free {
			t.Errorf("%s: excluded %q, %d bytes free", n.Name, n.Excluded, n.Free)
		}
	}
}
