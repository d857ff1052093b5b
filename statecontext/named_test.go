package statecontext

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/partition"
)

func inB(names ...string) (all []IndexName) {
	for _, name := range names {
		all = append(all, IndexName{Keyspace: index.InBucket("b"), Name: name})
	}
	return all
}

// goldenNames has requests of every kind that uses names; each outcome is remembered.
func goldenNames(t testing.TB) *node {
	n := cluster(t)
	for _, name := range []string{"x", "y"} {
		n.must(ranged(name, "10"))
	}
	deferred := create("later", 0, 0)
	deferred.Definition.Deferred = true
	n.must(deferred)
	n.ready(1)
	n.ready(2)
	ask := func(key string, c *ByName) Result {
		return n.apply(Command{TimeMS: n.now, Request: &Request{Principal: "p", Key: key}, Body: c})[0]
	}
	cut := split(t, n.state.Index(1), "10", "20")
	cut.IfPlanned = n.state.Definition(1).ModifiedCAS
	ask("split", &ByName{Names: inB("x"), Body: cut})
	ask("cancel", &ByName{Names: inB("x"), Body: &CancelSplit{}})
	ask("again", &ByName{Names: inB("x"), Body: split(t, n.state.Index(1), "5")})
	n.ready(5)
	ask("stale", &ByName{Names: inB("x"), Body: split(t, n.state.Index(1), "7")})
	ask("build", &ByName{Names: inB("x", "later", "y"), Body: &BuildIndexes{Rules: 3}})
	alter := &AlterIndex{ID: 2, IfPlanned: n.state.Definition(2).ModifiedCAS, Nodes: []string{"u0", "u1"}}
	ask("alter", &ByName{Names: inB("y"), Body: alter})
	ask("drop", &ByName{Names: []IndexName{{Keyspace: index.InBucket("b"), Name: "x", Path: true}}, Body: &DropIndex{}})
	ask("none", &ByName{Names: inB("x"), Body: &DropIndex{}})
	return n
}

// TestNamesAreResolvedByApply: a command by name concerns the index that has the name when it is applied. A plan for
// another index, or for another version of it, is rejected, and the rejection is not remembered: the same request can
// succeed later.
func TestNamesAreResolvedByApply(t *testing.T) {
	n := splittingNode(t)
	request := &Request{Principal: "p", Key: "k"}
	ask := func(body Body) Result {
		return n.apply(Command{TimeMS: n.now, Request: request, Body: &ByName{Names: inB("x"), Body: body}})[0]
	}
	planned := split(t, n.state.Index(1), "5", "6")
	n.ready(2) // it takes over the name
	if r := ask(planned); !errors.Is(r.Err(), errcode.IndexChanged) || n.state.LedgerLen() != 0 {
		t.Fatalf("planned for the one before: %+v, %d remembered", r, n.state.LedgerLen())
	}
	planned = split(t, n.state.Index(2), "5", "6")
	planned.IfPlanned = n.state.Definition(2).ModifiedCAS
	n.must(&AlterIndex{ID: 2, Nodes: []string{"u0", "u1"}})
	if r := ask(planned); !errors.Is(r.Err(), errcode.IndexChanged) || n.state.LedgerLen() != 0 {
		t.Fatalf("planned for the version before: %+v, %d remembered", r, n.state.LedgerLen())
	}
	planned.IfPlanned = n.state.Definition(2).ModifiedCAS
	if r := ask(planned); r.Err() != nil || r.Index != 3 {
		t.Fatalf("planned anew: %+v", r)
	}
	if r := ask(split(t, n.state.Index(1), "5", "6")); r.Err() != nil || !r.Replayed || r.Index != 3 {
		t.Fatalf("the same request again: %+v", r)
	}
	request = nil
	if r := ask(&CancelSplit{}); r.Err() != nil || r.Index != 3 {
		t.Fatalf("cancelled by name: %+v", r)
	}
	if r := ask(&DropIndex{IfMatch: 1}); !errors.Is(r.Err(), errcode.CASMismatch) {
		t.Fatalf("another cas: %+v", r)
	}
	if r := ask(&DropIndex{}); r.Err() != nil || r.Index != 2 || n.state.IndexByName("b", "x") != nil {
		t.Fatalf("dropped by name: %+v", r)
	}
	for _, body := range []Body{&DropIndex{ID: 1}, &BuildIndexes{}, &CancelSplit{}, &AlterIndex{}, planned} {
		n.refuse(&ByName{Names: inB("x"), Body: body}, errcode.UnknownIndex)
	}
}

// TestNamesWithZeroBytesFindNothing: a name with zero bytes finds nothing, whatever the map's keys look like.
func TestNamesWithZeroBytesFindNothing(t *testing.T) {
	n := splittingNode(t)
	if x := n.state.IndexByName("b", "x\x00\x00\x00successor"); x != nil {
		t.Fatalf("leads to index %d", x.Definition.ID)
	}
}

func TestInvalidCommandsByName(t *testing.T) {
	for _, c := range []*ByName{
		{Names: inB("x"), Body: &RemoveIndex{ID: 1}},
		{Names: inB("x"), Body: &ByName{Names: inB("x"), Body: &DropIndex{}}},
		{Names: inB("x", "y"), Body: &DropIndex{}},
		{Body: &BuildIndexes{}},
		{Names: slices.Repeat(inB("x"), MaxNamed+1), Body: &BuildIndexes{}},
	} {
		data, err := Encode(Command{Body: c})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Decode(data); !errors.Is(err, ErrUndecodable) {
			t.Errorf("%d names of %T: %v", len(c.Names), c.Body, err)
		}
	}
}

