package statecontext

import (
	"bytes"
	"testing"

	"tidemark/index"
	"tidemark/partition"
)

// seen returns indexers as they are registered now.
func (n *node) seen(nodes ...index.NodeID) (all []SeenIndexer) {
	for _, x := range nodes {
		all = append(all, SeenIndexer{Node: x, ModifiedCAS: n.state.Indexer(x).ModifiedCAS})
	}
	return all
}

// absent returns since when an indexer is offline and from when its repair is counted, both in state time; 0, 0 if it
// is online.
func (n *node) absent(x index.NodeID) (since, repair int64) {
	if a := n.state.Indexer(x).Offline; a != nil {
		return a.StateMS, a.RepairMS
	}
	return 0, 0
}

// goldenAbsence has indexers that go offline, come back and stay offline, a cancelled repair, and a restore.
func goldenAbsence(t testing.TB) *node {
	n := cluster(t)
	id := n.must(create("x", 0, 0, 1)).Index
	n.ready(id)
	n.third()
	n.must(&NoteAbsences{Offline: n.seen(0, 1)})
	n.now += 60_000
	n.must(&NoteAbsences{Offline: n.seen(2), Back: n.seen(1)})
	b := n.backup()
	n.now += 60_000
	r := n.must(&StartRebalance{Cause: RepairCause, Sends: 8, Receives: 8, Steps: []partition.Rebalance{{Index: id,
		Old: n.state.Topology(id).Copies[0].ID, Dst: partition.Shard{Node: 1}}}}).Number
	n.must(&CancelRebalance{ID: r, Reason: "it can wait"})
	n.must(&EndRebalance{ID: r})
	n.stage(b, RestoreInPlace)
	n.must(&FinishRestore{ID: "r1", Epoch: 9, Buckets: []FoundBucket{{Name: "b", UUID: "bu1", VBuckets: 4}}})
	return n
}

// TestAbsences: the start of an absence survives terms, clock changes, another boot and a snapshot, until the indexer
// is recorded as back. Recording the present state, or the state of an earlier registration, is not an update.
func TestAbsences(t *testing.T) {
	n := cluster(t)
	note := func(changed bool, c *NoteAbsences) {
		t.Helper()
		if r := n.must(c); r.Changed != changed {
			t.Fatalf("%+v: changed %v\n%s", c, r.Changed, Describe(n.state))
		}
	}
	is := func(x index.NodeID, since int64) {
		t.Helper()
		if got, repair := n.absent(x); got != since || repair != since {
			t.Fatalf("indexer %d is away since %d, and for a repair since %d, want %d", x, got, repair, since)
		}
	}
	began, stale, revision := n.now, n.seen(0, 1), n.state.DefinitionsRevision()
	note(true, &NoteAbsences{Offline: n.seen(0, 1)})
	is(0, began)
	is(1, began)
	if a := n.state.Indexer(0).Offline; a.SinceMS != began+wallsAheadMS {
		t.Errorf("for people it is %d", a.SinceMS)
	}
	n.now += 1000
	note(false, &NoteAbsences{Offline: n.seen(0)}) // the count continues
	is(0, began)
	note(false, &NoteAbsences{})
	note(false, &NoteAbsences{Offline: []SeenIndexer{{Node: 9, ModifiedCAS: 1}}, Back: []SeenIndexer{{Node: 9}}})
	if n.state.DefinitionsRevision() != revision || n.state.Indexer(0).ModifiedCAS != stale[0].ModifiedCAS {
		t.Error("components are to learn it")
	}
	n.must(&LeaderStarted{Term: n.state.Term() + 1, Manager: Manager{ID: "m2-bb", Name: "m2", FormatLevel: 1}})
	is(0, began)
	n.must(&RegisterIndexer{Indexer: Indexer{UUID: "u0", BootID: "again"}}) // but the leader has not seen it at work
	is(0, began)
	note(false, &NoteAbsences{Offline: stale[:1], Back: stale[:1]})
	back, err := ReadSnapshot(newReader(snapshot(t, n.state)))
	if err != nil || Hash(back) != Hash(n.state) || *back.Indexer(0).Offline != *n.state.Indexer(0).Offline {
		t.Errorf("a snapshot gives %+v, %v", back.Indexer(0), err)
	}
	note(true, &NoteAbsences{Back: n.seen(0)})
	is(0, 0)
	is(1, began)
	note(false, &NoteAbsences{Back: n.seen(0)})
	note(true, &NoteAbsences{Offline: n.seen(0)})
	is(0, n.now)
	n.now -= 500 // a command stamped before the previous one
	note(true, &NoteAbsences{Back: n.seen(1)})
	note(true, &NoteAbsences{Offline: n.seen(1)})
	is(1, n.now+500)
	n.must(&RaiseEpoch{Epoch: 9})
	is(0, n.now+500)
}

