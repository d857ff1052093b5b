package core

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"tidemark/statecontext"
	"tidemark/wire"
)

// TestUnreachableComponents checks that a component that reports but does not answer at its registered address
// is logged once, and shown in the status, when that has lasted; an absent component is not.
func TestUnreachableComponents(t *testing.T) {
	g := newHelloScene(t)
	var out bytes.Buffer
	g.lead.membership.log = hclog.New(&hclog.LoggerOptions{Output: &out})
	unreached := func() {
		g.step(&ProjectorHelloAnswered{Hello: Hello{Projector: "p1"}, From: g.to["p1"], Err: errors.New("no route")})
		g.step(&IndexerHelloAnswered{From: g.at, Err: errors.New("no route")})
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
				t.Errorf("%s: the status of the projector has %q", when, p.Unreachable)
			}
		}
		if i := g.lead.picture.newest.Indexers[0]; i.Unreachable != status {
			t.Errorf("%s: the status of the indexer has %q", when, i.Unreachable)
		}
		if got := out.String(); strings.Count(got, "at its registered address") != times ||
			!strings.Contains(got, log) {
			t.Errorf("%s: logged is %q", when, got)
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
	check("when they report the revision all the same", "answers at", 2, "")
	silent()
	pass()
	silent()
	check("when only answers to the newest are lost", "", 0, "")
}

// TestUnreachedPorts checks that the status shows the ports that a projector cannot reach by its newest report, with
// the indexer's name and what the port serves, as long as the indexer has them and has been up for a while.
func TestUnreachedPorts(t *testing.T) {
	g := newHelloScene(t)
	a := &applied{t: t, state: g.now.State, index: 1000}
	do := func(b statecontext.Body) {
		a.do(b)
		g.now.State = a.state
		g.now.MS += syncEvery
		g.step(Changed{})
	}
	register := func(boot string, data statecontext.DataAddrs) {
		do(&statecontext.RegisterIndexer{Indexer: statecontext.Indexer{UUID: "u1", Name: "i1", BootID: boot,
			Admin: "http://i1", Data: data}})
	}
	register("boot", statecontext.DataAddrs{Maintenance: "i1:1", Backfill: "i1:2", Catchup: "i1:3"})
	node, sent := a.state.IndexerByUUID("u1").Node, uint64(0)
	report := func(addresses ...string) {
		t.Helper()
		sent++
		r := &wire.ProjectorReport{ID: "p1", BootID: "boot", Base: sent - 1, Sequence: sent}
		for _, a := range addresses {
			r.Unreached = append(r.Unreached, wire.Unreached{Node: node, Address: a, Error: "refused", SinceMS: 7})
		}
		g.step(&ProjectorReported{Report: r, Reply: make(chan *wire.ReportReply, 1)})
	}
	boot, sequence := "boot", uint64(0)
	receive := func() {
		sequence++
		g.step(&IndexerReported{Report: &wire.IndexerReport{Node: node, UUID: "u1", BootID: boot, Sequence: sequence},
			Reply: make(chan *wire.ReportReply, 1)})
	}
	stay := func() { // the indexer is up for more than unreachableAfter
		for range unreachableAfter/showEvery + 1 {
			receive()
			g.now.MS += showEvery
			g.step(Tick{})
		}
	}
	shows := func(when, want string) {
		t.Helper()
		g.now.MS += showEvery
		g.step(Tick{})
		got := ""
		for _, p := range g.lead.picture.newest.Projectors {
			for _, u := range p.Unreached {
				got += fmt.Sprintf("%s: %s of %s at %s since %d: %s, ", p.ID, u.Port, u.Indexer, u.Address, u.SinceMS, u.Error)
			}
		}
		if got != want {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
	}
	shows("at first", "")
	report("i1:1", "i1:2", "i1:3")
	shows("it has just begun", "")
	stay()
	shows("three ports", "p1: maintenance of i1 at i1:1 since 7: refused, p1: backfill of i1 at i1:2 since 7: refused, "+
		"p1: catchup of i1 at i1:3 since 7: refused, ")
	report("i1:2")
	shows("one is left", "p1: backfill of i1 at i1:2 since 7: refused, ")
	boot = "again"
	register(boot, statecontext.DataAddrs{Maintenance: "i1:1", Backfill: "i1:22", Catchup: "i1:3"})
	shows("it has moved", "")
	report("i1:22")
	shows("its new port is from before it began", "")
	stay()
	shows("its new port", "p1: backfill of i1 at i1:22 since 7: refused, ")
	for range 100 {
		g.now.MS, g.now.StateMS = g.now.MS+showEvery, g.now.StateMS+showEvery
		g.step(Tick{})
	}
	report("i1:22")
	shows("it is silent", "")
	receive()
	shows("it has just returned", "")
	stay()
	shows("it has been back for a while", "p1: backfill of i1 at i1:22 since 7: refused, ")
	report()
	shows("it is reached", "")
	report("i1:22")
	do(&statecontext.RemoveIndexer{Node: node, UUID: "u1"})
	shows("it has left", "")
}
