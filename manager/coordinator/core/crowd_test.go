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

// crowd is a leader of one indexer and one projector, both up to date. The projector streams a bucket for an index in
// backfill, and many other indexes wait to be built.
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
			a.do(&statecontext.AllocateCopies{ID: id, Revision: x.PlacedCAS,
				Copies: []index.CopyID{x.Topology.Copies[0].ID}})
			a.do(&statecontext.SetIndexState{ID: id, From: index.Pending, To: index.Backfill})
			break
		}
	}
	c := &crowd{a: a, now: Now{MS: 1_000_000, WallMS: 1_000_000, StateMS: 1_000_000, State: a.state}}
	l, _ := New(DefaultSettings(), wire.Leader{ID: "m1", Term: 1}, hclog.NewNullLogger(), c.now)
	c.lead, l.active = l, true
	n, p := l.components.indexers[0], l.components.projectors["p1"]
	n.hello, n.reported, n.full, n.acked, n.seenMS = true, true, true, a.state.DefinitionsRevision(), c.now.MS
	p.hello, p.reported, p.acked, p.seenMS = true, true, a.state.DefinitionsRevision(), c.now.MS
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

// TestBuildsLeaveRoom checks that thousands of indexes that move on at once neither delay promotions nor use up the
// room of other duties' proposals.
func TestBuildsLeaveRoom(t *testing.T) {
	c := newCrowd(t, 4*MaxProposals)
	promoted, indexes := 0, 0
	for range 2 { // no proposal is committed meanwhile
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

// TestProposalSlotsAreReleased checks that an index's proposal counts no more when it has failed or the state shows it.
func TestProposalSlotsAreReleased(t *testing.T) {
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

// TestReportsBesideBuilds checks that many indexes in backfill are judged at intervals only, however many reports
// arrive, and not at all because of reports of other indexes. A few are judged at once.
func TestReportsBesideBuilds(t *testing.T) {
	for _, tc := range []struct{ builds, reports, want int }{{0, 50, 50}, {1000, 50, 1}} {
		c := newCrowd(t, tc.builds)
		b, n := c.lead.buckets.byName["b"], c.lead.components.indexers[0]
		one := c.a.state.Index(c.lead.indexes.ids[0]).Topology.Copies[0].ID
		looked := 0
		report := func(of index.ID, number uint64) {
			r := &wire.IndexerReport{Node: 0, UUID: n.uuid, BootID: n.boot, Sequence: number, Base: number - 1,
				Copies: []wire.CopyReport{{Copy: one, Index: of, Ready: true, Done: 5, Total: 10,
					Held: wire.StabilityRef{Bucket: "b", Ref: timestamp.Ref{Number: number}}}}}
			b.nearly = true // judging all of them sets whether some build lacks only a timestamp
			c.lead.Step(c.now, &IndexerReported{Report: r, Reply: make(chan *wire.ReportReply, 1)})
			if !b.nearly {
				looked++
			}
		}
		for i := range tc.reports {
			report(c.lead.indexes.ids[0], uint64(i+1))
		}
		if looked != tc.want {
			t.Errorf("%d builds: looked through %d times in a millisecond by %d reports, want %d", tc.builds, looked, tc.reports,
				tc.want)
		}
		c.now.MS += judgedEvery(c.lead.indexes.copies)
		b.nearly = true
		if c.lead.Step(c.now, Woken{}); tc.builds > 0 && b.nearly {
			t.Errorf("%d builds: what came in is dropped", tc.builds)
		}
		looked = 0
		report(1<<40, uint64(tc.reports+1))
		if looked > 0 {
			t.Errorf("%d builds: a copy that is not built has them looked through", tc.builds)
		}
	}
}

// TestPictureOfMany checks that the picture is rebuilt more rarely with many copies, that only the part of indexes
// that become ready is updated at once, and that an older picture stays unchanged.
func TestPictureOfMany(t *testing.T) {
	c := newCrowd(t, 1)
	l, n := c.lead, c.lead.components.indexers[0]
	l.picture.draw()
	old := l.picture.newest
	for id, r := range n.copies {
		r.Items = 7
		n.copies[id] = r
	}
	first, other := l.now.state.Definition(l.indexes.ids[0]), l.indexes.ids[1]
	l.lives.finish([]readied{{def: first}})
	got := l.picture.newest
	if got.Progress[first.ID].Items != 7 || got.Progress[other].Items != 0 || old.Progress[first.ID].Items != 0 {
		t.Errorf("%d and %d entries, %d before; want 7, 0 and 0", got.Progress[first.ID].Items, got.Progress[other].Items,
			old.Progress[first.ID].Items)
	}
	for _, tc := range []struct{ copies, want int }{{2, 10}, {showEvery * judgedPerMS * 5, 2}} {
		for i := range tc.copies {
			n.copies[index.CopyID(i+1)] = wire.CopyReport{Copy: index.CopyID(i + 1)}
		}
		shown := 0
		for range 10 * showEvery {
			c.now.MS++
			l.at(c.now)
			l.effects = l.effects[:0]
			l.picture.show()
			shown += len(l.effects)
		}
		if shown != tc.want {
			t.Errorf("%d pictures of %d copies in %d ms, want %d", shown, tc.copies, 10*showEvery, tc.want)
		}
	}
}

// TestErrorsOfCopies checks that the first few errors of an index's copies are listed, and the number of the others.
func TestErrorsOfCopies(t *testing.T) {
	l := newCrowd(t, 1).lead
	const few = "copy 1 on node 0: full; copy 2 on node 0: full; copy 3 on node 0: full; copy 4 on node 0: full"
	for failing, want := range map[int]string{
		0:             "",
		1:             "copy 1 on node 0: full",
		maxErrors:     few,
		maxErrors + 7: few + "; and errors of 7 more copies",
	} {
		x := &statecontext.Index{}
		for id := range index.CopyID(maxErrors + 10) {
			x.Topology.Copies = append(x.Topology.Copies, partition.Copy{ID: id + 1})
			r := wire.CopyReport{Copy: id + 1}
			if int(id) < failing {
				r.Error = "full"
			}
			l.components.indexers[0].copies[id+1] = r
		}
		if got := strings.Join(l.picture.copiesOf(x).Errors, "; "); got != want {
			t.Errorf("%d copies with errors: %q, want %q", failing, got, want)
		}
	}
}
