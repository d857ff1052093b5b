package core

import (
	"net/http"
	"testing"

	"tidemark/errcode"
	"tidemark/liveness"
	"tidemark/statecontext"
	"tidemark/wire"
)

// TestAnotherAtTheAddress: a component at whose address another one has registered, or answers a new leader, is not
// kept alive by what that one answers, be that a refusal or, by a process of an older version, an answer of its own: it
// is sent a hello again and nothing else, and it becomes offline in time.
func TestAnotherAtTheAddress(t *testing.T) {
	for _, c := range []struct{ first, refuses bool }{ // first: it has answered this leader before
		{true, false}, {false, false}, {true, true}, {false, true},
	} {
		first := c.first
		g := newHelloScene(t)
		pushed := func(effects []Effect) (to []Receiver) {
			for _, e := range effects {
				if sent, is := e.(Send); is {
					if _, is := sent.Message.(Push); is {
						to = append(to, sent.To)
					}
				}
			}
			return to
		}
		if first {
			g.helloIndexer(1, 0)
			g.hello("p1", 1, nil)
			g.hello("p2", 1, nil)
			g.step(&Handed{From: g.at, Handed: g.lead.now.revision, Acked: g.lead.now.revision})
			if !g.lead.active || !g.lead.components.indexers[0].hello {
				t.Fatal("the leader has not begun")
			}
		}
		b := BucketRef{Name: "b", Generation: g.lead.buckets.byName["b"].generation}
		dead, deadP := g.at, g.to["p1"]
		a := &applied{t: t, state: g.now.State, index: g.now.State.AppliedIndex()}
		a.do(&statecontext.RegisterIndexer{Indexer: statecontext.Indexer{UUID: "u1", Name: "i1", BootID: "boot1",
			Admin: "http://i0"}})
		a.do(&statecontext.RegisterProjector{Projector: statecontext.Projector{ID: "p3", Admin: "http://p1",
			BootID: "boot3"}})
		g.now.State = a.state
		g.step(Changed{})
		for range 2 * (DefaultSettings().OfflineAfter.Milliseconds() / showEvery) {
			g.now.MS += showEvery
			effects := g.lead.Step(g.now, Tick{})
			g.look(effects)
			for _, to := range pushed(effects) {
				if to == dead || to == deadP {
					t.Fatalf("first %t: definitions are handed to another process in place of %d", first, to)
				}
			}
			if c.refuses {
				err := &wire.Problem{Status: http.StatusConflict, Code: errcode.AnotherProcess}
				g.step(&IndexerHelloAnswered{From: dead, Err: err})
				g.step(&ProjectorHelloAnswered{Hello: Hello{Projector: "p1"}, From: deadP, Err: err})
				g.step(&Handed{From: dead, Err: err}) // one that was under way
				g.step(&Synced{RequestSync: RequestSync{Projector: "p1", Bucket: b}, From: deadP, Err: err})
				continue
			}
			other := wire.IndexerReport{UUID: "u1", Node: 1, BootID: "boot1", Sequence: 1}
			g.step(&IndexerHelloAnswered{From: dead, Answer: &wire.IndexerHello{Report: other}})
			otherP := wire.ProjectorReport{ID: "p3", BootID: "boot3", Sequence: 1}
			g.step(&ProjectorHelloAnswered{Hello: Hello{Projector: "p1"}, From: deadP,
				Answer: &wire.ProjectorHello{Report: otherP}})
			g.step(&Handed{From: dead, Handed: g.lead.now.revision, Acked: g.lead.now.revision}) // one that was under way
			g.step(&Synced{RequestSync: RequestSync{Projector: "p1", Bucket: b}, From: deadP, Report: &otherP})
		}
		n, p := g.lead.components.indexers[0], g.lead.components.projectors["p1"]
		for name, c := range map[string]*component{"indexer": &n.component, "projector": &p.component} {
			if life := g.lead.life(c); life != liveness.Offline || !c.replaced || c.why != errAnother.Error() {
				t.Errorf("first %t: the %s is %s, kept alive by another process, replaced %t, and unreachable because of %q",
					first, name, life, c.replaced, c.why)
			}
		}
		if !g.lead.active {
			t.Errorf("first %t: the leader does not begin", first)
		}
	}
}

