package e2e

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"tidemark/internal/testcluster"
	"tidemark/kv"
	"tidemark/localcluster"
)

// kvAdmin is a client of the KV nodes' admin interface.
func kvAdmin(up *testcluster.Cluster) *kv.Admin {
	m := up.Manifest()
	var addresses []string
	for _, e := range m.KV {
		addresses = append(addresses, strings.TrimPrefix(e.Admin, "http://"))
	}
	return kv.NewAdmin(addresses, m.KVUser, m.KVPassword)
}

// command runs a client command of the product.
func command(ctx context.Context, t *testing.T, args ...string) string {
	t.Helper()
	var errs bytes.Buffer
	cmd := exec.CommandContext(ctx, testcluster.Binary(t), args...)
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tidemark %s: %v\n%s%s", strings.Join(args, " "), err, out, errs.String())
	}
	return string(out)
}

// waitFor waits until check has nothing to say.
func waitFor(ctx context.Context, t *testing.T, check func() error) {
	t.Helper()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatal(err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// settled waits until all replicas have what their active copies have.
func settled(ctx context.Context, t *testing.T, a *kv.Admin, active int) {
	t.Helper()
	waitFor(ctx, t, func() error {
		s, err := a.Status(ctx)
		if err != nil {
			return err
		}
		n := 0
		for _, node := range s.Nodes {
			for _, b := range node.Buckets {
				if n += b.Active; b.Lag > 0 || b.Unjoined > 0 {
					return fmt.Errorf("%s: %+v", node.ID, b)
				}
			}
		}
		if s.Progress != nil || n != active {
			return fmt.Errorf("%d of %d vbuckets are active; %+v", n, active, s.Progress)
		}
		return nil
	})
}

// TestFailoverThatLoses: the indexes have followed writes that no replica has when their KV node is failed over. The bucket
// is rolled back to the branch that is left, and every index equals what KV has then, while writes go on.
func TestFailoverThatLoses(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	up := testcluster.Start(t, t.TempDir(), "--managers", "1", "--kv", "3", "--kv-replicas", "1", "--indexers", "2")
	c, m, admin := up.Client(), up.Manifest(), kvAdmin(up)
	w := newWorkload(ctx, t, up.KV(ctx))
	createSampleIndexes(ctx, t, c, m.Bucket)
	settled(ctx, t, admin, m.VBuckets)

	load, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { w.run(load, 7, 300) })
	if err := admin.Pause(ctx, kv.PauseRequest{Paused: true}); err != nil {
		t.Fatal(err)
	}
	from := w.writes.Load()
	waitFor(ctx, t, func() error {
		if n := w.writes.Load() - from; n < 300 {
			return fmt.Errorf("%d writes beyond the replicas", n)
		}
		return nil
	})
	before, err := scan(ctx, c, m.Bucket, "world_ids", "session") // the indexes have them, too
	if err != nil {
		t.Fatal(err)
	}
	out := command(ctx, t, "kv", "failover", "kv2", "--lose", "--data", up.Dir)
	t.Log(strings.TrimSpace(out))
	if err := admin.Pause(ctx, kv.PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	from = w.writes.Load()
	waitFor(ctx, t, func() error {
		if n := w.writes.Load() - from; n < 300 {
			return fmt.Errorf("%d writes after the failover", n)
		}
		return nil
	})
	after, err := scan(ctx, c, m.Bucket, "world_ids", "session") // under load
	if err != nil {
		t.Fatal(err)
	}
	stop()
	wg.Wait()
	checkFinal(ctx, t, c, w, m.Bucket)
	back := 0
	for vb, seqno := range before.seqnos {
		if after.seqnos[vb] < seqno {
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
	// The node that was failed over is added again, by the way of a rebalance.
	e := m.KV[1]
	command(ctx, t, "kv", "rebalance", "--add", e.ID+"="+e.Memcached+"="+strings.TrimPrefix(e.Admin, "http://"), "--data", up.Dir)
	settled(ctx, t, admin, m.VBuckets)
	checkFinal(ctx, t, c, w, m.Bucket)
}

// TestRebalanceUnderLoad: a KV node leaves and comes back while writes and scans run and one of the others is killed in the
// middle. Nothing that was acknowledged is lost, and every scan is one state of KV.
func TestRebalanceUnderLoad(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	up := testcluster.Start(t, t.TempDir(), "--managers", "1", "--kv", "3", "--kv-replicas", "1", "--indexers", "2")
	c, m, admin := up.Client(), up.Manifest(), kvAdmin(up)
	w := newWorkload(ctx, t, up.KV(ctx))
	createSampleIndexes(ctx, t, c, m.Bucket)

	load, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { w.run(load, 8, 300) })
	var scans []scanned
	wg.Go(func() {
		for load.Err() == nil {
			if s, err := scan(load, c, m.Bucket, "places_by_name", "any"); err == nil {
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
	command(ctx, t, "kv", "rebalance", "--remove", "kv1", "--no-wait", "--data", up.Dir)
	up.Kill(func(m *localcluster.Manifest) int { return m.KV[1].PID })
	command(ctx, t, "kv", "rebalance", "--remove", "kv1", "--data", up.Dir)
	e := m.KV[0]
	command(ctx, t, "kv", "rebalance", "--add", e.ID+"="+e.Memcached+"="+strings.TrimPrefix(e.Admin, "http://"), "--data", up.Dir)
	stop()
	wg.Wait()
	settled(ctx, t, admin, m.VBuckets)
	checkFinal(ctx, t, c, w, m.Bucket)
	if n := w.failed.Load(); n == 0 {
		have, err := testcluster.Documents(ctx, w.kv, w.keys)
		if err != nil {
			t.Fatal(err)
		}
		if want := w.history.At(w.history.High()); !maps.EqualFunc(want, have, bytes.Equal) {
			t.Errorf("%d documents, acknowledged were %d, or they differ", len(have), len(want))
		}
	} else {
		t.Logf("%d writes had no answer: which of them are there is open", n)
	}
	if len(scans) == 0 {
		t.Error("no scan worked")
	}
	t.Logf("%d writes, %d scans", w.writes.Load(), len(scans))
}
