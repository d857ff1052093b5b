package core

import (
	"testing"

	"github.com/hashicorp/go-hclog"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/statecontext"
	"tidemark/streams"
	"tidemark/timestamp"
	"tidemark/wire"
)

// helloScene is a new leader of one index on one indexer and two projectors, to all of which it has sent a hello. The
// test decides when answers arrive.
type helloScene struct {
	t    *testing.T
	now  Now
	lead *Leader
	to   map[index.ProjectorID]Receiver // receivers of the hellos
	at   Receiver                       // the indexer's receiver
}

func newHelloScene(t *testing.T) *helloScene {
	a := &applied{t: t, state: statecontext.New()}
	a.do(&statecontext.LeaderStarted{Term: 1, Manager: statecontext.Manager{ID: "m1", Name: "m1", REST: "http://m1"}})
	a.do(&statecontext.BootstrapCluster{ClusterID: "c", Epoch: 1, FormatLevel: statecontext.FormatLevel})
	a.do(&statecontext.SetBucket{Name: "b", UUID: "u", VBuckets: 4})
	a.do(&statecontext.RegisterIndexer{Indexer: statecontext.Indexer{UUID: "u0", Name: "i0", BootID: "boot",
		Admin: "http://i0"}})
	for _, id := range []index.ProjectorID{"p1", "p2"} {
		a.do(&statecontext.RegisterProjector{Projector: statecontext.Projector{ID: id, Admin: "http://" + string(id),
			BootID: "boot"}})
	}
	a.do(&statecontext.CreateIndex{Placement: []statecontext.Placement{{}}, Layout: partition.Layout{
		Scheme: partition.HashDocID, Partitions: 1}, Definition: index.Definition{Name: "x", Bucket: "b", BucketUUID: "u",
		Keys: []index.KeyExpr{{Expr: "a"}}, Partitions: 1}})
	id := index.ID(0)
	for x := range a.state.Indexes() {
		id = x.Definition.ID
	}
	a.do(&statecontext.SetIndexState{ID: id, From: index.Pending, To: index.Backfill})
	g := &helloScene{t: t, now: Now{MS: 1_000_000, WallMS: 7_000_000, StateMS: 1000, State: a.state},
		to: map[index.ProjectorID]Receiver{}}
	l, effects := New(DefaultSettings(), wire.Leader{ID: "m1", Term: 1}, hclog.NewNullLogger(), g.now)
	g.lead = l
	g.look(effects)
	g.step(Tick{})
	if len(g.to) != 2 {
		t.Fatalf("a hello was sent to %d projectors, want 2", len(g.to))
	}
	return g
}

func (g *helloScene) look(effects []Effect) {
	for _, e := range effects {
		switch e := e.(type) {
		case Send:
			if m, is := e.Message.(Hello); is && m.Projector != "" {
				g.to[m.Projector] = e.To
			} else if is {
				g.at = e.To
			}
		case Answer:
			e.Deliver(func(Receiver) wire.Fence { return wire.Fence{} })
		}
	}
}

func (g *helloScene) step(in Input) { g.look(g.lead.Step(g.now, in)) }

// stream returns a report of the stream of vbucket 0.
func stream(full bool, complete uint64, ended bool) []wire.StreamStates {
	return []wire.StreamStates{{Bucket: "b", BucketUUID: "u", Full: full, Streams: []wire.StreamState{{
		Incarnation: index.Incarnation{Epoch: 1, Term: 1, Counter: 1}, Complete: complete, Ended: ended,
		Log: timestamp.FailoverLog{{VBUUID: 7}}}}}}
}

// hello delivers a projector's answer to the hello.
func (g *helloScene) hello(id index.ProjectorID, number uint64, says []wire.StreamStates) {
	g.step(&ProjectorHelloAnswered{Hello: Hello{Projector: id}, From: g.to[id], Answer: &wire.ProjectorHello{
		Report: wire.ProjectorReport{ID: id, BootID: "boot", Sequence: number, Buckets: says}}})
}

// report delivers a report of p1; full: the reply requests a full report.
func (g *helloScene) report(base, number uint64, says []wire.StreamStates) (full bool) {
	g.t.Helper()
	r := &ProjectorReported{Report: &wire.ProjectorReport{ID: "p1", BootID: "boot", Base: base, Sequence: number,
		Buckets: says}, Reply: make(chan *wire.ReportReply, 1)}
	g.step(r)
	a := <-r.Reply
	if !a.Known {
		g.t.Fatalf("report %d: the leader does not know p1", number)
	}
	return a.Full
}

// helloIndexer and reportIndexer do the same for the indexer, with the timestamp that its copy holds.
func (g *helloScene) helloIndexer(number, held uint64) {
	g.step(&IndexerHelloAnswered{From: g.at, Answer: &wire.IndexerHello{Report: *holding(0, number, held)}})
}

func (g *helloScene) reportIndexer(base, number, held uint64) (full bool) {
	g.t.Helper()
	r := &IndexerReported{Report: holding(base, number, held), Reply: make(chan *wire.ReportReply, 1)}
	g.step(r)
	return (<-r.Reply).Full
}

