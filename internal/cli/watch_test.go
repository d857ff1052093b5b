package cli

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"tidemark/client"
)

// TestFuturePositionIsReported checks that a position in the future is reported, and any other is not.
func TestFuturePositionIsReported(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"cas":42}`)
	}))
	defer s.Close()
	c := client.Open(client.Options{Servers: []string{s.URL}})
	defer c.Close()
	for since, want := range map[string]bool{"43": true, "42": false, "": false, "43@c.1": false, "x": false} {
		var b strings.Builder
		if got := reportFuture(t.Context(), &b, c, since); got != want {
			t.Errorf("%q is in the future: %v", since, got)
		}
		text := "the newest cas is 42; after 3s without it the present state is shown"
		if strings.Contains(b.String(), text) != want {
			t.Errorf("%q: %q", since, b.String())
		}
	}
}
