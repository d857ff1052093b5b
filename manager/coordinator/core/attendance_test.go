package core

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/index"
	"tidemark/liveness"
	"tidemark/partition"
	"tidemark/statecontext"
	"tidemark/wire"
)

// terms runs one leader after the other over one replicated state, in simulated time. Proposals are committed at
// once; only indexers that are present answer and report.
type terms struct {
	t     *testing.T
	state *applied
	now   Now
	lead  *Leader
	term  uint64
	there map[index.NodeID]bool
	sent  map[index.NodeID]uint64 // number of reports sent
	shown *Status
	notes []*statecontext.NoteAbsences
	began []*statecontext.StartRebalance
	// exact reports whether a copy is exact; nil: indexers report no copies.
	exact  func(partition.Copy) bool
	health map[index.NodeID]string // trouble that indexers report
}

// indexersOf returns a state with n indexers, each with a slice of one READY index.
func indexersOf(t *testing.T, n int) *terms {
	t.Helper()
	s := buildersOf(t, n)
	s.commit(&statecontext.SetIndexState{ID: 1, From: index.Backfill, To: index.Maintenance,
		Guard: statecontext.Guard{Generation: s.state.state.Bucket("b").Generation}})
	s.step(Changed{})
	return s
}

// buildersOf returns a state with n indexers, each with a slice of one index in backfill.
func buildersOf(t *testing.T, n int) *terms {
	t.Helper()
	a := &applied{t: t, state: statecontext.New()}
	a.do(&statecontext.LeaderStarted{Term: 1, Manager: statecontext.Manager{ID: "m1", Name: "m1", REST: "http://m1"}})
	a.do(&statecontext.BootstrapCluster{ClusterID: "c", Epoch: 1, FormatLevel: statecontext.FormatLevel})
	a.do(&statecontext.SetBucket{Name: "b", UUID: "u", VBuckets: 8})
	s := &terms{t: t, state: a, now: Now{MS: 1_000_000, WallMS: 7_000_000, StateMS: 1000},
		there: map[index.NodeID]bool{}, sent: map[index.NodeID]uint64{}}
	var on []statecontext.Placement
	for i := range n {
		a.do(&statecontext.RegisterIndexer{Indexer: statecontext.Indexer{UUID: fmt.Sprint("u", i), Name: fmt.Sprint("i", i),
			BootID: "boot", Admin: "http://i"}})
		s.there[index.NodeID(i)] = true
		on = append(on, statecontext.Placement{Slice: index.SliceID(i), Node: index.NodeID(i)})
	}
	a.do(&statecontext.CreateIndex{Placement: on, Layout: partition.Layout{Scheme: partition.HashDocID,
		Partitions: uint16(n)}, Definition: index.Definition{Name: "x", Bucket: "b", BucketUUID: "u",
		Keys: []index.KeyExpr{{Expr: "a"}}, Partitions: uint16(n)}})
	made := &statecontext.AllocateCopies{ID: 1, Revision: a.state.DefinitionsRevision()}
	for _, c := range a.state.Topology(1).Copies {
		made.Copies = append(made.Copies, c.ID)
	}
	a.do(made)
	a.do(&statecontext.SetIndexState{ID: 1, From: index.Pending, To: index.Backfill,
		Guard: statecontext.Guard{Generation: a.state.Bucket("b").Generation}})
	s.begin()
	return s
}

// begin begins a term on a manager with another wall clock, whose monotonic clock began at another time.
func (s *terms) begin() {
	s.term++
	s.now.State, s.now.MS, s.now.WallMS = s.state.state, s.now.MS+5_000_000, s.now.WallMS-3_600_000
	l, effects := New(DefaultSettings(), wire.Leader{ID: "m1", Term: s.term}, hclog.NewNullLogger(), s.now)
	s.lead = l
	s.carryOut(effects)
}

