// Package data tests the data plane as users run it: real processes on loopback, scans under load, builds, partition
// schemes, verification, moves of KV's data, damaged and foreign files. It compares all results with an oracle that
// shares no code with them.
package data

import (
	"context"
	"flag"
	"sync"
	"testing"
	"time"

	"tidemark/internal/testing/atonce"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
)

var truthFor = flag.Duration("truth.for", 2*time.Second, "how long TestTruth writes and scans at least")

// leastScans is the lowest number of scans of each index by TestTruth, on machines of any speed.
const leastScans = 5

func TestMain(m *testing.M) {
	atonce.Tests(4) // tests wait part of their time
	harness.Main(m)
}

// TestTruth checks, under 2,000 random updates, deletions and re-creations per second, that each session-consistent
// scan equals the oracle's answer at the scan's own timestamp, and that at the end every index equals the oracle.
func TestTruth(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute+2**truthFor)
	defer cancel()
	up := testcluster.Start(t, t.TempDir(), "--managers", "1", "--vbuckets", "32")
	c, bucket := up.Client(), up.Manifest().Bucket
	w := harness.NewWorkloadOf(ctx, t, up.KV(ctx), 8)
	harness.CreateSampleIndexes(ctx, t, c, bucket)

	load, stop := context.WithCancel(ctx)
	defer stop()
	enough := time.Now().Add(*truthFor)
	var mu sync.Mutex
	var scans []harness.Scanned
	var wg, scanners sync.WaitGroup
	wg.Go(func() { w.Run(load, 1, 2000) })
	for _, name := range harness.SampleIndexes() {
		scanners.Go(func() {
			for n := 0; n < leastScans || time.Now().Before(enough); n++ {
				floor := w.History.High()
				s, err := harness.ScanSoon(ctx, c, bucket, name, harness.Hang)
				if err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
				for v := range floor {
					if s.Seqnos[v] < floor[v] {
						t.Errorf("%s: a session scan shows vbucket %d at %d, acknowledged before it began: %d", name, v, s.Seqnos[v],
							floor[v])
						return
					}
				}
				mu.Lock()
				scans = append(scans, s)
				mu.Unlock()
				time.Sleep(300 * time.Millisecond) // leaves the cores to the cluster
			}
		})
	}
	scanners.Wait()
	stop()
	wg.Wait()
	if n := w.Failed.Load(); n > 0 {
		t.Fatalf("%d writes failed although nothing was killed", n)
	}
	var slowest time.Duration
	for i, s := range scans {
		if d := s.Check(w.History); d != "" {
			t.Fatalf("scan %d of %s: %s", i, s.Index, d)
		}
		slowest = max(slowest, s.Took)
	}
	t.Logf("%d writes, %d scans equal the oracle's, the slowest took %s", w.Writes.Load(), len(scans), slowest)
	harness.CheckFinal(ctx, t, c, w, bucket)
}
