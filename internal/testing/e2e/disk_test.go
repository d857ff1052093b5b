package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/internal/localcluster"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/need"
	"tidemark/internal/testing/oracle"
	"tidemark/internal/testing/testcluster"
	"tidemark/kv/kvclient"
	"tidemark/manager/api/v1"
)

// smallDisk moves a folder onto a tmpfs of its own. Where mounting is not permitted it skips the test, except in CI.
func smallDisk(ctx context.Context, t *testing.T, dir, size string) {
	t.Helper()
	old := dir + ".old"
	if err := os.Rename(dir, old); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		need.Missing(t, "mounting a tmpfs: %v; run as root", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	if out, err := exec.CommandContext(ctx, "cp", "-a", old+"/.", dir).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v %s", err, out)
	}
	if err := os.RemoveAll(old); err != nil {
		t.Fatal(err)
	}
}

// fill takes all free space; free releases it.
func fill(t *testing.T, dir string) (free func()) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, size := range []int{1 << 20, 4 << 10, 1} {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("filling %s: %v", dir, err)
		}
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}
}

// TestFullDisk fills the disk of an indexer, of a KV node, and of the leading manager for a while. Operations that
// are impossible fail with a clear error, nothing acknowledged is lost, the other processes continue, and everything
// recovers when there is space.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	dir := t.TempDir()
	t.Cleanup(func() { cancel() })
	first := testcluster.Start(t, dir, "--vbuckets", "32")
	first.Stop()
	for _, id := range []string{"i1", "kv1", "m1", "m2", "m3"} {
		smallDisk(ctx, t, filepath.Join(dir, id), "96m")
	}
	up := testcluster.Start(t, dir)
	c, bucket := up.Client(), up.Manifest().Bucket
	w := harness.NewWorkloadOf(ctx, t, up.KV(ctx), 8)
	harness.CreateSampleIndexes(ctx, t, c, bucket)
	defer up.Stop() // before the disks are unmounted

	full := false // one disk after the other, and none after a failure
	t.Run("indexer", func(t *testing.T) { full = fullIndexer(ctx, t, up, c, w, bucket, filepath.Join(dir, "i1")) })
	if full {
		t.Run("KV node", func(t *testing.T) { full = fullKV(ctx, t, up, w, filepath.Join(dir, "kv1")) })
	}
	if full {
		harness.CheckFinal(ctx, t, c, w, bucket)
		t.Run("leading manager", func(t *testing.T) { fullManager(ctx, t, up, c, bucket, dir) })
	}
	harness.CheckFinal(ctx, t, c, w, bucket)
}

func fullIndexer(ctx context.Context, t *testing.T, up *testcluster.Cluster, c *client.Client, w *harness.Workload,
	bucket, disk string) bool {
	before := up.Manifest().Indexers[0].PID
	free := fill(t, disk)
	r, gone := rand.New(rand.NewPCG(9, 9)), map[string]bool{}
	said := harness.Eventually(t, harness.Hang, "the status says that the indexer's disk is full",
		func() (bool, string) {
			for range 500 {
				if err := w.One(ctx, r, w.Keys[r.IntN(len(w.Keys))], gone); err != nil && !errors.Is(err, kvclient.ErrKeyNotFound) {
					t.Fatalf("a write to KV while an indexer's disk is full: %v", err)
				}
			}
			s, err := c.Status(ctx)
			if err != nil {
				return false, err.Error()
			}
			for _, i := range s.Indexers {
				if i.ID == "i1" && i.Health != "" {
					return strings.Contains(i.Health, "no room") || strings.Contains(i.Health, "no space"), i.Health
				}
			}
			return false, "no indexer says anything"
		})
	t.Logf("the status says: %s", said)
	status, _ := harness.Get(ctx, t, up.Manifest().Indexers[0].Admin+"/readyz")
	if status != http.StatusServiceUnavailable {
		t.Errorf("readyz of the indexer whose disk is full is %d, want 503", status)
	}
	limited, done := context.WithTimeout(ctx, 5*time.Second)
	_, err := harness.Scan(limited, c, bucket, "world_ids", "session") // may succeed, or fail with a named error
	done()
	t.Logf("a session scan meanwhile: %v", err)
	if s, err := harness.Scan(ctx, c, bucket, "airports_by_country", "any"); err == nil {
		if d := s.Check(w.History); d != "" {
			t.Errorf("a scan while the disk is full: %s", d)
		}
	} else {
		t.Logf("an any scan meanwhile: %v", err)
	}
	free()
	began := time.Now()
	s, err := harness.ScanSoon(ctx, c, bucket, "airports_by_country", harness.Hang)
	if err != nil {
		t.Fatalf("there is room again, and no session scan within %s: %v", harness.Hang, err)
	}
	if d := s.Check(w.History); d != "" {
		t.Errorf("after the full disk: %s", d)
	}
	t.Logf("a session scan %s after there was room again", time.Since(began).Round(time.Millisecond))
	harness.Eventually(t, harness.Hang, "the indexer is well again", func() (bool, string) {
		status, body := harness.Get(ctx, t, up.Manifest().Indexers[0].Admin+"/readyz")
		return status == http.StatusOK, body
	})
	if up.Manifest().Indexers[0].PID != before {
		t.Error("the indexer died of a full disk")
	}
	return !t.Failed()
}

