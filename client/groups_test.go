package client

import (
	"errors"
	"testing"

	"tidemark/manager/api/v1"
)

// TestRowAndGroupRequestsAreDistinguished: a request for one kind is refused by a method that returns the other,
// before any call.
func TestRowAndGroupRequestsAreDistinguished(t *testing.T) {
	c := New("127.0.0.1:1")
	defer c.Close()
	for _, req := range []v1.ScanRequest{{GroupBy: []int{}}, {Aggregates: []v1.Aggregate{v1.CountRows()}}} {
		if _, err := c.Scan(t.Context(), "b/i", req); !errors.Is(err, ErrGroups) {
			t.Errorf("Scan of %+v: %v", req, err)
		}
	}
	if _, err := c.Aggregate(t.Context(), "b/i", v1.ScanRequest{Limit: 1}); !errors.Is(err, ErrGroups) {
		t.Errorf("Aggregate without groups: %v", err)
	}
}

// TestGroupLines: a group sent as a line has its values in the place where an indexer's message has them.
func TestGroupLines(t *testing.T) {
	var row v1.Row
	end, err := (&answerLines{}).read([]byte(`{"key":["FR",null],"values":[18446744073709551615,null]}`), &row)
	if end != nil || err != nil || len(row.Key) != 2 || row.ID != "[18446744073709551615,null]" {
		t.Errorf("%+v %+v %v", end, row, err)
	}
}
