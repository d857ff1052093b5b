package data

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/indexer/storage/storagetest"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/kv/kvclient"
	"tidemark/kv/mcbp"
	"tidemark/manager/api/v1"
)

const (
	verifyTime = 10 * time.Minute // detects a hang
	hotKeys    = 1000

	restingDocuments = 1000 // documents that do not change meanwhile, and have no key
)

// verified runs a verification and returns the differences that it lists.
func verified(ctx context.Context, t *testing.T, c *client.Client, name string) (found []v1.Difference,
	end v1.VerifyEnd) {
	t.Helper()
	found, end, err := verify(ctx, c, name)
	if err != nil {
		t.Fatalf("verify %s: %v", name, err)
	}
	return found, end
}

// verify is verified for goroutines other than the test's.
func verify(ctx context.Context, c *client.Client, name string) (found []v1.Difference, end v1.VerifyEnd,
	err error) {
	end, err = c.Verify(ctx, client.Ref("world", name), v1.VerifyRequest{Rate: 1_000_000},
		func(l v1.VerifyLine) error {
			if l.Difference != nil {
				found = append(found, *l.Difference)
			}
			return nil
		})
	return found, end, err
}

// TestVerify checks, with real processes, that an index whose rows move between slices has no difference in any copy
// while 1,000 documents change all the time; with one row of one copy removed, one added, or one under another key,
// the verification names the document and the copy, and the command fails.
func TestVerify(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	args := []string{"--managers", "1", "--kv", "2", "--indexers", "2", "--vbuckets", "32"}
	up := testcluster.Start(t, dir, args...)
	ctx, cancel := context.WithTimeout(t.Context(), verifyTime)
	defer cancel()
	c := up.Client()
	store(ctx, t, up.KV(ctx), 0, restingDocuments, 10)
	for _, s := range []string{`CREATE INDEX hot ON world(hot.n, name) PARTITION BY HASH(hot.n) WITH {"num_replica":1, "num_partition":2}`, `CREATE INDEX tags ON world(DISTINCT hot.tags)`} {
		harness.Create(ctx, t, c, s)
	}
	underLoad(ctx, t, up, c)

	info, err := c.Index(ctx, client.Ref("world", "hot"))
	if err != nil {
		t.Fatal(err)
	}
	const victim, extra = "hot::7", "nobody"
	slice, replica := -1, uint8(1)
	damaged := ""
	up.Stop()
	for _, p := range info.Copies { // the copy that is replica 1 of the victim's slice
		if uint8(p.Replica) != replica {
			continue
		}
		for n := 1; n <= 2; n++ {
			copies := filepath.Join(dir, fmt.Sprintf("i%d", n), "copies")
			if _, err := os.Stat(filepath.Join(copies, p.ID.String())); err != nil {
				continue
			}
			err := storagetest.Edit(copies, p.ID, func(r *storagetest.Rows) error {
				key, err := r.Key(victim)
				if err != nil || key == nil {
					return err
				}
				slice, damaged = int(p.Slice), p.ID.String()
				if err := r.Remove(key, victim); err != nil {
					return err
				}
				return r.Add(key, extra)
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if slice < 0 {
		t.Fatalf("no copy of %+v has %s", info.Copies, victim)
	}
	up = testcluster.Start(t, dir, args...)
	c = up.Client()
	found, end := verified(ctx, t, c, "hot")
	var got []string
	for _, d := range found {
		got = append(got, fmt.Sprintf("%s %s", d.Kind, d.ID))
		if int(d.Slice) != slice || d.Replica != replica || d.Copy.String() != damaged || d.ID == victim &&
			(d.VBucket != mcbp.VBucket([]byte(victim), up.Manifest().VBuckets) || d.KVSeqno == 0) {
			t.Errorf("%+v; want slice %d, replica %d, copy %s", d, slice, replica, damaged)
		}
	}
	if s := strings.Join(got, ", "); s != "missing_row "+victim+", extra_row "+extra || end.Differences != 2 {
		t.Errorf("found %s, %+v", s, end)
	}
	cmd := exec.CommandContext(ctx, testcluster.Binary(t), "index", "verify", "world/hot", "--data", dir)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "missing_row") ||
		!strings.Contains(string(out), victim) {
		t.Errorf("exit code %d (%v), want 1\n%s", cmd.ProcessState.ExitCode(), err, out)
	}
	if found, _ := verified(ctx, t, c, "tags"); len(found) > 0 {
		t.Errorf("tags: %+v", found)
	}
}

// underLoad verifies both indexes repeatedly while documents change.
func underLoad(ctx context.Context, t *testing.T, up *testcluster.Cluster, c *client.Client) {
	t.Helper()
	kv := up.KV(ctx)
	writing, stop := context.WithCancel(ctx)
	defer stop()
	var writers sync.WaitGroup
	var changed atomic.Int64
	for w := range 4 {
		writers.Go(func() {
			for n := w; writing.Err() == nil; n += 4 {
				id := fmt.Sprintf("hot::%d", n%hotKeys)
				var err error
				if n%23 == 0 {
					_, err = kv.Delete(writing, id, 0)
				} else {
					_, err = kv.Set(writing, id, fmt.Appendf(nil, `{"name":"%d","hot":{"n":%d,"tags":[%d,%d]}}`, n%17, n, n%5, n%7), kvclient.StoreOptions{})
				}
				_ = err // a deletion of a missing document, or the end of ctx
				changed.Add(1)
				time.Sleep(2 * time.Millisecond) // limits the rate; nothing waits for it
			}
		})
	}
	harness.Eventually(t, 0, "each document was written", func() (bool, string) {
		n := changed.Load()
		return n >= hotKeys, fmt.Sprint(n)
	})
	for round := 0; round < 2 || changed.Load() < 3*hotKeys; round++ {
		for _, name := range []string{"hot", "tags"} {
			if found, end := verified(ctx, t, c, name); len(found) > 0 || end.Documents < restingDocuments ||
				end.Rows == 0 {
				t.Errorf("%s under load: %+v, %+v", name, found, end)
			}
		}
	}
	stop()
	writers.Wait()
	for n := range 10 { // documents with known values for the next steps
		if _, err := kv.Set(ctx, fmt.Sprintf("hot::%d", n), fmt.Appendf(nil, `{"name":"last","hot":{"n":%d,"tags":["x"]}}`, -n), kvclient.StoreOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"hot", "tags"} {
		if found, end := verified(ctx, t, c, name); len(found) > 0 || end.Unsettled > 0 {
			t.Errorf("%s at rest: %+v, %+v", name, found, end)
		}
		if _, err := c.Count(ctx, client.Ref("world", name), v1.ScanRequest{Consistency: "session"}); err != nil {
			t.Fatal(err)
		}
	}
}
