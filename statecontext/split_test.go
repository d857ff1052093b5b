package statecontext

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/partition"
)

// ranged creates a range-partitioned index with these values, on nodes 0 and 1 alternately.
func ranged(name string, values ...string) *CreateIndex {
	by := index.PartitionBy{Scheme: index.PartitionRange, Exprs: []string{"a"}}
	var nodes []index.NodeID
	for i, v := range values {
		by.Values = append(by.Values, json.RawMessage(v))
		nodes = append(nodes, index.NodeID(i%2))
	}
	return createByKey(name, by, 0, append(nodes, 1)...)
}

// split returns the split of a range-partitioned index at these values.
func split(t testing.TB, x *Index, values ...string) *SplitIndex {
	d := x.Definition
	d.PartitionBy.Values = nil
	for _, v := range values {
		d.PartitionBy.Values = append(d.PartitionBy.Values, json.RawMessage(v))
	}
	d.Partitions = uint16(len(values) + 1)
	layout, err := partition.LayoutOf(&d)
	if err != nil {
		t.Fatal(err)
	}
	c := &SplitIndex{ID: d.ID, Values: values, Partitions: d.Partitions, Statement: "CREATE INDEX anew", Layout: layout,
		Rules: 7, CreatedMS: 5}
	for i := range d.Partitions {
		c.Placement = append(c.Placement, Placement{Slice: index.SliceID(i), Node: index.NodeID(i % 2)})
	}
	return c
}

// splittingNode returns a cluster with index 1 (x), which is READY and is being split into index 2.
func splittingNode(t testing.TB) *node {
	n := cluster(t)
	n.must(ranged("x", "10"))
	n.ready(1)
	if id := n.must(split(t, n.state.Index(1), "10", "20")).Index; id != 2 {
		t.Fatalf("the successor is %d", id)
	}
	return n
}

// The name belongs to the first index until the successor is ready, and to the successor from then on; one update
// switches it.
func TestSplit(t *testing.T) {
	n := splittingNode(t)
	first, next := n.state.Index(1), n.state.Index(2)
	if n.state.IndexByName("b", "x") != first || n.state.Successor(&first.Definition) != next ||
		n.state.Successor(&next.Definition) != nil {
		t.Fatal(Describe(n.state))
	}
	if d := next.Definition; d.Replaces != 1 || d.Name != "x" || d.Partitions != 3 || len(d.PartitionBy.Values) != 2 ||
		d.Statement != "CREATE INDEX anew" || d.Rules != 7 || d.State != index.Pending {
		t.Fatalf("%+v", d)
	}
	of := 0
	for range n.state.IndexesOf("b") {
		of++
	}
	if of != 2 {
		t.Fatalf("%d indexes of the bucket", of)
	}
	n.refuse(split(t, first, "5"), errcode.SplitRunning)
	n.refuse(split(t, next, "5"), errcode.SplitRunning)
	n.refuse(&AlterIndex{ID: 1, Replicas: 0, Nodes: []string{"u0"}}, errcode.SplitRunning)
	n.refuse(&AlterIndex{ID: 2, Replicas: 0, Nodes: []string{"u0"}}, errcode.SplitRunning)
	n.refuse(ranged("x", "10"), errcode.NameExists)
	back, err := ReadSnapshot(bytes.NewReader(snapshot(t, n.state)))
	if err != nil || Describe(back) != Describe(n.state) {
		t.Fatalf("%v\n%s", err, Describe(back))
	}
	cas := n.state.CAS()
	n.ready(2)
	if n.state.CAS() != cas+3 { // allocated, backfill, READY: the switch is not an update of its own
		t.Fatalf("cas %d after %d", n.state.CAS(), cas)
	}
	first, next = n.state.Index(1), n.state.Index(2)
	if n.state.IndexByName("b", "x") != next || next.Definition.Replaces != 0 ||
		first.Definition.State != index.Dropping || first.Definition.ModifiedCAS != next.Definition.ModifiedCAS {
		t.Fatal(Describe(n.state))
	}
	if f, x := &first.Definition, &next.Definition; f.Origin != 0 || f.First() != 1 || x.Origin != 1 || x.First() != 1 {
		t.Fatalf("subscribers know the first as %d, the next as %d", f.First(), x.First())
	}
	n.must(split(t, next, "10", "20", "30")) // again, while the first index is still being dropped
	n.must(&RemoveIndex{ID: 1})
	if n.state.Successor(&n.state.Index(2).Definition) == nil {
		t.Fatal("the end of the first's drop took the next split along")
	}
	n.ready(3)
	if f := n.state.IndexByName("b", "x").Definition; f.ID != 3 || f.First() != 1 {
		t.Fatalf("index %d, subscribers know it as %d, which was index 1 two splits ago", f.ID, f.First())
	}
}

