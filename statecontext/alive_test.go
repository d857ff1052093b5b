package statecontext

import (
	"bytes"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"tidemark/index"
	_ "tidemark/internal/testing/draws"
	"tidemark/partition"
)

// alive verifies, on a copy of the node's state, that the cluster can continue from it: a leader begins its term,
// members register again, new members register, KV's buckets are recorded, and indexes reach the states that the
// coordinator wants.
func alive(n *node) error {
	s := n.state
	must := []Body{
		&LeaderStarted{Term: s.Term() + 1, Manager: Manager{ID: "manager-with-a-long-name-31b5c2f0", Name: "m",
			REST: "http://manager.example:9520", Raft: "m:1"}},
		&RegisterManager{Manager: Manager{ID: "another-manager-31b5c2f1", REST: "http://another.example:9520",
			FormatLevel: FormatLevel}},
		&RegisterProjector{Projector: Projector{ID: index.ProjectorID(strings.Repeat("p", 100)),
			Admin: "http://projector.example:9100", BootID: strings.Repeat("b", 32)}},
		&RegisterIndexer{Indexer: Indexer{UUID: strings.Repeat("f", 32), BootID: strings.Repeat("b", 32), Name: "new",
			Admin: "http://indexer.example:9102"}},
	}
	for i := range s.Indexers() {
		again := *i
		again.BootID, again.Admin = "another boot", "http://moved.example:9102"
		must = append(must, &RegisterIndexer{Indexer: again})
	}
	for p := range s.Projectors() {
		again := *p
		again.BootID = "another boot"
		must = append(must, &RegisterProjector{Projector: again})
	}
	for b := range s.Buckets() { // re-created and deleted in any order
		if !b.Gone {
			must = append(must, &SetBucket{Name: b.Name, UUID: "another uuid of " + b.Name, VBuckets: b.VBuckets},
				&BucketGone{Name: b.Name, UUID: "another uuid of " + b.Name})
		}
	}
	after := s
	do := func(b Body) error {
		next, results, _ := ApplyCommands(after, 1, []Command{{Body: b}})
		if r := results[0].Rejection; r != nil {
			return fmt.Errorf("%T: %w\n%s", b, r, Describe(s))
		}
		after = next
		return nil
	}
	for _, b := range must {
		if err := do(b); err != nil {
			return err
		}
	}
	for x := range s.Indexes() { // re-read each time: ending one index may drop its successor
		var b Body
		switch f := after.Definition(x.Definition.ID); {
		case f == nil || f.State == index.Error:
			continue
		case f.State == index.Dropping:
			b = &RemoveIndex{ID: f.ID}
		default:
			b = &SetIndexState{ID: f.ID, From: f.State, To: index.Error, Reason: strings.Repeat("é", 100_000)}
		}
		if err := do(b); err != nil {
			return err
		}
	}
	return Check(after)
}

// drawLimits draws any limits, including ones that Check rejects, since Apply does not check them.
func drawLimits(rt *rapid.T) Limits {
	small := func(what string) uint32 {
		return rapid.SampledFrom([]uint32{0, 1, 2, 8, 20, 1000, math.MaxUint32}).Draw(rt, what)
	}
	age := func(what string) int64 { return rapid.SampledFrom([]int64{0, 1, 1000, mostAgeMS}).Draw(rt, what) }
	return Limits{Buckets: small("buckets"), Indexes: small("indexes"), IndexesPerBucket: small("indexes per bucket"),
		KeyExpressions: small("keys"),
		NameLength:     small("name length"), StatementLength: small("statement length"), LedgerEntries: small("ledger"),
		LedgerMaxAgeMS: age("max age"),
		LedgerMinAgeMS: age("min age"), TransferRate: age("rate")}
}

// TestAnyAcceptedHistoryContinues: after any accepted history a new leader can begin and members can register (see
// alive).
func TestAnyAcceptedHistoryContinues(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := cluster(t)
		n.t = t
		h := &history{n: n, rt: rt}
		calls := []func(){h.limits, h.create, h.drop, h.bucket, h.components, h.backUp, h.lose, h.restore, h.users, h.alter,
			h.alter, h.split, h.split, h.begin, h.begin, h.move, h.move, h.move, h.evict, h.remove, h.build, h.build}
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			n.now++
			calls[rapid.IntRange(0, len(calls)-1).Draw(rt, "step")]()
			if err := alive(n); err != nil {
				rt.Fatal(err)
			}
		}
	})
}

