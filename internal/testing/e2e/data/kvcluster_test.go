package data

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tidemark/internal/localcluster"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/kv"
	"tidemark/manager/api/v1"
)

// TestFailoverWithLoss fails a KV node over when the indexes already have writes that no replica has. The bucket is
// rolled back to the remaining branch, and every index equals what KV has then, while writes continue.
func TestFailoverWithLoss(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	up := testcluster.Start(t, t.TempDir(), "--managers", "1", "--kv", "3", "--kv-replicas", "1", "--indexers", "2",
		"--vbuckets", "32")
	c, m, admin := up.Client(), up.Manifest(), harness.KVAdmin(up)
	w := harness.NewWorkloadOf(ctx, t, up.KV(ctx), 8)
	harness.CreateSampleIndexes(ctx, t, c, m.Bucket)
	harness.Settled(ctx, t, admin, m.VBuckets)

	load, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { w.Run(load, 7, 300) })
	if err := admin.Pause(ctx, kv.PauseRequest{Paused: true}); err != nil {
		t.Fatal(err)
	}
	from := w.Writes.Load()
	harness.WaitFor(ctx, t, func() error {
		if n := w.Writes.Load() - from; n < 300 {
			return fmt.Errorf("%d writes beyond the replicas", n)
		}
		return nil
	})
	before, err := harness.ScanSoon(ctx, c, m.Bucket, "world_ids", harness.Hang) // the indexes have these writes, too
	if err != nil {
		t.Fatal(err)
	}
	out := harness.MustRun(ctx, t, up, "kv", "failover", "kv2", "--lose")
	t.Log(strings.TrimSpace(out))
	if err := admin.Pause(ctx, kv.PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	from = w.Writes.Load()
	harness.WaitFor(ctx, t, func() error {
		if n := w.Writes.Load() - from; n < 300 {
			return fmt.Errorf("%d writes after the failover", n)
		}
		return nil
	})
	after, err := harness.ScanSoon(ctx, c, m.Bucket, "world_ids", harness.Hang) // under load
	if err != nil {
		t.Fatal(err)
	}
	stop()
	wg.Wait()
	harness.CheckFinal(ctx, t, c, w, m.Bucket)
	back := 0
	for vb, seqno := range before.Seqnos {
		if after.Seqnos[vb] < seqno {
			back++
		}
	}
	t.Logf("%d vbuckets were behind their old seqnos at the first scan after the failover", back)
	ts, err := c.Timestamps(ctx, m.Bucket, 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	if ts.RollbackID == 0 {
		t.Error("the bucket was never rolled back: nothing that the indexes had was lost, so the test shows nothing")
	}
	// A rebalance adds the failed-over node again.
	e := m.KV[1]
	harness.MustRun(ctx, t, up, "kv", "rebalance", "--add", harness.Addition(e))
	harness.Settled(ctx, t, admin, m.VBuckets)
	harness.CheckFinal(ctx, t, c, w, m.Bucket)

	// The node hangs, and is failed over without what its replicas lack. Its projector gets no answers from it; the
	// others continue, and the first session scan that is answered, while the node still hangs, shows what is left.
	// How long that takes is bounded in virtual time (coordinator, TestRollbackWithoutANode); here it is measured.
	if err := admin.Pause(ctx, kv.PauseRequest{Paused: true}); err != nil {
		t.Fatal(err)
	}
	from = w.Writes.Load()
	load, stop = context.WithCancel(ctx)
	defer stop()
	wg.Go(func() { w.Run(load, 9, 300) })
	harness.WaitFor(ctx, t, func() error {
		if n := w.Writes.Load() - from; n < 300 {
			return fmt.Errorf("%d writes beyond the replicas", n)
		}
		return nil
	})
	stop()
	wg.Wait()
	if _, err := harness.ScanSoon(ctx, c, m.Bucket, "world_ids", harness.Hang); err != nil {
		t.Fatal(err)
	}
	hung := up.Manifest().KV[1].PID
	if err := syscall.Kill(hung, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	goOn := sync.OnceFunc(func() { _ = syscall.Kill(hung, syscall.SIGCONT) })
	defer goOn()
	began := time.Now()
	harness.MustRun(ctx, t, up, "kv", "failover", "kv2", "--lose")
	command := time.Since(began)
	if _, err := harness.ScanSoon(ctx, c, m.Bucket, "world_ids", 3*harness.Hang); err != nil {
		t.Errorf("the rollback waits for the node that hangs: %v", err)
	}
	t.Logf("a session scan after the failover of a node that hangs: %v, the command took %v of it", time.Since(began),
		command)
	harness.CheckFinal(ctx, t, c, w, m.Bucket)
	if again, err := c.Timestamps(ctx, m.Bucket, 0, 1); err != nil || again.RollbackID == ts.RollbackID {
		t.Errorf("no second rollback: %v", err)
	}
	goOn()
	if err := admin.Pause(ctx, kv.PauseRequest{}); err != nil {
		t.Fatal(err)
	}
}

// TestRebalanceUnderLoad removes a KV node and adds it again under writes and scans, and kills one of the others in
// the middle. No acknowledged write is lost, and every scan shows one state of KV.
func TestRebalanceUnderLoad(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	up := testcluster.Start(t, t.TempDir(), "--managers", "1", "--kv", "3", "--kv-replicas", "1", "--indexers", "2",
		"--vbuckets", "32")
	c, m, admin := up.Client(), up.Manifest(), harness.KVAdmin(up)
	w := harness.NewWorkloadOf(ctx, t, up.KV(ctx), 8)
	harness.CreateSampleIndexes(ctx, t, c, m.Bucket)

	load, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { w.Run(load, 8, 300) })
	var scans []harness.Scanned
	wg.Go(func() {
		for load.Err() == nil {
			if s, err := harness.CollectSoon(load, c, m.Bucket, "places_by_name", v1.ScanRequest{Consistency: "any"},
				harness.Hang); err == nil {
				scans = append(scans, s)
			} else if load.Err() == nil {
				t.Errorf("scan: %v", err)
			}
			select {
			case <-load.Done():
			case <-time.After(300 * time.Millisecond):
			}
		}
	})
	harness.MustRun(ctx, t, up, "kv", "rebalance", "--remove", "kv1", "--no-wait")
	up.Kill(func(m *localcluster.Manifest) int { return m.KV[1].PID })
	harness.Eventually(t, harness.Hang, "the rebalance goes on, and ends, when kv2 is back", func() (bool, string) {
		out, err := harness.Tidemark(ctx, t, up, "kv", "rebalance", "--remove", "kv1")
		return err == nil, out
	})
	e := m.KV[0]
	harness.MustRun(ctx, t, up, "kv", "rebalance", "--add", harness.Addition(e))
	stop()
	wg.Wait()
	harness.Settled(ctx, t, admin, m.VBuckets)
	harness.CheckFinal(ctx, t, c, w, m.Bucket)
	if n := w.Failed.Load(); n == 0 {
		have, err := testcluster.Documents(ctx, w.KV, w.Keys)
		if err != nil {
			t.Fatal(err)
		}
		if want := w.History.At(w.History.High()); !maps.EqualFunc(want, have, bytes.Equal) {
			t.Errorf("%d documents, acknowledged were %d, or they differ", len(have), len(want))
		}
	} else {
		t.Logf("%d writes had no answer: which of them are there is open", n)
	}
	if len(scans) == 0 {
		t.Error("no scan worked")
	}
	t.Logf("%d writes, %d scans", w.Writes.Load(), len(scans))
}
