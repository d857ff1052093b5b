package data

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/index"
	"tidemark/internal/localcluster"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/manager/api/v1"
	"tidemark/partition"
)

// testGrace is the grace period of orphans on the indexers of TestHandshake: long enough for a busy machine to
// observe them.
const testGrace = 45 * time.Second

// TestHandshake checks that a returning indexer compares its folder with the StateContext (IM-8). A missing slice is
// rebuilt and never served incomplete; an unknown slice is reported, kept for its grace period and then dropped.
func TestHandshake(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	h := newHandshake(ctx, t, "TIDEMARK_ORPHAN_GRACE="+testGrace.String())
	t.Run("missing slice", func(t *testing.T) { h.t = t; h.missing(ctx) })
	t.Run("copied slice", func(t *testing.T) { h.t = t; h.copied(ctx) })
}

// TestRestoreTakesSlicesOver checks that the restore of a later backup adopts slices whose index an earlier restore
// removed (IM-8), within the grace period, which is the users' default here.
func TestRestoreTakesSlicesOver(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	newHandshake(ctx, t).restored(ctx)
}

type handshake struct {
	t      *testing.T
	up     *testcluster.Cluster
	c      *client.Client
	bucket string
	w      *harness.Workload
}

// newHandshake starts a cluster with documents and indexes.
func newHandshake(ctx context.Context, t *testing.T, env ...string) *handshake {
	up := testcluster.StartWith(t, env, t.TempDir(), "--managers", "1", "--kv", "1", "--indexers", "2", "--vbuckets",
		"32")
	h := &handshake{t: t, up: up, c: up.Client(), bucket: up.Manifest().Bucket,
		w: harness.NewWorkloadOf(ctx, t, up.KV(ctx), 8)}
	harness.CreateSampleIndexes(ctx, t, h.c, h.bucket)
	return h
}

func (h *handshake) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// copies returns the copies of an index on the indexer at that place of the manifest.
func (h *handshake) copies(ctx context.Context, name string, indexer int) (all []partition.Copy) {
	h.t.Helper()
	info, err := h.c.Index(ctx, client.Ref(h.bucket, name))
	h.must(err)
	node := h.status(ctx, indexer).Node
	for _, p := range info.Copies {
		if p.Node == node {
			all = append(all, p)
		}
	}
	return all
}

func (h *handshake) status(ctx context.Context, indexer int) v1.IndexerStatus {
	h.t.Helper()
	id, at := h.up.Manifest().Indexers[indexer].ID, -1
	var st v1.Status
	// after a restore the leader's duties begin anew
	harness.Eventually(h.t, harness.Hang, "the leader knows "+id, func() (bool, string) {
		var err error
		st, err = h.c.Status(ctx)
		at = slices.IndexFunc(st.Indexers, func(i v1.IndexerStatus) bool { return i.ID == id })
		return err == nil && at >= 0, fmt.Sprintf("%v %+v", err, st.Indexers)
	})
	return st.Indexers[at]
}

func (h *handshake) folder(indexer int, id index.CopyID) string {
	return filepath.Join(h.up.Dir, h.up.Manifest().Indexers[indexer].ID, "copies", id.String())
}

func (h *handshake) kill(indexer int) {
	h.t.Helper()
	h.up.Kill(func(m *localcluster.Manifest) int { return m.Indexers[indexer].PID })
}

// missing deletes a slice's folder while its indexer is killed.
func (h *handshake) missing(ctx context.Context) {
	name := harness.SampleIndexes()[2]
	one := h.copies(ctx, name, 0)[0]
	load, stop := context.WithCancel(ctx)
	var writers sync.WaitGroup
	writers.Go(func() { h.w.Run(load, 1, 200) })
	defer writers.Wait()
	defer stop()
	h.must(os.Rename(h.folder(0, one.ID), filepath.Join(h.up.Dir, "taken")))
	began := time.Now()
	h.kill(0)
	refused := 0
	var scans []harness.Scanned // compared once all writes are recorded
	for deadline := time.Now().Add(harness.Hang); len(scans) < 3; {
		one, done := context.WithTimeout(ctx, 15*time.Second)
		s, err := harness.Scan(one, h.c, h.bucket, name, "session")
		done()
		if err == nil {
			if scans = append(scans, s); len(scans) == 1 {
				h.t.Logf("the first scan works %s after the kill; %d were refused", time.Since(began).Round(time.Millisecond),
					refused)
			}
			continue
		}
		refused++
		h.t.Logf("refused: %v", err)
		if time.Now().After(deadline) {
			for _, view := range []string{"/v1/buckets/" + h.bucket + "/timestamps", "/v1/status", "/v1/streams?limit=4"} {
				_, body := harness.Get(ctx, h.t, h.up.Manifest().Managers[0].REST+view)
				h.t.Logf("%s: %.6000s", view, body)
			}
			_, body := harness.Get(ctx, h.t, h.up.Manifest().Indexers[0].Admin+"/v1/positions")
			h.t.Logf("positions: %s", body)
			_, body = harness.Get(ctx, h.t, h.up.Manifest().Indexers[0].Admin+"/v1/status")
			_, sides, _ := strings.Cut(body, "side_streams")
			h.t.Logf("side streams: %s", sides)
			h.t.Fatalf("not whole again: %v", err)
		}
	}
	stop()
	writers.Wait()
	for _, s := range scans {
		if d := s.Check(h.w.History); d != "" {
			h.t.Fatalf("a scan was given by halves: %s", d)
		}
	}
	if _, err := os.Stat(h.folder(0, one.ID)); err != nil {
		h.t.Error(err)
	}
	if o := h.status(ctx, 0); o.OrphanCount != 0 {
		h.t.Errorf("orphans: %+v", o.Orphans)
	}
}

