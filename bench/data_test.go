package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/index"
	"tidemark/internal/testing/testcluster"
	"tidemark/kv/kvclient"
	"tidemark/manager/api/v1"
)

// document makes a JSON document of about `size` bytes; the index is on the field name.
func document(size int, name string) []byte {
	head := fmt.Sprintf(`{"kind":"bench","name":%q,"iso_country":"CH","elevation_ft":1416,"tags":["a","b"],"fill":"`, name)
	return []byte(head + strings.Repeat("x", max(0, size-len(head)-2)) + `"}`)
}

// numbered returns a source of n documents.
func numbered(n, size int) kvclient.Source {
	i := 0
	return func() (string, []byte, bool, error) {
		if i == n {
			return "", nil, false, nil
		}
		i++
		return fmt.Sprintf("bench::%09d", i), document(size, fmt.Sprintf("name %09d", i)), true, nil
	}
}

// kvClient returns a new client of the cluster's KV nodes.
func kvClient(ctx context.Context, b *testing.B, up *testcluster.Cluster) *kvclient.Client {
	b.Helper()
	return up.KV(ctx)
}

// countAll counts the entries of the index in KV's present state.
func countAll(ctx context.Context, b *testing.B, c *client.Client, want int) {
	b.Helper()
	r, err := c.Count(ctx, client.Ref("world", "by_name"), v1.ScanRequest{Consistency: "session"})
	if err != nil {
		b.Fatal(err)
	}
	if r.Count != uint64(want) {
		b.Fatalf("the index counts %d, %d documents are stored", r.Count, want)
	}
}

// BenchmarkEndToEnd measures the rate at which documents are stored through the KV protocol, with one index, until a
// session-consistent count includes all of them. Bar: 50,000 documents/s. The generator, its client and the KV nodes
// run on the same cores and are included; the processor time of each role is reported. Sub-benchmark "build" leaves
// the generator out: the index is created on a bucket that is already full.
func BenchmarkEndToEnd(b *testing.B) {
	for _, size := range []int{256, 1024} {
		b.Run(fmt.Sprintf("load/%dB", size), func(b *testing.B) {
			ctx := within(b, 5*time.Minute)
			up, c := start(ctx, b, b.TempDir())
			kv := kvClient(ctx, b, up)
			createIndex(ctx, b, c, "CREATE INDEX by_name ON world(name)")
			before, end := usageOf(up.Manifest()), profile(b, up.Manifest())
			began := time.Now()
			if _, err := kv.Load(ctx, numbered(*documents, size), nil); err != nil {
				b.Fatal(err)
			}
			stored := time.Since(began)
			countAll(ctx, b, c, *documents)
			visible := time.Since(began)
			end()
			usageOf(up.Manifest()).report(b, before, *documents, "cpu-µs/doc")
			b.ReportMetric(float64(*documents)/visible.Seconds(), "docs/s")
			b.ReportMetric(float64(*documents)/stored.Seconds(), "stored/s")
			b.ReportMetric(ms(visible-stored), "behind-ms")
		})
	}
	b.Run("build/1024B", func(b *testing.B) {
		ctx := within(b, 5*time.Minute)
		up, c := start(ctx, b, b.TempDir())
		if _, err := kvClient(ctx, b, up).Load(ctx, numbered(*documents, 1024), nil); err != nil {
			b.Fatal(err)
		}
		before, end := usageOf(up.Manifest()), profile(b, up.Manifest())
		began := time.Now()
		createIndex(ctx, b, c, "CREATE INDEX by_name ON world(name)")
		countAll(ctx, b, c, *documents)
		took := time.Since(began)
		end()
		usageOf(up.Manifest()).report(b, before, *documents, "cpu-µs/doc")
		b.ReportMetric(float64(*documents)/took.Seconds(), "docs/s")
	})
}

// freshKeys is the number of documents that the freshness load updates at random.
const freshKeys = 100_000

// paced returns a source of random updates at a rate per second, until ctx ends.
func paced(ctx context.Context, perSecond, size int) kvclient.Source {
	const batch = 5 * time.Millisecond
	r := rand.New(rand.NewPCG(1, 2))
	began, sent := time.Now(), 0
	return func() (string, []byte, bool, error) {
		due := began.Add(time.Duration(sent) * time.Second / time.Duration(perSecond))
		if wait := time.Until(due); wait > 0 {
			select {
			case <-ctx.Done():
			case <-time.After(max(wait, batch)):
			}
		}
		if ctx.Err() != nil {
			return "", nil, false, nil
		}
		sent++
		k := r.IntN(freshKeys)
		return fmt.Sprintf("bench::%09d", k), document(size, fmt.Sprintf("name %09d", sent)), true, nil
	}
}

