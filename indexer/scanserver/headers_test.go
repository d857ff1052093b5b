package scanserver

import (
	"encoding/base64"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"tidemark/indexer/scanport"
	"tidemark/internal/rpc"
)

// TestLargestHeadersAreAccepted checks that one request header may contain a session's tokens and the place to
// continue from, each at its greatest length, along with all other headers.
func TestLargestHeadersAreAccepted(t *testing.T) {
	var session, resume int
	srv := rpc.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		session, resume = len(r.Header.Get(scanport.HeaderSession)), len(r.Header.Get(scanport.HeaderResume))
	}))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() { defer close(served); _ = srv.Serve(l) }()
	defer func() { _ = srv.Close(); <-served }()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+l.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	place := base64.StdEncoding.EncodeToString(make([]byte, scanport.MaxPlace))
	req.Header.Set(scanport.HeaderSession, strings.Repeat("x", scanport.MaxSession))
	req.Header.Set(scanport.HeaderResume, place)
	req.Header.Set("Authorization", "Bearer "+strings.Repeat("x", 8<<10))
	resp, err := (&http.Client{Timeout: 3 * time.Minute}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK || session != scanport.MaxSession || resume != len(place) {
		t.Errorf("%s: %d bytes of tokens, %d of a place", resp.Status, session, resume)
	}
}
