package e2e

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/internal/localcluster"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/kv/kvclient"
	"tidemark/manager/api/v1"
)

// TestScansOutliveTheirIndexer kills one of two indexers while many scans, straight to it or by way of the manager,
// are in the middle of their answers and their timestamp is old, because much was written since. Every scan must
// return each row once, in order, and complete.
func TestScansOutliveTheirIndexer(t *testing.T) {
	t.Parallel()
	const docs, scans = 24_000, 8
	up := testcluster.Start(t, t.TempDir(), "--managers", "1", "--kv", "1", "--indexers", "2", "--vbuckets", "16")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	c, m := up.Client(), up.Manifest()
	kv := up.KV(ctx)
	// more than the buffers between an indexer and a client that does not read can hold
	pad := strings.Repeat("x", 600)
	n := -1
	if _, err := kv.Load(ctx, func() (string, []byte, bool, error) {
		n++
		return fmt.Sprintf("d%05d", n), fmt.Appendf(nil, `{"a":"%05d%s"}`, n/3, pad), n < docs, nil
	}, nil); err != nil {
		t.Fatal(err)
	}
	harness.Create(ctx, t, c, "CREATE INDEX n ON "+m.Bucket+`(a DESC) PARTITION BY HASH(META().id) WITH {"num_replica":1,`+
		`"num_partition":4}`)
	harness.WaitReady(ctx, t, c, m.Bucket)
	ref := client.Ref(m.Bucket, "n")
	a := &asked{}
	a.watch(c)
	a.direct(ctx, t, "the client", c, ref, docs)
	before, kept := a.scans.Load(), keeps(ctx, t, m)
	var all [scans]*client.Rows
	var last [scans]string
	by := client.Open(client.Options{Servers: m.Servers(), ViaManagers: true})
	defer by.Close()
	for i := range all {
		way := c
		if i%4 > 1 {
			way = by
		}
		rows, err := way.Scan(ctx, ref, v1.ScanRequest{Consistency: "session", Reverse: i%2 == 1})
		if err != nil || !rows.Next() {
			t.Fatal(err, rows.Err())
		}
		defer rows.Close()
		all[i], last[i] = rows, string(rows.Row().Key[0])+rows.Row().ID
	}
	if n := a.scans.Load() - before; n > 0 {
		t.Fatalf("%d scans scan through a manager", n)
	}
	harness.Eventually(t, time.Minute, "indexers keep the timestamps of scans that take long", func() (bool, string) {
		n := keeps(ctx, t, m) - kept
		return n >= scans*len(m.Indexers), fmt.Sprintf("%d were asked", n)
	})
	// Far more timestamps follow than an indexer retains without a request to keep one.
	first := number(ctx, t, c, ref)
	for i := 0; number(ctx, t, c, ref) < first+20; i++ {
		if _, err := kv.Set(ctx, fmt.Sprintf("e%05d", i), fmt.Appendf(nil, `{"a":"%05d%s"}`, i, pad),
			kvclient.StoreOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	up.Kill(func(m *localcluster.Manifest) int { return m.Indexers[0].PID })
	var readers sync.WaitGroup
	for i, rows := range all {
		readers.Go(func() {
			if err := wholeScan(rows, last[i], i%2 == 1, docs); err != nil {
				t.Errorf("scan %d: %v", i, err)
			}
		})
	}
	readers.Wait()
}

// wholeScan reads the rows after the first one of a scan with want rows in all: each once, in order.
func wholeScan(rows *client.Rows, last string, upwards bool, want int) error {
	n, seen := 1, map[string]bool{last: true}
	for ; rows.Next(); n++ {
		key := string(rows.Row().Key[0]) + rows.Row().ID
		if seen[key] {
			return fmt.Errorf("row %d comes twice: %.20s", n, key)
		}
		seen[key] = true
		if up, was := key[:7] > last[:7], key[:7] != last[:7]; was && up != upwards {
			return fmt.Errorf("row %d is out of order: %.20s behind %.20s", n, key, last)
		}
		last = key
	}
	end, err := rows.End()
	if err != nil || n != want || end.Rows != uint64(want) {
		return fmt.Errorf("%d rows of %d, its end says %d: %w", n, want, end.Rows, err)
	}
	return nil
}

// keeps returns how many requests to keep the timestamp of a long scan indexers have granted.
func keeps(ctx context.Context, t *testing.T, m *localcluster.Manifest) (n int) {
	t.Helper()
	for _, x := range m.Indexers {
		_, text := harness.Get(ctx, t, x.Admin+"/metrics")
		for line := range strings.Lines(text) {
			if value, ok := strings.CutPrefix(line, `tidemark_indexer_scan_keeps_total{code="OK"} `); ok {
				k, err := strconv.Atoi(strings.TrimSpace(value))
				if err != nil {
					t.Fatal(err)
				}
				n += k
			}
		}
	}
	return n
}

// number returns the number of the newest timestamp that scans use.
func number(ctx context.Context, t *testing.T, c *client.Client, ref string) (n int) {
	t.Helper()
	count, err := c.Count(ctx, ref, v1.ScanRequest{Consistency: "any"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(count.Timestamp.ID, "%d.%d.%d.", new(int), new(int), &n); err != nil {
		t.Fatalf("timestamp %q: %v", count.Timestamp.ID, err)
	}
	return n
}
