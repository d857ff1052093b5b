package data

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/statecontext"
)

// TestAutomaticRepair kills one of three indexers for good while documents change. Without manual steps the other two
// rebuild its copies, no scan fails meanwhile or shows a wrong row, and nothing is left behind, not in its folder
// either when it comes back at last.
func TestAutomaticRepair(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	dir := t.TempDir()
	up := testcluster.StartWith(t, []string{"TIDEMARK_REPAIR_AFTER=10s"}, dir, "--managers", "1", "--kv", "1",
		"--indexers", "2", "--vbuckets", "16")
	m := up.Manifest()
	c, bucket := up.Client(), m.Bucket
	// The third indexer is not started by `up`, which would restart it.
	const lost = "i3"
	folder := filepath.Join(t.TempDir(), lost)
	args := []string{"indexer", "--id", lost, "--data", folder, "--managers", strings.Join(m.Servers(), ",")}
	for _, port := range []string{"admin", "scan", "maintenance", "backfill", "catchup"} {
		args = append(args, "--"+port, "127.0.0.1:0")
	}
	third := testcluster.Spawn(t, dir, lost, args...)
	harness.Eventually(t, harness.Hang, "three indexers", func() (bool, string) {
		st, err := c.Status(ctx)
		return err == nil && len(st.Indexers) == 3, fmt.Sprint(err)
	})
	w := harness.NewWorkloadOf(ctx, t, up.KV(ctx), 16)
	names := []string{"places_by_name", "airports_by_elevation"}
	for _, statement := range sampleStatements(bucket, names) {
		harness.Create(ctx, t, c, statement+` WITH {"num_replica":1, "num_partition":3}`)
	}
	live := map[string]string{"i1": filepath.Join(dir, "i1"), "i2": filepath.Join(dir, "i2")}
	all := map[string]string{"i1": live["i1"], "i2": live["i2"], lost: folder}
	settled(ctx, t, up, all)
	if had, err := foldersIn(filepath.Join(folder, "copies")); err != nil || len(had) == 0 {
		t.Fatalf("%s has %v: %v", lost, had, err)
	}
	load, stop := context.WithCancel(ctx)
	defer stop()
	var writers sync.WaitGroup
	writers.Go(func() { w.Run(load, 1, 100) })
	s := scanner{names: names}
	s.run(load, c, bucket)
	third.Kill()
	harness.Eventually(t, harness.Hang, "what was lost is made anew", func() (bool, string) {
		r, err := c.Rebalances(ctx)
		if err != nil {
			return false, err.Error()
		}
		for i := range r.Rebalances {
			if j := &r.Rebalances[i]; j.Cause == statecontext.RepairCause && j.Phase == statecontext.RebalanceFinished {
				return j.Done > 0 && j.GivenUp == 0, fmt.Sprintf("%+v", *j)
			}
		}
		return false, fmt.Sprintf("%+v", r.Rebalances)
	})
	settled(ctx, t, up, live)
	stop()
	writers.Wait()
	s.wg.Wait()
	if f := s.wrong(); len(f) > 0 {
		t.Errorf("scans failed: %v", f)
	}
	for i, got := range s.scans {
		if d := got.Check(w.History); d != "" {
			t.Fatalf("scan %d of %s: %s", i, got.Index, d)
		}
	}
	t.Logf("%d writes, %d scans equal the oracle's", w.Writes.Load(), len(s.scans))
	testcluster.Spawn(t, dir, lost+"again", args...)
	settled(ctx, t, up, all)
	harness.CheckFinal(ctx, t, c, w, bucket, names...)
}
