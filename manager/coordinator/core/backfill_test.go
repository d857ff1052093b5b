package core

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/statecontext"
	"tidemark/timestamp"
	"tidemark/wire"
)

// TestEveryBackfillTimestampHasItsTurn checks that buckets take turns when more of them have builds in progress than
// proposals may be in flight.
func TestEveryBackfillTimestampHasItsTurn(t *testing.T) {
	const buckets, rounds = 3 * MaxProposals, 16
	s := indexersOf(t, 1)
	s.exact = func(partition.Copy) bool { return false }
	for i := range buckets {
		name := fmt.Sprintf("b%03d", i)
		s.commit(&statecontext.SetBucket{Name: name, UUID: "u", VBuckets: 1})
		made := s.commit(&statecontext.CreateIndex{Placement: []statecontext.Placement{{}},
			Layout: partition.Layout{Scheme: partition.HashDocID, Partitions: 1}, Definition: index.Definition{Name: "x",
				Bucket: name, BucketUUID: "u", Keys: []index.KeyExpr{{Expr: "a"}}, Partitions: 1}})
		x := s.state.state.Index(made.Index)
		s.commit(&statecontext.AllocateCopies{ID: made.Index, Revision: x.PlacedCAS,
			Copies: []index.CopyID{x.Topology.Copies[0].ID}})
		s.commit(&statecontext.SetIndexState{ID: made.Index, From: index.Pending, To: index.Backfill})
	}
	s.step(Changed{})
	s.pass(10 * time.Second)
	n := s.lead.components.indexers[0]
	if !s.lead.active || n.acked < s.state.state.DefinitionsRevision() {
		t.Fatalf("active %v, the indexer has definitions %d", s.lead.active, n.acked)
	}
	turns := map[string]int{}
	for at := range uint64(rounds) {
		for b := range s.state.state.Buckets() {
			reported := &wire.ReportedBucket{}
			reported.Report.Generation, reported.Report.Backfill = b.Generation, timestamp.New(b.VBuckets)
			reported.Report.Backfill.Set(0, timestamp.Position{VBUUID: 7, Seqno: 10 + at})
			n.reports.Buckets[b.Name] = reported
		}
		s.now.MS, s.now.State = s.now.MS+backfillEvery, s.state.state
		effects := slices.Clone(s.lead.Step(s.now, Tick{}))
		for _, e := range effects {
			if p, is := e.(Propose); is {
				if c, is := p.Body.(*statecontext.SetBackfillTimestamp); is {
					turns[c.Bucket]++
				}
			}
		}
		s.carryOut(effects)
	}
	for b := range s.state.state.Buckets() {
		if b.Name != "b" && turns[b.Name] < rounds/8 {
			t.Errorf("%s had %d turns of %d", b.Name, turns[b.Name], rounds)
		}
	}
}