// history draws calls of users and of the coordinator's duties. Each is accepted or rejected.
type history struct {
	n    *node
	rt   *rapid.T
	kept *Backup
}

// id returns mostly ids of existing indexes.
func (h *history) id() index.ID {
	ids := []index.ID{index.ID(rapid.IntRange(1, 6).Draw(h.rt, "id"))}
	for x := range h.n.state.Indexes() {
		ids = append(ids, x.Definition.ID)
	}
	return ids[min(rapid.IntRange(0, 2).Draw(h.rt, "index"), len(ids)-1)]
}

func (h *history) node() index.NodeID { return index.NodeID(rapid.IntRange(0, 3).Draw(h.rt, "node")) }

func (h *history) limits() { h.n.do(&SetLimits{Limits: drawLimits(h.rt)}) }

func (h *history) create() {
	name := rapid.SampledFrom([]string{"x", "y", strings.Repeat("n", 200)}).Draw(h.rt, "name")
	c := create(name, 0, 0)
	switch rapid.IntRange(0, 2).Draw(h.rt, "kind") {
	case 0:
		c.Definition.Deferred = true
	case 1:
		c = ranged(name, "10")
	}
	h.n.do(c)
	if rapid.Bool().Draw(h.rt, "and builds it") {
		h.build()
	}
}

func (h *history) drop() { h.n.do(&DropIndex{ID: h.id()}) }

func (h *history) bucket() {
	name := rapid.SampledFrom([]string{"c", "c", "c", strings.Repeat("k", 100), "b"}).Draw(h.rt, "bucket")
	h.n.do(&SetBucket{Name: name, UUID: fmt.Sprint("uuid ", h.n.now), VBuckets: 4})
}

func (h *history) lose() {
	if b := h.n.state.Bucket("c"); b != nil {
		h.n.do(&BucketGone{Name: b.Name, UUID: b.UUID})
	}
}

func (h *history) components() {
	h.n.do(&RegisterIndexer{Indexer: Indexer{UUID: strings.Repeat("u", rapid.IntRange(1, 64).Draw(h.rt, "uuid")),
		Name: "x"}},
		&RegisterProjector{Projector: Projector{ID: index.ProjectorID(strings.Repeat("p",
			rapid.IntRange(1, 64).Draw(h.rt, "id")))}})
}

func (h *history) backUp() { h.kept = h.n.backup() }

func (h *history) restore() {
	if h.kept != nil {
		h.n.do(&AbortRestore{})
		h.n.stage(h.kept, RestoreInPlace)
		h.n.do(&FinishRestore{ID: "r1", Epoch: max(h.n.state.Epoch(), h.kept.Epoch) + 1})
	}
}

func (h *history) users() {
	name := rapid.SampledFrom([]string{"ann", "ben"}).Draw(h.rt, "user")
	role := rapid.SampledFrom([]UserRole{UserReads, UserDDL, UserAdmin}).Draw(h.rt, "role")
	secret := [32]byte{byte(rapid.IntRange(1, 2).Draw(h.rt, "secret"))}
	h.n.do(rapid.SampledFrom([]Body{&PutUser{Mode: PutFirst, Name: name, Role: UserAdmin, Hash: "h"},
		&PutUser{Mode: PutNew, Name: name, Role: role, Hash: "h"}, &PutUser{Mode: PutChange, Name: name, Role: role},
		&RemoveUser{Name: name}, &PutToken{Token: Token{User: name, Role: role, Hash: secret}},
		&RemoveToken{ID: TokenID(secret)}}).Draw(h.rt, "of users"))
}

