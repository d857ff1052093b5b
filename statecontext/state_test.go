package statecontext

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/internal/testing/families"
	"tidemark/partition"
	"tidemark/timestamp"
)

// node drives a state as a Raft node does: encode, apply, check.
type node struct {
	t     testing.TB
	state *State
	raft  uint64
	now   int64
	log   [][]byte
}

func newNode(t testing.TB) *node { return &node{t: t, state: New(), now: 1_000_000} }

// do applies commands as one entry, checks every invariant, and verifies that the older state did not change.
func (n *node) do(bodies ...Body) []Result {
	n.t.Helper()
	commands := make([]Command, len(bodies))
	for i, b := range bodies {
		commands[i] = Command{TimeMS: n.now, Body: b}
	}
	return n.apply(commands...)
}

// wallsAheadMS is the distance of proposers' wall clocks from the state time, so that the two cannot be mixed up.
const wallsAheadMS = 1_800_000_000_000

// applyEntry is Apply for a program that supports the next level, too.
func applyEntry(s *State, raftIndex uint64, data []byte) (*State, []Result, []Event, error) {
	commands, err := DecodeUpTo(NextLevel, data)
	if err != nil {
		return nil, nil, nil, err
	}
	next, results, events := ApplyCommands(s, raftIndex, commands)
	return next, results, events, nil
}

func (n *node) apply(commands ...Command) []Result {
	n.t.Helper()
	for i := range commands {
		commands[i].WallMS = n.now + wallsAheadMS
	}
	data, err := Encode(commands...)
	if err != nil {
		n.t.Fatal(err)
	}
	before, hash := n.state, Hash(n.state)
	n.raft++
	next, results, events, err := applyEntry(before, n.raft, data)
	if err != nil {
		n.t.Fatal(err)
	}
	n.log = append(n.log, data)
	if Hash(before) != hash {
		n.t.Fatalf("Apply changed the state it was given")
	}
	if err := errors.Join(Check(next), checkStep(before, next)); err != nil {
		n.t.Fatalf("%v\n%s", err, Describe(next))
	}
	cas := before.CAS()
	for i, r := range results {
		if c, is := commands[i].Body.(*RaiseEpoch); is && c.SkipNumbers {
			cas += SkippedUpdates
		}
		switch {
		case r.Replayed:
		case r.Changed && r.Rejection != nil:
			n.t.Fatalf("a rejection changed something: %+v", r)
		case r.Changed:
			cas++
			fallthrough
		default:
			if r.CAS != cas {
				n.t.Fatalf("result says cas %d, want %d", r.CAS, cas)
			}
		}
	}
	if next.CAS() != cas {
		n.t.Fatalf("cas %d after %d updates from %d", next.CAS(), cas-before.CAS(), before.CAS())
	}
	checkEvents(n.t, before, next, events)
	n.state = next
	return results
}

// checkEvents verifies that events are in cas order, one group per update.
func checkEvents(t testing.TB, before, next *State, events []Event) {
	t.Helper()
	last, loud := before.CAS(), false
	for _, e := range events {
		if e.CAS != last && e.CAS != last+1 && e.CAS != last+1+SkippedUpdates || e.CAS == before.CAS() {
			t.Fatalf("event %+v after cas %d", e, last)
		}
		if e.CAS == last && loud != e.Kind.Loud() {
			t.Fatalf("event %+v shares its cas with events that are otherwise loud", e)
		}
		if !slices.Contains(EventKinds(), e.Kind) || e.TimeMS != next.WallMS() {
			t.Fatalf("event %+v of an unlisted kind, or not of %d", e, next.WallMS())
		}
		last, loud = e.CAS, e.Kind.Loud()
	}
	if last != next.CAS() {
		t.Fatalf("events up to cas %d, state at %d", last, next.CAS())
	}
}

// must applies one command that must be accepted.
func (n *node) must(b Body) Result {
	n.t.Helper()
	r := n.do(b)[0]
	if r.Rejection != nil {
		n.t.Fatalf("%T: %v", b, r.Rejection)
	}
	return r
}

// refuse applies one command that must be rejected with a code.
func (n *node) refuse(b Body, want errcode.Code) {
	n.t.Helper()
	aged := *n.state
	aged.timeMS, aged.wallMS = max(aged.timeMS, n.now), n.now+wallsAheadMS // only time advances
	before := Hash(&aged)
	r := n.do(b)[0]
	if err := r.Err(); !errors.Is(err, want) {
		n.t.Fatalf("%T: got %v, want %s", b, err, want)
	}
	if Hash(n.state) != before {
		n.t.Fatalf("%T: a rejection changed the state", b)
	}
}

func bootstrapped(t testing.TB) *node {
	n := newNode(t)
	n.must(&LeaderStarted{Term: 1, Manager: Manager{ID: "m1-aa", Name: "m1", REST: "http://m1", Raft: "m1:1"}})
	n.must(&BootstrapCluster{ClusterID: "c1", Epoch: 7})
	return n
}

