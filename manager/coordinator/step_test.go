package coordinator

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"tidemark/index"
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

// member is the command that makes an indexer known.
func member(name string) statecontext.Body {
	return &statecontext.RegisterIndexer{Indexer: statecontext.Indexer{UUID: "uuid-" + name, Name: name, BootID: "boot",
		Admin: "http://" + name, Scan: "http://" + name, Data: statecontext.DataAddrs{Maintenance: name}}}
}

// TestPlacesChosenInARowDiffer: two statements that ask for places before either is in the state do not read the same
// load. What came to nothing does not count any more, nor what nobody settles in time.
func TestPlacesChosenInARowDiffer(t *testing.T) {
	commands := []statecontext.Body{&statecontext.BootstrapCluster{ClusterID: "c1", Epoch: 1}}
	for i := range 4 {
		commands = append(commands, member(fmt.Sprint("i", i+1)))
	}
	now := Now{MS: 1_000_000, WallMS: 1_000_000, State: stateOf(t, commands...)}
	l, _ := newLeader(DefaultSettings(), wire.Leader{ID: "m1", Term: 1}, hclog.NewNullLogger(), now)
	chosen := func() (index.NodeID, *reservation) {
		t.Helper()
		p := &placing{d: &index.Definition{Name: "x", Bucket: "world", Partitions: 1}, reply: make(chan placed, 1)}
		for _, e := range l.Step(now, p) {
			if a, is := e.(Answer); is {
				a.Deliver(nil)
			}
		}
		a := <-p.reply
		if a.err != nil || len(a.placement) != 1 {
			t.Fatal(a.placement, a.err)
		}
		return a.placement[0].Node, a.reservation
	}
	var reserved [4]*reservation
	used := map[index.NodeID]int{}
	for i := range reserved {
		node, r := chosen()
		used[node]++
		reserved[i] = r
	}
	if len(used) != 4 {
		t.Errorf("four statements in a row chose %v, of the same state", used)
	}
	l.Step(now, &settled{reservation: reserved[2], err: ErrNotLeading})
	freed := index.NodeID(0)
	for node := range reserved[2].load {
		freed = node
	}
	if node, _ := chosen(); node != freed {
		t.Errorf("node %d was chosen, though the statement that had %d came to nothing", node, freed)
	}
	if now.MS += reservedFor; len(l.reserved) != 4 {
		t.Errorf("%d reservations, want 4", len(l.reserved))
	}
	if chosen(); len(l.reserved) != 1 {
		t.Errorf("%d reservations are left of statements that nobody settled", len(l.reserved)-1)
	}
}

// driving are the files around the Leader: what waits, sends, or has a lock.
var driving = []string{"alter.go", "coordinator.go", "ddl.go", "definitions.go", "gateway.go", "lane.go", "rebalancing.go",
	"registering.go", "remove.go", "restore.go", "term.go", "tracing.go", "views.go"}

// TestStepIsPure: the files of the Leader use no clock, lock, context or network, and start nothing.
func TestStepIsPure(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") || slices.Contains(driving, name) {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range f.Imports {
			switch strings.Trim(i.Path.Value, `"`) {
			case "context", "sync", "sync/atomic", "net/http", "os", "math/rand", "tidemark/internal/rpc", "tidemark/fsm":
				t.Errorf("%s imports %s", name, i.Path.Value)
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt, *ast.SendStmt, *ast.SelectStmt:
				if name != "effects.go" { // Deliver, which a driver calls
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
