package core

import (
	"testing"

	"tidemark/index"
	"tidemark/timestamp"
	"tidemark/wire"
)

// TestEachCopyIsListedOnce checks that, if two indexers report the same copy because one was given the other's files,
// the list of held timestamps has one row for it, that of the indexer on which it is placed.
func TestEachCopyIsListedOnce(t *testing.T) {
	for _, foreign := range []index.NodeID{1, 2} {
		g := newHelloScene(t)
		ref := func(number uint64) wire.StabilityRef {
			return wire.StabilityRef{Bucket: "b", Ref: timestamp.Ref{Number: number}}
		}
		x := g.now.State.Index(1)
		placed := x.Topology.Copies[0]
		all := g.lead.intake.components.indexers
		all[placed.Node].copies = map[index.CopyID]wire.CopyReport{placed.ID: {Copy: placed.ID, Index: 1, Held: ref(7)}}
		all[foreign] = &indexer{node: foreign, copies: map[index.CopyID]wire.CopyReport{
			placed.ID: {Copy: placed.ID, Index: 1, Held: ref(9)}}}
		g.lead.intake.heldDirty = true
		g.lead.intake.held.pack()
		list, err := wire.UnpackHeld(g.lead.intake.held.packed)
		if err != nil || len(list) != 1 || list[0].Node != placed.Node || list[0].Ref.Number != 7 {
			t.Errorf("beside node %d: %+v, %v; want one row, of node %d", foreign, list, err, placed.Node)
		}
	}
}
