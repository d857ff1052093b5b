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

// TestHungProjectorDelaysNoOther: of two projectors behind one port one does not answer. Calls to it beyond the limit
// wait, calls to the other one do not; once it answers again, nothing of it is left in the client.
func TestHungProjectorDelaysNoOther(t *testing.T) {
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
			_, err := call[wire.TopicList](ctx, c.reads, time.Minute, http.MethodGet, server.URL+"/kv/hangs", "/v1/topics", nil)
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
	if _, err := c.Topics(brief, server.URL+"/kv/hangs"); err == nil || !strings.Contains(err.Error(), "already running") {
		t.Errorf("one that there is no room for: %v", err)
	}
	close(goOn)
	all.Wait()
	for range 3 * limit {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if len(c.reads.calls) > 0 {
		t.Errorf("%d projectors are remembered", len(c.reads.calls))
	}
}

// TestKindsOfCallsAreIndependent: while a projector's KV is slow to begin streams and the limit of stream calls
// is used up, the projector still returns seqnos and stops other streams; and the other way round.
func TestKindsOfCallsAreIndependent(t *testing.T) {
	const limit = 2
	kinds := []struct {
		path string
		lane func(*Client) *lane
		ask  func(ctx context.Context, c *Client, addr string) error
	}{
		{"/v1/seqnos", func(c *Client) *lane { return c.reads }, func(ctx context.Context, c *Client, addr string) error {
			_, err := c.Seqnos(ctx, addr, &wire.SeqnosRequest{Bucket: "b"})
			return err
		}},
		{"/v1/streams:stop", func(c *Client) *lane { return c.controls },
			func(ctx context.Context, c *Client, addr string) error { return c.Stop(ctx, addr, &wire.StreamStop{}) }},
		{"/v1/streams", func(c *Client) *lane { return c.streams }, func(ctx context.Context, c *Client, addr string) error {
			_, err := c.Streams(ctx, addr, &wire.StreamRequest{})
			return err
		}},
	}
	for _, slow := range kinds {
		begun, end := make(chan struct{}, limit), make(chan struct{})
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == slow.path {
				begun <- struct{}{}
				<-end
			}
			rpc.Write(w, r, http.StatusOK, wire.OK{})
		}))
		c := New(limit, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // hang guard
		var all sync.WaitGroup
		for range limit {
			all.Go(func() {
				if _, err := call[wire.OK](ctx, slow.lane(c), time.Hour, http.MethodPost, server.URL, slow.path,
					nil); err != nil {
					t.Error(err)
				}
			})
			<-begun
		}
		for _, other := range kinds {
			if other.path == slow.path {
				continue
			}
			err := other.ask(ctx, c, server.URL)
			for err != nil && ctx.Err() == nil { // the machine may pause for as long as a call may take
				err = other.ask(ctx, c, server.URL)
			}
			if err != nil {
				t.Errorf("%s beside %d of %s: %v", other.path, limit, slow.path, err)
			}
		}
		close(end)
		all.Wait()
		cancel()
		c.Close()
		server.Close()
	}
}
