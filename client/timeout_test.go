package client

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tidemark/manager/api/v1"
)

// virtual answers a client's requests in a bubble (testing/synctest), where network time would be real.
type virtual func(r *http.Request) (*http.Response, error)

func (v virtual) RoundTrip(r *http.Request) (*http.Response, error) { return v(r) }

// newVirtual returns a client of such servers.
func newVirtual(t *testing.T, answer virtual, servers ...string) *Client {
	t.Helper()
	c := Open(Options{Servers: servers, ViaManagers: true})
	t.Cleanup(c.Close)
	silent(c)
	c.Wrap(func(http.RoundTripper) http.RoundTripper { return answer })
	return c
}

// answerOf returns a 200 with this body.
func answerOf(media string, body io.Reader) *http.Response {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {media}},
		Body: io.NopCloser(body)}
}

// TestClientWaitsAsLongAsManagersMayTake: the client waits as long as a manager may take, and announces no less to
// the manager.
func TestClientWaitsAsLongAsManagersMayTake(t *testing.T) {
	for name, call := range map[string]func(ctx context.Context, c *Client) error{
		"statistics": func(ctx context.Context, c *Client) error {
			_, err := c.Statistics(ctx, Ref("b", "i"), v1.StatisticsRequest{})
			return err
		},
		"change": func(ctx context.Context, c *Client) error {
			_, err := c.Change(ctx, "7", v1.PatchRequest{}, 0)
			return err
		},
		"rebalance": func(ctx context.Context, c *Client) error {
			_, err := c.Rebalance(ctx, v1.RebalanceRequest{}, false)
			return err
		},
		"list":      func(ctx context.Context, c *Client) error { _, err := c.Indexes(ctx, "b"); return err },
		"statement": func(ctx context.Context, c *Client) error { _, err := c.Statement(ctx, "DROP INDEX b.i"); return err },
		"rehearsal": func(ctx context.Context, c *Client) error {
			_, err := c.Rehearse(ctx, "DROP INDEX b.i")
			return err
		},
		"removal": func(ctx context.Context, c *Client) error {
			_, err := c.RemoveIndexer(ctx, "i1", true, false)
			return err
		},
		"count": func(ctx context.Context, c *Client) error {
			_, err := c.Count(ctx, "b/i", v1.ScanRequest{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				requests := 0
				c := newVirtual(t, func(r *http.Request) (*http.Response, error) {
					requests++
					limit := v1.TimeoutOf(r.Method, r.URL.Path)
					if ms, err := strconv.ParseInt(r.Header.Get("Tidemark-Timeout-Ms"), 10, 64); err != nil ||
						ms < limit.Milliseconds() {
						t.Errorf("%s %s: it is sent %d ms, and may take %v (%v)", r.Method, r.URL.Path, ms, limit, err)
					}
					select {
					case <-time.After(limit):
						return answerOf("application/json", strings.NewReader(`{"dry_run":true}`)), nil
					case <-r.Context().Done():
						return nil, r.Context().Err()
					}
				}, "http://m")
				c.Waiting = func(err error) { t.Fatalf("the call is retried: %v", err) }
				if err := call(t.Context(), c); err != nil || requests != 1 {
					t.Errorf("%d requests: %v", requests, err)
				}
			})
		})
	}
}