// copied copies a slice of one indexer into the folder of another.
func (h *handshake) copied(ctx context.Context) {
	foreign := h.copies(ctx, harness.SampleIndexes()[0], 1)[0]
	pid := h.up.Manifest().Indexers[1].PID
	h.must(syscall.Kill(pid, syscall.SIGSTOP)) // its files do not change, as after a crash
	to := h.folder(0, foreign.ID)
	out, err := exec.CommandContext(ctx, "cp", "-a", h.folder(1, foreign.ID), to).CombinedOutput()
	h.must(syscall.Kill(pid, syscall.SIGCONT))
	if err != nil {
		h.t.Fatalf("cp: %v %s", err, out)
	}
	h.kill(0)
	var found time.Time
	harness.Eventually(h.t, harness.Hang, "the orphan is reported", func() (bool, string) {
		i := h.status(ctx, 0)
		if i.OrphanCount == 1 && i.Orphans[0].Copy == foreign.ID && found.IsZero() {
			found = time.UnixMilli(i.Orphans[0].SinceMS)
		}
		return !found.IsZero(), fmt.Sprintf("%+v", i)
	})
	if out := harness.MustRun(ctx, h.t, h.up, "cluster", "status"); !strings.Contains(out, "orphan") ||
		!strings.Contains(out, "copy "+foreign.ID.String()) {
		h.t.Errorf("cluster status:\n%s", out)
	}
	_, m := harness.Get(ctx, h.t, h.up.Manifest().Indexers[0].Admin+"/metrics")
	if !strings.Contains(m, "\ntidemark_indexer_orphans 1\n") {
		h.t.Errorf("no metric of it in\n%s", m)
	}
	harness.Eventually(h.t, harness.Hang, "the orphan is dropped", func() (bool, string) {
		_, err := os.Stat(to)
		return os.IsNotExist(err), fmt.Sprint(err)
	})
	if kept := time.Since(found); kept < testGrace {
		h.t.Errorf("it was dropped after %s", kept)
	} else {
		h.t.Logf("it was kept for %s", kept.Round(time.Millisecond))
	}
	if _, err := os.Stat(h.folder(1, foreign.ID)); err != nil {
		h.t.Errorf("the slice itself: %v", err)
	}
	harness.CheckFinal(ctx, h.t, h.c, h.w, h.bucket)
}

// restored restores a backup that lacks an index, and then one that contains it.
func (h *handshake) restored(ctx context.Context) {
	without, err := h.c.Backup(ctx)
	h.must(err)
	harness.Create(ctx, h.t, h.c, fmt.Sprintf("CREATE INDEX later ON %s(name)", h.bucket))
	with, err := h.c.Backup(ctx)
	h.must(err)
	before, err := harness.CollectSoon(ctx, h.c, h.bucket, "later", v1.ScanRequest{Consistency: "session"},
		harness.Hang)
	h.must(err)
	made := map[string]uint64{} // folders by inode
	for i := range 2 {
		for _, p := range h.copies(ctx, "later", i) {
			made[h.folder(i, p.ID)] = inode(h.t, h.folder(i, p.ID))
		}
	}
	_, err = h.c.Restore(ctx, without, "in-place", false)
	h.must(err)
	harness.Eventually(h.t, harness.Hang, "the index's slices are orphans", func() (bool, string) {
		n := h.status(ctx, 0).OrphanCount + h.status(ctx, 1).OrphanCount
		return n == len(made), fmt.Sprintf("%d orphans of %d", n, len(made))
	})
	_, err = h.c.Restore(ctx, with, "in-place", false)
	h.must(err)
	harness.WaitReady(ctx, h.t, h.c, h.bucket)
	after, err := harness.CollectSoon(ctx, h.c, h.bucket, "later", v1.ScanRequest{Consistency: "session"},
		harness.Hang)
	if err != nil || !slices.Equal(after.IDs, before.IDs) || len(after.IDs) == 0 {
		h.t.Errorf("%d rows, %v; before: %d", len(after.IDs), err, len(before.IDs))
	}
	for folder, was := range made {
		if now := inode(h.t, folder); now != was {
			h.t.Errorf("%s was made anew", folder)
		}
	}
	harness.Eventually(h.t, harness.Hang, "no orphans any more", func() (bool, string) {
		n := h.status(ctx, 0).OrphanCount + h.status(ctx, 1).OrphanCount
		return n == 0, fmt.Sprintf("%d orphans", n)
	})
	harness.CheckFinal(ctx, h.t, h.c, h.w, h.bucket)
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		t.Fatalf("no inode of %s", path)
	}
	return st.Ino
}
