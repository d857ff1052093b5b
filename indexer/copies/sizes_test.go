package copies

import (
	"testing"

	"tidemark/index"
	"tidemark/indexer/storage"
)

// TestSizesAfterARestore: batches of a copy that was restored to an older checkpoint are numbered from there, in
// a new generation of its data folder, so that a later measurement may have a lower number. Neither that, nor a
// measurement of a slice that was here before, is mistaken for another one.
func TestSizesAfterARestore(t *testing.T) {
	const id = index.CopyID(1)
	f := newFallen(t, 1, 1)
	s := f.k.slices[id]
	rows, generation, batch, err := s.Counted()
	if err != nil {
		t.Fatal(err)
	}
	now := RowsAt{generation, batch}
	measured := func(of *storage.Slice, at RowsAt, items uint64) *measurement {
		return &measurement{copies: map[index.CopyID]copySize{id: {of: of, rows: at, items: items}}}
	}
	early, late, back := RowsAt{generation, batch - 1}, RowsAt{generation, batch + 1}, RowsAt{generation + 1, 1}
	for what, c := range map[string]struct {
		seen *copySize
		m    *measurement
		want uint64
	}{
		"a measurement before the last look":        {&copySize{of: s, rows: now, items: 5}, measured(s, early, 4), 5},
		"one after it":                              {&copySize{of: s, rows: now, items: 5}, measured(s, late, 6), 6},
		"one of a checkpoint that was gone back to": {&copySize{of: s, rows: now, items: 5}, measured(s, back, 2), 2},
		"one of before that":                        {&copySize{of: s, rows: back, items: 2}, measured(s, now, 5), 2},
		"one of a slice that was here before":       {nil, measured(&storage.Slice{}, now, 99), uint64(rows)},
		"none":                                      {nil, nil, uint64(rows)},
	} {
		clear(f.k.sizes.seen)
		if c.seen != nil {
			f.k.sizes.seen[id] = *c.seen
		}
		if got := f.k.sizeOf(id, c.m, false); got.items != c.want {
			t.Errorf("%s: %d entries are reported, want %d", what, got.items, c.want)
		}
	}
	f.k.sizes.seen[id] = copySize{of: s, rows: RowsAt{generation, batch + 9}, items: 5}
	if got := f.k.sizeOf(id, measured(s, now, 7), true); got.items != uint64(rows) {
		t.Errorf("while its index is not ready: %d entries are reported, want those that are there, %d", got.items, rows)
	}
}
