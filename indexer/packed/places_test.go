package packed

import (
	"testing"

	"tidemark/index"
	"tidemark/keyversion"
)

// TestInterned checks that only lists with the same content become one object, and that the number of kept lists is
// bounded.
func TestInterned(t *testing.T) {
	var i Interned
	list := func(first index.ID) *keyversion.Places {
		return keyversion.NewPlaces([]keyversion.Place{{Index: first, Slice: 3}, {Index: 7, Slice: index.AllSlices}})
	}
	one := i.Of(list(1))
	if i.Of(nil) != nil || i.Of(list(1)) != one || i.Of(one) != one || i.Of(list(2)) == one || !one.Cover(1, 3) {
		t.Error("lists are taken for each other, or for none")
	}
	for n := range index.ID(2 * mostInterned / 20) {
		i.Of(list(n))
	}
	if len(i.objects) > mostObjects || i.bytes > mostInterned || len(i.byBytes) > mostInterned/20 {
		t.Errorf("%d objects, %d lists of %d bytes are kept", len(i.objects), len(i.byBytes), i.bytes)
	}
}
