package bench

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tidemark/internal/testing/ports"
	"tidemark/internal/testing/testcluster"
)

const (
	starts   = 5               // clusters that are started
	restFor  = 3 * time.Second // before memory is read
	readsFor = 5 * time.Second
)

// BenchmarkLinearizableRead measures GET of one index from one client, at the leader and at a follower. Bar: p50 ≤
// 0.25 ms. For comparison it measures a stale read, which shows the cost of HTTP and JSON, and the bare program,
// which asks its followers too and returns nothing.
func BenchmarkLinearizableRead(b *testing.B) {
	ctx := within(b, 3*time.Minute)
	up, c := start(ctx, b, b.TempDir())
	info, err := c.Create(ctx, createRequest("read_me"))
	if err != nil {
		b.Fatal(err)
	}
	at, others := leaderEntry(ctx, b, up, c)
	path := "/v1/indexes/" + info.ID.String()
	program, stop := startBare(ctx, b)
	defer stop()
	bare := program.nodes[int(program.at.Load())%len(program.nodes)] + "/leader"
	read := func(name, url string, clients int) {
		took := run(ctx, b, clients, readsFor, func(int) func(context.Context, *caller) error {
			return func(ctx context.Context, c *caller) error {
				_, err := c.call(ctx, "GET", url, "", nil)
				return err
			}
		})
		b.ReportMetric(ms(quantile(took, 0.5)), name+"-p50-ms")
		b.ReportMetric(ms(quantile(took, 0.99)), name+"-p99-ms")
		if clients > 1 {
			b.ReportMetric(float64(len(took))/readsFor.Seconds(), name+"/s")
		}
	}
	before, end := usageOf(up.Manifest()), profile(b, up.Manifest())
	read("leader", at.REST+path, 1)
	end()
	read("follower", others[0]+path, 1)
	read("stale", at.REST+path+"?consistency=stale", 1)
	read("leader64", at.REST+path, 64)
	read("bare", bare, 1)
	read("bare64", bare, 64)
	usageOf(up.Manifest()).report(b, before, int(4*readsFor.Seconds()*10_000), "%cpu")
}

// BenchmarkStart starts three empty managers and measures the time from the first exec until all are ready (bar: < 1
// s), and the memory of a manager then (bar: < 40 MB).
func BenchmarkStart(b *testing.B) {
	ctx := within(b, 5*time.Minute)
	exe := testcluster.Binary(b)
	var took []time.Duration
	var most int64
	for range starts {
		dir, addrs := b.TempDir(), ports.Addrs(b, 6)
		var pids []int
		var stops []func()
		began := time.Now()
		for i := range 3 {
			pid, stop := spawn(b, exe, "manager", "--id", fmt.Sprint("m", i+1), "--data", filepath.Join(dir, fmt.Sprint(i)),
				"--rest", addrs[i], "--raft", addrs[3+i], "--bootstrap-expect", "3", "--join", strings.Join(addrs[:3], ","),
				"--log-level", "warn")
			pids, stops = append(pids, pid), append(stops, stop)
		}
		for i := range 3 {
			awaitOK(ctx, b, "http://"+addrs[i]+"/readyz")
		}
		took = append(took, time.Since(began))
		time.Sleep(restFor)
		for _, pid := range pids {
			bytes, err := rss(pid)
			if err != nil {
				b.Fatal(err)
			}
			most = max(most, bytes)
		}
		for _, stop := range stops {
			stop()
		}
	}
	b.Logf("each start: %v", took)
	b.ReportMetric(ms(quantile(took, 0.5)), "median-ms")
	b.ReportMetric(ms(quantile(took, 1)), "max-ms")
	b.ReportMetric(float64(most)/1e6, "manager-RSS-MB")
}

// BenchmarkIdle measures the processor time of an unused cluster with one empty index (reports, heartbeats, stability
// timestamps), by role, in percent of one processor. It has no bar.
func BenchmarkIdle(b *testing.B) {
	ctx := within(b, 3*time.Minute)
	up, c := start(ctx, b, b.TempDir())
	createIndex(ctx, b, c, "CREATE INDEX by_name ON world(name)")
	time.Sleep(restFor)
	cas := status(ctx, b, c).CAS
	before, end := usageOf(up.Manifest()), profile(b, up.Manifest())
	time.Sleep(2 * readsFor)
	end()
	usageOf(up.Manifest()).report(b, before, int(2*readsFor.Seconds()*10_000), "%cpu")
	b.ReportMetric(float64(status(ctx, b, c).CAS-cas)/(2*readsFor).Seconds(), "cas/s")
}
