package scanserver

import (
	"testing"
	"time"

	"tidemark/index"
	"tidemark/internal/history"
	"tidemark/wire"
)

// TestHistoryOfOneBucket requests the history of one bucket: it covers the bucket's indexes, but not an index that is
// no longer defined.
func TestHistoryOfOneBucket(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	s := &Server{past: history.NewScans(now), definitions: func() wire.Definitions {
		return wire.Definitions{Indexes: []index.Definition{{ID: 1, Bucket: "a"}, {ID: 2, Bucket: "b"}}}
	}}
	for id := range index.ID(4) {
		s.past.Note(now, id, "any", time.Millisecond, 1, false)
	}
	q := wire.HistoryQuery{From: history.SlotOf(now), Each: 1, Points: 1}
	if h := s.Past(q); len(h.Indexes) != 4 {
		t.Errorf("of all: %+v", h.Indexes)
	}
	q.Bucket = "b"
	if h := s.Past(q); len(h.Indexes) != 1 || h.Indexes[0].Index != 2 || h.Omitted != 0 {
		t.Errorf("of one bucket: %+v", h.Indexes)
	}
}
