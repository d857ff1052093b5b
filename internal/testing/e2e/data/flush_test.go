package data

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/kv/kvclient"
)

const (
	flushRounds = 3
	flushDocs   = 256
)

// TestFlushedBucket flushes a bucket and writes it again as often as before, so that the vbuckets reach the same
// seqnos. No session scan that begins afterwards shows a row of before; a scan that fails meanwhile has a named error.
func TestFlushedBucket(t *testing.T) {
	t.Parallel()
	for _, feed := range []string{"native", "gocbcore"} {
		t.Run(feed, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			up := testcluster.Start(t, t.TempDir(), "--managers", "1", "--indexers", "2", "--vbuckets", "32", "--feed",
				feed)
			c, bucket, admin, store := up.Client(), up.Manifest().Bucket, harness.KVAdmin(up), up.KV(ctx)
			harness.Create(ctx, t, c, "CREATE INDEX by_n ON "+bucket+"(n)")
			harness.WaitReady(ctx, t, c, bucket)

			var least atomic.Int64 // the lowest version that a scan beginning now may show
			scans, stop := context.WithCancel(ctx)
			var wg sync.WaitGroup
			var answered atomic.Int64
			for range 2 {
				wg.Go(func() {
					// the pause leaves the cores to the cluster
					for ; scans.Err() == nil; time.Sleep(10 * time.Millisecond) {
						from := least.Load()
						s, err := harness.Scan(scans, c, bucket, "by_n", "session")
						if err != nil {
							continue // which of them are correct does not matter here
						}
						answered.Add(1)
						for i, key := range s.Keys {
							if n := number(key); n < from {
								t.Errorf("a session scan shows %s = %d of before the flush that preceded it, round %d", s.IDs[i], n, from)
								return
							}
						}
					}
				})
			}
			for round := range int64(flushRounds) {
				for i := range flushDocs {
					doc := fmt.Appendf(nil, `{"n":%d}`, round)
					if _, err := store.Set(ctx, fmt.Sprint("doc", i), doc, kvclient.StoreOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				s, err := harness.ScanSoon(ctx, c, bucket, "by_n", harness.Hang)
				if err != nil || len(s.Keys) != flushDocs || number(s.Keys[0]) != round {
					t.Fatalf("round %d: %d rows, %v", round, len(s.Keys), err)
				}
				if err := admin.Flush(ctx, bucket); err != nil {
					t.Fatal(err)
				}
				least.Store(round + 1)
			}
			s, err := harness.ScanSoon(ctx, c, bucket, "by_n", harness.Hang)
			if err != nil || len(s.Keys) > 0 {
				t.Errorf("after the last flush: %d rows, %v", len(s.Keys), err)
			}
			stop()
			wg.Wait()
			t.Logf("%d session scans were answered", answered.Load())
		})
	}
}

// number returns the key of a row of by_n.
func number(key []json.RawMessage) int64 {
	n, err := strconv.ParseInt(string(key[0]), 10, 64)
	if err != nil {
		return -1
	}
	return n
}
