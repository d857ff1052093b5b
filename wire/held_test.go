package wire

import (
	"slices"
	"testing"

	"tidemark/index"
	"tidemark/timestamp"
)

func heldExample() []Held {
	var all []Held
	for i := range 40 {
		all = append(all, Held{Copy: index.CopyID(7 + 100*i), Node: index.NodeID(1 + i%9), OK: i%5 > 0,
			Ref: StabilityRef{Bucket: []string{"b", "world"}[i%2], Ref: timestamp.Ref{Generation: 1,
				RollbackID: uint64(i % 2), Number: uint64(300 + i%3), Hash: uint64(i%3)<<60 | 5}}})
	}
	return all
}

func TestHeldIsPacked(t *testing.T) {
	for name, all := range map[string][]Held{"none": nil, "some": heldExample(), "first": heldExample()[:1]} {
		packed := PackHeld(all)
		got, err := UnpackHeld(packed)
		if err != nil || !slices.Equal(got, all) {
			t.Errorf("%s: got %v, %v, want %v", name, got, err, all)
		}
		if HeldHash(packed) == 0 {
			t.Errorf("%s: hash 0", name)
		}
	}
	if n := len(PackHeld(heldExample())); n > 40*6+6*24 {
		t.Errorf("40 copies take %d bytes", n)
	}
}
