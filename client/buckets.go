package client

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// bucketsOf caches the buckets of indexes that are scanned by id in a session of several buckets.
type bucketsOf struct {
	mu   sync.Mutex
	byID map[string]bucketAt
}

type bucketAt struct {
	bucket string
	at     time.Time
}

// bucketOf returns the bucket of an index named by its id. The cached result is renewed as often as routes to
// indexers.
func (c *Client) bucketOf(ctx context.Context, id string) (string, error) {
	b := &c.buckets
	b.mu.Lock()
	known, ok := b.byID[id]
	b.mu.Unlock()
	if ok && time.Since(known.at) < routeGood {
		return known.bucket, nil
	}
	at := time.Now()
	if c.retryFor > 0 {
		one, cancel := context.WithTimeout(ctx, c.retryFor)
		defer cancel()
		ctx = one
	}
	info, err := c.Index(ctx, id)
	if err != nil {
		return "", fmt.Errorf("finding the bucket of index %s for the session's state: %w", id, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.byID == nil || len(b.byID) >= maxRoutes {
		b.byID = map[string]bucketAt{} // entries are added again on demand
	}
	b.byID[id] = bucketAt{info.Bucket, at}
	return info.Bucket, nil
}
