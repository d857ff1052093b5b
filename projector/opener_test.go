package projector

import (
	"context"
	"net"
	"sync"
	"testing"

	"tidemark/index"
	"tidemark/wire"
)

// TestHungBucketDelaysNoOther: buckets without streams are opened independently. If KV does not answer for one
// of them, the others are opened meanwhile.
func TestHungBucketDelaysNoOther(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const buckets = 3
	var mu sync.Mutex
	open := 0
	stop := running(t, func(ctx context.Context) {
		var conns sync.WaitGroup
		defer conns.Wait()
		defer context.AfterFunc(ctx, func() { _ = l.Close() })()
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open++
			mu.Unlock()
			conns.Go(func() { // it reads, and does not answer until the other end gives up
				defer context.AfterFunc(ctx, func() { _ = c.Close() })()
				for buf := make([]byte, 1024); err == nil; {
					_, err = c.Read(buf)
				}
				_ = c.Close()
				mu.Lock()
				open--
				mu.Unlock()
			})
		}
	})
	defer stop()
	w := newWorldAt(t, l.Addr().String())
	d := w.definitions(1)
	d.Buckets = nil
	for i := range buckets {
		name := string(rune('a' + i))
		d.Buckets = append(d.Buckets, wire.Bucket{Name: name, UUID: testUUID, VBuckets: vbuckets, Generation: 1})
		d.Indexes = append(d.Indexes, index.Definition{ID: index.ID(i + 1), Bucket: name, State: index.Backfill,
			Keys: []index.KeyExpr{{Expr: "`f`"}}})
	}
	if _, err := w.client.Definitions(t.Context(), w.url, d); err != nil {
		t.Fatal(err)
	}
	w.eventually("all are queried about at the same time", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return open == buckets
	})
}