// cluster has two indexers and bucket "b" with 4 vbuckets.
func cluster(t testing.TB) *node {
	n := bootstrapped(t)
	for i := range 2 {
		n.must(&RegisterIndexer{Indexer: Indexer{UUID: fmt.Sprintf("u%d", i), BootID: "boot", Name: fmt.Sprintf("i%d", i)}})
	}
	n.must(&SetBucket{Name: "b", UUID: "bu1", VBuckets: 4})
	return n
}

// raise raises the format level to NextLevel, which the manager supports.
func (n *node) raise() {
	n.t.Helper()
	m := *n.state.Manager("m1-aa")
	m.FormatLevel = NextLevel
	n.must(&RegisterManager{Manager: m})
	n.must(&SetFormatLevel{Level: NextLevel})
}

func create(name string, replicas uint8, nodes ...index.NodeID) *CreateIndex {
	c := &CreateIndex{
		Definition: index.Definition{
			Name: name, Bucket: "b", BucketUUID: "bu1", Using: index.UsingOrdered, ExprType: index.ExprN1QL,
			Keys: []index.KeyExpr{{Expr: "`name`"}}, Partitions: uint16(len(nodes) / (int(replicas) + 1)), Replicas: replicas,
			Statement: "CREATE INDEX " + name + " ON b(name)",
		},
	}
	c.Layout = partition.Layout{Scheme: partition.HashDocID, Partitions: c.Definition.Partitions}
	for k, node := range nodes {
		c.Placement = append(c.Placement, Placement{
			Slice: index.SliceID(k % int(c.Layout.Partitions)), Replica: partition.Replica(k / int(c.Layout.Partitions)),
			Node: node,
		})
	}
	return c
}

// createByKey returns an index on (a, b DESC, c) that is partitioned by key.
func createByKey(name string, by index.PartitionBy, replicas uint8, nodes ...index.NodeID) *CreateIndex {
	c := create(name, replicas, nodes...)
	c.Definition.Keys = []index.KeyExpr{{Expr: "a"}, {Expr: "b", Desc: true}, {Expr: "c"}}
	c.Definition.PartitionBy = by
	var err error
	if c.Layout, err = partition.LayoutOf(&c.Definition); err != nil {
		panic(err)
	}
	return c
}

func vector(seqnos ...uint64) timestamp.Vector {
	t := timestamp.New(len(seqnos))
	for v, s := range seqnos {
		if s > 0 {
			t.Set(v, timestamp.Position{VBUUID: 0xa, Seqno: s})
		}
	}
	return t
}

func (n *node) advance(bucket string, s timestamp.Vector, logs ...timestamp.VBucketLog) *AdvanceStability {
	n.t.Helper()
	a, err := NewBucketAdvance(n.state.Bucket(bucket), s, s, logs)
	if err != nil {
		n.t.Fatal(err)
	}
	return &AdvanceStability{Buckets: []BucketAdvance{a}}
}

func TestLifeOfAnIndex(t *testing.T) {
	n := cluster(t)
	r := n.must(create("by_name", 1, 0, 1, 1, 0))
	id := r.Index
	x := n.state.Index(id)
	if x.Definition.State != index.Pending || len(x.Topology.Copies) != 4 || x.Definition.ModifiedCAS != r.CAS ||
		x.Definition.CreatedMS != n.now+wallsAheadMS {
		t.Fatalf("created as %+v", x)
	}
	n.refuse(create("by_name", 0, 0), errcode.NameExists)
	again := create("by_name", 0, 0)
	again.IfNotExists = true
	if r := n.must(again); r.Changed || r.Index != id {
		t.Fatalf("IF NOT EXISTS: %+v", r)
	}
	changes := make([]index.CopyID, 0, 4)
	for _, c := range x.Topology.Copies {
		changes = append(changes, c.ID)
	}
	n.refuse(&AllocateCopies{ID: id, Revision: x.PlacedCAS - 1, Copies: changes}, errcode.StaleRevision)
	n.must(&AllocateCopies{ID: id, Revision: x.PlacedCAS, Copies: changes})
	n.refuse(&SetIndexState{ID: id, From: index.Backfill, To: index.Maintenance}, errcode.StateMismatch)
	n.refuse(&SetIndexState{ID: id, From: index.Pending, To: index.Maintenance}, errcode.IllegalTransition)
	n.must(&SetIndexState{ID: id, From: index.Pending, To: index.Backfill, Guard: Guard{Generation: 1}})
	n.refuse(&SetIndexState{ID: id, From: index.Backfill, To: index.Maintenance, Guard: Guard{Generation: 2}},
		errcode.GenerationMismatch)
	n.must(&SetIndexState{ID: id, From: index.Backfill, To: index.Maintenance, Guard: Guard{Generation: 1}})
	n.refuse(&DropIndex{ID: id, IfMatch: 1}, errcode.CASMismatch)
	n.refuse(&RemoveIndex{ID: id}, errcode.StateMismatch)
	n.must(&DropIndex{ID: id, IfMatch: n.state.Definition(id).ModifiedCAS})
	if r := n.must(&DropIndex{ID: id}); r.Changed {
		t.Fatal("dropped twice")
	}
	second := n.must(create("by_name", 0, 0)) // the name is free at once
	if second.Index == id {
		t.Fatal("an id was reused")
	}
	n.must(&RemoveIndex{ID: id})
	n.refuse(&RemoveIndex{ID: id}, errcode.UnknownIndex)
	n.refuse(&DropIndex{ID: id}, errcode.UnknownIndex)
	if got := n.state.IndexByName("b", "by_name").Definition.ID; got != second.Index {
		t.Fatalf("the name leads to %d", got)
	}
}

