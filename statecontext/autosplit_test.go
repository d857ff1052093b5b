package statecontext

import (
	"errors"
	"testing"

	"tidemark/errcode"
	"tidemark/index"
)

// byItself returns an automatic split of a range-partitioned index at these values.
func byItself(t testing.TB, x *Index, values ...string) *SplitIndex {
	c := split(t, x, values...)
	c.Cause = "slice 1 has 9 bytes"
	return c
}

// goldenAutoSplit has auto_split settings, and requested numbers of slices of an index that is being split
// automatically for the second time and of one that has the requested number again.
func goldenAutoSplit(t testing.TB) *node {
	n := cluster(t)
	off := ranged("off", "10")
	off.Definition.AutoSplitOff = true
	id := n.must(off).Index
	n.must(&SetAutoSplit{ID: id, Statement: "CREATE INDEX on"})
	n.must(&SetAutoSplit{ID: id, Off: true, IfPlanned: n.state.Definition(id).ModifiedCAS, Statement: "CREATE INDEX off"})
	n.refuse(&SetAutoSplit{ID: id, IfMatch: 1}, errcode.CASMismatch)
	n.must(&ByName{Names: inB("off"), Body: &SetAutoSplit{ID: id, IfPlanned: n.state.Definition(id).ModifiedCAS,
		Statement: "CREATE INDEX named"}})
	n.must(&SetAutoSplit{ID: id, Off: true, IfMatch: n.state.Definition(id).ModifiedCAS, Statement: "CREATE INDEX off"})
	back := n.must(ranged("back", "10")).Index
	n.ready(back)
	for _, values := range [][]string{{"10", "20"}, {"5"}} {
		back = n.must(byItself(t, n.state.Index(back), values...)).Index
		n.ready(back)
	}
	more := n.must(ranged("more", "10")).Index
	n.ready(more)
	more = n.must(byItself(t, n.state.Index(more), "10", "20")).Index
	n.ready(more)
	n.must(byItself(t, n.state.Index(more), "10", "20", "30"))
	return n
}

// auto_split has the value set last; setting the same value is not an update. While it is false, no automatic split
// begins; splits by users are allowed and keep the setting.
func TestSetAutoSplit(t *testing.T) {
	n := cluster(t)
	n.must(ranged("x", "10"))
	n.ready(1)
	was := n.state.Definition(1).ModifiedCAS
	off := &SetAutoSplit{ID: 1, Off: true, Statement: "CREATE INDEX off"}
	for code, c := range map[errcode.Code]*SetAutoSplit{
		errcode.UnknownIndex: {ID: 9, Off: true}, errcode.CASMismatch: {ID: 1, Off: true, IfMatch: was + 1},
		errcode.IndexChanged: {ID: 1, Off: true, IfPlanned: was + 1},
	} {
		n.refuse(c, code)
	}
	request := &Request{Principal: "p", Key: "k"}
	ask := func() Result { return n.apply(Command{TimeMS: n.now, Request: request, Body: off})[0] }
	if r := ask(); r.Err() != nil || r.Replayed || !r.Changed || r.Index != 1 {
		t.Fatalf("%+v", r)
	}
	d, cas := n.state.Definition(1), n.state.CAS()
	if !d.AutoSplitOff || d.Statement != "CREATE INDEX off" || d.ModifiedCAS != cas || d.State != index.Maintenance {
		t.Fatalf("%+v", d)
	}
	if r := ask(); !r.Replayed || r.Index != 1 || n.state.CAS() != cas {
		t.Fatalf("%+v at cas %d after %d", r, n.state.CAS(), cas)
	}
	if r := n.must(off); r.Changed || n.state.CAS() != cas {
		t.Fatalf("what is so already: %+v", r)
	}
	n.refuse(byItself(t, n.state.Index(1), "10", "20"), errcode.IndexChanged)
	next := n.must(split(t, n.state.Index(1), "10", "20")).Index
	if !n.state.Definition(next).AutoSplitOff {
		t.Fatal("the successor has not kept it")
	}
	n.refuse(&SetAutoSplit{ID: 1}, errcode.SplitRunning)
	n.refuse(&SetAutoSplit{ID: next}, errcode.SplitRunning)
	n.ready(next)
	n.refuse(&SetAutoSplit{ID: 1}, errcode.StateMismatch) // the index is being dropped
	n.must(&ByName{Names: inB("x"), Body: &SetAutoSplit{ID: next, Statement: "CREATE INDEX on"}})
	n.refuse(&ByName{Names: inB("x"), Body: &SetAutoSplit{ID: 1, Off: true}}, errcode.IndexChanged)
	n.must(byItself(t, n.state.Index(next), "10", "20", "30"))
}