// The switch has the same guards as the end of any build.
func TestSwitchIsGuarded(t *testing.T) {
	n := splittingNode(t)
	x := n.state.Index(2)
	var made []index.CopyID
	for _, c := range x.Topology.Copies {
		made = append(made, c.ID)
	}
	n.must(&AllocateCopies{ID: 2, Revision: x.PlacedCAS, Copies: made})
	n.must(&SetIndexState{ID: 2, From: index.Pending, To: index.Backfill, Guard: Guard{Generation: 1}})
	done := &SetIndexState{ID: 2, From: index.Backfill, To: index.Maintenance, Guard: Guard{Generation: 1}}
	other := *done
	other.Guard.Generation = 2
	n.refuse(&other, errcode.GenerationMismatch)
	n.must(&SetRollbackStep{Bucket: "b", Generation: 1, To: Started})
	n.refuse(done, errcode.RollbackMismatch)
	if d := n.state.IndexByName("b", "x"); d.Definition.ID != 1 || d.Definition.State != index.Maintenance {
		t.Fatal(Describe(n.state))
	}
}

func TestInvalidSplits(t *testing.T) {
	n := cluster(t)
	n.must(ranged("x", "10"))
	n.refuse(split(t, n.state.Index(1), "5"), errcode.StateMismatch)
	n.ready(1)
	x := n.state.Index(1)
	n.refuse(&SplitIndex{ID: 9}, errcode.UnknownIndex)
	for code, change := range map[errcode.Code]func(*SplitIndex){
		errcode.CASMismatch:           func(c *SplitIndex) { c.IfMatch = 1 },
		errcode.InvalidArgument:       func(c *SplitIndex) { c.Partitions = 4 },
		errcode.PlacementInconsistent: func(c *SplitIndex) { c.Placement = c.Placement[:1] },
		errcode.IndexChanged:          func(c *SplitIndex) { c.Placement[0].Node = 77 },
	} {
		c := split(t, x, "5", "15")
		change(c)
		n.refuse(c, code)
	}
	full := n.state.Limits()
	full.Indexes, full.IndexesPerBucket = 1, 1
	n.must(&SetLimits{Limits: full})
	n.refuse(split(t, x, "5"), errcode.LimitExceeded)
	full.Indexes, full.IndexesPerBucket = 9, 9
	n.must(&SetLimits{Limits: full})
	to := n.third()
	n.must(&StartRebalance{Cause: "test", Sends: 1, Receives: 1, Steps: []partition.Rebalance{{Index: 1,
		Old: x.Topology.Copies[0].ID, Dst: partition.Shard{Node: to}}}})
	n.refuse(split(t, x, "5"), errcode.RebalanceRunning)
}