func TestPlacementIsChecked(t *testing.T) {
	n := cluster(t)
	n.refuse(create("x", 1, 0, 0), errcode.PlacementInconsistent) // two replicas on one node
	n.refuse(create("x", 0, 9), errcode.IndexChanged)             // the node does not exist any more
	c := create("x", 0, 0, 1)
	c.Placement[1].Slice = 0 // one slice twice, the other one not at all
	n.refuse(c, errcode.PlacementInconsistent)
	c = create("x", 0, 0, 1)
	c.Placement = c.Placement[:1]
	n.refuse(c, errcode.PlacementInconsistent)
	c = create("x", 0, 0)
	c.Layout.Scheme = 99
	n.refuse(c, errcode.InvalidArgument)
	byKey := index.PartitionBy{Scheme: index.PartitionHash, Exprs: []string{"c"}}
	c = create("x", 0, 0)
	c.Definition.PartitionBy = byKey // with a layout of another scheme
	n.refuse(c, errcode.InvalidArgument)
	c = createByKey("x", byKey, 0, 0)
	c.Definition.Keys = c.Definition.Keys[:1]
	n.refuse(c, errcode.InvalidArgument)
	c = createByKey("x", byKey, 0, 0)
	c.Definition.PartitionBy = index.PartitionBy{}
	n.refuse(c, errcode.InvalidArgument)
	c = create("x", 0, 0)
	c.Definition.BucketUUID = "other"
	n.refuse(c, errcode.BucketGone)
	c = create("x", 0, 0)
	c.Definition.Bucket = "nope"
	n.refuse(c, errcode.UnknownBucket)
	for _, bad := range []string{"", "a\x00b", string(make([]byte, 1000)), "\xff"} {
		n.refuse(create(bad, 0, 0), errcode.InvalidArgument)
	}
}

func TestReplacingACopy(t *testing.T) {
	n := cluster(t)
	id := n.must(create("x", 0, 0)).Index
	x := n.state.Index(id)
	old := x.Topology.Copies[0].ID
	evict := func(cas uint64, add ...Placement) *EvictCopies {
		return &EvictCopies{Node: 0, UUID: "u0", Indexes: []Eviction{{ID: id, IfTopology: cas, Add: add}}}
	}
	n.refuse(evict(x.TopologyCAS, Placement{Node: 1}), errcode.StateMismatch)
	n.must(&EvictIndexer{Node: 0, UUID: "u0", Revision: n.state.DefinitionsRevision()})
	n.must(&SetIndexState{ID: id, From: index.Pending, To: index.Backfill})
	n.refuse(evict(x.TopologyCAS, Placement{Node: 9}), errcode.UnknownNode)
	n.refuse(evict(x.TopologyCAS), errcode.PlacementInconsistent)
	n.refuse(evict(1, Placement{Node: 1}), errcode.CASMismatch)
	n.must(evict(x.TopologyCAS, Placement{Node: 1}))
	got := n.state.Topology(id).Copies
	if len(got) != 1 || got[0].ID == old || got[0].Node != 1 || got[0].State != partition.Placed {
		t.Fatalf("copies %+v", got)
	}
	ready := &SetIndexState{ID: id, From: index.Backfill, To: index.Maintenance, IfTopology: x.TopologyCAS}
	n.refuse(ready, errcode.CASMismatch) // the copy that was whole is gone
	ready.IfTopology = n.state.Index(id).TopologyCAS
	n.must(ready)
	n.refuse(&RemoveIndexer{Node: 1, UUID: "u1"}, errcode.NodeInUse)
	n.must(&RemoveIndexer{Node: 0, UUID: "u0"})
	n.refuse(&RegisterIndexer{Indexer: Indexer{UUID: "u0"}}, errcode.NodeRemoved)
	if r := n.must(&RegisterIndexer{Indexer: Indexer{UUID: "u2"}}); r.Node != 2 {
		t.Fatalf("new indexer got number %d", r.Node) // it counts onward, although 0 is free
	}
}

