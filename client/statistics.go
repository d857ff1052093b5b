package client

import (
	"context"
	"net/http"

	"tidemark/manager/api/v1"
)

// Statistics tells how the values of an index's components are spread, by a sample of its entries: how many different
// ones there are, which are common, and a histogram.
func (c *Client) Statistics(ctx context.Context, ref string, req v1.StatisticsRequest) (v1.IndexStatistics, error) {
	var s v1.IndexStatistics
	return s, c.call(ctx, http.MethodPost, "/v1/indexes/"+ref+":statistics", nil, req, &s)
}