// build advances the build of an index as far as possible: allocates its copies, or makes it ready.
func (h *history) build() {
	id := h.id()
	h.n.do(&BuildIndexes{IDs: []index.ID{id}})
	x := h.n.state.Index(id)
	if x == nil {
		return
	}
	made := &AllocateCopies{ID: id, Revision: h.n.state.DefinitionsRevision()}
	for _, c := range x.Topology.Copies {
		if c.State == partition.Placed {
			made.Copies = append(made.Copies, c.ID)
		}
	}
	h.n.do(made)
	h.n.do(&SetIndexState{ID: id, From: index.Pending, To: index.Backfill})
	if rapid.IntRange(0, 3).Draw(h.rt, "ready") > 0 {
		h.n.do(&SetIndexState{ID: id, From: index.Backfill, To: index.Maintenance})
	}
}

func (h *history) alter() {
	h.n.do(rapid.SampledFrom([]Body{
		&AlterIndex{ID: h.id(), Replicas: 1, Add: []Placement{{Replica: 1, Node: h.node()}}},
		&AlterIndex{ID: h.id(), Replicas: 1, Add: []Placement{{Replica: 1, Node: 1}}},
		&AlterIndex{ID: h.id(), Drop: []partition.Replica{1}},
		&AlterIndex{ID: h.id(), Drop: []partition.Replica{0}},
		&AlterIndex{ID: h.id(), Nodes: []string{"u0", "u1"}},
		&SetAutoSplit{ID: h.id(), Off: true, Statement: "CREATE INDEX anew"}}).Draw(h.rt, "alter"))
}

func (h *history) split() {
	id := h.id()
	x := h.n.state.Index(id)
	if x != nil && len(x.Definition.PartitionBy.Values) > 0 && rapid.Bool().Draw(h.rt, "begins") {
		h.n.do(split(h.n.t, x, "10", "20"))
	} else {
		h.n.do(&CancelSplit{ID: id})
	}
}

// begin starts a rebalance that moves a copy, or ends the present one.
func (h *history) begin() {
	if r := h.n.state.RebalanceUnderWay(); r != nil {
		h.n.do(rapid.SampledFrom([]Body{&CancelRebalance{ID: r.ID}, &EndRebalance{ID: r.ID}}).Draw(h.rt, "end"))
		return
	}
	id := h.id()
	if x := h.n.state.Index(id); x != nil && len(x.Topology.Copies) > 0 {
		c := x.Topology.Copies[rapid.IntRange(0, len(x.Topology.Copies)-1).Draw(h.rt, "copy")]
		cause := rapid.SampledFrom([]string{"test", RepairCause}).Draw(h.rt, "cause")
		h.n.do(&StartRebalance{Cause: cause, Sends: 1, Receives: 1, Steps: []partition.Rebalance{{Index: id, Slice: c.Slice,
			Replica: c.Replica, Old: c.ID, Src: partition.Shard{Node: c.Node}, Dst: partition.Shard{Node: h.node()}}}})
	}
}

// move advances a step of the rebalance in progress by one state.
func (h *history) move() {
	r := h.n.state.RebalanceUnderWay()
	if r == nil {
		return
	}
	for _, y := range h.n.steps() {
		if y.New != 0 {
			h.n.do(&AllocateCopies{ID: y.Index, Revision: h.n.state.DefinitionsRevision(),
				Copies: []index.CopyID{y.New}})
		}
		to := rapid.SampledFrom([]partition.RebalanceState{partition.RebalancePending, partition.RebalanceCatchup,
			partition.RebalanceDone, partition.RebalanceGivenUp}).Draw(h.rt, "to")
		h.n.do(&StepRebalance{ID: r.ID, Step: y.Step, From: y.State, To: to, Reason: "test"})
	}
}

// evict advances the removal of an indexer, either for good or by moving its copies.
func (h *history) evict() {
	at := h.node()
	i := h.n.state.Indexer(at)
	if i == nil {
		return
	}
	away := &EvictCopies{Node: at, UUID: i.UUID}
	for x := range h.n.state.Indexes() {
		e := Eviction{ID: x.Definition.ID, IfTopology: x.TopologyCAS}
		here := false
		for _, c := range x.Topology.Copies {
			if here = here || c.Node == at; c.Node == at && c.State != partition.Leaving &&
				x.Definition.State != index.Dropping {
				e.Add = append(e.Add, Placement{Slice: c.Slice, Replica: c.Replica, Node: h.node()})
			}
		}
		if here {
			away.Indexes = append(away.Indexes, e)
		}
	}
	h.n.do(rapid.SampledFrom([]Body{&EvictIndexer{Node: at, UUID: i.UUID, Revision: h.n.state.DefinitionsRevision()},
		away, &RemoveIndexer{Node: at, UUID: i.UUID}, &SetIndexerGoing{Node: at, UUID: i.UUID, Going: true},
		&NoteAbsences{Offline: []SeenIndexer{{Node: at, ModifiedCAS: i.ModifiedCAS}}}}).Draw(h.rt, "evict"))
}