func TestMovingACopy(t *testing.T) {
	n := cluster(t)
	id := n.must(create("x", 0, 0)).Index
	old := n.state.Topology(id).Copies[0].ID
	n.allocate(id, old)
	r := n.must(&StartRebalance{Cause: "test", Sends: 1, Receives: 1,
		Steps: []partition.Rebalance{{Index: id, Old: old, Dst: partition.Shard{Node: 1}}}}).Number
	n.must(&StepRebalance{ID: r, Step: 1, From: partition.RebalanceStart, To: partition.RebalancePending})
	moved := n.state.Topology(id).Copies[1].ID
	n.allocate(id, moved)
	n.must(&StepRebalance{ID: r, Step: 1, From: partition.RebalancePending, To: partition.RebalanceCatchup})
	n.must(&StepRebalance{ID: r, Step: 1, From: partition.RebalanceCatchup, To: partition.RebalanceDone})
	n.refuse(&AllocateCopies{ID: id, Revision: n.state.DefinitionsRevision(), Copies: []index.CopyID{moved, old}},
		errcode.IllegalTransition) // the old one leaves
	n.refuse(&ForgetCopies{ID: id, Copies: []index.CopyID{old, moved}}, errcode.StateMismatch) // that one stays
	n.refuse(&ForgetCopies{ID: id, Copies: []index.CopyID{99}}, errcode.UnknownCopy)
	n.refuse(&ForgetCopies{ID: id, IfTopology: 1, Copies: []index.CopyID{old}}, errcode.CASMismatch)
	n.must(&ForgetCopies{ID: id, IfTopology: n.state.Index(id).TopologyCAS, Copies: []index.CopyID{old}})
	n.must(&RemoveIndexer{Node: 0, UUID: "u0"})
	n.refuse(&BuildIndexes{IDs: []index.ID{id}, IfMatch: 1}, errcode.CASMismatch)
}

func TestNodeIDs(t *testing.T) {
	n := bootstrapped(t)
	for i := range int(index.MaxNodeID) + 1 {
		if r := n.must(&RegisterIndexer{Indexer: Indexer{UUID: fmt.Sprint(i)}}); int(r.Node) != i {
			t.Fatalf("indexer %d got number %d", i, r.Node)
		}
	}
	n.refuse(&RegisterIndexer{Indexer: Indexer{UUID: "more"}}, errcode.LimitExceeded)
	n.must(&RemoveIndexer{Node: 17, UUID: "17"})
	if r := n.must(&RegisterIndexer{Indexer: Indexer{UUID: "more"}}); r.Node != 17 {
		t.Fatalf("got number %d", r.Node)
	}
	if r := n.must(&RegisterIndexer{Indexer: Indexer{UUID: "3", Admin: "http://new"}}); r.Node != 3 || !r.Changed {
		t.Fatalf("taken over as %+v", r)
	}
	if r := n.must(&RegisterIndexer{Indexer: Indexer{UUID: "3", Admin: "http://new"}}); r.Changed {
		t.Fatal("the same registration is an update")
	}
}

func TestBucketRecreated(t *testing.T) {
	n := cluster(t)
	id := n.must(create("x", 0, 0)).Index
	n.must(n.advance("b", vector(1, 2, 3, 4)))
	if r := n.must(&SetBucket{Name: "b", UUID: "bu1", VBuckets: 4}); r.Changed {
		t.Fatal("the same bucket is an update")
	}
	n.refuse(&SetBucket{Name: "b", UUID: "bu1", VBuckets: 8}, errcode.InvalidArgument)
	late := n.advance("b", vector(2, 2, 3, 4))
	n.must(&SetBucket{Name: "b", UUID: "bu2", VBuckets: 8})
	n.refuse(late, errcode.GenerationMismatch)
	b := n.state.Bucket("b")
	if b.Generation != 2 || b.Stability.Vector.Total() != 0 || b.VBuckets != 8 {
		t.Fatalf("bucket %+v", b)
	}
	f := n.state.Definition(id)
	if f.State != index.Error || f.BucketUUID != "bu1" {
		t.Fatalf("index %+v", f)
	}
	n.refuse(&SetIndexState{ID: id, From: index.Error, To: index.Backfill}, errcode.BucketGone)
	was := n.state.Topology(id).Copies[0].ID
	n.must(&BuildIndexes{IDs: []index.ID{id}})
	f = n.state.Definition(id)
	if f.State != index.Pending || f.BucketUUID != "bu2" || n.state.Topology(id).Copies[0].ID == was {
		t.Fatalf("index %+v", f)
	}
	n.must(&BucketGone{Name: "b", UUID: "bu2"})
	n.refuse(create("y", 0, 0), errcode.BucketGone)
	n.refuse(&BuildIndexes{IDs: []index.ID{id}}, errcode.BucketGone)
	n.refuse(&BucketGone{Name: "b", UUID: "bu1"}, errcode.GenerationMismatch)
	n.must(&DropIndex{ID: id})
}