// named is a simple model of two names: the index of each name, and the index being built to replace it.
type named struct {
	index, next map[string]index.ID
	outcomes    map[string]Result
}

// TestNamesThatMove: users send requests by name, some with repeated keys, with plans made at any earlier time, while
// splits begin, end and are cancelled. Each request concerns the index that has the name, and each key has one
// outcome.
func TestNamesThatMove(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := cluster(t)
		m := &named{index: map[string]index.ID{}, next: map[string]index.ID{}, outcomes: map[string]Result{}}
		plans := map[string]*SplitIndex{}
		for range rapid.IntRange(1, 60).Draw(rt, "commands") {
			name := rapid.SampledFrom([]string{"x", "y"}).Draw(rt, "name")
			id, next := m.index[name], m.next[name]
			switch rapid.IntRange(0, 9).Draw(rt, "what") {
			case 0:
				if id == 0 {
					m.index[name] = n.must(ranged(name, "10")).Index
					n.ready(m.index[name])
				}
			case 1, 2: // a split ends
				if next != 0 {
					n.ready(next)
					m.index[name], m.next[name] = next, 0
				}
			case 3: // a user plans a split
				if id != 0 {
					plans[name] = split(t, n.state.Index(id), "5")
					plans[name].IfPlanned = n.state.Definition(id).ModifiedCAS
				}
			default:
				m.ask(rt, n, name, plans[name])
			}
			for name, id := range m.index {
				x := n.state.IndexByName("b", name)
				if x == nil && id != 0 || x != nil && x.Definition.ID != id {
					rt.Fatalf("%s leads to %+v, want index %d", name, x, id)
				}
			}
		}
	})
}

// ask draws a request and compares its result with the model.
func (m *named) ask(rt *rapid.T, n *node, name string, plan *SplitIndex) {
	bodies := []Body{&DropIndex{}, &BuildIndexes{}, &CancelSplit{}}
	if plan != nil {
		bodies = append(bodies, plan, plan)
	}
	body := rapid.SampledFrom(bodies).Draw(rt, "body")
	c := &ByName{Names: inB(name), Body: body}
	if _, build := body.(*BuildIndexes); build {
		c.Names = inB("x", "y")
	}
	key := fmt.Sprintf("%T %s %d", body, name, rapid.IntRange(0, 2).Draw(rt, "key"))
	before := n.state
	r := n.apply(Command{TimeMS: n.now, Request: &Request{Principal: "p", Key: key}, Body: c})[0]
	if old, known := m.outcomes[key]; known {
		if !r.Replayed || r.Index != old.Index || !slices.Equal(r.Indexes, old.Indexes) ||
			code(r.Rejection) != code(old.Rejection) || n.state.CAS() != before.CAS() {
			rt.Fatalf("%s: %+v, and %+v again", key, old, r)
		}
		return
	}
	want, id, next := errcode.Code(""), m.index[name], m.next[name]
	switch b := body.(type) {
	case *BuildIndexes:
		if m.index["x"] == 0 || m.index["y"] == 0 {
			want = errcode.UnknownIndex
		} else if !slices.Equal(r.Indexes, []index.ID{m.index["x"], m.index["y"]}) {
			rt.Fatalf("built %v, want those of %v", r.Indexes, m.index)
		}
	case *DropIndex:
		if want = errcode.UnknownIndex; id != 0 {
			want, m.index[name], m.next[name] = "", 0, 0
		}
	case *CancelSplit:
		switch {
		case id == 0:
			want = errcode.UnknownIndex
		case next == 0:
			want = errcode.StateMismatch
		default:
			id, m.next[name] = next, 0
		}
	case *SplitIndex:
		d := before.Definition(id)
		switch {
		case id == 0:
			want = errcode.UnknownIndex
		case b.ID != id:
			want = errcode.IndexChanged
		case next != 0:
			want = errcode.SplitRunning
		case b.IfPlanned != d.ModifiedCAS:
			want = errcode.IndexChanged
		default:
			m.next[name] = r.Index
		}
	}
	if got := code(r.Rejection); got != want || r.Replayed {
		rt.Fatalf("%T of %s: %+v (%v), want %q", body, name, r, r.Rejection, want)
	}
	switch body.(type) {
	case *DropIndex, *CancelSplit:
		if want == "" && r.Index != id {
			rt.Fatalf("%T of %s: index %d, want %d", body, name, r.Index, id)
		}
	}
	if !Passing(want) {
		m.outcomes[key] = r
	}
}

func code(r *Rejection) errcode.Code {
	if r == nil {
		return ""
	}
	return r.Code
}

// TestAlterOfAnotherVersion: a plan for another version of a definition is not applied.
func TestAlterOfAnotherVersion(t *testing.T) {
	n := cluster(t)
	n.must(create("pair", 1, 0, 1))
	n.ready(1)
	drop := &AlterIndex{ID: 1, IfPlanned: n.state.Definition(1).ModifiedCAS, Drop: []partition.Replica{1}}
	n.must(&AlterIndex{ID: 1, Replicas: 1, Nodes: []string{"u0", "u1"}})
	n.refuse(drop, errcode.IndexChanged)
	drop.IfPlanned = n.state.Definition(1).ModifiedCAS
	n.must(drop)
}
