package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/internal/testing/ports"
	"tidemark/internal/testing/testcluster"
	"tidemark/manager/api/v1"
)

// bare is a running cluster of bench/bareraft.
type bare struct {
	nodes []string // base URLs
	pids  []int
	at    atomic.Int32
}

// cpu returns the processor time of its processes so far.
func (r *bare) cpu() (sum time.Duration) {
	for _, pid := range r.pids {
		sum += processCPU(pid)
	}
	return sum
}

func startBare(ctx context.Context, b *testing.B) (*bare, func()) {
	b.Helper()
	addrs := ports.Addrs(b, 6)
	var peers []string
	for i := range 3 {
		peers = append(peers, fmt.Sprintf("%d=%s", i+1, addrs[i]))
	}
	dir := b.TempDir()
	r := &bare{}
	var stops []func()
	for i := range 3 {
		args := []string{"--id", fmt.Sprint(i + 1), "--data", filepath.Join(dir, fmt.Sprint(i)), "--http", addrs[3+i],
			"--raft", addrs[i]}
		if i == 0 {
			args = append(args, "--peers", strings.Join(peers, ","))
		}
		pid, stop := spawn(b, programs.bareraft, args...)
		stops, r.pids = append(stops, stop), append(r.pids, pid)
	}
	for _, addr := range addrs[3:] {
		r.nodes = append(r.nodes, "http://"+addr)
	}
	c := newCaller(1)
	defer c.close()
	if err := r.op(ctx, c); err != nil {
		b.Fatalf("the bare program: %v", err)
	}
	return r, func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// bareBody is what the bare program replicates. It is as long as a CREATE command.
var bareBody = mustJSON(createRequest("i_000000000000"))

// op sends one POST to the leader. If the leader loses its leadership, as it may on a busy machine, op looks for the
// next one, and that time counts.
func (r *bare) op(ctx context.Context, c *caller) error {
	return again(ctx, &r.at, len(r.nodes), func(at int) error {
		_, err := c.call(ctx, "POST", r.nodes[at]+"/apply", "", bareBody)
		return err
	})
}

// again tries one server after the other until one answers, beginning with the one that answered last.
func again(ctx context.Context, last *atomic.Int32, servers int, try func(at int) error) error {
	for {
		at := last.Load()
		err := try(int(at) % servers)
		if err == nil {
			return nil
		}
		last.CompareAndSwap(at, at+1)
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; last: %w", ctx.Err(), err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func createRequest(name string) v1.CreateRequest {
	return v1.CreateRequest{Name: name, Bucket: "world", IsPrimary: true, DeferBuild: true}
}

// ddl creates and drops indexes at the leader, as a client does: each request has its Idempotency-Key, and is retried
// at another manager if it fails.
type ddl struct {
	servers []string
	at      *atomic.Int32
	name    string
	n       int
	id      string // of the index to be dropped next
}

func (d *ddl) op(ctx context.Context, c *caller) error {
	d.n++
	key := fmt.Sprintf("%s-%d", d.name, d.n)
	if d.id != "" {
		path := "/v1/indexes/" + d.id
		d.id = ""
		return again(ctx, d.at, len(d.servers), func(at int) error {
			_, err := c.call(ctx, "DELETE", d.servers[at]+path, key, nil)
			return err
		})
	}
	body := mustJSON(createRequest(fmt.Sprintf("%s_%d", d.name, d.n)))
	return again(ctx, d.at, len(d.servers), func(at int) error {
		b, err := c.call(ctx, "POST", d.servers[at]+"/v1/indexes", key, body)
		if err != nil {
			return err
		}
		var info v1.IndexInfo
		err = json.Unmarshal(b, &info)
		d.id = info.ID.String()
		return err
	})
}

// run repeats op from n clients for a time and returns the duration of each call.
func run(ctx context.Context, b *testing.B, n int, d time.Duration,
	op func(i int) func(context.Context, *caller) error) []time.Duration {
	b.Helper()
	c := newCaller(n)
	defer c.close()
	var mu sync.Mutex
	var all []time.Duration
	var wg sync.WaitGroup
	var failed sync.Once
	until := time.Now().Add(d)
	for i := range n {
		one := op(i)
		wg.Go(func() {
			var mine []time.Duration
			for even := 0; time.Now().Before(until) || even%2 == 1; even++ { // drop what was created
				started := time.Now()
				if err := one(ctx, c); err != nil {
					failed.Do(func() { b.Error(err) })
					return
				}
				mine = append(mine, time.Since(started))
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, mine...)
		})
	}
	wg.Wait()
	if b.Failed() {
		b.FailNow()
	}
	return all
}

// ddlFigures holds the three measurements of a comparison.
type ddlFigures struct{ product, alone, beside []time.Duration }

// compareDDL measures in turns the bare program alone, the product, and the bare program beside the idle product
// (whose reports and stability timestamps continue).
func compareDDL(b *testing.B, clients int) (f ddlFigures) {
	ctx := within(b, 3*time.Minute)
	dir := b.TempDir()
	raft, stop := startBare(ctx, b)
	defer stop()
	bareOp := func(int) func(context.Context, *caller) error { return raft.op }
	_ = run(ctx, b, clients, time.Second, bareOp) // warm up
	for round := range *rounds {
		bareCPU := raft.cpu()
		alone := run(ctx, b, clients, *burst, bareOp)
		bareCPU = raft.cpu() - bareCPU
		f.alone = append(f.alone, alone...)
		up, c := start(ctx, b, dir)
		servers, at := leaderFirst(ctx, b, up, c), &atomic.Int32{}
		ours := func(i int) func(context.Context, *caller) error {
			return (&ddl{servers: servers, at: at, name: fmt.Sprintf("r%d_%d_%d", round, i, time.Now().UnixNano())}).op
		}
		_ = run(ctx, b, clients, time.Second, ours)
		cas, before, end := status(ctx, b, c).CAS, usageOf(up.Manifest()), profile(b, up.Manifest())
		product := run(ctx, b, clients, *burst, ours)
		end()
		f.product = append(f.product, product...)
		if round == *rounds-1 {
			usageOf(up.Manifest()).report(b, before, len(product), "cpu-µs/op")
			b.ReportMetric(float64(bareCPU.Microseconds())/float64(len(alone)), "bare-cpu-µs/op")
			b.ReportMetric(float64(status(ctx, b, c).CAS-cas)/float64(len(product)), "cas/op")
		}
		f.beside = append(f.beside, run(ctx, b, clients, *burst, bareOp)...)
		up.Stop()
	}
	return f
}

// BenchmarkDDLSequential measures create / drop pairs with defer_build on a registered bucket, from one client at the
// leader, against POSTs to the bare program. Bar: p50 ≤ 1.15×.
func BenchmarkDDLSequential(b *testing.B) {
	f := compareDDL(b, 1)
	p50 := quantile(f.product, 0.5)
	b.ReportMetric(ms(p50), "p50-ms")
	b.ReportMetric(ms(quantile(f.product, 0.99)), "p99-ms")
	b.ReportMetric(ms(quantile(f.alone, 0.5)), "bare-p50-ms")
	b.ReportMetric(ms(quantile(f.beside, 0.5)), "bare-beside-p50-ms")
	b.ReportMetric(float64(p50)/float64(quantile(f.alone, 0.5)), "ratio")
	b.ReportMetric(float64(p50)/float64(quantile(f.beside, 0.5)), "ratio-beside")
}

// BenchmarkDDLParallel64 measures the same with 64 clients, in operations per second. Bar: ≥ 0.8×.
func BenchmarkDDLParallel64(b *testing.B) {
	f := compareDDL(b, 64)
	seconds := burst.Seconds() * float64(*rounds)
	b.ReportMetric(float64(len(f.product))/seconds, "op/s")
	b.ReportMetric(float64(len(f.alone))/seconds, "bare-op/s")
	b.ReportMetric(float64(len(f.beside))/seconds, "bare-beside-op/s")
	b.ReportMetric(float64(len(f.product))/float64(len(f.alone)), "ratio")
	b.ReportMetric(float64(len(f.product))/float64(len(f.beside)), "ratio-beside")
}

// leaderFirst returns the managers' base URLs, the leader's first.
func leaderFirst(ctx context.Context, b *testing.B, up *testcluster.Cluster, c *client.Client) []string {
	b.Helper()
	at, others := leaderEntry(ctx, b, up, c)
	return append([]string{at.REST}, others...)
}

func status(ctx context.Context, b *testing.B, c *client.Client) v1.Status {
	b.Helper()
	s, err := c.Status(ctx)
	if err != nil {
		b.Fatal(err)
	}
	return s
}
