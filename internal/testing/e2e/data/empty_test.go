package data

import (
	"context"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/oracle"
	"tidemark/internal/testing/testcluster"
	"tidemark/manager/api/v1"
)

// TestEmptyBucket checks that indexes on a bucket that was never written become ready, answer scans with no rows, and
// show the first document written.
func TestEmptyBucket(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	up := testcluster.Start(t, t.TempDir(), "--managers", "1", "--indexers", "2")
	c, bucket, kv := up.Client(), up.Manifest().Bucket, up.KV(ctx)
	harness.CreateSampleIndexes(ctx, t, c, bucket)
	for _, name := range harness.SampleIndexes() {
		s, err := harness.ScanSoon(ctx, c, bucket, name, harness.Hang)
		if err != nil || len(s.IDs) != 0 {
			t.Errorf("%s: %d rows, %v", name, len(s.IDs), err)
		}
	}
	w := &harness.Workload{KV: kv, History: oracle.NewHistory(kv.Config().NumVBuckets())}
	if err := w.Set(ctx, "first", []byte(`{"name":"one"}`)); err != nil {
		t.Fatal(err)
	}
	n, err := c.Count(ctx, client.Ref(bucket, "places_by_name"), v1.ScanRequest{Consistency: "session"})
	if err != nil || n.Count != 1 {
		t.Errorf("%+v, %v", n, err)
	}
}
