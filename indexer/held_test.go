package indexer

import (
	"slices"
	"testing"

	"tidemark/timestamp"
	"tidemark/wire"
)

// TestHeldListOfLeadersIsStored checks that an indexer stores the leader's list of which node holds what, and keeps
// it when the leader omits the list because the indexer already has it.
func TestHeldListOfLeadersIsStored(t *testing.T) {
	x := &Indexer{catalog: noCatalog()}
	r := &reporter{x: x}
	one := []wire.Held{{Copy: 3, Node: 1, OK: true,
		Ref: wire.StabilityRef{Bucket: "b", Ref: timestamp.Ref{Number: 4, Hash: 5}}}}
	two := append(slices.Clone(one), wire.Held{Copy: 9, Node: 2, Ref: one[0].Ref})
	packed, none := wire.PackHeld(two), wire.PackHeld(nil)
	hash := wire.HeldHash(packed)
	for _, step := range []struct {
		name  string
		reply wire.ReportReply
		want  []wire.Held
		knows uint64
		bad   bool
	}{
		{"packed", wire.ReportReply{HeldPacked: packed, HeldHash: hash}, two, hash, false},
		{"known", wire.ReportReply{HeldHash: hash}, two, hash, false},
		{"damaged", wire.ReportReply{HeldPacked: packed[:len(packed)-1], HeldHash: hash + 1}, two, hash, true},
		{"a leader that has none yet", wire.ReportReply{}, two, hash, false},
		{"nothing is held", wire.ReportReply{HeldPacked: none, HeldHash: wire.HeldHash(none)}, nil, wire.HeldHash(none), false},
		{"packed again", wire.ReportReply{HeldPacked: packed, HeldHash: hash}, two, hash, false},
	} {
		err := r.takeHeld(&step.reply)
		if (err != nil) != step.bad || !slices.Equal(x.catalog.Held(), step.want) || r.held != step.knows {
			t.Errorf("%s: %v, knows %v by %x, want %v by %x", step.name, err, x.catalog.Held(), r.held, step.want, step.knows)
		}
	}
}
