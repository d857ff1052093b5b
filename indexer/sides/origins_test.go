package sides

import (
	"testing"

	"tidemark/index"
	"tidemark/indexer/storage"
	"tidemark/indexer/storage/storagetest"
	"tidemark/wire"
)

// TestReturningCopyCatchesUpAtItsRate checks that a copy that was never complete catches up at the rate of copies
// that come back, if it is not new and its index is ready elsewhere. Otherwise a build waits for it.
func TestReturningCopyCatchesUpAtItsRate(t *testing.T) {
	_, s := storagetest.Open(t)
	m := s.Meta()
	d := func(state index.State) *wire.Definitions {
		return &wire.Definitions{Indexes: []index.Definition{{ID: m.Index, State: state},
			{ID: m.Index + 1, State: index.Backfill}}}
	}
	for _, c := range []struct {
		what string
		old  bool
		defs *wire.Definitions
		ids  []index.CopyID
		want bool
	}{
		{"killed before it was stored as whole", true, d(index.Maintenance), []index.CopyID{m.Copy}, true},
		{"new", false, d(index.Maintenance), []index.CopyID{m.Copy}, false},
		{"its index is being built", true, d(index.Backfill), []index.CopyID{m.Copy}, false},
		{"beside one that is not here", true, d(index.Maintenance), []index.CopyID{m.Copy, m.Copy + 1}, false},
		{"its index is gone", true, &wire.Definitions{}, []index.CopyID{m.Copy}, false},
		{"none", true, d(index.Maintenance), nil, false},
	} {
		o := NewOrigins(false)
		if c.old {
			o.Found(m.Copy)
			o.Found(m.Copy + 1)
		}
		here := map[index.CopyID]*storage.Slice{m.Copy: s}
		if got := o.comesBack(func(id index.CopyID) *storage.Slice { return here[id] }, c.ids, c.defs); got != c.want {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
	}
}
