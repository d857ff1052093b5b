package data

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/internal/localcluster"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/kv/mcbp"
	"tidemark/manager/api/v1"
)

// served waits until the process p1 has projectors for exactly these KV nodes, and streams every vbucket.
func served(ctx context.Context, t *testing.T, c *client.Client, vbuckets int, nodes ...localcluster.KVEntry) {
	t.Helper()
	var want []string
	for _, e := range nodes {
		want = append(want, "p1@"+e.Memcached)
	}
	slices.Sort(want)
	harness.Eventually(t, harness.Hang, fmt.Sprintf("%v serve all vbuckets", want), func() (bool, string) {
		s, err := c.Status(ctx)
		if err != nil {
			return false, err.Error()
		}
		var have []string
		streams := 0
		for _, p := range s.Projectors {
			have = append(have, string(p.ID))
			streams += p.Streams
		}
		return slices.Equal(have, want) && streams == vbuckets, fmt.Sprintf("%v with %d streams", have, streams)
	})
}

// TestOneProjectorProcessForAllNodes adds and removes KV nodes, and fails dead ones over, under writes, without
// starting or removing a projector. No write is missing, and no projector is reported as lost.
func TestOneProjectorProcessForAllNodes(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	up := testcluster.Start(t, t.TempDir(), "--managers", "1", "--kv", "3", "--kv-replicas", "1", "--kv-all", "--indexers",
		"1", "--vbuckets", "32")
	c, m, admin := up.Client(), up.Manifest(), harness.KVAdmin(up)
	w := harness.NewWorkloadOf(ctx, t, up.KV(ctx), 8)
	harness.CreateSampleIndexes(ctx, t, c, m.Bucket)
	served(ctx, t, c, m.VBuckets, m.KV...)

	load, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { w.Run(load, 17, 200) })
	harness.MustRun(ctx, t, up, "kv", "rebalance", "--remove", "kv3")
	served(ctx, t, c, m.VBuckets, m.KV[0], m.KV[1])
	harness.MustRun(ctx, t, up, "kv", "rebalance", "--add", harness.Addition(m.KV[2]))
	served(ctx, t, c, m.VBuckets, m.KV...)
	harness.Settled(ctx, t, admin, m.VBuckets)
	stop()
	wg.Wait()
	harness.CheckFinal(ctx, t, c, w, m.Bucket)

	up.Kill(func(m *localcluster.Manifest) int { return m.KV[1].PID })
	harness.Eventually(t, harness.Hang, "kv2 is failed over", func() (bool, string) {
		out, err := harness.Tidemark(ctx, t, up, "kv", "failover", "kv2")
		return err == nil || strings.Contains(out, "no such member"), out
	})
	served(ctx, t, c, m.VBuckets, m.KV[0], m.KV[2])
	harness.CheckFinal(ctx, t, c, w, m.Bucket)
}

// TestHungNodeDelaysNoOther checks that the indexes get the writes to a process's other nodes while one node
// hangs, and that session scans continue after its failover, while it still hangs.
func TestHungNodeDelaysNoOther(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	up := testcluster.Start(t, t.TempDir(), "--managers", "1", "--kv", "3", "--kv-replicas", "1", "--kv-all", "--indexers",
		"1", "--vbuckets", "32")
	c, m := up.Client(), up.Manifest()
	w := harness.NewWorkloadOf(ctx, t, up.KV(ctx), 8)
	harness.CreateSampleIndexes(ctx, t, c, m.Bucket)
	served(ctx, t, c, m.VBuckets, m.KV...)
	harness.Settled(ctx, t, harness.KVAdmin(up), m.VBuckets)
	config := w.KV.Config()
	hung := slices.IndexFunc(m.KV, func(e localcluster.KVEntry) bool { return e.ID == "kv3" })
	if err := syscall.Kill(m.KV[hung].PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(m.KV[hung].PID, syscall.SIGCONT) }()

	written := 0
	for _, key := range w.Keys {
		owner, err := config.KVAddr(config.Owner(mcbp.VBucket([]byte(key), config.NumVBuckets())), "127.0.0.1", false)
		if err != nil {
			t.Fatal(err)
		}
		if owner == m.KV[hung].Memcached {
			continue
		}
		name := fmt.Sprint("written beside ", written)
		at, err := w.Store(ctx, key, fmt.Appendf(nil, `{"name":%q}`, name))
		if err != nil {
			t.Fatal(err)
		}
		s, err := harness.CollectSoon(ctx, c, m.Bucket, "places_by_name", v1.ScanRequest{Consistency: "at_plus",
			Tokens: []v1.Token{{VBucket: at.VBucket, VBUUID: at.VBUUID, Seqno: at.Seqno}}}, harness.Hang)
		if err != nil || !slices.Contains(s.IDs, key) {
			t.Fatalf("%s at %s: %v", key, owner, err)
		}
		if written++; written == 20 {
			break
		}
	}
	harness.MustRun(ctx, t, up, "kv", "failover", "kv3", "--lose")
	if _, err := harness.ScanSoon(ctx, c, m.Bucket, "world_ids", harness.Hang); err != nil {
		t.Fatalf("a session scan after the failover: %v", err)
	}
	served(ctx, t, c, m.VBuckets, m.KV[0], m.KV[1])
	harness.CheckFinal(ctx, t, c, w, m.Bucket)
}
