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
)

// alive reports whether the cluster can go on from the node's state, on a copy of it: a leader begins its term, members
// register again and anew, KV's buckets are taken over, and indexes get into the states that the coordinator wants them
// in.
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
	for x := range s.Indexes() {
		switch f := x.Definition; f.State {
		case index.Dropping:
			must = append(must, &RemoveIndex{ID: f.ID})
		case index.Error:
		default:
			must = append(must, &SetIndexState{ID: f.ID, From: f.State, To: index.Error, Reason: strings.Repeat("é", 100_000)})
		}
	}
	for b := range s.Buckets() { // made anew and deleted, as KV likes
		if !b.Gone {
			must = append(must, &SetBucket{Name: b.Name, UUID: "another uuid of " + b.Name, VBuckets: b.VBuckets},
				&BucketGone{Name: b.Name, UUID: "another uuid of " + b.Name})
		}
	}
	commands := make([]Command, len(must))
	for i, b := range must {
		commands[i] = Command{Body: b}
	}
	after, results, _ := ApplyCommands(s, 1, commands)
	for i, r := range results {
		if r.Rejection != nil {
			return fmt.Errorf("%T: %w\n%s", must[i], r.Rejection, Describe(s))
		}
	}
	return Check(after)
}

// drawLimits draws limits as anybody might set them: also ones that Check refuses, since Apply does not look.
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

// TestAnyAcceptedHistoryGoesOn: whatever was accepted before, a new leader begins, and members register (see alive).
func TestAnyAcceptedHistoryGoesOn(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := cluster(t)
		n.t = t
		var kept *Backup
		for i := range rapid.IntRange(1, 25).Draw(rt, "steps") {
			switch rapid.IntRange(0, 8).Draw(rt, "step") {
			case 0, 1:
				n.do(&SetLimits{Limits: drawLimits(rt)})
			case 2:
				c := create(rapid.SampledFrom([]string{"x", "y", strings.Repeat("n", 200)}).Draw(rt, "name"), 0, 0)
				c.Definition.Deferred = rapid.Bool().Draw(rt, "deferred")
				n.do(c)
			case 3:
				n.do(&DropIndex{ID: index.ID(rapid.IntRange(1, 6).Draw(rt, "drop"))})
			case 4:
				name := rapid.SampledFrom([]string{"b", "c", strings.Repeat("k", 100)}).Draw(rt, "bucket")
				n.do(&SetBucket{Name: name, UUID: fmt.Sprint("uuid ", i), VBuckets: 4})
			case 5:
				n.do(&RegisterIndexer{Indexer: Indexer{UUID: strings.Repeat("u", rapid.IntRange(1, 64).Draw(rt, "uuid")),
					Name: "x"}},
					&RegisterProjector{Projector: Projector{ID: index.ProjectorID(strings.Repeat("p",
						rapid.IntRange(1, 64).Draw(rt, "id")))}})
			case 6:
				n.now++
				kept = n.backup()
			case 7:
				if b := n.state.Bucket("c"); b != nil {
					n.do(&BucketGone{Name: b.Name, UUID: b.UUID})
				}
			case 8:
				if kept != nil {
					n.do(&AbortRestore{})
					n.stage(kept, RestoreInPlace)
					n.do(&FinishRestore{ID: "r1", Epoch: max(n.state.Epoch(), kept.Epoch) + 1})
				}
			}
			if err := alive(n); err != nil {
				rt.Fatal(err)
			}
		}
	})
}

// TestLimitsOfABackup: limits that nobody could set here are brought within what may be set.
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

// TestTransferRate: the rate at which files are sent travels, is kept and reset as limits are, and has a
// least value.
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

// TestResetLimits: a recovery may set the default limits.
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