// probes repeatedly writes a document with a unique name, and requests it by a session-consistent scan as soon as the
// write is acknowledged. It returns the times from there to the scan's end. A scan without the document is an error.
func probes(ctx context.Context, b *testing.B, who int, kv *kvclient.Client, c *client.Client) (took []time.Duration) {
	r := rand.New(rand.NewPCG(3, uint64(who)))
	key := fmt.Sprintf("probe::%d", who)
	for i := 0; ; i++ {
		name := fmt.Sprintf("probe %d %d", who, i)
		if _, err := kv.Set(ctx, key, document(256, name), kvclient.StoreOptions{}); err != nil {
			if ctx.Err() == nil {
				b.Error(err)
			}
			return took
		}
		acknowledged := time.Now()
		shown, err := isShown(ctx, c, name, key)
		if ctx.Err() != nil {
			return took
		}
		if err != nil || !shown {
			b.Errorf("%s, acknowledged before the scan began: shown %v, %v", name, shown, err)
			return took
		}
		took = append(took, time.Since(acknowledged))
		select {
		case <-ctx.Done():
			return took
		case <-time.After(time.Duration(r.IntN(40)) * time.Millisecond):
		}
	}
}

func isShown(ctx context.Context, c *client.Client, name, id string) (bool, error) {
	key, err := json.Marshal(name)
	if err != nil {
		return false, err
	}
	rows, err := c.Scan(ctx, client.Ref("world", "by_name"), v1.ScanRequest{Consistency: "session",
		Equal: []json.RawMessage{key}})
	if err != nil {
		return false, err
	}
	defer rows.Close()
	shown := false
	for rows.Next() {
		shown = shown || rows.Row().ID == id
	}
	return shown, rows.Err()
}

// BenchmarkFreshness measures session-consistent scans of one key while 100,000 documents of 1 KiB are updated at
// random, from the acknowledgement of a write to the end of the scan that shows it. Bar: p99 < 100 ms at 10,000
// writes/s.
func BenchmarkFreshness(b *testing.B) {
	for _, perSecond := range []int{0, 2000, 10_000} {
		b.Run(fmt.Sprintf("%d/s", perSecond), func(b *testing.B) {
			ctx := within(b, 5*time.Minute)
			up, c := start(ctx, b, b.TempDir())
			kv, probeKV := kvClient(ctx, b, up), kvClient(ctx, b, up)
			createIndex(ctx, b, c, "CREATE INDEX by_name ON world(name)")
			if _, err := kv.Load(ctx, numbered(freshKeys, 1024), nil); err != nil {
				b.Fatal(err)
			}
			countAll(ctx, b, c, freshKeys)
			load, stop := context.WithCancel(ctx)
			var wg sync.WaitGroup
			var stats kvclient.LoadStats
			var loaded time.Duration
			began := time.Now()
			if perSecond > 0 {
				wg.Go(func() {
					var err error
					if stats, err = kv.Load(ctx, paced(load, perSecond, 1024), nil); err != nil {
						b.Error(err)
					}
					loaded = time.Since(began)
				})
			}
			time.Sleep(2 * time.Second) // reach the steady state
			before, end := usageOf(up.Manifest()), profile(b, up.Manifest())
			probing, done := context.WithTimeout(ctx, *freshFor)
			defer done()
			var all [2][]time.Duration
			for i := range all {
				wg.Go(func() { all[i] = probes(probing, b, i, probeKV, c) })
			}
			<-probing.Done()
			end()
			used := usageOf(up.Manifest())
			stop()
			wg.Wait()
			took := append(all[0], all[1]...)
			used.report(b, before, int(freshFor.Seconds()*10_000), "%cpu")
			b.ReportMetric(float64(len(took)), "scans")
			b.ReportMetric(ms(quantile(took, 0.5)), "p50-ms")
			b.ReportMetric(ms(quantile(took, 0.99)), "p99-ms")
			b.ReportMetric(ms(quantile(took, 1)), "max-ms")
			if perSecond > 0 {
				b.ReportMetric(float64(stats.Documents)/loaded.Seconds(), "writes/s")
			}
		})
	}
}

// BenchmarkCreateIndex measures the fixed cost of CREATE INDEX: the time from the statement until the index is ready,
// on a bucket without documents, and on one with ten. Each index is dropped before the next one is created.
func BenchmarkCreateIndex(b *testing.B) {
	ctx := within(b, 10*time.Minute)
	for b.Loop() {
		up := testcluster.Start(b, b.TempDir(), "--managers", "1", "--kv", "1", "--indexers", "1")
		c, kv, bucket := up.Client(), up.KV(ctx), up.Manifest().Bucket
		create := func(name string) time.Duration {
			began := time.Now()
			made, err := c.Statement(ctx, "CREATE INDEX "+name+" ON "+bucket+"(name)")
			if err == nil {
				err = c.WaitReady(ctx, []index.ID{made[0].ID}, nil)
			}
			took := time.Since(began)
			if err != nil {
				b.Fatal(err)
			}
			return took
		}
		measure := func(what string) {
			var took []time.Duration
			for i := range *creates {
				name := fmt.Sprintf("%s%d", what, i)
				took = append(took, create(name))
				if _, err := c.Statement(ctx, "DROP INDEX "+name+" ON "+bucket); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(ms(quantile(took, 0.5)), what+"-p50-ms")
			b.ReportMetric(ms(quantile(took, 1)), what+"-most-ms")
		}
		create("first") // the streams of the bucket begin with it
		measure("empty")
		for i := range 10 {
			if _, err := kv.Set(ctx, fmt.Sprintf("document %d", i), []byte(`{"name":"ten"}`), kvclient.StoreOptions{}); err != nil {
				b.Fatal(err)
			}
		}
		measure("ten")
		up.Stop()
	}
	b.ReportMetric(0, "ns/op")
}