func TestStability(t *testing.T) {
	n := cluster(t)
	n.must(n.advance("b", vector(10, 18, 0, 40)))
	// The worked example of the design: the previous promotion and the present one.
	n.must(n.advance("b", vector(12, 18, 0, 40)))
	n.refuse(n.advance("b", vector(12, 18, 0, 40)), errcode.StabilityNotMonotone)
	n.refuse(n.advance("b", vector(11, 19, 0, 40)), errcode.StabilityNotMonotone)
	twice := n.advance("b", vector(13, 18, 0, 40))
	n.must(twice)
	n.refuse(twice, errcode.StabilityNotMonotone) // its number is used
	branch := vector(13, 18, 0, 40)
	branch.VBUUIDs[0] = 0xb
	log := timestamp.VBucketLog{VBucket: 0, Log: timestamp.FailoverLog{{VBUUID: 0xb, Seqno: 13}, {VBUUID: 0xa}},
		Revision: timestamp.MapRevision{Rev: 5}}
	n.must(n.advance("b", branch, log)) // only a vbuuid has changed
	log.Revision.Rev = 4
	n.refuse(n.advance("b", vector(14, 18, 0, 40), log), errcode.StaleRevision)
	log.VBucket = 4
	n.refuse(n.advance("b", vector(14, 18, 0, 40), log), errcode.InvalidArgument)

	// One invalid bucket does not block the others.
	n.must(&SetBucket{Name: "c", UUID: "cu1", VBuckets: 1})
	both := n.advance("b", vector(1, 1, 1, 1))
	both.Buckets = append(both.Buckets, n.advance("c", vector(5)).Buckets...)
	r := n.must(both)
	if len(r.Buckets) != 1 || r.Buckets[0].Bucket != "b" || n.state.Bucket("c").Stability.Vector.Seqnos[0] != 5 {
		t.Fatalf("result %+v", r)
	}
	before := n.state.DefinitionsRevision()
	n.must(n.advance("c", vector(6)))
	n.must(&SetBackfillTimestamp{Bucket: "c", Generation: 1, Vector: vector(3)})
	if n.state.DefinitionsRevision() != before {
		t.Fatal("a promotion moved the definitions revision")
	}
	n.must(&SetBackfillTimestamp{Bucket: "c", Generation: 1})
	n.refuse(&SetBackfillTimestamp{Bucket: "c", Generation: 1, Vector: vector(1, 2)}, errcode.InvalidArgument)
	n.refuse(&SetBackfillTimestamp{Bucket: "c", Generation: 2}, errcode.GenerationMismatch)
}

// mergesRollbackLogs verifies that in step started of rollback 1 logs arrive in pieces, each of which is kept unless
// a newer map revision is known.
func (n *node) mergesRollbackLogs() {
	n.t.Helper()
	logs := func(rid uint64, v uint16, rev uint64, branch uint64) *RollbackLogs {
		return &RollbackLogs{Bucket: "b", Generation: 1, ID: rid, Logs: []timestamp.VBucketLog{{VBucket: v,
			Log:      timestamp.FailoverLog{{VBUUID: branch, Seqno: 5}, {VBUUID: 0xa}},
			Revision: timestamp.MapRevision{Rev: rev}}}}
	}
	n.refuse(logs(0, 2, 4, 0xd), errcode.RollbackMismatch)
	n.refuse(logs(1, 9, 4, 0xd), errcode.InvalidArgument)
	n.must(logs(1, 2, 4, 0xd))
	n.must(logs(1, 3, 4, 0xe))
	n.refuse(logs(1, 2, 3, 0xf), errcode.StaleRevision)
	if again := n.must(logs(1, 2, 4, 0xd)); again.Changed {
		n.t.Fatal("the same logs again change something")
	}
	if b := n.state.Bucket("b"); b.Rollback.Logs[2].Newest() != 0xd || b.Rollback.Logs[3].Newest() != 0xe ||
		b.Rollback.Step != Started || b.Stability.Logs[2].Newest() == 0xd {
		n.t.Fatalf("%+v", b)
	}
}

