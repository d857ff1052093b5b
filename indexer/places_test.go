package indexer

import (
	"testing"

	"tidemark/index"
	"tidemark/keyversion"
)

// TestInterned: lists that say the same are one object, others are not, and what is kept is bounded.
func TestInterned(t *testing.T) {
	var i interned
	list := func(first index.ID) *keyversion.Places {
		return keyversion.NewPlaces([]keyversion.Place{{Index: first, Slice: 3}, {Index: 7, Slice: index.AllSlices}})
	}
	one := i.of(list(1))
	if i.of(nil) != nil || i.of(list(1)) != one || i.of(one) != one || i.of(list(2)) == one || !one.Cover(1, 3) {
		t.Error("lists are taken for each other, or for none")
	}
	for n := range index.ID(2 * mostInterned / 20) {
		i.of(list(n))
	}
	if len(i.objects) > mostObjects || i.bytes > mostInterned || len(i.byBytes) > mostInterned/20 {
		t.Errorf("%d objects, %d lists of %d bytes are kept", len(i.objects), len(i.byBytes), i.bytes)
	}
}
