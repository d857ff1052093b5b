package client

import (
	"errors"
	"math"
	"testing"

	"tidemark/manager/api/v1"
)

// TestBadBounds: invalid bounds are refused before anything is sent; an empty list does not mean the whole index.
func TestBadBounds(t *testing.T) {
	c := New("127.0.0.1:1")
	defer c.Close()
	for name, ranges := range map[string][]v1.Range{
		"none":      {},
		"no prefix": {v1.Prefix()},
		"a number":  {v1.Equal(1), v1.Prefix("FR", 7)},
		"no UTF-8":  {v1.Prefix("\xff")},
		"a func":    {v1.From(1).To(func() {})},
		"infinite":  {v1.After(math.Inf(1)).To(3)},
	} {
		req := v1.ScanRequest{}.In(ranges...)
		if _, err := c.Scan(t.Context(), "1", req); !errors.Is(err, v1.ErrBounds) {
			t.Errorf("%s: a scan: %v", name, err)
		}
		if _, err := c.Count(t.Context(), "1", req); !errors.Is(err, v1.ErrBounds) {
			t.Errorf("%s: a count: %v", name, err)
		}
	}
}