// Any event on one of the two indexes before the switch ends the split in the same update. It changes only
// SplitFailed of the first index, which holds the reason, unless that index is being dropped.
func TestSplitsAreTakenBack(t *testing.T) {
	for name, c := range map[string]struct {
		what   Body
		first  index.State // 0: the index is gone
		failed string
	}{
		"successor dropped": {&DropIndex{ID: 2}, index.Maintenance, SplitCancelled},
		"first dropped":     {&DropIndex{ID: 1}, index.Dropping, ""},
		"bucket gone":       {&BucketGone{Name: "b", UUID: "bu1"}, index.Error, reasonDeleted},
		"bucket re-created": {&SetBucket{Name: "b", UUID: "bu2", VBuckets: 4}, index.Error, reasonRecreated},
		"first failed": {&SetIndexState{ID: 1, From: index.Maintenance, To: index.Error, Reason: "no"}, index.Error,
			"no"},
		"first built anew": {&SetIndexState{ID: 1, From: index.Maintenance, To: index.Backfill}, index.Backfill,
			SplitBuiltAnew},
		"successor failed": {&SetIndexState{ID: 2, From: index.Pending, To: index.Error, Reason: "HOST_AWAY: i1"},
			index.Maintenance, "HOST_AWAY: i1"},
	} {
		t.Run(name, func(t *testing.T) {
			n := splittingNode(t)
			n.must(c.what)
			x, d := n.state.Index(2), n.state.Definition(1)
			if x.Definition.State != index.Dropping || d.State != c.first || d.SplitFailed != c.failed {
				t.Fatal(Describe(n.state))
			}
			n.must(&LeaderStarted{Term: 2, Manager: Manager{ID: "m1-aa", Name: "m1"}})
			if c.first != index.Maintenance {
				return
			}
			n.must(split(t, n.state.Index(1), "10", "20")) // another attempt
			if n.state.Definition(1).SplitFailed != "" {
				t.Error("the reason of the previous failure is still shown")
			}
			n.ready(3)
			n.must(&RemoveIndex{ID: 2})
			n.must(&RemoveIndex{ID: 1})
		})
	}
}

// A restore ends every split, that of the backup and that of the running cluster. A completed split stays: the index
// keeps serving with the slices it has.
func TestRestoreEndsSplits(t *testing.T) {
	found := []FoundBucket{{Name: "b", UUID: "bu1", VBuckets: 4}}
	n := splittingNode(t)
	b := n.backup()
	if plan, err := PlanRestore(n.state, b.State, RestoreInPlace, 9, found, nil); err != nil || plan.Splits != 1 ||
		plan.Kept != 1 || len(plan.Named) != 1 {
		t.Errorf("plan %+v, %v", plan, err)
	}
	n.stage(b, RestoreInPlace)
	n.must(&FinishRestore{ID: "r1", Epoch: 9, Buckets: found})
	if n.state.Index(2) != nil || n.state.IndexByName("b", "x").Definition.ID != 1 {
		t.Fatal(Describe(n.state))
	}
	n = splittingNode(t)
	b = n.backup()
	n.ready(2) // the backup was made before the switch
	n.stage(b, RestoreInPlace)
	n.must(&FinishRestore{ID: "r1", Epoch: 9, Buckets: found})
	if x := n.state.IndexByName("b", "x"); x == nil || x.Definition.ID != 2 || !n.state.Index(1).dropping() {
		t.Fatal(Describe(n.state))
	}
}

// After any commands in any order the state is sound (Check: while there is a successor, its first index is READY), a
// name always has an index, and the next leader can begin.
func TestSplitsAreSound(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := cluster(t)
		n.must(ranged("x", "10"))
		n.ready(1)
		term := uint64(1)
		for range rapid.IntRange(1, 40).Draw(rt, "commands") {
			id := index.ID(rapid.IntRange(1, max(1, int(n.state.nextIndexID)-1)).Draw(rt, "index"))
			x := n.state.Index(id)
			if x == nil {
				continue
			}
			before := n.state.IndexByName("b", "x")
			var body Body
			dropped := false
			switch rapid.IntRange(0, 8).Draw(rt, "what") {
			case 0, 1:
				body = split(t, x, []string{"5", "7", "9"}[:rapid.IntRange(0, 3).Draw(rt, "values")]...)
			case 2:
				var made []index.CopyID
				for _, c := range x.Topology.Copies {
					made = append(made, c.ID)
				}
				body = &AllocateCopies{ID: id, Revision: n.state.DefinitionsRevision(), Copies: made}
			case 3, 4:
				body = &SetIndexState{ID: id, From: x.Definition.State, To: index.State(rapid.IntRange(1, 5).Draw(rt, "to")),
					Reason: "why"}
				if body.(*SetIndexState).To != index.Error {
					body.(*SetIndexState).Reason = ""
				}
			case 5:
				body, dropped = &DropIndex{ID: id}, before != nil && before.Definition.ID == id
			case 6:
				body = &RemoveIndex{ID: id}
			case 7:
				term++
				body = &LeaderStarted{Term: term, Manager: Manager{ID: "m1-aa", Name: "m1"}}
				n.must(body)
				continue
			default:
				body = &BuildIndexes{IDs: []index.ID{id}}
			}
			n.apply(Command{TimeMS: n.now, Body: body})
			now := n.state.IndexByName("b", "x")
			if before != nil && now == nil && !dropped {
				rt.Fatalf("%T %+v took the index away", body, body)
			}
			if now == nil {
				n.must(ranged("x", "10"))
				n.ready(n.state.IndexByName("b", "x").Definition.ID)
			}
		}
		back, err := ReadSnapshot(bytes.NewReader(snapshot(t, n.state)))
		if err != nil || Hash(back) != Hash(n.state) {
			rt.Fatalf("through a snapshot: %v", err)
		}
	})
}