// TestAbsencesAreStored: each change of an indexer's absence emits one event, and nothing else does.
func TestAbsencesAreStored(t *testing.T) {
	n := cluster(t)
	n.must(&SetIndexerGoing{Node: 1, UUID: "u1", Going: true})
	_, _, events := ApplyCommands(n.state, n.raft+1, []Command{{TimeMS: n.now, WallMS: 77,
		Body: &NoteAbsences{Offline: n.seen(0, 1)}}})
	if len(events) != 2 {
		t.Fatalf("%+v", events)
	}
	for x, e := range events {
		if e.Kind != EventIndexer || int(e.Node) != x || e.Going != (x == 1) || e.Indexer.Offline.SinceMS != 77 {
			t.Errorf("%+v", e)
		}
	}
}

// TestCancelledRepairRests: after a repair is cancelled, the delay of the next one restarts for the indexers from
// which it took copies, and for no other. Cancelling any other rebalance changes nothing.
func TestCancelledRepairRests(t *testing.T) {
	for _, cause := range []string{RepairCause, "an operator"} {
		n := cluster(t)
		id := n.must(create("x", 0, 0, 1)).Index
		n.ready(id)
		to, began := n.third(), n.now
		n.must(&NoteAbsences{Offline: n.seen(0, 1)})
		r := n.must(&StartRebalance{Cause: cause, Sends: 1, Receives: 1, Steps: []partition.Rebalance{{Index: id,
			Old: n.state.Topology(id).Copies[0].ID, Dst: partition.Shard{Node: to}}}}).Number
		n.now += 5000
		n.must(&CancelRebalance{ID: r})
		cancelled := n.now
		n.now += 5000
		n.must(&CancelRebalance{ID: r})
		want := map[index.NodeID]int64{0: began, 1: began}
		if cause == RepairCause {
			want[0] = cancelled
		}
		for x, repair := range want {
			if since, got := n.absent(x); since != began || got != repair {
				t.Errorf("%s: indexer %d is away since %d, want %d, its repair counts from %d, want %d", cause, x, since,
					began, got, repair)
			}
		}
	}
}

// TestRestoreClearsAbsences: absences in a backup are not restored, because they belong to another time.
func TestRestoreClearsAbsences(t *testing.T) {
	n := cluster(t)
	to := n.third()
	n.must(&NoteAbsences{Offline: n.seen(0, to)})
	b := n.backup()
	n.must(&RemoveIndexer{Node: to, UUID: "u3"})
	n.state.removed = n.state.removed.Copy()
	n.state.removed.Delete("u3") // as in a history that has not removed it
	n.now += 1000
	n.stage(b, RestoreInPlace)
	n.must(&FinishRestore{ID: "r1", Epoch: 9, Buckets: []FoundBucket{{Name: "b", UUID: "bu1", VBuckets: 4}}})
	if i := n.state.Indexer(to); i == nil || i.Offline != nil {
		t.Errorf("brought back: %+v", i)
	}
	if n.state.Indexer(0).Offline == nil {
		t.Error("a known indexer is back")
	}
	if _, err := ReadSnapshot(bytes.NewReader(snapshot(t, n.state))); err != nil {
		t.Error(err)
	}
}