func TestRollbackSteps(t *testing.T) {
	n := cluster(t)
	id := n.must(create("x", 0, 0)).Index
	n.must(&SetIndexState{ID: id, From: index.Pending, To: index.Backfill})
	n.must(n.advance("b", vector(10, 20, 30, 40)))
	late := n.advance("b", vector(11, 20, 30, 40))
	step := func(rid uint64, from, to RollbackStep) *SetRollbackStep {
		return &SetRollbackStep{Bucket: "b", Generation: 1, ID: rid, From: from, To: to}
	}
	n.refuse(step(0, NoRollback, Prepare), errcode.IllegalTransition)
	n.refuse(step(0, Started, Prepare), errcode.StepMismatch)
	n.refuse(step(3, NoRollback, Started), errcode.RollbackMismatch)
	if r := n.must(step(0, NoRollback, Started)); r.Number != 1 {
		t.Fatalf("rollback id %d", r.Number)
	}
	n.refuse(late, errcode.RollbackMismatch) // queued before the rollback: it must not be applied after it
	n.refuse(&SetIndexState{ID: id, From: index.Backfill, To: index.Maintenance, Guard: Guard{Generation: 1}},
		errcode.RollbackMismatch)
	prepare := step(1, Started, Prepare)
	n.refuse(prepare, errcode.InvalidArgument)
	n.mergesRollbackLogs()
	prepare.Failover = vector(8, 20, 30, 40)
	prepare.Logs = []timestamp.VBucketLog{{VBucket: 0, Log: timestamp.FailoverLog{{VBUUID: 0xc, Seqno: 8}, {VBUUID: 0xa}}}}
	n.must(prepare)
	n.refuse(&RollbackLogs{Bucket: "b", Generation: 1, ID: 1}, errcode.StepMismatch)
	if r := n.must(step(1, Prepare, Started)); r.Number != 2 { // a newer log was seen
		t.Fatalf("rollback id %d", r.Number)
	}
	prepare.ID = 2
	n.must(prepare)
	restart := step(2, Prepare, Restart)
	restart.Restart = vector(7, 20, 30, 40)
	n.must(restart)
	n.must(step(2, Restart, RollingBack))
	done := step(2, RollingBack, NoRollback)
	done.Stability = vector(11, 0, 0, 0)
	n.refuse(done, errcode.StabilityNotMonotone)
	done.Stability = vector(7, 20, 30, 40)
	n.must(done)
	b := n.state.Bucket("b")
	if b.Rollback != nil || b.Stability.RollbackID != 2 || b.Stability.Number != 2 || b.Stability.Vector.Seqnos[0] != 7 ||
		b.Stability.Logs[0].Newest() != 0xc || b.Stability.Logs[3].Newest() != 0xe {
		t.Fatalf("bucket %+v", b)
	}
	n.refuse(late, errcode.RollbackMismatch)
	n.refuse(done, errcode.StepMismatch)
	n.must(n.advance("b", vector(8, 20, 30, 40)))
}

func TestLeaderAndEpoch(t *testing.T) {
	n := newNode(t)
	n.refuse(&SetBucket{Name: "b", UUID: "u", VBuckets: 4}, errcode.NotBootstrapped)
	lead := func(term uint64, id string) *LeaderStarted {
		return &LeaderStarted{Term: term, Manager: Manager{ID: id}}
	}
	n.must(lead(3, "m1"))
	n.refuse(&BootstrapCluster{ClusterID: "", Epoch: 1}, errcode.InvalidArgument)
	n.refuse(&BootstrapCluster{ClusterID: "c"}, errcode.InvalidArgument)
	n.must(&BootstrapCluster{ClusterID: "c", Epoch: 5})
	n.refuse(&BootstrapCluster{ClusterID: "d", Epoch: 6}, errcode.AlreadyBootstrapped)
	n.refuse(lead(2, "m1"), errcode.StaleTerm)
	n.refuse(lead(3, "m2"), errcode.StaleTerm)
	n.must(lead(4, "m2"))
	n.refuse(&RaiseEpoch{Epoch: 5}, errcode.StaleTerm)
	n.must(&RaiseEpoch{Epoch: 6})
	n.must(lead(2, "m1")) // terms may restart in a new epoch
	n.refuse(&SetFormatLevel{Level: NextLevel + 1}, errcode.FormatNotAllowed)
	n.must(&RemoveManager{ID: "m2"})
	n.refuse(&RemoveManager{ID: "m2"}, errcode.UnknownNode)
	n.must(&RegisterProjector{Projector: Projector{ID: "p", Admin: "http://p"}})
	n.must(&RemoveProjector{ID: "p"})
}

