package harness

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// noted is a testing.TB that records failures.
type noted struct {
	testing.TB
	failed bool
}

func (n *noted) Helper() {}

func (n *noted) Error(...any) { n.failed = true }

// TestGetCutsNothing checks that a body longer than the limit fails the test, and that none of it is returned.
func TestGetCutsNothing(t *testing.T) {
	for _, size := range []int{0, maxBody, maxBody + 1} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(make([]byte, size))
		}))
		n := &noted{TB: t}
		status, body := Get(t.Context(), n, s.URL)
		s.Close()
		if long := size > maxBody; n.failed != long || (status == 0) != long || !long && len(body) != size ||
			long && !strings.Contains(body, s.URL) {
			t.Errorf("of %d bytes: status %d, %d bytes, failed %t", size, status, len(body), n.failed)
		}
	}
}
