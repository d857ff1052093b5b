package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"tidemark/manager/api/v1"
)

// Streams returns the complete vbucket ledger of a bucket, of all buckets if it is "".
func (c *Client) Streams(ctx context.Context, bucket string) (v1.StreamList, error) {
	var all v1.StreamList
	for after := ""; ; {
		var p v1.StreamList
		if err := c.call(ctx, http.MethodGet, "/v1/streams"+pageOf(bucket, after), nil, nil, &p); err != nil {
			return v1.StreamList{}, err
		}
		more, err := follows(after, p.Next)
		if err != nil {
			return v1.StreamList{}, err
		}
		after, p.Next = p.Next, ""
		p.Streams = append(all.Streams, p.Streams...)
		if all = p; !more {
			return all, nil
		}
	}
}

// Timestamps returns a bucket's timestamps, with vectors of at most limit vbuckets, beginning at vbucket from.
func (c *Client) Timestamps(ctx context.Context, bucket string, from, limit int) (v1.Timestamps, error) {
	q := url.Values{"limit": {strconv.Itoa(limit)}}
	if from > 0 {
		q.Set("after", strconv.Itoa(from-1))
	}
	var t v1.Timestamps
	return t, c.call(ctx, http.MethodGet, "/v1/buckets/"+url.PathEscape(bucket)+"/timestamps"+query(q), nil, nil, &t)
}

// BucketSettings returns a bucket's settings.
func (c *Client) BucketSettings(ctx context.Context, bucket string) (v1.BucketSettingsReply, error) {
	var r v1.BucketSettingsReply
	return r, c.call(ctx, http.MethodGet, "/v1/buckets/"+url.PathEscape(bucket)+"/settings", nil, nil, &r)
}

// SetBucketSettings replaces a bucket's settings.
func (c *Client) SetBucketSettings(ctx context.Context, bucket string,
	s v1.BucketSettings) (v1.BucketSettingsReply, error) {
	var r v1.BucketSettingsReply
	return r, c.call(ctx, http.MethodPut, "/v1/buckets/"+url.PathEscape(bucket)+"/settings", nil, s, &r)
}

// Rollbacks lists the rollbacks that are in progress or needed.
func (c *Client) Rollbacks(ctx context.Context) (v1.RollbackList, error) {
	var l v1.RollbackList
	return l, c.call(ctx, http.MethodGet, "/v1/rollbacks", nil, nil, &l)
}
