package core

import (
	"slices"
	"testing"
	"time"

	"tidemark/index"
	"tidemark/liveness"
	"tidemark/rollback"
	"tidemark/stability"
	"tidemark/wire"
)

// TestLeadersOwnPause: a leader that stood still itself (its process was stopped, its machine frozen) takes nobody for
// silent because of that, whatever comes in first; what was silence before goes on to count.
func TestLeadersOwnPause(t *testing.T) {
	for _, what := range []string{"a tick", "a report"} {
		s := newAsked(t)
		l, b := s.lead, s.lead.buckets.byName["b"]
		pass := func(ms int64) {
			for end := s.now.MS + ms; s.now.MS < end; {
				s.now.MS += 20
				l.components.indexers[0].seenMS, l.components.projectors["p1"].seenMS = s.now.MS, s.now.MS
				l.Step(s.now, Tick{})
			}
		}
		age := func() int64 { return s.now.MS - l.components.projectors["p9"].seenMS }
		l.components.projectors["p9"].heard = true
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
			t.Errorf("%s: who is silent on is %v", what, got)
		}
	}
}

// TestLeadersOwnPauseInARollback: nor does a rollback that has begun go on without those whom it asks, and no indexer
// that takes part counts as silent.
func TestLeadersOwnPauseInARollback(t *testing.T) {
	s := newAsked(t)
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
	s.now.MS += rollbackPatience
	l.at(s.now)
	l.ledgers.rollbacks.waitedFor(b)
	if !b.rolling.answers.Late {
		t.Error("it waits for ever")
	}
}

// TestLeadersOwnPauseInARepair: nor are streams asked for again without the positions of indexers that live.
func TestLeadersOwnPauseInARepair(t *testing.T) {
	s := newAsked(t)
	asked := func() (positions, logs bool) {
		for _, e := range s.lead.Step(s.now, Tick{}) {
			told, _ := e.(Tell)
			_, poll := told.Say.(Poll)
			ask, is := told.Say.(AskLogs)
			positions, logs = positions || poll, logs || is && ask.For.Kind == ForStreams
		}
		return positions, logs
	}
	asked()
	s.end()
	if positions, _ := asked(); !positions {
		t.Fatal("no positions are asked for")
	}
	s.now.MS += 60_000
	if _, logs := asked(); logs {
		t.Error("it goes on without positions")
	}
	s.now.MS += s.lead.settings.Streams.AnswerWait.Milliseconds()
	if _, logs := asked(); !logs {
		t.Error("it waits for ever")
	}
}

// TestLeadersOwnPauseAtItsStart: nor does it then go on without those whom it has just asked what runs.
func TestLeadersOwnPauseAtItsStart(t *testing.T) {
	s := newAsked(t)
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

// TestLeadersOwnPauseInABuild: nor does a build lack its host for that time, which it may no longer than BuildPatience.
func TestLeadersOwnPauseInABuild(t *testing.T) {
	s := newAsked(t)
	l := s.lead
	l.lives.lacking(1, true)
	s.now.MS += 1000
	l.at(s.now)
	s.now.MS += l.settings.BuildPatience.Milliseconds()
	l.lives.pause(l.membership.pause(s.now.MS))
	l.at(s.now)
	if got := l.lives.lacking(1, true); got != time.Second {
		t.Errorf("it lacks its host for %v, want the second before the pause", got)
	}
}