// remove advances the removal of a manager or of a projector.
func (h *history) remove() {
	h.n.do(rapid.SampledFrom([]Body{&BeginRemoval{ID: "m1-aa"}, &RemoveManager{ID: "m1-aa"},
		&RemoveProjector{ID: "p"}}).Draw(h.rt, "remove"))
}

// TestLimitsOfABackup: limits in a backup that may not be set here are moved into the legal range.
func TestLimitsOfABackup(t *testing.T) {
	n := cluster(t)
	n.must(&SetLimits{Limits: Limits{NameLength: 3, StatementLength: 1, LedgerEntries: 1, Buckets: math.MaxUint32,
		LedgerMinAgeMS: mostAgeMS, LedgerMaxAgeMS: mostAgeMS}})
	b := n.backup()
	n.must(&SetLimits{})
	n.stage(b, RestoreInPlace)
	n.must(&FinishRestore{ID: "r1", Epoch: 8})
	if err := n.state.Limits().Check(); err != nil {
		t.Fatal(err)
	}
	if want := b.State.Limits().usable(); n.state.Limits() != want || want.NameLength != leastNameLength ||
		want.Buckets != mostBuckets {
		t.Fatalf("limits %+v, want %+v", n.state.Limits(), want)
	}
	if got := DefaultLimits(); got.usable() != got || got.Check() != nil {
		t.Fatal("the defaults may not be set")
	}
}

// TestTransferRate: the transfer rate is encoded, stored and reset like the other limits, and has a minimum.
func TestTransferRate(t *testing.T) {
	set := &SetLimits{Limits: Limits{Buckets: 7, TransferRate: 16 << 20}}
	entry, err := Encode(Command{TimeMS: 1, Body: set})
	if err != nil {
		t.Fatal(err)
	}
	e, err := Decode(entry)
	if err != nil || !reflect.DeepEqual(e[0].Body, set) {
		t.Fatalf("%+v, %v", e, err)
	}
	n := cluster(t)
	n.must(set)
	var file bytes.Buffer
	if err := WriteSnapshot(&file, n.state); err != nil {
		t.Fatal(err)
	}
	again, err := ReadSnapshot(&file)
	if err != nil || again.Limits() != n.state.Limits() || again.Limits().TransferRate != 16<<20 ||
		Hash(again) != Hash(n.state) {
		t.Errorf("after a snapshot %+v, %v", again.Limits(), err)
	}
	before := Hash(n.state)
	n.must(&SetLimits{Limits: Limits{Buckets: 7}})
	if n.state.Limits().TransferRate != 0 || Hash(n.state) == before {
		t.Errorf("0 leaves %d", n.state.Limits().TransferRate)
	}
	for rate, good := range map[int64]bool{0: true, 1: false, LeastTransferRate - 1: false, LeastTransferRate: true,
		-1: false, mostTransferRate: true, mostTransferRate + 1: false} {
		l := DefaultLimits()
		l.TransferRate = rate
		if err := l.Check(); (err == nil) != good || l.usable().Check() != nil {
			t.Errorf("rate %d: %v; usable: %+v", rate, err, l.usable())
		}
	}
}

// TestResetLimits: a recovery can set the default limits.
func TestResetLimits(t *testing.T) {
	n := cluster(t)
	n.must(&SetLimits{Limits: Limits{Buckets: 1, NameLength: 1}})
	n.must(&RaiseEpoch{Epoch: 8})
	if n.state.Limits() == DefaultLimits() {
		t.Fatal("limits were reset")
	}
	n.must(&RaiseEpoch{Epoch: 9, ResetLimits: true})
	if n.state.Limits() != DefaultLimits() {
		t.Fatalf("limits %+v", n.state.Limits())
	}
}
