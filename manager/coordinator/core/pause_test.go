package core

import (
	"slices"
	"testing"
	"time"

	"tidemark/index"
	"tidemark/liveness"
	"tidemark/rollback"
	"tidemark/stability"
	"tidemark/statecontext"
	"tidemark/wire"
)

// TestLeadersOwnPause checks that a leader that stood still itself (its process was stopped, its machine frozen) does
// not count that time as silence of components, whatever input comes first, while earlier silence still counts.
func TestLeadersOwnPause(t *testing.T) {
	for _, what := range []string{"a tick", "a report"} {
		s := newSpareCrowd(t)
		l, b := s.lead, s.lead.buckets.byName["b"]
		pass := func(ms int64) {
			for end := s.now.MS + ms; s.now.MS < end; {
				s.now.MS += 20
				l.components.indexers[0].seenMS, l.components.projectors["p1"].seenMS = s.now.MS, s.now.MS
				l.Step(s.now, Tick{})
			}
		}
		age := func() int64 { return s.now.MS - l.components.projectors["p9"].seenMS }
		l.components.projectors["p9"].reported = true
		pass(2000)
		silent := age()
		s.now.MS += 60_000
		var first Input = Tick{}
		if what == "a report" {
			first = &ProjectorReported{Report: &wire.ProjectorReport{ID: "p1", BootID: "boot", Sequence: 1},
				Reply: make(chan *wire.ReportReply, 1)}
		}
		l.Step(s.now, first)
		if got := age(); got != silent {
			t.Errorf("%s: it was silent for %d ms before the pause, and is for %d", what, silent, got)
		}
		l.Step(s.now, Tick{})
		if sum := b.ledger.Summary(s.now.MS); sum.Begun != 4 || !slices.Equal(b.members, []index.NodeID{0}) {
			t.Errorf("%s: %d streams run, indexers %v take part; want 4 and [0]", what, sum.Begun, b.members)
		}
		if alive := l.components.alive; len(alive) != 2 {
			t.Errorf("%s: %v are alive, want both", what, alive)
		}
		pass(l.settings.OfflineAfter.Milliseconds() - silent)
		if got := l.life(&l.components.projectors["p9"].component); got != liveness.Offline {
			t.Errorf("%s: still silent is %v", what, got)
		}
	}
}

// TestLeadersOwnPauseInARollback checks that a rollback does not proceed without components because of the pause, and
// that no participating indexer counts as silent.
func TestLeadersOwnPauseInARollback(t *testing.T) {
	s := newSpareCrowd(t)
	l, b := s.lead, s.lead.buckets.byName["b"]
	b.stab.Report(0, s.now.MS, stability.Report{BootID: "boot", Active: true})
	l.Step(s.now, Tick{})
	b.rolling = &rolling{sinceMS: s.now.MS, answers: rollback.Answers{Away: map[index.ProjectorID]bool{}}}
	s.now.MS += 60_000
	l.membership.pause(s.now.MS)
	l.at(s.now)
	l.ledgers.rollbacks.waitedFor(b)
	if a := &b.rolling.answers; a.Late || len(a.Away) > 0 {
		t.Errorf("it goes on without answers: late %v, away %v", a.Late, a.Away)
	}
	if lagging := b.stab.Lagging(s.now.MS); len(lagging) > 0 {
		t.Errorf("indexers %v count as silent", lagging)
	}
	s.now.MS += rollbackWait
	l.at(s.now)
	l.ledgers.rollbacks.waitedFor(b)
	if !b.rolling.answers.Late {
		t.Error("it waits for ever")
	}
}

// TestLeadersOwnPauseInARepair checks that streams are not requested again without the positions of live indexers.
func TestLeadersOwnPauseInARepair(t *testing.T) {
	s := newSpareCrowd(t)
	requested := func() (positions, logs bool) {
		for _, e := range s.lead.Step(s.now, Tick{}) {
			sent, _ := e.(Send)
			_, poll := sent.Message.(Poll)
			m, is := sent.Message.(FetchLogs)
			positions, logs = positions || poll, logs || is && m.For.Kind == ForStreams
		}
		return positions, logs
	}
	requested()
	s.end()
	if positions, _ := requested(); !positions {
		t.Fatal("no positions are requested")
	}
	s.now.MS += 60_000
	if _, logs := requested(); logs {
		t.Error("it goes on without positions")
	}
	s.now.MS += s.lead.settings.Streams.AnswerWait.Milliseconds()
	if _, logs := requested(); !logs {
		t.Error("it waits for ever")
	}
}