// goldenSplit has a failed split, one in progress, and a completed one.
func goldenSplit(t testing.TB) *node {
	n := cluster(t)
	for _, name := range []string{"x", "y", "z"} {
		n.must(ranged(name, "10"))
	}
	for id := range index.ID(3) {
		n.ready(id + 1)
		n.must(split(t, n.state.Index(id+1), "10", `"m"`))
	}
	n.must(&SetIndexState{ID: 4, From: index.Pending, To: index.Error, Reason: "HOST_AWAY: i1"})
	n.ready(6)
	return n
}

// goldenSplitByItself has one completed automatic split and one in progress.
func goldenSplitByItself(t testing.TB) *node {
	n := cluster(t)
	n.must(ranged("x", "10"))
	n.ready(1)
	first := split(t, n.state.Index(1), "10", `"m"`)
	first.Cause, first.IfPlanned = "slice 1 has 9 bytes", n.state.Definition(1).ModifiedCAS
	n.must(first)
	n.ready(2)
	again := split(t, n.state.Index(2), "10", "20", `"m"`)
	again.Cause = "slice 2 has 9 bytes"
	n.must(again)
	return n
}

// An automatic split records why it begins, and begins only if nothing else is in progress; after the successor has
// the name, the record is gone.
func TestAutomaticSplit(t *testing.T) {
	byItself := func(n *node, id index.ID) *SplitIndex { return byItself(t, n.state.Index(id), "10", "20") }
	ready := func() *node {
		n := cluster(t)
		for id, name := range []string{"x", "y"} {
			n.must(ranged(name, "10"))
			n.ready(index.ID(id + 1))
		}
		return n
	}
	n := ready()
	next := n.must(byItself(n, 1)).Index
	if d := n.state.Definition(next); d.SplitCause != "slice 1 has 9 bytes" || d.Replaces != 1 {
		t.Fatalf("%+v", d)
	}
	n.refuse(byItself(n, 2), errcode.SplitRunning)
	n.must(split(t, n.state.Index(2), "5", "6")) // a split by a user is allowed
	n.ready(next)
	if d := n.state.Definition(next); d.SplitCause != "" || n.state.Definition(1).State != index.Dropping {
		t.Fatalf("%+v", d)
	}
	n = ready()
	x, to := n.state.Index(2), n.third()
	n.must(&StartRebalance{Cause: "test", Sends: 1, Receives: 1, Steps: []partition.Rebalance{{Index: 2,
		Old: x.Topology.Copies[0].ID, Dst: partition.Shard{Node: to}}}})
	n.refuse(byItself(n, 1), errcode.RebalanceRunning)
	n.must(split(t, n.state.Index(1), "5", "6"))
	n = ready()
	long := byItself(n, 1)
	long.Cause = strings.Repeat("x", MaxCauseBytes+1)
	n.refuse(long, errcode.InvalidArgument)
	n.must(&SetRollbackStep{Bucket: "b", Generation: 1, To: Started})
	n.refuse(byItself(n, 1), errcode.IndexInRollback)
	s, y := *n.state, *n.state.Index(1)
	y.Definition.SplitCause = "of none"
	s.indexes = s.indexes.Copy()
	s.indexes.Set(1, &y)
	if err := Check(&s); !errors.Is(err, ErrInvariant) {
		t.Errorf("a cause without a split: %v", err)
	}
}

