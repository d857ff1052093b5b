package e2e

import (
	"context"
	"fmt"
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

// TestScansOutliveTheirIndexer: many scans that go to one of two indexers, straight or by way of the manager, are in
// the middle of their answers when one of these is killed. Every one of them has each row once, in order, and its end.
func TestScansOutliveTheirIndexer(t *testing.T) {
	t.Parallel()
	const docs, scans = 24_000, 16
	up := testcluster.Start(t, t.TempDir(), "--managers", "1", "--kv", "1", "--indexers", "2", "--vbuckets", "16")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	c, m := up.Client(), up.Manifest()
	kv := up.KV(ctx)
	// more than fits between an indexer and a client that does not read
	pad := strings.Repeat("x", 600)
	var writers sync.WaitGroup
	for w := range 8 {
		writers.Go(func() {
			for i := w; i < docs; i += 8 {
				if _, err := kv.Set(ctx, fmt.Sprintf("d%05d", i), fmt.Appendf(nil, `{"a":"%05d%s"}`, i/3, pad),
					kvclient.StoreOptions{}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	writers.Wait()
	harness.Create(ctx, t, c, "CREATE INDEX n ON "+m.Bucket+`(a DESC) PARTITION BY HASH(META().id) WITH {"num_replica":1,`+
		`"num_partition":4}`)
	harness.WaitReady(ctx, t, c, m.Bucket)
	ref := client.Ref(m.Bucket, "n")
	a := &asked{}
	a.watch(c)
	a.direct(ctx, t, "the client", c, ref, docs)
	before := a.scans.Load()
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
		t.Fatalf("%d scans go by way of a manager", n)
	}
	up.Kill(func(m *localcluster.Manifest) int { return m.Indexers[0].PID })
	for i, rows := range all {
		n, seen := 1, map[string]bool{last[i]: true}
		for ; rows.Next(); n++ {
			key := string(rows.Row().Key[0]) + rows.Row().ID
			if seen[key] {
				t.Fatalf("scan %d: row %d comes twice: %.20s", i, n, key)
			}
			seen[key] = true
			if up, was := key[:7] > last[i][:7], key[:7] != last[i][:7]; was && up != (i%2 == 1) {
				t.Fatalf("scan %d: row %d is out of order: %.20s behind %.20s", i, n, key, last[i])
			}
			last[i] = key
		}
		end, err := rows.End()
		if err != nil || n != docs || end.Rows != docs {
			t.Fatalf("scan %d: %d rows, its end says %d: %v", i, n, end.Rows, err)
		}
	}
}