// carryOut carries out the effects that concern the state and indexers; the tests need no others.
func (s *terms) carryOut(effects []Effect) {
	var follows []Input
	for _, e := range effects {
		switch e := e.(type) {
		case Show:
			s.shown = e.Status
		case Send:
			if g, is := e.Message.(Hello); is {
				in := &IndexerHelloAnswered{Hello: g, From: e.To, Err: errors.New("no answer")}
				if s.there[g.Node] {
					in.Err, in.Answer = nil, &wire.IndexerHello{Report: *s.report(g.Node)}
				}
				follows = append(follows, in)
			}
		case PlanRepair:
			follows = append(follows, e.Plan())
		case Propose:
			switch c := e.Body.(type) {
			case *statecontext.NoteAbsences:
				s.notes = append(s.notes, c)
			case *statecontext.StartRebalance:
				s.began = append(s.began, c)
			}
			follows = append(follows, &Proposed{Key: e.Key, Result: s.commit(e.Body)})
		}
	}
	for _, in := range follows {
		s.step(in)
	}
}

// commit applies a command with the state's time stamped, as the log does.
func (s *terms) commit(b statecontext.Body) statecontext.Result {
	s.t.Helper()
	next, results, _ := statecontext.ApplyCommands(s.state.state, s.state.index+1,
		[]statecontext.Command{{TimeMS: s.now.StateMS, WallMS: s.now.WallMS, Body: b}})
	if err := errors.Join(results[0].Err(), statecontext.Check(next)); err != nil {
		s.t.Fatalf("%T: %v", b, err)
	}
	s.state.state, s.state.index = next, s.state.index+1
	return results[0]
}

func (s *terms) step(in Input) {
	s.now.State = s.state.state
	s.carryOut(slices.Clone(s.lead.Step(s.now, in)))
}

func (s *terms) report(n index.NodeID) *wire.IndexerReport {
	s.sent[n]++
	i := s.state.state.Indexer(n)
	r := &wire.IndexerReport{Node: n, UUID: i.UUID, BootID: i.BootID, Sequence: s.sent[n],
		Health: s.health[n]}
	if s.exact == nil {
		return r
	}
	r.Revision = s.state.state.DefinitionsRevision()
	for x := range s.state.state.Indexes() {
		b := s.state.state.Bucket(x.Definition.Bucket)
		for _, c := range x.Topology.Copies {
			if c.Node == n {
				report := wire.CopyReport{Copy: c.ID, Index: x.Definition.ID, Ready: s.exact(c)}
				report.Held.Generation, report.Held.RollbackID, report.Held.Number = b.Generation, b.Stability.RollbackID, 1
				r.Copies = append(r.Copies, report)
			}
		}
	}
	return r
}

// pass lets time pass while the indexers that are present report.
func (s *terms) pass(d time.Duration) {
	for end := s.now.StateMS + d.Milliseconds(); s.now.StateMS < end; {
		step := min(500, end-s.now.StateMS)
		s.now.MS, s.now.WallMS, s.now.StateMS = s.now.MS+step, s.now.WallMS+step, s.now.StateMS+step
		for n, is := range s.there {
			if is {
				s.step(&IndexerReported{Report: s.report(n), Reply: make(chan *wire.ReportReply, 1)})
			}
		}
		s.step(Tick{})
	}
}

// changes returns how many commands have recorded absences.
func (s *terms) changes() (n int) {
	for _, c := range s.notes {
		if len(c.Offline)+len(c.Back) > 0 {
			n++
		}
	}
	return n
}

func (s *terms) offline() (all []index.NodeID) {
	for i := range s.state.state.Indexers() {
		if i.Offline != nil {
			all = append(all, i.Node)
		}
	}
	return all
}

