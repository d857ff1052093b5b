package client

import (
	"context"
	"net/http"

	"tidemark/manager/api/v1"
)

// Statistics returns the distribution of an index's component values, estimated from a sample of its entries: the
// number of distinct values, the most common ones, and a histogram.
func (c *Client) Statistics(ctx context.Context, ref string, req v1.StatisticsRequest) (v1.IndexStatistics, error) {
	var s v1.IndexStatistics
	return s, c.call(ctx, http.MethodPost, "/v1/indexes/"+ref+":statistics", nil, req, &s)
}