func TestLedger(t *testing.T) {
	n := cluster(t)
	limits := DefaultLimits()
	limits.LedgerEntries = 6 // one principal may have half of them
	n.must(&SetLimits{Limits: limits})
	ask := func(key string, hash byte, b Body) Result {
		t.Helper()
		return n.apply(Command{TimeMS: n.now, Request: &Request{Principal: "p", Key: key, BodyHash: [32]byte{hash}},
			Body: b})[0]
	}
	first := ask("k1", 1, create("x", 0, 0))
	second := ask("k1", 1, create("x", 0, 0))
	if !second.Replayed || second.CAS != first.CAS || second.Index != first.Index || second.Rejection != nil {
		t.Fatalf("asked again: %+v, first %+v", second, first)
	}
	if r := ask("k1", 2, create("y", 0, 0)); !errors.Is(r.Err(), errcode.RequestMismatch) {
		t.Fatalf("another body: %+v", r)
	}
	if r := ask("k2", 1, create("x", 0, 0)); !errors.Is(r.Err(), errcode.NameExists) {
		t.Fatalf("another key: %+v", r)
	}
	n.must(&DropIndex{ID: first.Index})
	if r := ask("k2", 1, create("x", 0, 0)); !errors.Is(r.Err(), errcode.NameExists) || !r.Replayed {
		t.Fatalf("a rejection is an outcome too: %+v", r)
	}
	// Two in one entry: the second one finds the outcome of the first.
	both := Command{TimeMS: n.now, Request: &Request{Principal: "p", Key: "k3"}, Body: create("z", 0, 0)}
	if rs := n.apply(both, both); rs[0].Replayed || !rs[1].Replayed || rs[0].Index != rs[1].Index {
		t.Fatalf("duplicates in one entry: %+v", rs)
	}
	if r := ask("k4", 1, create("w", 0, 0)); !errors.Is(r.Err(), errcode.LedgerFull) ||
		n.state.IndexByName("b", "w") != nil {
		t.Fatalf("full: %+v", r)
	}
	n.now += limits.LedgerMinAgeMS
	if r := ask("k4", 1, create("w", 0, 0)); r.Rejection != nil || n.state.LedgerLen() != 3 {
		t.Fatalf("the oldest may go: %+v", r)
	}
	n.now += limits.LedgerMaxAgeMS
	if r := ask("k4", 2, &DropIndex{ID: first.Index}); r.Replayed || r.Rejection != nil || n.state.LedgerLen() != 1 {
		t.Fatalf("too old to count: %+v, %d remembered", r, n.state.LedgerLen())
	}
	for range 2 { // without a key nothing is remembered
		r := ask("", 1, &SetBucket{Name: "keyless", UUID: "u", VBuckets: 4})
		if r.Rejection != nil || r.Replayed || n.state.LedgerLen() != 1 {
			t.Fatalf("no key: %+v", r)
		}
	}
	if _, known := n.state.Outcome(&Request{Principal: "p"}); known {
		t.Fatal("the outcome of any request without a key is known")
	}
	for _, key := range []string{"", "k"} {
		c := Command{Request: &Request{Principal: "p", Key: key}, Body: &SetBucket{Name: "by" + key, UUID: "u", VBuckets: 4}}
		data, err := Encode(c)
		if err != nil {
			t.Fatal(err)
		}
		_, _, events, err := Apply(n.state, n.raft+1, data)
		if err != nil || len(events) != 1 || events[0].By != "p" {
			t.Fatalf("key %q: %+v, %v", key, events, err)
		}
	}
	n.must(&RaiseEpoch{Epoch: 8, ClearLedger: true})
	if n.state.LedgerLen() != 0 {
		t.Fatal("the ledger was not cleared")
	}
}

