package e2e

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/errcode"
	"tidemark/index"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/statecontext"
)

var restoreRounds = flag.Int("restore.rounds", 2, "leaders killed in TestLeaderKilledInRestore")

// names returns the indexes of a bucket that are not being dropped, in order.
func names(ctx context.Context, c *client.Client, bucket string) ([]string, error) {
	list, err := c.Indexes(ctx, bucket)
	var all []string
	for _, i := range list.Indexes {
		if i.State != index.Dropping {
			all = append(all, i.Name)
		}
	}
	slices.Sort(all)
	return all, err
}

// TestBackupAndRestore checks that a backup taken under load restores dropped indexes in place, and all indexes in
// another cluster; both times they equal the oracle. A damaged file, a truncated one and one of a newer version are
// refused and change nothing.
func TestBackupAndRestore(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	up := testcluster.Start(t, t.TempDir(), "--managers", "3", "--kv", "1", "--indexers", "2", "--vbuckets",
		"32")
	c, bucket := up.Client(), up.Manifest().Bucket
	w := harness.NewWorkloadOf(ctx, t, up.KV(ctx), 8)
	harness.CreateSampleIndexes(ctx, t, c, bucket)
	load, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { w.Run(load, 1, 300) })
	file := filepath.Join(t.TempDir(), "state.backup")
	harness.MustRun(ctx, t, up, "cluster", "backup", file)
	if out := harness.MustRun(ctx, t, up, "cluster", "backup", "verify", file); !strings.Contains(out, "holds") ||
		!strings.Contains(out, harness.SampleIndexes()[0]) {
		t.Errorf("verify prints\n%s", out)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, err := names(ctx, c, bucket)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range harness.SampleIndexes()[:2] {
		if err := c.Drop(ctx, client.Ref(bucket, name), 0); err != nil {
			t.Fatal(err)
		}
	}
	harness.Create(ctx, t, c, fmt.Sprintf("CREATE INDEX later ON %s(name)", bucket))
	altered := harness.SampleIndexes()[2]
	if _, err := c.Statement(ctx, fmt.Sprintf(`ALTER INDEX %s ON %s WITH {"action":"replica_count","num_replica":1}`,
		altered, bucket)); err != nil {
		t.Fatal(err)
	}
	refusedFiles(ctx, t, c, data)
	if out, err := harness.Tidemark(ctx, t, up, "cluster", "restore", file); err == nil ||
		!strings.Contains(out, "--yes") {
		t.Errorf("without --yes: %v\n%s", err, out)
	}
	began := time.Now()
	t.Log(strings.TrimSpace(harness.MustRun(ctx, t, up, "cluster", "restore", file, "--yes")))
	if x, err := c.Index(ctx, client.Ref(bucket, altered)); err != nil || x.State != index.Maintenance || x.Replicas != 1 {
		t.Errorf("an index that was altered since the backup is %+v, %v", x, err) // it never went out of service
	}
	harness.WaitReady(ctx, t, c, bucket)
	t.Logf("all indexes are ready %s after the restore in place began", time.Since(began).Round(time.Millisecond))
	if after, err := names(ctx, c, bucket); err != nil || !slices.Equal(after, before) {
		t.Errorf("indexes %v, %v, want %v", after, err, before)
	}
	stop()
	wg.Wait()
	harness.CheckFinal(ctx, t, c, w, bucket)
	harness.Create(ctx, t, c, fmt.Sprintf("CREATE INDEX after_restore ON %s(name)", bucket)) // DDL continues

	t.Run("new cluster", func(t *testing.T) {
		other := testcluster.Start(t, t.TempDir(), "--managers", "1", "--kv", "1", "--indexers", "2", "--vbuckets",
			"32")
		oc := other.Client()
		ow := harness.NewWorkloadOf(ctx, t, other.KV(ctx), 8)
		if _, err := oc.Restore(ctx, data, "in-place", false); !harness.RefusedAs(err, errcode.BackupOfOther) {
			t.Errorf("in place into another cluster: %v", err)
		}
		t.Log(strings.TrimSpace(harness.MustRun(ctx, t, other, "cluster", "restore", file, "--new-cluster", "--yes")))
		harness.WaitReady(ctx, t, oc, bucket)
		if after, err := names(ctx, oc, bucket); err != nil || !slices.Equal(after, before) {
			t.Errorf("indexes %v, %v, want %v", after, err, before)
		}
		harness.CheckFinal(ctx, t, oc, ow, bucket)
	})
}

// refusedFiles sends files that are not valid backups.
func refusedFiles(ctx context.Context, t *testing.T, c *client.Client, good []byte) {
	t.Helper()
	flipped, newer := bytes.Clone(good), bytes.Clone(good)
	flipped[len(flipped)/2] ^= 0x10
	newer[8] = statecontext.BackupVersion + 1
	for name, data := range map[string][]byte{"flipped bit": flipped, "cut": good[:len(good)-1], "newer": newer,
		"no backup": []byte("hello"), "empty": nil} {
		if _, err := c.Restore(ctx, data, "in-place", false); !harness.RefusedAs(err, errcode.BackupUnusable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if now, err := c.Status(ctx); err != nil || now.Restored != nil || now.Restoring {
		t.Errorf("something was restored: %+v, %v", now.Restored, err)
	}
}

// TestLeaderKilledInRestore kills the leader repeatedly during a restore. Readers see the old indexes or those of the
// backup, never a mixture, and the restore completes in the end.
func TestLeaderKilledInRestore(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute+time.Duration(*restoreRounds)*time.Minute)
	defer cancel()
	up := testcluster.Start(t, t.TempDir(), "--managers", "3", "--kv", "1", "--indexers", "1", "--vbuckets",
		"16")
	c, bucket := up.Client(), up.Manifest().Bucket
	const many = 12
	for n := range many {
		if _, err := c.Statement(ctx, fmt.Sprintf(`CREATE INDEX old%02d ON %s(name) WITH {"defer_build":true}`, n, bucket)); err != nil {
			t.Fatal(err)
		}
	}
	old, err := names(ctx, c, bucket)
	if err != nil {
		t.Fatal(err)
	}
	data, err := c.Backup(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for round := range *restoreRounds {
		for _, name := range old[:many/2] {
			if err := c.Drop(ctx, client.Ref(bucket, name), 0); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := c.Statement(ctx, fmt.Sprintf(`CREATE INDEX later ON %s(name) WITH {"defer_build":true}`, bucket)); err != nil {
			t.Fatal(err)
		}
		changed, err := names(ctx, c, bucket)
		if err != nil {
			t.Fatal(err)
		}
		watch, done := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() {
			for watch.Err() == nil {
				if now, err := names(watch, c, bucket); err == nil && !slices.Equal(now, old) && !slices.Equal(now, changed) {
					t.Errorf("round %d: neither old nor new: %v", round, now)
				}
			}
		})
		restored := make(chan error, 1)
		wg.Go(func() {
			_, err := c.Restore(ctx, data, "in-place", false)
			restored <- err
		})
		id, _ := leaderPID(ctx, t, up, c)
		up.Kill(managerPID(id))
		if err := <-restored; err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		done()
		wg.Wait()
		if now, err := names(ctx, c, bucket); err != nil || !slices.Equal(now, old) {
			t.Fatalf("round %d: %v, %v, want %v", round, now, err, old)
		}
	}
}
