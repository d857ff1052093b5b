package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"tidemark/manager/api/v1"
)

// limited is the query for at most so many; 0: as many as the manager gives.
func limited(limit int) string {
	q := url.Values{}
	if limit > 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	return query(q)
}

// RunningScans lists the scans that all indexers coordinate, at most so many; 0: 200.
func (c *Client) RunningScans(ctx context.Context, limit int) (v1.RunningScans, error) {
	var list v1.RunningScans
	return list, c.call(ctx, http.MethodGet, "/v1/scans"+limited(limit), nil, nil, &list)
}

// SlowScans lists scans that took long (--slow-scan of the indexers) and have ended, at most so many; 0: 200.
func (c *Client) SlowScans(ctx context.Context, limit int) (v1.SlowScans, error) {
	var list v1.SlowScans
	return list, c.call(ctx, http.MethodGet, "/v1/slow-scans"+limited(limit), nil, nil, &list)
}

// SlowFrom says from when on scans are slow, on all indexers until their processes end. Role admin is needed.
func (c *Client) SlowFrom(ctx context.Context, req v1.SlowFromRequest) (v1.SlowFromReply, error) {
	var reply v1.SlowFromReply
	return reply, c.call(ctx, http.MethodPut, "/v1/slow-scans", nil, req, &reply)
}

// CancelScan ends a scan that is under way: who asked for it is told so. Role ddl is needed.
func (c *Client) CancelScan(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, "/v1/scans/"+url.PathEscape(id), nil, nil, nil)
}
