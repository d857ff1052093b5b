package testcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"tidemark/kv/kvclient"
)

// readers is how many goroutines read documents.
const readers = 32

// Documents reads the current values of these keys from KV, one by one, so that writes with an unknown outcome count
// as what KV holds.
func Documents(ctx context.Context, kv *kvclient.Client, keys []string) (map[string][]byte, error) {
	docs := map[string][]byte{}
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readers)
	for _, key := range keys {
		g.Go(func() error {
			d, err := kv.Get(ctx, key)
			if errors.Is(err, kvclient.ErrKeyNotFound) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("get %s: %w", key, err)
			}
			mu.Lock()
			defer mu.Unlock()
			docs[key] = bytes.Clone(d.Value)
			return nil
		})
	}
	return docs, g.Wait()
}
