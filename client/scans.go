package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"tidemark/manager/api/v1"
)

// limited returns the query for at most limit entries; 0 means the manager's default.
func limited(limit int) string {
	q := url.Values{}
	if limit > 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	return query(q)
}

// RunningScans lists the scans that all indexers coordinate, at most limit; 0 means 200.
func (c *Client) RunningScans(ctx context.Context, limit int) (v1.RunningScans, error) {
	var list v1.RunningScans
	return list, c.call(ctx, http.MethodGet, "/v1/scans"+limited(limit), nil, nil, &list)
}

// SlowScans lists finished scans that took long (--slow-scan of the indexers), at most limit; 0 means 200.
func (c *Client) SlowScans(ctx context.Context, limit int) (v1.SlowScans, error) {
	var list v1.SlowScans
	return list, c.call(ctx, http.MethodGet, "/v1/slow-scans"+limited(limit), nil, nil, &list)
}

// SlowFrom sets the duration from which scans are slow, on all indexers until their processes end. It requires role
// admin.
func (c *Client) SlowFrom(ctx context.Context, req v1.SlowFromRequest) (v1.SlowFromReply, error) {
	var reply v1.SlowFromReply
	return reply, c.call(ctx, http.MethodPut, "/v1/slow-scans", nil, req, &reply)
}

// CancelScan cancels a running scan, which fails with an error that states so. It requires role ddl.
func (c *Client) CancelScan(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, "/v1/scans/"+url.PathEscape(id), nil, nil, nil)
}