// TestLeadersOwnPauseAtItsStart checks that the leader does not become active without the components that it has just
// sent hellos.
func TestLeadersOwnPauseAtItsStart(t *testing.T) {
	s := newSpareCrowd(t)
	s.lead.active = false
	for _, p := range s.lead.components.projectors {
		p.hello = false
	}
	s.now.MS += 60_000
	if s.lead.Step(s.now, Tick{}); s.lead.Active() {
		t.Error("it does not wait for answers")
	}
	for end := s.now.MS + s.lead.settings.HelloWait.Milliseconds(); s.now.MS < end; s.lead.Step(s.now, Tick{}) {
		s.now.MS += 20
	}
	if !s.lead.Active() {
		t.Error("it waits for ever")
	}
}

// TestLeadersOwnPauseInABuild checks that the pause does not count toward BuildTimeout, the time for which a build
// may lack a host.
func TestLeadersOwnPauseInABuild(t *testing.T) {
	s := newSpareCrowd(t)
	l := s.lead
	l.lives.lacking(1, true)
	s.now.MS += 1000
	l.at(s.now)
	s.now.MS += l.settings.BuildTimeout.Milliseconds()
	l.lives.pause(l.membership.pause(s.now.MS))
	l.at(s.now)
	if got := l.lives.lacking(1, true); got != time.Second {
		t.Errorf("it lacks its host for %v, want the second before the pause", got)
	}
}

// TestLeadersOwnPauseInAnAudit checks that an audit does not end without answers that wait to be taken.
func TestLeadersOwnPauseInAnAudit(t *testing.T) {
	s := newSpareCrowd(t)
	l, b := s.lead, s.lead.buckets.byName["b"]
	b.suspect = true
	for end := s.now.MS + auditSpacing; b.audit == nil && s.now.MS <= end; s.now.MS += 20 {
		l.Step(s.now, Tick{})
	}
	a := b.audit
	if a == nil || a.sent != 2 {
		t.Fatalf("%+v", a)
	}
	s.now.MS += 60_000
	if l.Step(s.now, Tick{}); b.audit != a {
		t.Error("it ends without answers")
	}
	s.now.MS += suspectWait
	if l.Step(s.now, Tick{}); b.audit == a {
		t.Error("it waits for ever")
	}
}

// TestLeadersOwnPauseIsNoAbsence checks that the pause does not count toward the absence of an offline indexer: its
// copies are made anew, and a rebalance step proceeds without it, only by the time before and after the pause.
func TestLeadersOwnPauseIsNoAbsence(t *testing.T) {
	s := indexersOf(t, 3)
	s.pass(10 * time.Second)
	s.there[1] = false
	s.pass(10 * time.Minute)
	away := s.lead.awayFor(1)
	const pause = 20 * 60_000
	s.now.MS, s.now.WallMS, s.now.StateMS = s.now.MS+pause, s.now.WallMS+pause, s.now.StateMS+pause
	s.step(Tick{})
	if got := s.lead.awayFor(1); got != away || len(s.began) != 0 {
		t.Errorf("it was away for %d ms before the pause, and is for %d; %d repairs", away, got, len(s.began))
	}
	s.pass(time.Minute)
	if i := s.shown.Indexers[1]; i.OfflineForMS < away || i.OfflineForMS > away+60_000 || i.RepairInMS == nil ||
		*i.RepairInMS != DefaultSettings().RepairAfter.Milliseconds()-i.OfflineForMS || len(s.began) != 0 {
		t.Errorf("%+v; %d repairs", i, len(s.began))
	}
	s.pass(5 * time.Minute)
	if len(s.began) != 1 {
		t.Errorf("%d repairs began", len(s.began))
	}
}

// TestLeadersOwnPauseInARestore checks that the pause does not count as silence of the sender of a restore.
func TestLeadersOwnPauseInARestore(t *testing.T) {
	s := restoring(t)
	s.now.MS, s.now.StateMS = s.now.MS+statecontext.RestorePatienceMS, s.now.StateMS+statecontext.RestorePatienceMS
	s.step(Tick{})
	if s.state.state.Staging() == nil {
		t.Error("it was given up")
	}
	s.pass(statecontext.RestorePatienceMS * time.Millisecond)
	if s.state.state.Staging() != nil {
		t.Error("it stays")
	}
}

// TestTotalOfMergedPauses checks that the total is kept when spans are merged.
func TestTotalOfMergedPauses(t *testing.T) {
	var s stood
	for i := range int64(3 * maxStood) {
		s.add(span{1000 * i, 1000*i + 10})
	}
	for _, x := range []struct{ since, want int64 }{{0, 30 * maxStood}, {1000*(3*maxStood-1) + 4, 6},
		{1000 * (3*maxStood - 2), 20}, {1000 * 3 * maxStood, 0}} {
		if got := s.since(x.since); got != x.want || len(s) != maxStood {
			t.Errorf("since %d it stood still for %d ms, want %d; %d times", x.since, got, x.want, len(s))
		}
	}
}