func holding(base, number, held uint64) *wire.IndexerReport {
	r := &wire.IndexerReport{UUID: "u0", BootID: "boot", Base: base, Sequence: number}
	if held > 0 {
		r.Copies = []wire.CopyReport{{Copy: 1, Ready: true,
			Held: wire.StabilityRef{Bucket: "b", Ref: timestamp.Ref{Number: held}}}}
	}
	return r
}

func (g *helloScene) held() uint64 { return g.lead.components.indexers[0].copies[1].Held.Number }

func (g *helloScene) state() streams.State { return g.lead.buckets.byName["b"].ledger.At(0).State }

// TestReportBetweenHelloAndActivation checks that a report between a projector's hello and the leader's activation is
// not lost: a stream that has ended must not count as running until the next full report.
func TestReportBetweenHelloAndActivation(t *testing.T) {
	g := newHelloScene(t)
	g.helloIndexer(1, 0)
	g.hello("p1", 5, stream(true, 10, false))
	if !g.report(4, 6, nil) {
		t.Error("a change based on another leader's report is not followed by a full report")
	}
	g.report(0, 7, stream(true, 10, false))
	if g.report(7, 8, stream(false, 10, true)) {
		t.Error("everything is requested, though the base is here")
	}
	g.hello("p2", 1, nil)
	if !g.lead.active {
		t.Fatal("all have answered, and the leader has not begun")
	}
	if !g.report(8, 9, nil) {
		t.Error("the leader began with the hello, and does not request what came after it")
	}
	g.report(0, 10, stream(true, 10, true))
	if s := g.state(); s == streams.Begun {
		t.Errorf("a stream that has ended is %v", s)
	}
	if g.report(10, 11, nil) {
		t.Error("everything is requested again and again")
	}
}

// TestHelloOutOfOrder checks that an answer to a hello that is older than a report does not overwrite it, and that a
// hello's state is never taken as the base of a report of changes.
func TestHelloOutOfOrder(t *testing.T) {
	t.Run("a projector's comes behind everything", func(t *testing.T) {
		g := newHelloScene(t)
		g.helloIndexer(1, 0)
		g.hello("p2", 1, nil)
		g.report(0, 6, stream(true, 20, false))
		g.hello("p1", 5, stream(true, 10, true))
		g.now.MS += 100 // the leader is active, and requests what is missing
		if !g.report(6, 7, nil) {
			t.Error("everything is not requested when the leader begins")
		}
		g.report(0, 8, stream(true, 20, false))
		if s := g.state(); s != streams.Begun {
			t.Errorf("a stream that runs is %v", s)
		}
		p := g.lead.components.projectors["p1"]
		g.hello("p1", 7, nil) // once more, and late
		if !p.reports.Is(8) || g.state() != streams.Begun {
			t.Errorf("an answer from before report 8 was taken: %v", g.state())
		}
		if g.report(8, 9, nil) {
			t.Error("everything is requested, though the base is here")
		}
	})
	t.Run("a projector's comes behind a change", func(t *testing.T) {
		g := newHelloScene(t)
		if !g.report(4, 6, nil) {
			t.Error("a change to an unknown report was taken")
		}
		g.hello("p1", 5, stream(true, 10, false)) // the best available, but the base of nothing
		if !g.report(5, 7, nil) || !g.report(4, 8, nil) {
			t.Error("a change was taken as based on a late answer")
		}
		if g.report(0, 9, stream(true, 10, false)) || g.report(9, 10, nil) {
			t.Error("a full report was sent, and is requested again")
		}
	})
	t.Run("a projector's overtakes a report", func(t *testing.T) {
		g := newHelloScene(t)
		g.hello("p1", 7, stream(true, 10, false))
		if !g.report(0, 6, stream(true, 5, false)) {
			t.Error("a report that was not taken counts as what is known")
		}
		for range 2 {
			if g.report(0, 8, stream(true, 10, false)) {
				t.Error("a full report was sent, and is requested again")
			}
		}
	})
	t.Run("an indexer's comes behind everything", func(t *testing.T) {
		g := newHelloScene(t)
		g.reportIndexer(0, 6, 30)
		g.helloIndexer(5, 20)
		if g.held() != 30 {
			t.Errorf("its copy holds timestamp %d, which is older than the reported 30", g.held())
		}
		if g.reportIndexer(6, 7, 40) || g.held() != 40 {
			t.Errorf("a change of what is here was refused: timestamp %d", g.held())
		}
	})
	t.Run("an indexer's overtakes a report", func(t *testing.T) {
		g := newHelloScene(t)
		g.helloIndexer(7, 30)
		if !g.reportIndexer(0, 6, 20) || g.held() != 30 {
			t.Errorf("a report that was not taken counts as what is known: timestamp %d", g.held())
		}
		if !g.reportIndexer(6, 8, 40) {
			t.Error("a change was taken of what is not here")
		}
	})
	t.Run("an indexer's comes behind a change", func(t *testing.T) {
		g := newHelloScene(t)
		if !g.reportIndexer(4, 6, 30) {
			t.Error("a change to an unknown report was taken")
		}
		g.helloIndexer(5, 20)
		if !g.reportIndexer(5, 7, 40) {
			t.Error("a change was taken as based on a late answer")
		}
		if g.reportIndexer(0, 8, 40) || g.held() != 40 {
			t.Errorf("a full report was sent, and is requested again: timestamp %d", g.held())
		}
	})
}
