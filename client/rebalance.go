package client

import (
	"context"
	"net/http"
	"strconv"

	"tidemark/manager/api/v1"
)

// Rebalance plans a rebalance, and starts it unless dryRun is set.
func (c *Client) Rebalance(ctx context.Context, req v1.RebalanceRequest, dryRun bool) (v1.RebalanceReply, error) {
	path := "/v1/rebalances"
	if dryRun {
		path += "?dry_run=true"
	}
	var r v1.RebalanceReply
	return r, c.call(ctx, http.MethodPost, path, nil, req, &r)
}

// Rebalances lists the newest rebalances.
func (c *Client) Rebalances(ctx context.Context) (v1.RebalanceList, error) {
	var r v1.RebalanceList
	return r, c.call(ctx, http.MethodGet, "/v1/rebalances", nil, nil, &r)
}

// RebalanceStatus returns the state of a rebalance.
func (c *Client) RebalanceStatus(ctx context.Context, id uint64) (v1.RebalanceInfo, error) {
	var r v1.RebalanceInfo
	return r, c.call(ctx, http.MethodGet, "/v1/rebalances/"+strconv.FormatUint(id, 10), nil, nil, &r)
}

// CancelRebalance ends a rebalance as soon as possible: copies that are whole stay, others are dropped.
func (c *Client) CancelRebalance(ctx context.Context, id uint64) (v1.RebalanceInfo, error) {
	var r v1.RebalanceInfo
	return r, c.call(ctx, http.MethodDelete, "/v1/rebalances/"+strconv.FormatUint(id, 10), nil, nil, &r)
}