func TestSnapshotRoundTrip(t *testing.T) {
	n := populated(t)
	data := snapshot(t, n.state)
	back, err := ReadSnapshot(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	if Hash(back) != Hash(n.state) || back.AppliedIndex() != n.raft || Describe(back) != Describe(n.state) {
		t.Fatalf("restored\n%s\nwant\n%s", Describe(back), Describe(n.state))
	}
	for cut := range len(data) {
		if _, err := ReadSnapshot(bytes.NewReader(data[:cut])); !errors.Is(err, ErrSnapshotCorrupt) {
			t.Fatalf("cut at %d: %v", cut, err)
		}
	}
	for at := range data {
		damaged := bytes.Clone(data)
		damaged[at] ^= 0x10
		if _, err := ReadSnapshot(bytes.NewReader(damaged)); !errors.Is(err, ErrSnapshotCorrupt) &&
			!errors.Is(err, ErrSnapshotVersion) {
			t.Fatalf("bit flipped at %d: %v", at, err)
		}
	}
	// The restored state continues like the original one.
	c := Command{TimeMS: n.now, Body: create("later", 0, 1)}
	a, _, _ := ApplyCommands(n.state, 99, []Command{c})
	b, _, _ := ApplyCommands(back, 99, []Command{c})
	if Hash(a) != Hash(b) {
		t.Fatal("the restored state goes another way")
	}
}

// A partitioning scheme that is added in a file of its own is replicated like the existing ones; the layout must
// match the definition.
func TestRegisteredPartitionScheme(t *testing.T) {
	n := cluster(t)
	c := create("x", 0, 0, 1)
	c.Definition.PartitionBy = index.PartitionBy{Scheme: families.By, Exprs: []string{"META().id"}}
	n.refuse(c, errcode.InvalidArgument) // the layout is one by hash
	var err error
	if c.Layout, err = partition.LayoutOf(&c.Definition); err != nil {
		t.Fatal(err)
	}
	n.must(c)
	back, err := ReadSnapshot(bytes.NewReader(snapshot(t, n.state)))
	if err != nil {
		t.Fatal(err)
	}
	if l := back.Index(1).Topology.Layout; l.Scheme != families.Scheme || !l.Equal(&c.Layout) ||
		Hash(back) != Hash(n.state) {
		t.Fatalf("%+v", l)
	}
}

// populated has applied every kind of command and contains every kind of object.
func populated(t testing.TB) *node {
	n := cluster(t)
	n.must(&RegisterManager{Manager: Manager{ID: "m2-bb", Name: "m2", FormatLevel: 1}})
	n.must(&RegisterManager{Manager: Manager{ID: "m3-cc"}})
	n.must(&RemoveManager{ID: "m3-cc"})
	n.must(&RegisterProjector{Projector: Projector{ID: "p1", Admin: "http://p1", BootID: "x"}})
	n.must(&RegisterProjector{Projector: Projector{ID: "p2", Admin: "http://p2", BootID: "y"}})
	n.must(&RemoveProjector{ID: "p2"})
	n.must(&SetFormatLevel{Level: 1})
	n.must(&SetLimits{Limits: Limits{LedgerEntries: 1000}})
	n.must(create("x", 1, 0, 1, 1, 0))
	n.must(create("y", 0, 0))
	deferred := create("deferred", 0, 1)
	deferred.Definition.Deferred, deferred.Definition.Where, deferred.Definition.Nodes = true, "`a` > 1", []string{"i1"}
	n.must(deferred)
	n.must(&BuildIndexes{IDs: []index.ID{3}})
	n.must(&DropIndex{ID: 2})
	n.must(&AllocateCopies{ID: 1, Revision: n.state.DefinitionsRevision(), Copies: []index.CopyID{1}})
	n.must(&StartRebalance{Cause: "test", Sends: 1, Receives: 1, Steps: []partition.Rebalance{{Index: 3,
		Old: n.state.Topology(3).Copies[0].ID, Src: partition.Shard{Node: 1}}}})
	n.must(&StepRebalance{ID: 1, Step: 1, From: partition.RebalanceStart, To: partition.RebalancePending})
	moved := n.state.Topology(3).Copies
	n.allocate(3, moved[1].ID)
	n.must(&StepRebalance{ID: 1, Step: 1, From: partition.RebalancePending, To: partition.RebalanceCatchup})
	n.must(&StepRebalance{ID: 1, Step: 1, From: partition.RebalanceCatchup, To: partition.RebalanceDone})
	n.must(&ForgetCopies{ID: 3, Copies: []index.CopyID{moved[0].ID}})
	n.must(&SetIndexState{ID: 1, From: index.Pending, To: index.Error, Reason: "lost"})
	n.apply(Command{TimeMS: n.now, Request: &Request{Principal: "p", Key: "k"}, Body: create("z", 0, 1)})
	n.apply(Command{TimeMS: n.now, Request: &Request{Principal: "p", Key: "l"}, Body: create("z", 0, 1)})
	n.must(n.advance("b", vector(1, 2, 3, 4), timestamp.VBucketLog{VBucket: 2, Log: timestamp.FailoverLog{{VBUUID: 0xa}}}))
	n.must(&SetBackfillTimestamp{Bucket: "b", Generation: 1, Vector: vector(1, 1, 1, 1)})
	n.must(&SetRollbackStep{Bucket: "b", Generation: 1, To: Started})
	n.must(&SetRollbackStep{Bucket: "b", Generation: 1, ID: 1, From: Started, To: Prepare, Failover: vector(1, 1, 1, 1)})
	n.must(&RegisterIndexer{Indexer: Indexer{UUID: "gone", Zone: "z", Capacity: 3}})
	n.must(&RemoveIndexer{Node: 2, UUID: "gone"})
	n.must(&SetBucket{Name: "other", UUID: "ou", VBuckets: 2})
	n.must(&BucketGone{Name: "other", UUID: "ou"})
	n.must(create("last", 0, 1))
	n.must(&DropIndex{ID: 5})
	n.must(&RemoveIndex{ID: 5})
	n.must(&RaiseEpoch{Epoch: 8})
	n.must(&LeaderStarted{Term: 1, Manager: Manager{ID: "m2-bb", Name: "m2", FormatLevel: 1}})
	return n
}

func snapshot(t testing.TB, s *State) []byte {
	var w bytes.Buffer
	if err := WriteSnapshot(&w, s); err != nil {
		t.Fatal(err)
	}
	return w.Bytes()
}

// TestCopiesOfAnIndexChangeTogether: however many copies of an index one command changes, the index gets one new
// version and one event, which contain all copies.
func TestCopiesOfAnIndexChangeTogether(t *testing.T) {
	s, made := created(t, 64)
	next, results, events := ApplyCommands(s, 100, []Command{{Body: made}})
	if results[0].Rejection != nil || len(events) != 1 || events[0].Kind != EventTopology {
		t.Fatalf("%v, %d events", results[0].Rejection, len(events))
	}
	for x := range next.Indexes() {
		for _, o := range x.Topology.Copies {
			if o.State != partition.Allocated {
				t.Errorf("copy %d is %s", o.ID, o.State)
			}
		}
		if events[0].Topology != &x.Topology || len(x.Topology.Copies) != len(made.Copies) {
			t.Error("the event is not of what is there")
		}
	}
	for x := range s.Indexes() { // of the previous state
		if o := x.Topology.Copies[0]; o.State != partition.Placed {
			t.Errorf("the state before was changed: %+v", o)
		}
	}
	if again, _, more := ApplyCommands(next, 101, []Command{{Body: made}}); again.CAS() != next.CAS() || len(more) > 0 {
		t.Errorf("said again: cas %d after %d, %d events", again.CAS(), next.CAS(), len(more))
	}
}
