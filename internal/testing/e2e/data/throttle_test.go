package data

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/kv/kvclient"
	"tidemark/wire"
)

// TestStoppedIndexer checks, with smart throttling, that a stopped indexer (SIGSTOP) delays no other one: meanwhile
// the others receive every document. When it resumes it catches up by itself, and each copy of the index equals KV.
func TestStoppedIndexer(t *testing.T) {
	t.Parallel()
	const documents, bytes = 6000, 3 << 10 // more than queues and sockets hold for one indexer
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	up := testcluster.Start(t, t.TempDir(), "--managers", "1", "--kv", "1", "--indexers", "3", "--throttle", "smart")
	m := up.Manifest()
	harness.Create(ctx, t, up.Client(), fmt.Sprintf("CREATE INDEX big ON %s(k) WITH {\"num_replica\": 2}", m.Bucket))
	stopped := m.Indexers[2].PID
	if err := syscall.Kill(stopped, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(stopped, syscall.SIGCONT) }()
	admin := m.Projectors[0].Admin
	state := func() (s wire.ProjectorState) {
		if err := testcluster.GetJSON(ctx, admin+"/v1/state", &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	before := state().Counters.Mutations
	began := time.Now()
	kv := up.KV(ctx)
	value := strings.Repeat("v", bytes)
	var g errgroup.Group
	for w := range 8 {
		g.Go(func() error {
			for i := w; i < documents; i += 8 {
				if _, err := kv.Set(ctx, fmt.Sprint("doc", i), fmt.Appendf(nil, `{"k":"%d%s"}`, i, value), kvclient.StoreOptions{}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	written := time.Since(began)
	dropping := 0
	harness.Eventually(t, time.Minute, "the others get everything", func() (bool, string) {
		s := state()
		busy := 0
		dropping = 0
		for _, topic := range s.Topics {
			for _, e := range topic.Endpoints {
				dropping += e.Dropping
				if e.Dropping == 0 && !e.Slow && e.Queue.Filled > 0 && e.State == "connected" {
					busy++
				}
			}
		}
		return s.Counters.Mutations-before >= documents && dropping > 0 && busy == 0,
			fmt.Sprintf("%d of %d documents, %d vbuckets dropped, %d queues", s.Counters.Mutations-before, documents, dropping,
				busy)
	})
	_, metrics := harness.Get(ctx, t, admin+"/metrics")
	for line := range strings.Lines(metrics) {
		if strings.HasPrefix(line, "tidemark_router_held_seconds_total") ||
			strings.HasPrefix(line, "tidemark_router_slow_total") {
			t.Log(strings.TrimSpace(line))
		}
	}
	t.Logf("%d documents written in %s, at the others %s after the first one; %d vbuckets of the stopped one are dropped",
		documents,
		written.Round(time.Millisecond), time.Since(began).Round(time.Millisecond), dropping)
	if err := syscall.Kill(stopped, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	t.Log(harness.MustRun(ctx, t, up, "index", "verify", m.Bucket+"/big", "--rate", "1000000"))
}
