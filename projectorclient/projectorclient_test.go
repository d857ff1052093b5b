package projectorclient

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"tidemark/internal/rpc"
	"tidemark/wire"
)

// TestOneThatHangsHoldsNoOtherUp: of two projectors behind one port one answers nothing. The calls to it that there is
// no room for wait, and those to the other one do not; when it answers again, nothing of it is left.
func TestOneThatHangsHoldsNoOtherUp(t *testing.T) {
	const limit = 2
	goOn, under := make(chan struct{}), make(chan struct{}, 3*limit)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/kv/hangs/") {
			under <- struct{}{}
			<-goOn
		}
		rpc.Write(w, r, http.StatusOK, wire.TopicList{})
	}))
	defer server.Close()
	c := New(limit, nil)
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var all sync.WaitGroup
	errs := make(chan error, 3*limit)
	for range 3 * limit {
		all.Go(func() {
			_, err := call[wire.TopicList](ctx, c, time.Minute, http.MethodGet, server.URL+"/kv/hangs", "/v1/topics", nil)
			errs <- err
		})
	}
	for range limit {
		<-under
	}
	for range 3 * limit {
		if _, err := c.Topics(ctx, server.URL+"/kv/answers"); err != nil {
			t.Fatalf("the other one: %v", err)
		}
	}
	if len(under) > 0 {
		t.Errorf("%d calls at a time, at most %d are allowed", limit+len(under), limit)
	}
	brief, end := context.WithTimeout(ctx, 10*time.Millisecond)
	defer end()
	if _, err := c.Topics(brief, server.URL+"/kv/hangs"); err == nil || !strings.Contains(err.Error(), "under way") {
		t.Errorf("one that there is no room for: %v", err)
	}
	close(goOn)
	all.Wait()
	for range 3 * limit {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if len(c.calls) > 0 {
		t.Errorf("%d projectors are remembered", len(c.calls))
	}
}