func fullKV(ctx context.Context, t *testing.T, up *testcluster.Cluster, w *harness.Workload, disk string) bool {
	m := up.Manifest()
	before := m.KV[0].PID
	free := fill(t, disk)
	acknowledged := map[string]string{}
	var refused error
	stands := time.Now().Add(harness.Hang)
	for n := 0; refused == nil && n < 5000; n++ {
		key, value := fmt.Sprintf("full::%d", n), fmt.Sprintf(`{"n":%d,"pad":%q}`, n, strings.Repeat("x", 8<<10))
		limited, done := context.WithTimeout(ctx, 3*time.Second)
		mut, err := w.KV.Set(limited, key, []byte(value), kvclient.StoreOptions{})
		done()
		if err != nil && !errors.Is(err, kvclient.ErrTemporary) && time.Now().Before(stands) {
			n-- // 3 s may pass on a machine that stalls
			continue
		}
		if err != nil {
			refused = err
			break
		}
		acknowledged[key] = value
		w.History.Record(mut.VBucket, oracle.Op{Seqno: mut.Seqno, Key: key, Value: []byte(value)})
		w.Keys = append(w.Keys, key)
	}
	if refused == nil {
		t.Fatal("5,000 writes of 8 KB went to a full disk")
	}
	t.Logf("after %d more writes one is refused: %v", len(acknowledged), refused)
	if !errors.Is(refused, kvclient.ErrTemporary) {
		t.Errorf("the refusal is no temporary failure: %v", refused)
	}
	status, body := harness.Get(ctx, t, m.KV[0].Admin+"/readyz")
	if status != http.StatusServiceUnavailable || !strings.Contains(body, "room") {
		t.Errorf("readyz of the KV node whose disk is full: %d %q", status, body)
	}
	there := func(when string) {
		t.Helper()
		for key, value := range maps.All(acknowledged) {
			if d, err := w.KV.Get(ctx, key); err != nil || string(d.Value) != value {
				t.Fatalf("%s: %s was acknowledged and is %.40q, %v", when, key, d.Value, err)
			}
		}
	}
	there("while the disk is full")
	free()
	harness.Eventually(t, harness.Hang, "KV takes writes again", func() (bool, string) {
		limited, done := context.WithTimeout(ctx, 2*time.Second)
		defer done()
		for n := range 8 {
			key := fmt.Sprintf("room::%d", n)
			mut, err := w.KV.Set(limited, key, []byte(`{"name":"room"}`), kvclient.StoreOptions{})
			if err != nil {
				return false, err.Error()
			}
			acknowledged[key] = `{"name":"room"}`
			w.History.Record(mut.VBucket, oracle.Op{Seqno: mut.Seqno, Key: key, Value: []byte(`{"name":"room"}`)})
		}
		return true, ""
	})
	for n := range 8 {
		w.Keys = append(w.Keys, fmt.Sprintf("room::%d", n))
	}
	if up.Manifest().KV[0].PID != before {
		t.Error("the KV node died of a full disk")
	}
	up.Kill(func(m *localcluster.Manifest) int { return m.KV[0].PID })
	there("after a SIGKILL")
	return !t.Failed()
}

func fullManager(ctx context.Context, t *testing.T, up *testcluster.Cluster, c *client.Client, bucket, dir string) {
	id, _ := leaderPID(ctx, t, up, c)
	free := fill(t, filepath.Join(dir, id))
	acknowledged := map[string]bool{}
	var slowest time.Duration
	for n := range 40 {
		name := fmt.Sprintf("full_%d", n)
		began := time.Now()
		limited, done := context.WithTimeout(ctx, 30*time.Second)
		_, err := c.Create(limited, v1.CreateRequest{Bucket: bucket, Name: name, IsPrimary: true, DeferBuild: true})
		done()
		if err != nil {
			t.Logf("DDL %d after %s: %v", n, time.Since(began).Round(time.Millisecond), err)
			continue
		}
		acknowledged[name] = true
		slowest = max(slowest, time.Since(began))
	}
	b, err := os.ReadFile(filepath.Join(dir, "logs", id+".log"))
	if err != nil {
		t.Fatal(err)
	}
	says := strings.Contains(string(b), "no space left on device")
	t.Logf("%d of 40 DDL statements were accepted while the disk of leader %s was full, the slowest after %s; its log "+
		"names the disk: %v", len(acknowledged), id, slowest.Round(time.Millisecond), says)
	if len(acknowledged) < 35 {
		t.Errorf("two of three managers have room, and only %d of 40 DDL statements were accepted", len(acknowledged))
	}
	free()
	harness.Eventually(t, harness.Hang, "all managers list what was acknowledged", func() (bool, string) {
		for _, e := range up.Manifest().Managers {
			one := client.New(e.REST)
			limited, done := context.WithTimeout(ctx, 5*time.Second)
			list, err := one.Indexes(limited, bucket)
			done()
			one.Close()
			if err != nil {
				return false, e.ID + ": " + err.Error()
			}
			have := map[string]bool{}
			for _, i := range list.Indexes {
				have[i.Name] = true
			}
			for name := range acknowledged {
				if !have[name] {
					return false, e.ID + " does not list " + name
				}
			}
		}
		return true, ""
	})
}
