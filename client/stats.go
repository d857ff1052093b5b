package client

import (
	"context"
	"net/http"
	"net/url"

	"tidemark/manager/api/v1"
)

// Stats returns statistics of all indexes of a bucket, "" for all, and of all indexers. Those of an indexer that does
// not answer are missing: see IndexStats.CopiesReported.
func (c *Client) Stats(ctx context.Context, bucket string) (v1.Stats, error) {
	path := "/v1/stats"
	if bucket != "" {
		path += "?bucket=" + url.QueryEscape(bucket)
	}
	var s v1.Stats
	return s, c.call(ctx, http.MethodGet, path, nil, nil, &s)
}
