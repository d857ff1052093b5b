package client

import (
	"context"
	"net/http"
	"net/url"

	"tidemark/manager/api/v1"
)

// Join has a manager added that waits for a cluster at this REST address.
func (c *Client) Join(ctx context.Context, address string) (v1.MemberReply, error) {
	var r v1.MemberReply
	return r, c.call(ctx, http.MethodPost, "/v1/cluster/managers:join", nil, v1.JoinRequest{Address: address}, &r)
}

// RemoveManager removes a manager for good, by name or server id; yes is LoseData or "".
func (c *Client) RemoveManager(ctx context.Context, id, yes string) (v1.MemberReply, error) {
	path := "/v1/cluster/managers/" + url.PathEscape(id)
	if yes != "" {
		path += "?yes=" + url.QueryEscape(yes)
	}
	var r v1.MemberReply
	return r, c.call(ctx, http.MethodDelete, path, nil, nil, &r)
}

// TransferLeadership hands leadership to a manager, by name or server id; "" is the one that is furthest.
func (c *Client) TransferLeadership(ctx context.Context, id string) (v1.MemberReply, error) {
	path := "/v1/cluster/managers"
	if id != "" {
		path += "/" + url.PathEscape(id)
	}
	var r v1.MemberReply
	return r, c.call(ctx, http.MethodPost, path+":transfer-leadership", nil, nil, &r)
}

// RemoveIndexer removes an indexer for good, by name, node number or uuid; force: also one that lives or has the only
// copies of something; dryRun: only tell what it would mean.
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

// RemoveProjector forgets a projector; force: also one that lives.
func (c *Client) RemoveProjector(ctx context.Context, id string, force bool) (v1.MemberReply, error) {
	path := "/v1/cluster/projectors/" + url.PathEscape(id)
	if force {
		path += "?force=true"
	}
	var r v1.MemberReply
	return r, c.call(ctx, http.MethodDelete, path, nil, nil, &r)
}