// TestRefusedHelloEndsTheWait checks that a new leader does not wait for components at whose addresses other
// processes refuse its hello, and that definitions that such a process refuses are no sign that the component is
// reached.
func TestRefusedHelloEndsTheWait(t *testing.T) {
	g := newHelloScene(t)
	err := &wire.Problem{Status: http.StatusConflict, Code: errcode.AnotherProcess}
	g.hello("p2", 1, nil)
	g.step(&IndexerHelloAnswered{From: g.at, Err: err})
	if g.lead.active {
		t.Fatal("the leader has begun before it has reports of all components")
	}
	g.step(&ProjectorHelloAnswered{Hello: Hello{Projector: "p1"}, From: g.to["p1"], Err: err})
	if !g.lead.active {
		t.Error("the leader waits for a component that has ended")
	}
	if ids := g.lead.ledgers.unreported(); len(ids) != 0 {
		t.Errorf("the streams of %v count as unknown", ids)
	}
	g.now.MS += 2 * syncEvery
	g.hello("p1", 2, nil)
	g.step(&Handed{From: g.to["p1"], Err: err})
	if why := g.lead.components.projectors["p1"].why; why != errAnother.Error() {
		t.Errorf("a projector whose definitions another process refuses is unreachable because of %q", why)
	}
}

// TestAnswersOfAnotherAreNotItsOwn checks that definitions that another process at a component's address has accepted,
// before it registered there or after, do not count as this component's: it is handed them when it answers there
// itself.
func TestAnswersOfAnotherAreNotItsOwn(t *testing.T) {
	for _, before := range []bool{true, false} {
		g := newHelloScene(t)
		g.helloIndexer(1, 0)
		g.hello("p1", 1, nil)
		g.hello("p2", 1, nil)
		p, n := g.lead.components.projectors["p1"], g.lead.components.indexers[0]
		accepted := func() {
			for _, to := range []Receiver{g.to["p1"], g.at} {
				g.step(&Handed{From: to, Handed: g.lead.now.revision, Acked: g.lead.now.revision})
			}
		}
		if before {
			accepted()
		}
		a := &applied{t: t, state: g.now.State, index: g.now.State.AppliedIndex()}
		a.do(&statecontext.RegisterIndexer{Indexer: statecontext.Indexer{UUID: "u1", Name: "i1", BootID: "boot1",
			Admin: "http://i0"}})
		a.do(&statecontext.RegisterProjector{Projector: statecontext.Projector{ID: "p3", Admin: "http://p1",
			BootID: "boot3"}})
		to, at := g.to["p1"], g.at
		g.now.MS, g.now.State = g.now.MS+2*syncEvery, a.state
		g.step(Changed{})
		g.to["p1"], g.at = to, at
		p.why, n.why = "no route", "no route"
		if !before {
			accepted()
		}
		for name, c := range map[string]*component{"indexer": &n.component, "projector": &p.component} {
			if c.acked != 0 || c.why == "" {
				t.Errorf("before %t: the %s counts as having revision %d, and is unreachable because of %q", before, name,
					c.acked, c.why)
			}
		}
		g.now.MS += showEvery
		g.hello("p1", 2, nil)
		g.helloIndexer(2, 0)
		pushed := map[Receiver]bool{}
		for range 2 {
			g.now.MS += showEvery
			for _, e := range g.lead.Step(g.now, Tick{}) {
				if sent, is := e.(Send); is {
					if _, is := sent.Message.(Push); is {
						pushed[sent.To] = true
					}
				}
			}
		}
		if !pushed[to] || !pushed[at] {
			t.Errorf("before %t: the definitions are handed to %v, want to %d and %d", before, pushed, to, at)
		}
	}
}

// TestCommandsAreNewerAtAnAddressThatIsTakenOver checks that commands to a component are newer than everything that
// was sent in this term to an earlier one at its address: its process may have received some of that, and refuses older
// ones.
func TestCommandsAreNewerAtAnAddressThatIsTakenOver(t *testing.T) {
	s := indexersOf(t, 1)
	var opened []Open
	for _, uuid := range []string{"new1", "new2"} {
		s.commit(&statecontext.RegisterIndexer{Indexer: statecontext.Indexer{UUID: uuid, Name: uuid, BootID: uuid,
			Admin: "http://same"}})
		s.now.MS, s.now.State = s.now.MS+2*syncEvery, s.state.state
		for _, e := range s.lead.Step(s.now, Changed{}) {
			if o, is := e.(Open); is {
				opened = append(opened, o)
			}
		}
	}
	if len(opened) != 2 || opened[0].Addr != opened[1].Addr ||
		opened[1].Fence.Counter < opened[0].Fence.Counter+1<<counterBits {
		t.Errorf("opened %+v", opened)
	}
}