// An index keeps the requested number of slices while automatic splits have given it more. Automatic merges never go
// below that number, and the newest request counts.
func TestRequestedPartitions(t *testing.T) {
	n := cluster(t)
	id := n.must(ranged("x", "10", "20")).Index
	n.ready(id)
	for _, c := range []struct {
		byItself bool
		values   []string
		asked    uint16
	}{
		{true, []string{"5", "10", "20"}, 3},
		{true, []string{"5", "10", "20", "30"}, 3},
		{true, []string{"10", "30"}, 0}, // as many as requested
		{true, []string{"5", "10", "20", "30"}, 3},
		{false, []string{"5", "10", "20", "30", "40"}, 0},
		{true, []string{"5", "10", "20", "30", "40", "50"}, 6},
		{false, []string{"10"}, 0},
		{true, []string{"10", "20"}, 2},
	} {
		x := n.state.Index(id)
		body := split(t, x, c.values...)
		if c.byItself {
			body.Cause = "why"
		}
		id = n.must(body).Index
		d := n.state.Definition(id)
		if d.RequestedPartitions != c.asked || c.asked == 0 && d.LeastPartitions() != d.Partitions {
			t.Fatalf("%v by itself %v: %d were asked for, at least %d", c.values, c.byItself, d.RequestedPartitions,
				d.LeastPartitions())
		}
		n.ready(id)
	}
	n.must(&DropIndex{ID: id})
	id = n.must(ranged("y", "10", "20")).Index
	n.ready(id)
	n.refuse(byItself(t, n.state.Index(id), "10"), errcode.InvalidArgument)
	id = n.must(byItself(t, n.state.Index(id), "5", "10", "20")).Index
	n.ready(id)
	n.refuse(byItself(t, n.state.Index(id), "10"), errcode.InvalidArgument)

	created := ranged("z", "10", "20")
	created.Definition.RequestedPartitions = 2
	command := Command{TimeMS: n.now, Body: created}
	if data, err := Encode(command); err == nil {
		if _, err := Decode(data); !errors.Is(err, ErrUndecodable) {
			t.Errorf("a new index with slices that were asked for before is read: %v", err)
		}
	}
	_, results, _ := ApplyCommands(n.state, n.state.AppliedIndex()+1, []Command{command})
	if err := results[0].Err(); !errors.Is(err, errcode.InvalidArgument) {
		t.Errorf("a new index with slices that were asked for before: %v", err)
	}
	s, x := *n.state, *n.state.Index(id)
	x.Definition.RequestedPartitions = x.Definition.Partitions
	s.indexes = s.indexes.Copy()
	s.indexes.Set(id, &x)
	if err := Check(&s); !errors.Is(err, ErrInvariant) {
		t.Errorf("as many as it has: %v", err)
	}
}

// A backup contains both settings, and a restore brings them back: into another cluster, and for an index that was
// dropped.
func TestRestoreKeepsAutoSplit(t *testing.T) {
	n := cluster(t)
	n.must(ranged("x", "10"))
	n.ready(1)
	x := n.must(byItself(t, n.state.Index(1), "10", "20")).Index
	n.ready(x)
	n.must(&RemoveIndex{ID: 1})
	n.must(&SetAutoSplit{ID: x, Off: true, Statement: "CREATE INDEX off"})
	b := n.backup()
	has := func(n *node, where string, state index.State) {
		t.Helper()
		d := n.state.IndexByName("b", "x").Definition
		if !d.AutoSplitOff || d.RequestedPartitions != 2 || d.Partitions != 3 || d.Statement != "CREATE INDEX off" ||
			d.State != state {
			t.Errorf("%s: %+v", where, d)
		}
	}
	to := elsewhere(t, 2)
	to.stage(b, RestoreNewCluster)
	to.must(&FinishRestore{ID: "r1", Epoch: 9, Buckets: []FoundBucket{{Name: "b", UUID: "bu1", VBuckets: 4}}})
	has(to, "another cluster", index.Pending)

	n.must(&DropIndex{ID: x})
	n.stage(b, RestoreInPlace)
	n.refuse(&SetAutoSplit{ID: x, Off: true}, errcode.Restoring)
	n.must(&FinishRestore{ID: "r1", Epoch: 9})
	has(n, "in place", index.Pending)
}