// Values that no snapshot can hold are neither decoded from the log nor applied, and Check finds them.
func TestUnencodableSplitValuesAreRefused(t *testing.T) {
	n := cluster(t)
	n.must(ranged("x", "10"))
	n.ready(1)
	n.must(createByKey("h", index.PartitionBy{Scheme: index.PartitionHash, Exprs: []string{"a"}}, 0, 0, 1))
	n.ready(2)
	noJSON, more, hash := split(t, n.state.Index(1), "10", "20"), split(t, n.state.Index(1), "10", "20"),
		split(t, n.state.Index(1), "10", "20")
	noJSON.Values = []string{"10", "{"}
	more.Values = []string{"10", "20", "30"}
	hash.ID = 2
	replaces, failed := ranged("y", "10"), ranged("y", "10")
	replaces.Definition.Replaces, failed.Definition.SplitFailed = 1, "why"
	caused := ranged("y", "10")
	caused.Definition.SplitCause = "why"
	values := ranged("y", "10")
	values.Definition.PartitionBy.Values = nil
	for name, c := range map[string]struct {
		body        Body
		undecodable bool
	}{
		"a value that is no JSON":       {noJSON, true},
		"more values than partitions":   {more, false},
		"values of a hash":              {hash, false},
		"a created successor":           {replaces, true},
		"created with a failed split":   {failed, true},
		"created with a cause":          {caused, true},
		"created with too few values":   {values, false},
		"split with no value but three": {&SplitIndex{ID: 1, Partitions: 3}, false},
	} {
		command := Command{TimeMS: n.now, Body: c.body}
		if data, err := Encode(command); err == nil && c.undecodable {
			if _, err := Decode(data); !errors.Is(err, ErrUndecodable) {
				t.Errorf("%s is read: %v", name, err)
			}
		}
		next, results, _ := ApplyCommands(n.state, n.state.AppliedIndex()+1, []Command{command})
		if err := results[0].Err(); !errors.Is(err, errcode.InvalidArgument) || next.IndexCount() != 2 {
			t.Errorf("%s is applied: %v", name, err)
		}
	}
	for name, values := range map[string][]json.RawMessage{"no JSON": {json.RawMessage("{")}, "too few": nil} {
		s, x := *n.state, *n.state.Index(1)
		x.Definition.PartitionBy.Values = values
		s.indexes = s.indexes.Copy()
		s.indexes.Set(1, &x)
		if err := Check(&s); !errors.Is(err, ErrInvariant) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A cancel ends the split whatever has happened to the successor, and never affects an index that has taken over the
// name.
func TestCancelOfASplit(t *testing.T) {
	cancel := &CancelSplit{ID: 1}
	n := splittingNode(t)
	var made []index.CopyID
	for _, c := range n.state.Index(2).Topology.Copies {
		made = append(made, c.ID)
	}
	n.must(&AllocateCopies{ID: 2, Revision: n.state.DefinitionsRevision(), Copies: made})
	n.must(&SetIndexState{ID: 2, From: index.Pending, To: index.Backfill, Guard: Guard{Generation: 1}})
	if r := n.must(cancel); r.Index != 2 {
		t.Fatalf("%+v", r)
	}
	first := n.state.Index(1)
	if n.state.Index(2).Definition.State != index.Dropping || n.state.IndexByName("b", "x") != first ||
		first.Definition.SplitFailed != SplitCancelled || first.Definition.State != index.Maintenance {
		t.Fatal(Describe(n.state))
	}
	n.refuse(cancel, errcode.StateMismatch) // a second time
	if n.must(split(t, first, "5")); n.state.Definition(1).SplitFailed != "" {
		t.Fatal("it was cancelled still, though another one is under way")
	}
	n = splittingNode(t)
	n.ready(2)
	n.refuse(cancel, errcode.StateMismatch)
	n.refuse(&CancelSplit{ID: 2}, errcode.StateMismatch)
	n.refuse(&CancelSplit{ID: 9}, errcode.UnknownIndex)
}
