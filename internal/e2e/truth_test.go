// Package e2e tests the product as users run it: real processes on loopback, killed with SIGKILL, compared with an
// oracle that shares no code with them.
package e2e

import (
	"context"
	"sync"
	"testing"
	"time"

	"tidemark/internal/testcluster"
)

// TestTruth: while 2,000 random updates, deletions and re-creations per second run for 30 s, each session-consistent
// scan equals the oracle's answer at the scan's own timestamp, and at the end every index equals the oracle.
func TestTruth(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	up := testcluster.Start(t, t.TempDir())
	c, bucket := up.Client(), up.Manifest().Bucket
	w := newWorkload(ctx, t, up.KV(ctx))
	createSampleIndexes(ctx, t, c, bucket)

	load, stop := context.WithTimeout(ctx, 30*time.Second)
	defer stop()
	var mu sync.Mutex
	var scans []scanned
	var wg sync.WaitGroup
	wg.Go(func() { w.run(load, 1, 2000) })
	for _, name := range sampleIndexes {
		wg.Go(func() {
			for load.Err() == nil {
				floor := w.history.High()
				s, err := scan(ctx, c, bucket, name, "session")
				if err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
				for v := range floor {
					if s.seqnos[v] < floor[v] {
						t.Errorf("%s: a session scan shows vbucket %d at %d, acknowledged before it began: %d", name, v, s.seqnos[v], floor[v])
						return
					}
				}
				mu.Lock()
				scans = append(scans, s)
				mu.Unlock()
				time.Sleep(300 * time.Millisecond) // leave the cores to the cluster
			}
		})
	}
	wg.Wait()
	if n := w.failed.Load(); n > 0 {
		t.Fatalf("%d writes failed although nothing was killed", n)
	}
	var slowest time.Duration
	for i, s := range scans {
		if d := s.check(w.history); d != "" {
			t.Fatalf("scan %d of %s: %s", i, s.index, d)
		}
		slowest = max(slowest, s.took)
	}
	if len(scans) < 4*10 {
		t.Errorf("only %d scans in 30 s", len(scans))
	}
	t.Logf("%d writes, %d scans equal the oracle's, the slowest took %s", w.writes.Load(), len(scans), slowest)
	checkFinal(ctx, t, c, w, bucket)
}
