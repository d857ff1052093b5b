package data

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/manager/api/v1"
)

// TestStabilitySource changes the source of the stability timestamps of a running bucket (IM-16): indexes are built,
// scanned and maintained under heartbeats as under SYNC, and switching from one to the other loses and repeats
// nothing.
func TestStabilitySource(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	up := testcluster.Start(t, t.TempDir(), "--managers", "1", "--kv", "1", "--indexers", "2", "--vbuckets",
		"32")
	c, bucket := up.Client(), up.Manifest().Bucket
	w := harness.NewWorkloadOf(ctx, t, up.KV(ctx), 8)
	set := func(source string) {
		t.Helper()
		var r v1.BucketSettingsReply
		harness.Eventually(t, harness.Hang, "settings", func() (bool, string) { // a leader whose disk hangs steps down
			var err error
			r, err = c.SetBucketSettings(ctx, bucket, v1.BucketSettings{StabilitySource: source})
			return err == nil, fmt.Sprint(err)
		})
		if want := map[string]string{"": "sync"}[source] + source; r.StabilitySource != source ||
			r.InForce.StabilitySource != want {
			t.Fatalf("settings %+v, want %q", r, source)
		}
		harness.Eventually(t, harness.Hang, "in force", func() (bool, string) {
			v, err := c.Timestamps(ctx, bucket, 0, 1)
			return err == nil && v.Source == r.InForce.StabilitySource, v.Source
		})
	}
	harness.Create(ctx, t, c, "CREATE PRIMARY INDEX first ON "+bucket) // registers the bucket
	if err := c.Drop(ctx, client.Ref(bucket, "first"), 0); err != nil {
		t.Fatal(err)
	}
	set("heartbeat")
	harness.CreateSampleIndexes(ctx, t, c, bucket)
	load, stop := context.WithCancel(ctx)
	defer stop()
	var writers sync.WaitGroup
	writers.Go(func() { w.Run(load, 21, 500) })
	indexes := harness.SampleIndexes()
	scans := map[string][]harness.Scanned{} // compared once all writes are recorded
	for n, source := range []string{"heartbeat", "sync", "heartbeat", "", "heartbeat"} {
		set(source)
		for range 3 {
			s, err := harness.ScanSoon(ctx, c, bucket, indexes[n%len(indexes)], harness.Hang)
			if err != nil {
				t.Fatalf("by %q: %v", source, err)
			}
			scans[source] = append(scans[source], s)
			t.Logf("by %q: %s after %s, %d rows", source, s.Index, s.Took.Round(time.Millisecond), len(s.IDs))
		}
	}
	stop()
	writers.Wait()
	for source, all := range scans {
		for _, s := range all {
			if d := s.Check(w.History); d != "" {
				t.Errorf("by %q: %s: %s", source, s.Index, d)
			}
		}
	}
	harness.CheckFinal(ctx, t, c, w, bucket)
	if _, err := c.SetBucketSettings(ctx, bucket, v1.BucketSettings{StabilitySource: "mean"}); !harness.RefusedAs(err,
		"INVALID_ARGUMENT") {
		t.Errorf("a source that is none: %v", err)
	}
	if _, err := c.SetBucketSettings(ctx, "nobody", v1.BucketSettings{}); !harness.RefusedAs(err, "UNKNOWN_BUCKET") {
		t.Errorf("a bucket that is none: %v", err)
	}
}