// TestRepairSurvivesLeaders checks that, with a new leader every 30 s, an indexer's copies are made anew when it has
// been away for RepairAfter, whatever the leaders' clocks show, and that the remaining time is shown throughout.
func TestRepairSurvivesLeaders(t *testing.T) {
	s := indexersOf(t, 3)
	s.pass(10 * time.Second)
	s.there[1] = false
	gone := s.now.StateMS
	after := DefaultSettings().RepairAfter.Milliseconds()
	for len(s.began) == 0 && s.now.StateMS < gone+2*after {
		s.pass(30 * time.Second)
		if got := s.offline(); len(got) != 1 || got[0] != 1 || s.changes() != 1 {
			t.Fatalf("in term %d offline are %v, by %d changes", s.term, got, s.changes())
		}
		i := s.shown.Indexers[1]
		away := s.now.StateMS - gone
		if i.OfflineForMS > away || i.OfflineForMS < away-7000 || i.RepairInMS == nil ||
			*i.RepairInMS != max(after-i.OfflineForMS, 0) || i.OfflineSinceMS == 0 {
			t.Fatalf("after %d ms away: %+v", away, i)
		}
		if o := s.shown.Indexers[0]; o.OfflineForMS != 0 || o.RepairInMS != nil || o.OfflineSinceMS != 0 {
			t.Fatalf("of one that is there: %+v", o)
		}
		s.begin()
		s.pass(500 * time.Millisecond)
		one, other := s.shown.Indexers[1].Seen(), s.shown.Indexers[0].Seen()
		if one != liveness.Offline || other == liveness.Offline {
			t.Fatalf("for a new leader one that was away is %v, one that was there %v", one, other)
		}
	}
	took := s.now.StateMS - gone
	if len(s.began) != 1 || len(s.began[0].Steps) != 1 || s.began[0].Steps[0].Src.Node != 1 {
		t.Fatalf("after %d ms and %d terms began %+v", took, s.term, s.began)
	}
	if took < after || took > after+60_000 {
		t.Errorf("the repair began after %d ms, want %d", took, after)
	}
}

// TestARepairLogsExcludedIndexers checks that a repair is logged with the indexers that get copies although they are in
// trouble, and those that get none.
func TestARepairLogsExcludedIndexers(t *testing.T) {
	s := indexersOf(t, 3)
	var out bytes.Buffer
	s.lead.moves.log = hclog.New(&hclog.LoggerOptions{Output: &out})
	s.health = map[index.NodeID]string{0: "disk zero hangs", 2: "disk two is full"}
	s.pass(10 * time.Second)
	s.there[1] = false
	s.pass(DefaultSettings().RepairAfter + time.Minute)
	if len(s.began) != 1 || len(s.began[0].Steps) != 1 {
		t.Fatalf("began %+v", s.began)
	}
	gets, none := `indexer=i0 copies=1 although="disk zero hangs"`, `indexer=i2 because="disk two is full"`
	if s.began[0].Steps[0].Dst.Node == 2 {
		gets, none = `indexer=i2 copies=1 although="disk two is full"`, `indexer=i0 because="disk zero hangs"`
	}
	for _, want := range []string{gets, none} {
		if strings.Count(out.String(), want) != 1 {
			t.Errorf("the log does not have once %q:\n%s", want, out.String())
		}
	}
}

// TestRepairSurvivesLeaderProcesses checks the same with leaders that are killed: each next one has just started and
// reads the state's time from its disk. Nothing else is proposed.
func TestRepairSurvivesLeaderProcesses(t *testing.T) {
	s := indexersOf(t, 3)
	s.pass(10 * time.Second)
	s.there[1] = false
	const term = 30 * time.Second
	after, took := DefaultSettings().RepairAfter, time.Duration(0)
	for ; len(s.began) == 0 && took < 2*after; took += term {
		s.pass(term)
		s.now.StateMS = s.state.state.TimeMS()
		s.begin()
	}
	if took < after || took > after*5/4 {
		t.Errorf("the repair began after %v, want %v and a little", took, after)
	}
	if commands := len(s.notes); commands > int(took/(stampEvery*time.Millisecond)) {
		t.Errorf("%d commands in %v", commands, took)
	}
}

