package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/scan"
	"tidemark/internal/rpc"
	"tidemark/statecontext"
)

// TestOneWaitForAScan: an indexer that refuses at once is followed by the next one; one that has waited in vain for as
// long as a scan waits is not, or a scan that cannot be answered would take that long at each of them.
func TestOneWaitForAScan(t *testing.T) {
	for _, c := range []struct {
		waits time.Duration // of each indexer
		asked int64
	}{{0, 3}, {scan.DefaultWait / 2, 2}, {scan.DefaultWait, 1}} {
		var clock, asked atomic.Int64
		a := New(Config{})
		a.now = func() time.Time { return time.Unix(0, clock.Load()) }
		var addrs []string
		for range 3 {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodGet { // whether it lives
					return
				}
				asked.Add(1)
				clock.Add(int64(c.waits))
				rpc.WriteProblem(w, rpc.Refuse(errcode.Unavailable, "no copy of slice 3 can be scanned"))
			}))
			defer s.Close()
			addrs = append(addrs, strings.TrimPrefix(s.URL, "http://"))
		}
		x := &statecontext.Index{Definition: index.Definition{ID: 7, Name: "i", Bucket: "b"}}
		if _, err := a.askOne(t.Context(), x, addrs, ":scan", nil); err == nil || !strings.Contains(err.Error(), "slice 3") ||
			asked.Load() != c.asked {
			t.Errorf("each waits %s: %d were asked, want %d: %v", c.waits, asked.Load(), c.asked, err)
		}
		a.Close()
	}
}
