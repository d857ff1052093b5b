package data

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/kv/kvclient"
)

var silentScans = flag.Int("silent.scans", 25, "scans that each of TestSilentIndexer's four callers makes of each kind")

// TestSilentIndexer stops one of three indexers, or slows it down to a tenth of the time, and checks that another
// indexer coordinates the scans that it would coordinate and reads the slices that it would read: every scan is
// answered. The durations are logged.
func TestSilentIndexer(t *testing.T) {
	t.Parallel()
	const documents = 300
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	up := testcluster.Start(t, t.TempDir(), "--managers", "1", "--kv", "1", "--indexers", "3", "--throttle", "smart")
	m, kv := up.Manifest(), up.KV(ctx)
	direct := up.Client()
	via := client.Open(client.Options{Servers: m.Servers(), ViaManagers: true})
	defer via.Close()
	for i := range documents {
		if _, err := kv.Set(ctx, fmt.Sprint("doc", i), fmt.Appendf(nil, `{"k":%d}`, i), kvclient.StoreOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	harness.Create(ctx, t, direct, fmt.Sprintf("CREATE INDEX some ON %s(k) WITH {\"num_replica\": 2}", m.Bucket))
	if s, err := harness.ScanSoon(ctx, direct, m.Bucket, "some", time.Minute); err != nil || len(s.IDs) != documents {
		t.Fatalf("%d rows: %v", len(s.IDs), err)
	}
	one := m.Indexers[2].PID
	for _, mode := range []struct {
		name string
		do   func() (undo func())
	}{
		{"well", func() func() { return func() {} }},
		{"stopped", func() func() {
			if err := syscall.Kill(one, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			return func() { _ = syscall.Kill(one, syscall.SIGCONT) }
		}},
		{"a tenth", func() func() {
			load, enough := context.WithCancel(ctx)
			var group sync.WaitGroup
			group.Go(func() { pulse(load, one) })
			return func() { enough(); group.Wait() }
		}},
	} {
		undo := mode.do()
		for _, how := range []struct {
			name        string
			c           *client.Client
			consistency string
		}{{"direct, any", direct, "any"}, {"direct, session", direct, "session"},
			{"by way of the manager, any", via, "any"}} {
			took := scanAll(ctx, t, how.c, m.Bucket, how.consistency, documents)
			n := len(took)
			t.Logf("%s; %s: %d scans: p50 %s, p99 %s, at most %s", mode.name, how.name, n, took[n/2].Round(100*time.Microsecond),
				took[n*99/100].Round(100*time.Microsecond), took[n-1].Round(100*time.Microsecond))
		}
		undo()
		if t.Failed() {
			return
		}
	}
}

// scanAll scans from four goroutines, and returns the durations of the scans in ascending order.
func scanAll(ctx context.Context, t *testing.T, c *client.Client, bucket, consistency string,
	rows int) []time.Duration {
	var mu sync.Mutex
	var took []time.Duration
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range *silentScans {
				one, cancel := context.WithTimeout(ctx, 45*time.Second) // hang guard: a stopped process never answers
				began := time.Now()
				s, err := harness.Scan(one, c, bucket, "some", consistency)
				cancel()
				if err != nil || len(s.IDs) != rows {
					t.Errorf("a scan gave %d rows of %d after %s: %v", len(s.IDs), rows, time.Since(began), err)
				}
				mu.Lock()
				took = append(took, time.Since(began))
				mu.Unlock()
			}
		})
	}
	group.Wait()
	slices.Sort(took)
	return took
}
