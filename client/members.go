package client

import (
	"context"
	"net/http"
	"net/url"

	"tidemark/manager/api/v1"
)

// Join adds a manager that waits for a cluster at this REST address.
func (c *Client) Join(ctx context.Context, address string) (v1.MemberReply, error) {
	var r v1.MemberReply
	return r, c.call(ctx, http.MethodPost, "/v1/cluster/managers:join", nil, v1.JoinRequest{Address: address}, &r)
}

// RemoveManager permanently removes a manager, by name or server id; yes is LoseData or "".
func (c *Client) RemoveManager(ctx context.Context, id, yes string) (v1.MemberReply, error) {
	path := "/v1/cluster/managers/" + url.PathEscape(id)
	if yes != "" {
		path += "?yes=" + url.QueryEscape(yes)
	}
	var r v1.MemberReply
	return r, c.call(ctx, http.MethodDelete, path, nil, nil, &r)
}

// TransferLeadership transfers leadership to a manager, by name or server id; "" selects the most up-to-date one.
func (c *Client) TransferLeadership(ctx context.Context, id string) (v1.MemberReply, error) {
	path := "/v1/cluster/managers"
	if id != "" {
		path += "/" + url.PathEscape(id)
	}
	var r v1.MemberReply
	return r, c.call(ctx, http.MethodPost, path+":transfer-leadership", nil, nil, &r)
}

// RemoveIndexer permanently removes an indexer, by name, node number or uuid. force includes one that is alive or
// holds the only copies of something; dryRun only returns the consequences.
func (c *Client) RemoveIndexer(ctx context.Context, id string, force, dryRun bool) (v1.IndexerRemoval, error) {
	q := url.Values{}
	if force {
		q.Set("force", "true")
	}
	if dryRun {
		q.Set("dry_run", "true")
	}
	var r v1.IndexerRemoval
	return r, c.call(ctx, http.MethodDelete, "/v1/cluster/indexers/"+url.PathEscape(id)+"?"+q.Encode(), nil, nil, &r)
}

// RemoveProjector unregisters a projector; force includes one that is alive.
func (c *Client) RemoveProjector(ctx context.Context, id string, force bool) (v1.MemberReply, error) {
	path := "/v1/cluster/projectors/" + url.PathEscape(id)
	if force {
		path += "?force=true"
	}
	var r v1.MemberReply
	return r, c.call(ctx, http.MethodDelete, path, nil, nil, &r)
}