// TestOnlyReportingIndexerIsBack checks that an indexer is recorded as back only when it reports: not while a new
// leader has no report of it, nor when it only registers. Its absence then no longer counts.
func TestOnlyReportingIndexerIsBack(t *testing.T) {
	s := indexersOf(t, 3)
	s.pass(5 * time.Second)
	s.there[1] = false
	s.pass(14 * time.Minute)
	first := *s.state.state.Indexer(1).Offline
	for range 5 {
		s.begin()
		s.pass(4 * time.Second) // the leader is active, and the silence is not an absence yet
	}
	for boot := range 3 { // a process that crashes before its first report
		s.commit(&statecontext.RegisterIndexer{Indexer: statecontext.Indexer{UUID: "u1", Name: "i1", Admin: "http://i",
			BootID: fmt.Sprint("boot", boot)}})
		s.step(Changed{})
		s.step(&Registered{IsNode: true, Node: 1, Boot: fmt.Sprint("boot", boot), Reply: make(chan *wire.RegisterReply, 1)})
		s.pass(3 * time.Second)
	}
	if a := s.state.state.Indexer(1).Offline; a == nil || *a != first || s.changes() != 1 {
		t.Fatalf("it is away since %+v, want %+v; %d changes", a, first, s.changes())
	}
	s.there[1] = true
	s.pass(3 * time.Second)
	if got := s.offline(); len(got) != 0 || s.changes() != 2 || len(s.began) != 0 {
		t.Fatalf("offline are %v by %d changes, %d repairs", got, s.changes(), len(s.began))
	}
	s.begin()
	s.pass(5 * time.Second)
	s.there[1] = false
	s.pass(14 * time.Minute)
	if len(s.began) != 0 {
		t.Fatal("what was before it came back counts")
	}
	s.pass(2 * time.Minute)
	if len(s.began) != 1 {
		t.Errorf("%d repairs began", len(s.began))
	}
}

// TestManyAbsencesAreOneCommand checks that indexers that go offline together are recorded by one command, and those
// that come back, too.
func TestManyAbsencesAreOneCommand(t *testing.T) {
	const many = 250
	s := indexersOf(t, many)
	s.pass(5 * time.Second)
	for n := range s.there {
		s.there[n] = n < 5
	}
	s.pass(20 * time.Second)
	if got := s.offline(); len(got) != many-5 || s.changes() != 1 {
		t.Fatalf("%d are offline, by %d commands", len(got), s.changes())
	}
	for n := range s.there {
		s.there[n] = true
	}
	s.pass(5 * time.Second)
	if got := s.offline(); len(got) != 0 || s.changes() != 2 {
		t.Fatalf("%d are offline, by %d commands", len(got), s.changes())
	}
}

// TestCancelledRepairRestsOverLeaders checks that a cancelled repair begins again after another RepairAfter, under
// any leader.
func TestCancelledRepairRestsOverLeaders(t *testing.T) {
	s := indexersOf(t, 3)
	s.pass(5 * time.Second)
	s.there[1] = false
	s.pass(16 * time.Minute)
	r := s.state.state.RebalanceUnderWay()
	if r == nil || r.Cause != statecontext.RepairCause {
		t.Fatalf("%+v", r)
	}
	s.commit(&statecontext.CancelRebalance{ID: r.ID})
	s.step(Changed{})
	s.pass(10 * time.Second)
	if s.state.state.RebalanceUnderWay() != nil {
		t.Fatal("it goes on")
	}
	for range 28 {
		s.begin()
		s.pass(30 * time.Second)
	}
	if len(s.began) != 1 {
		t.Fatalf("%d repairs began", len(s.began))
	}
	s.pass(90 * time.Second)
	if len(s.began) != 2 {
		t.Errorf("%d repairs began", len(s.began))
	}
}

// restoring returns a cluster in which a restore has begun and has sent nothing yet.
func restoring(t *testing.T) *terms {
	s := indexersOf(t, 1)
	s.pass(5 * time.Second)
	s.commit(&statecontext.BeginRestore{ID: "r1", Mode: statecontext.RestoreInPlace, Bytes: 3})
	s.step(Changed{})
	return s
}

// TestSilentRestoreIsAborted checks that a restore is aborted when its sender has gone silently, and that
// one that keeps sending goes on for as long as it takes.
func TestSilentRestoreIsAborted(t *testing.T) {
	s := restoring(t)
	s.pass(9 * time.Minute)
	s.commit(&statecontext.RestoreChunk{ID: "r1", Data: []byte{1}})
	s.step(Changed{})
	s.pass(9 * time.Minute)
	if s.state.state.Staging() == nil {
		t.Fatal("it was given up while it brought something")
	}
	s.pass(2 * time.Minute)
	if s.state.state.Staging() != nil {
		t.Error("it stays")
	}
}
