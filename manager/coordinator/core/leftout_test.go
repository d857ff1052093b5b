package core

import (
	"fmt"
	"slices"
	"testing"

	"tidemark/index"
	"tidemark/internal/testing/raced"
	"tidemark/stability"
	"tidemark/statecontext"
	"tidemark/wire"
)

// dropper is a crowd of two indexers, whose projectors drop data meant for them.
type dropper struct {
	spareCrowd
	b    *bucket
	sent map[index.ProjectorID]uint64 // number of reports sent
}

func newDropper(t *testing.T) dropper {
	s := dropper{spareCrowd: newSpareCrowd(t), sent: map[index.ProjectorID]uint64{}}
	s.do(member("i2"))
	s.b = s.lead.buckets.byName["b"]
	for node := range index.NodeID(2) {
		s.b.stab.Report(node, s.now.MS, stability.Report{BootID: "boot", Active: true})
	}
	return s
}

// drops sends a projector's report that it drops data meant for these indexers.
func (s dropper) drops(id index.ProjectorID, nodes ...index.NodeID) {
	s.sent[id]++
	s.lead.Step(s.now, &ProjectorReported{Report: &wire.ProjectorReport{ID: id, BootID: "boot", Sequence: s.sent[id],
		Base: s.sent[id] - 1, Buckets: []wire.StreamStates{{Bucket: "b", BucketUUID: "u", Dropping: nodes}}},
		Reply: make(chan *wire.ReportReply, 1)})
}

// out returns the indexers that promotion leaves out because projectors drop their data.
func (s dropper) out() string {
	s.lead.promotion.leaveOut(s.b)
	var out []index.NodeID
	for _, p := range s.b.stab.Participants(s.now.MS) {
		if p.Ignored == "dropped" {
			out = append(out, p.Node)
		}
	}
	return fmt.Sprintf("%v", out)
}

// TestLeftOut checks that left-out indexers follow from the projectors' drops, their streams, and which of them are
// alive.
func TestLeftOut(t *testing.T) {
	s := newDropper(t)
	is := func(what, want string) {
		t.Helper()
		if got := s.out(); got != want {
			t.Errorf("%s: left out are %s, want %s", what, got, want)
		}
	}
	is("nothing is dropped", "[]")
	s.drops("p1", 1)
	is("one is", "[1]")
	s.drops("p9", 0)
	is("what a projector without streams drops", "[1]")
	s.drops("p1", 0, 1)
	is("both are", "[0 1]")
	s.drops("p1", 0)
	is("one is no more", "[0]")
	s.drops("p1", 1)
	s.b.fed = []index.NodeID{0, 1} // it had a copy
	s.lead.ledgers.reconcileHosts()
	s.b.stab.Report(1, s.now.MS, stability.Report{BootID: "boot", Active: true}) // and has one again
	is("it comes back", "[1]")
	s.end()
	s.b.owners()
	is("the streams have ended", "[]")

	s = newDropper(t)
	s.drops("p1", 1)
	is("one is", "[1]")
	s.lead.components.projectors["p1"].refused = true
	s.lead.membership.watchProjectors()
	is("its projector has gone", "[]")
	s.do(&statecontext.RemoveProjector{ID: "p1"})
	is("and was removed", "[]")
}

// TestLeftOutIsKept checks that attempted promotions do not scan the vbuckets while the left-out indexers are
// unchanged, whatever other inputs arrive.
func TestLeftOutIsKept(t *testing.T) {
	s := newDropper(t)
	s.drops("p1", 0, 1)
	s.drops("p9", 1)
	if got := s.out(); got != "[0 1]" {
		t.Fatal(got)
	}
	again := func() { s.lead.promotion.leaveOut(s.b) }
	if n := testing.AllocsPerRun(10, again); n > 0 && !raced.On {
		t.Errorf("%v allocations each time, want none", n)
	}
	was := s.b.leftOut[1]
	s.drops("p9", 1)
	s.drops("p1", 0, 1)
	s.out()
	if now := s.b.leftOut[1]; &now[0] != &was[0] || !slices.Contains(now, true) {
		t.Error("it was made anew for reports that say the same")
	}
}
