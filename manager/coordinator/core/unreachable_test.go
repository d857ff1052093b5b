package core

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"tidemark/wire"
)

// TestComponentsThatAreNotReached checks that a component that reports but does not answer at its registered address
// is logged once, and shown in the status, when that has lasted; an absent component is not.
func TestComponentsThatAreNotReached(t *testing.T) {
	g := greeting(t)
	var out bytes.Buffer
	g.lead.membership.log = hclog.New(&hclog.LoggerOptions{Output: &out})
	unreached := func() {
		g.step(&ProjectorGreeted{Greet: Greet{Projector: "p1"}, From: g.to["p1"], Err: errors.New("no route")})
		g.step(&IndexerGreeted{From: g.at, Err: errors.New("no route")})
	}
	silent := func() { // to definitions, after they have answered the hello
		g.step(&Handed{From: g.to["p1"], Addr: "http://p1", Err: errors.New("it hangs")})
		g.step(&Handed{From: g.at, Addr: "http://i0", Err: errors.New("it hangs")})
	}
	pass := func() {
		for range unreachableAfter / showEvery { // the leader does not stand still
			g.now.MS += showEvery
			g.step(Tick{})
		}
	}
	check := func(when, log string, times int, status string) {
		t.Helper()
		g.now.MS += showEvery
		g.step(Tick{})
		for _, p := range g.lead.picture.newest.Projectors {
			if p.ID == "p1" && p.Unreachable != status {
				t.Errorf("%s: the status of the projector says %q", when, p.Unreachable)
			}
		}
		if i := g.lead.picture.newest.Indexers[0]; i.Unreachable != status {
			t.Errorf("%s: the status of the indexer says %q", when, i.Unreachable)
		}
		if got := out.String(); strings.Count(got, "at the address that it has given") != times ||
			!strings.Contains(got, log) {
			t.Errorf("%s: the log is told %q", when, got)
		}
		out.Reset()
	}
	unreached()
	check("at first", "", 0, "")
	pass()
	unreached()
	check("before they report", "", 0, "no route")
	g.report(0, 1, nil)
	g.reportIndexer(0, 1, 0)
	unreached()
	check("when they report", "does not answer at", 2, "no route")
	unreached()
	check("later", "", 0, "no route")
	g.hello("p1", 2, nil)
	g.helloIndexer(2, 0)
	check("when they are reached", "answers at", 2, "")
	g.step(&Handed{From: g.to["p1"], Addr: "http://p1", Err: errors.New("no majority"), Unasked: true})
	pass()
	silent()
	check("when they hang", "", 0, "")
	pass()
	silent()
	check("when they hang later", "does not answer at", 2, "it hangs")
	g.step(&Handed{From: g.to["p1"], Addr: "http://p1", Handed: 1, Acked: 1})
	g.step(&Handed{From: g.at, Addr: "http://i0", Handed: 1, Acked: 1})
	check("when they go on", "answers at", 2, "")
	silent()
	pass()
	silent()
	check("when answers are lost", "does not answer at", 2, "it hangs")
	works := *holding(2, 3, 0)
	works.Revision = g.lead.now.revision
	g.step(&IndexerReported{Report: &works, Reply: make(chan *wire.ReportReply, 1)})
	g.step(&ProjectorReported{Report: &wire.ProjectorReport{ID: "p1", BootID: "boot", Base: 2, Sequence: 3,
		Revision: works.Revision}, Reply: make(chan *wire.ReportReply, 1)})
	check("when they report that they have heard all the same", "answers at", 2, "")
	silent()
	pass()
	silent()
	check("when only answers to the newest are lost", "", 0, "")
}
