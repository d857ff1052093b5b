package core

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/statecontext"
	"tidemark/streams"
	"tidemark/timestamp"
	"tidemark/wire"
)

// crowd is a leader of one indexer and one projector, both up to date, which streams a bucket for an index that is
// built; beside it many other ones wait to be built.
type crowd struct {
	a    *applied
	lead *Leader
	now  Now
}

func newCrowd(t *testing.T, many int) *crowd {
	a := &applied{t: t, state: statecontext.New()}
	a.do(&statecontext.LeaderStarted{Term: 1, Manager: statecontext.Manager{ID: "m1", Name: "m1", REST: "http://m1"}})
	a.do(&statecontext.BootstrapCluster{ClusterID: "c", Epoch: 1, FormatLevel: statecontext.FormatLevel})
	a.do(&statecontext.SetBucket{Name: "b", UUID: "u", VBuckets: 4})
	a.do(member("i1"))
	a.do(&statecontext.RegisterProjector{Projector: statecontext.Projector{ID: "p1", Admin: "http://p1", BootID: "boot"}})
	for i := range many + 1 {
		a.do(&statecontext.CreateIndex{Placement: []statecontext.Placement{{}},
			Layout: partition.Layout{Scheme: partition.HashDocID, Partitions: 1},
			Definition: index.Definition{Name: fmt.Sprint("x", i), Bucket: "b", BucketUUID: "u",
				Keys: []index.KeyExpr{{Expr: "a"}}, Partitions: 1}})
	}
	for x := range a.state.Indexes() {
		if x.Definition.Name == "x0" {
			id := x.Definition.ID
			a.do(&statecontext.SetCopyStates{Revision: x.PlacedCAS, Copies: []statecontext.CopyChange{
				{Index: id, Copy: x.Topology.Copies[0].ID, State: partition.Allocated}}})
			a.do(&statecontext.SetIndexState{ID: id, From: index.Pending, To: index.Backfill})
			break
		}
	}
	c := &crowd{a: a, now: Now{MS: 1_000_000, WallMS: 1_000_000, StateMS: 1_000_000, State: a.state}}
	l, _ := New(DefaultSettings(), wire.Leader{ID: "m1", Term: 1}, hclog.NewNullLogger(), c.now)
	c.lead, l.active = l, true
	n, p := l.components.indexers[0], l.components.projectors["p1"]
	n.hello, n.heard, n.full, n.acked, n.seenMS = true, true, true, a.state.DefinitionsRevision(), c.now.MS
	p.hello, p.heard, p.acked, p.seenMS = true, true, a.state.DefinitionsRevision(), c.now.MS
	for x := range a.state.Indexes() {
		for _, o := range x.Topology.Copies {
			n.copies[o.ID] = wire.CopyReport{Copy: o.ID, Index: x.Definition.ID, Total: 10}
		}
	}
	l.membership.watchProjectors()
	b := l.buckets.byName["b"]
	inc := index.Incarnation{Epoch: 1, Term: 1, Counter: 1}
	run := make([]streams.Running, 4)
	for v := range run {
		run[v] = streams.Running{VBucket: uint16(v), Incarnation: inc, Log: timestamp.FailoverLog{{VBUUID: 7}}}
	}
	b.ledger.Adopt(c.now.MS, map[index.ProjectorID]streams.Report{"p1": {Full: true, Streams: run}}, nil, nil)
	b.owners()
	for v := range run {
		b.stab.Complete(v, "p1", inc, 5)
	}
	return c
}

// TestBuildsLeaveRoom: thousands of indexes that move on at once neither keep the stability timestamps from being
// promoted, nor take all the room that other duties' proposals have.
func TestBuildsLeaveRoom(t *testing.T) {
	c := newCrowd(t, 4*MaxProposals)
	promoted, indexes := 0, 0
	for range 2 { // nothing that was proposed lands meanwhile
		for _, e := range c.lead.Step(c.now, Tick{}) {
			if p, is := e.(Propose); is && strings.HasPrefix(p.Key, indexPrefix) {
				indexes++
			} else if is && p.Key == stabilityKey {
				promoted++
			}
		}
		c.now.MS += 20
	}
	if promoted != 1 || indexes != indexesAtOnce {
		t.Errorf("%d promotions and %d steps of indexes, want 1 and %d", promoted, indexes, indexesAtOnce)
	}
	if !c.lead.mayPropose("attendance") || !c.lead.mayPropose(rollbackPrefix+"b") {
		t.Error("no room for other duties")
	}
	for i := range MaxProposals {
		c.lead.propose(fmt.Sprint("other/", i), &statecontext.SetIndexState{}, nil)
	}
	if c.lead.mayPropose("attendance") || !c.lead.mayPropose(rollbackPrefix+"b") {
		t.Error("other duties leave no room to rollbacks, or have no bound")
	}
}

// TestRoomIsGivenBack: a step of an index that failed, or that the state shows, counts no more.
func TestRoomIsGivenBack(t *testing.T) {
	c := newCrowd(t, 4*MaxProposals)
	var keys []string
	for _, e := range c.lead.Step(c.now, Tick{}) {
		if p, is := e.(Propose); is && strings.HasPrefix(p.Key, indexPrefix) {
			keys = append(keys, p.Key)
		}
	}
	before := c.lead.proposals.indexes
	c.lead.proposed(&Proposed{Key: keys[0], Err: ErrTermOver})
	c.lead.proposed(&Proposed{Key: keys[1]})
	c.lead.sync()
	if got := c.lead.proposals.indexes; before != len(keys) || got != before-2 {
		t.Errorf("%d of %d count as under way, and %d did", got, len(keys), before)
	}
}
