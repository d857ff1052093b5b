package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"tidemark/manager/api/v1"
)

// History returns statistics of scans, index changes and buckets in the last hour.
func (c *Client) History(ctx context.Context, req v1.HistoryRequest) (v1.History, error) {
	q := url.Values{}
	for name, n := range map[string]int{"minutes": int(req.For / time.Minute), "step": int(req.Step / time.Second),
		"limit": req.Limit} {
		if n != 0 {
			q.Set(name, strconv.Itoa(n))
		}
	}
	if req.Bucket != "" {
		q.Set("bucket", req.Bucket)
	}
	var h v1.History
	return h, c.call(ctx, http.MethodGet, "/v1/history"+query(q), nil, nil, &h)
}
