package storage

import (
	"testing"

	"github.com/cockroachdb/pebble/v2"
)

// TestLiveBytes: tables above the lowest level that overlap it count as garbage, others do not.
func TestLiveBytes(t *testing.T) {
	table := func(smallest, largest string, size uint64) (s pebble.SSTableInfo) {
		s.Smallest.UserKey, s.Largest.UserKey, s.Size = []byte(smallest), []byte(largest), size
		return s
	}
	type level = []pebble.SSTableInfo
	for name, c := range map[string]struct {
		levels []level
		want   int64
	}{
		"nothing":         {make([]level, 7), 0},
		"only the top":    {[]level{{table("a", "c", 5), table("b", "d", 7)}, nil, nil}, 12},
		"only the lowest": {[]level{nil, nil, {table("a", "c", 5), table("d", "f", 7)}}, 12},
		"garbage":         {[]level{{table("b", "e", 100)}, nil, {table("a", "c", 5), table("d", "f", 7)}}, 12},
		"in a gap, and beside": {[]level{{table("c1", "c2", 1), table("0", "9", 2), table("g", "h", 4),
			table("c1", "d", 100)}, nil, {table("a", "c", 5), table("d", "f", 7)}}, 19},
		"in between": {[]level{nil, {table("c", "c", 100), table("f1", "g", 3)},
			{table("a", "c", 5), table("d", "f", 7)}}, 15},
	} {
		if got := liveBytes(c.levels); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
