package data

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"

	"tidemark/client"
	"tidemark/index"
	"tidemark/indexer"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/kv/kvclient"
	"tidemark/manager/api/v1"
	"tidemark/wire"
)

var memoryDocuments = flag.Int("memory.documents", 600, "documents of TestMemoryQuota; 18 KB of keys each, so that "+
	"60,000 are twice the quota")

// memoryKeyBytes is the length of the large indexes' keys, close to the limit of 4096.
const memoryKeyBytes = 3 << 10

// TestMemoryQuota checks that the peak resident memory of an indexer with the smallest quota stays below 1.1 times
// the quota plus the base of docs/operations.md, while indexes with long keys and many slices are written, built and
// scanned in parallel.
func TestMemoryQuota(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*harness.Hang)
	defer cancel()
	up := testcluster.Start(t, t.TempDir(), "--managers", "1", "--kv", "1", "--indexers", "1", "--memory-quota", "512MiB")
	m, c, kv := up.Manifest(), up.Client(), up.KV(ctx)
	const indexes, slices = 6, 16
	statement := func(i int) string {
		return fmt.Sprintf(`CREATE INDEX large_%d ON %s(k%d, n) WITH {"num_partition":%d}`, i, m.Bucket, i%2, slices)
	}
	write := func(from, to int) func() error {
		return func() error {
			var g errgroup.Group
			for w := range 8 {
				g.Go(func() error {
					for i := from + w; i < to; i += 8 {
						pad := strings.Repeat(strconv.Itoa(i), memoryKeyBytes)[:memoryKeyBytes]
						if _, err := kv.Set(ctx, fmt.Sprint("doc", i), fmt.Appendf(nil, `{"k0":"%d%s","k1":"%s","n":%d}`, i, pad, pad, i), kvclient.StoreOptions{}); err != nil {
							return err
						}
					}
					return nil
				})
			}
			return g.Wait()
		}
	}
	for i := range indexes / 2 {
		harness.Create(ctx, t, c, statement(i))
	}
	half := *memoryDocuments / 2
	if err := write(0, half)(); err != nil {
		t.Fatal(err)
	}
	// Writes, builds and scans in parallel.
	var written, rows atomic.Int64
	g, work := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer written.Add(1)
		return write(half, *memoryDocuments)()
	})
	g.Go(func() error {
		defer written.Add(1)
		for i := indexes / 2; i < indexes; i++ {
			made, err := c.Statement(work, statement(i))
			if err != nil {
				return err
			}
			if err := c.WaitReady(work, []index.ID{made[0].ID}, nil); err != nil {
				return err
			}
		}
		return nil
	})
	for s := range 4 {
		g.Go(func() error {
			for first := true; first || written.Load() < 2; first = false {
				n, err := scanned(work, c, client.Ref(m.Bucket, fmt.Sprintf("large_%d", s%(indexes/2))))
				var refused *wire.Problem
				if err != nil && !errors.As(err, &refused) { // the indexer may be too busy at the moment
					return err
				}
				rows.Add(n)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	for i := range indexes {
		count, err := c.Count(ctx, client.Ref(m.Bucket, fmt.Sprintf("large_%d", i)),
			v1.ScanRequest{Consistency: "session"})
		if err != nil || count.Count != uint64(*memoryDocuments) {
			t.Errorf("large_%d has %d entries, %v; want %d", i, count.Count, err, *memoryDocuments)
		}
	}
	const quota = 512 << 20
	peak, limit := peakMemory(t, m.Indexers[0].PID), int64(quota+quota/10+indexer.MemoryBase)
	t.Logf("%d documents, %d indexes of %d slices, %d rows scanned meanwhile: at most %d MiB resident, %d allowed",
		*memoryDocuments, indexes, slices, rows.Load(), peak>>20, limit>>20)
	if peak > limit {
		t.Errorf("the indexer's peak is %d MiB, want at most %d: 1.1 x 512 and %d", peak>>20, limit>>20,
			indexer.MemoryBase>>20)
	}
}

// scanned reads a whole index and returns the number of its rows.
func scanned(ctx context.Context, c *client.Client, ref string) (n int64, err error) {
	rows, err := c.Scan(ctx, ref, v1.ScanRequest{})
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	for rows.Next() {
		n++
	}
	_, err = rows.End()
	return n, err
}

// peakMemory returns a process's peak resident memory in bytes.
func peakMemory(t *testing.T, pid int) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, line, ok := strings.Cut(string(b), "VmHWM:")
	fields := strings.Fields(line)
	if !ok || len(fields) < 2 {
		t.Fatalf("no VmHWM in\n%s", b)
	}
	n, err := strconv.ParseInt(fields[0], 10, 53)
	if err != nil || fields[1] != "kB" {
		t.Fatalf("VmHWM is %v: %v", fields[:2], err)
	}
	return n << 10
}
