package harness

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"tidemark/internal/localcluster"
	"tidemark/internal/testing/testcluster"
	"tidemark/kv"
)

// KVAdmin returns a client of the KV nodes' admin interface.
func KVAdmin(up *testcluster.Cluster) *kv.Admin {
	m := up.Manifest()
	var addresses []string
	for _, e := range m.KV {
		addresses = append(addresses, AdminAddress(e))
	}
	return kv.NewAdmin(addresses, m.KVUser, m.KVPassword, nil)
}

// AdminAddress returns the host and port of a KV node's admin interface.
func AdminAddress(e localcluster.KVEntry) string { return strings.TrimPrefix(e.Admin, "http://") }

// Addition formats a KV node for `kv rebalance --add`.
func Addition(e localcluster.KVEntry) string {
	return e.ID + "=" + e.Memcached + "=" + AdminAddress(e)
}

// WaitFor waits until check returns nil.
func WaitFor(ctx context.Context, t *testing.T, check func() error) {
	t.Helper()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatal(err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Settled waits until all replicas have what their active copies have, no operation is in progress, and active
// vbuckets are active.
func Settled(ctx context.Context, t *testing.T, a *kv.Admin, active int) {
	t.Helper()
	WaitFor(ctx, t, func() error {
		s, err := a.Status(ctx)
		if err != nil {
			return err
		}
		n := 0
		for _, node := range s.Nodes {
			for _, b := range node.Buckets {
				if n += b.Active; b.Lag > 0 || b.Unjoined > 0 {
					return fmt.Errorf("%s: %+v", node.ID, b)
				}
			}
		}
		if s.Progress != nil || n != active {
			return fmt.Errorf("%d of %d vbuckets are active; %+v", n, active, s.Progress)
		}
		return nil
	})
}
