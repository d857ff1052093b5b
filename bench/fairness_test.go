package bench

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/index"
	"tidemark/kv/kvclient"
)

// sessionScans repeatedly writes a document and requests it by a session-consistent scan, until ctx ends. It returns
// the duration of each scan; failed is the number of scans with an error or without the document.
func sessionScans(ctx context.Context, b *testing.B, kv *kvclient.Client, c *client.Client) (took []time.Duration,
	failed int) {
	b.Helper()
	for i := 0; ctx.Err() == nil; i++ {
		name := fmt.Sprintf("probe %d", i)
		if _, err := kv.Set(ctx, "probe", document(256, name), kvclient.StoreOptions{}); err != nil {
			if ctx.Err() == nil {
				b.Fatal(err)
			}
			break
		}
		began := time.Now()
		shown, err := isShown(ctx, c, name, "probe")
		if ctx.Err() != nil {
			break
		}
		if took = append(took, time.Since(began)); err != nil || !shown {
			b.Logf("scan after %v: shown %v, %v", time.Since(began), shown, err)
			failed++
		}
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
	return took, failed
}

// reportScans reports the median, the p99 and the maximum of the scans' durations.
func reportScans(b *testing.B, when string, took []time.Duration, failed int) {
	b.ReportMetric(ms(quantile(took, 0.5)), when+"-p50-ms")
	b.ReportMetric(ms(quantile(took, 0.99)), when+"-p99-ms")
	b.ReportMetric(ms(quantile(took, 1)), when+"-most-ms")
	b.ReportMetric(float64(len(took)), when+"-scans")
	b.ReportMetric(float64(failed), when+"-failed")
}

// BenchmarkScansBesideABuild measures session scans of a ready index while deferred indexes of its bucket are built
// on the same indexer, from BUILD INDEX until the last of them is ready. Bar: p99 at most three times the p99 before
// the build, and 250 ms.
func BenchmarkScansBesideABuild(b *testing.B) {
	for _, indexes := range []int{10, 40} {
		b.Run(fmt.Sprintf("%d-indexes", indexes), func(b *testing.B) {
			ctx := within(b, 10*time.Minute)
			up, c := start(ctx, b, b.TempDir(), "--managers", "1", "--kv", "1", "--indexers", "1")
			createIndex(ctx, b, c, "CREATE INDEX by_name ON world(name)")
			kv := kvClient(ctx, b, up)
			if _, err := kv.Load(ctx, numbered(*fairDocuments, 256), nil); err != nil {
				b.Fatal(err)
			}
			countAll(ctx, b, c, *fairDocuments)
			var ids []index.ID
			var names []string
			for i := range indexes {
				name := fmt.Sprintf("deferred%d", i)
				made, err := c.Statement(ctx, fmt.Sprintf(`CREATE INDEX %s ON world(name, kind) WITH {"defer_build":true}`, name))
				if err != nil {
					b.Fatal(err)
				}
				ids, names = append(ids, made[0].ID), append(names, name)
			}
			quiet, done := context.WithTimeout(ctx, *burst)
			took, failed := sessionScans(quiet, b, kv, c)
			done()
			reportScans(b, "before", took, failed)

			building, built := context.WithCancel(ctx)
			defer built()
			end := profile(b, up.Manifest())
			before, began := usageOf(up.Manifest()), time.Now()
			if _, err := c.Statement(ctx, "BUILD INDEX ON world("+strings.Join(names, ", ")+")"); err != nil {
				b.Fatal(err)
			}
			waited := make(chan error, 1)
			go func() { waited <- c.WaitReady(ctx, ids, nil); built() }()
			took, failed = sessionScans(building, b, kv, c)
			if err := <-waited; err != nil {
				b.Fatal(err)
			}
			seconds := time.Since(began)
			end()
			usageOf(up.Manifest()).report(b, before, int(seconds.Seconds()*10_000), "%cpu")
			reportScans(b, "beside", took, failed)
			b.ReportMetric(seconds.Seconds(), "build-s")
			b.ReportMetric(0, "ns/op")
		})
	}
}
