// Package e2e tests the product as users run it: real processes on loopback, killed with SIGKILL, paused,
// partitioned, out of disk space, and compared with an oracle that shares no code with them. Package e2e/data has the
// tests of the data plane, package e2e/members those of membership.
package e2e

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/index"
	"tidemark/internal/localcluster"
	"tidemark/internal/testing/atonce"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/manager/api/v1"
)

var (
	leaderKills = flag.Int("kills", 3, "leaders killed in TestLeaderKilled")
	killWrites  = flag.Int("kills.writes", 200, "KV writes per second meanwhile")
)

const ddlLimit = harness.Hang // the bench asserts 1 s

func TestMain(m *testing.M) {
	atonce.Tests(4) // tests wait part of their time
	harness.Main(m)
}

// streamCounters reads, from every KV node, how many DCP connections it has accepted, how many streams it has opened
// or answered with a rollback, and how many items it has sent. Requests for existing streams do not count: on a slow
// machine a projector checks in this way whether KV still has a silent stream.
func streamCounters(ctx context.Context, t *testing.T, up *testcluster.Cluster) (opens, streams, items int64) {
	t.Helper()
	for _, e := range up.Manifest().KV {
		var s struct {
			Counters struct {
				DCPOpens        int64 `json:"dcp_opens"`
				StreamsAccepted int64 `json:"streams_accepted"`
				Rollbacks       int64 `json:"rollbacks"`
				DCPItems        int64 `json:"dcp_items"`
			} `json:"counters"`
		}
		if err := testcluster.GetJSON(ctx, e.Admin+"/v1/status", &s); err != nil {
			t.Fatal(err)
		}
		opens, items = opens+s.Counters.DCPOpens, items+s.Counters.DCPItems
		streams += s.Counters.StreamsAccepted + s.Counters.Rollbacks
	}
	return opens, streams, items
}

// leaderPID returns the leader's name and process id.
func leaderPID(ctx context.Context, t *testing.T, up *testcluster.Cluster, c *client.Client) (id string, pid int) {
	t.Helper()
	for deadline := time.Now().Add(harness.Hang); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		s, err := c.Status(ctx)
		if err != nil {
			continue
		}
		for _, m := range up.Manifest().Managers {
			if m.REST == s.Leader.REST && syscall.Kill(m.PID, 0) == nil {
				return m.ID, m.PID
			}
		}
	}
	t.Fatal("no leader for too long")
	return "", 0
}

// freshness returns how long a session scan takes from its first try on, which bounds the age of its rows. It retries
// when the manager that forwarded the scan was killed.
func freshness(ctx context.Context, c *client.Client, bucket string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, harness.Hang)
	defer cancel()
	for began := time.Now(); ; {
		_, err := c.Count(ctx, client.Ref(bucket, "airports_by_country"), v1.ScanRequest{Consistency: "session", Equal: []json.RawMessage{[]byte(`"FR"`)}})
		if err == nil || ctx.Err() != nil {
			return time.Since(began), err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func managerPID(id string) func(m *localcluster.Manifest) int {
	return func(m *localcluster.Manifest) int {
		for _, e := range m.Managers {
			if e.ID == id {
				return e.PID
			}
		}
		return 0
	}
}

// Scans during TestLeaderKilled: of a whole index twice a second, whose rows are compared with the oracle later, and
// ten session scans a second, each of which hurries a stability timestamp.
const (
	fullEvery    = 500 * time.Millisecond
	sessionEvery = 100 * time.Millisecond
)

// TestLeaderKilled kills the leader repeatedly while a DDL client, a writer and scanners run. The next DDL is
// accepted, every acknowledged DDL is present, no vbucket's stream is restarted, and scans continue. It logs how long
// session scans took, including those that a killed manager interrupted and that were retried.
func TestLeaderKilled(t *testing.T) {
	t.Parallel()
	// A process killed again within 10 s restarts after up to 30 s.
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute+time.Duration(*leaderKills)*30*time.Second)
	defer cancel()
	up := testcluster.Start(t, t.TempDir(), "--vbuckets", "32")
	c, bucket := up.Client(), up.Manifest().Bucket
	w := harness.NewWorkloadOf(ctx, t, up.KV(ctx), 8)
	harness.CreateSampleIndexes(ctx, t, c, bucket)
	opens, streams, _ := streamCounters(ctx, t, up)

	load, stop := context.WithCancel(ctx)
	defer stop()
	full, session := time.NewTicker(fullEvery), time.NewTicker(sessionEvery)
	defer full.Stop()
	defer session.Stop()
	var wg sync.WaitGroup
	wg.Go(func() { w.Run(load, 2, *killWrites) })
	var scans, cut atomic.Int64
	var kept []harness.Scanned // compared once all writes are recorded; owned by the scanner until it ends
	wg.Go(func() {
		for load.Err() == nil {
			s, err := harness.Scan(load, c, bucket, "airports_by_country", "any")
			switch {
			case load.Err() != nil:
			case err != nil:
				cut.Add(1) // the manager that forwarded the scan was killed meanwhile; the next one must work
			default:
				scans.Add(1)
				kept = append(kept, s)
			}
			<-full.C
		}
	})
	var fresh []time.Duration // owned by the prober until it ends
	began, written := time.Now(), w.Writes.Load()
	wg.Go(func() {
		for load.Err() == nil {
			if took, err := freshness(load, c, bucket); err == nil {
				fresh = append(fresh, took)
			}
			<-session.C
		}
	})
	acknowledged := map[string]bool{}
	var slowest time.Duration
	for i := range *leaderKills {
		id, pid := leaderPID(ctx, t, up, c)
		before := scans.Load()
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		killed := time.Now()
		name := fmt.Sprintf("after_kill_%d", i)
		ddl, done := context.WithTimeout(ctx, ddlLimit)
		_, err := c.Create(ddl, v1.CreateRequest{Bucket: bucket, Name: name, IsPrimary: true, DeferBuild: true})
		done()
		took := time.Since(killed)
		if err != nil {
			t.Fatalf("kill %d of %s: the next DDL failed after %s: %v", i, id, took, err)
		}
		acknowledged[name] = true
		slowest = max(slowest, took)
		up.WaitRestart(pid, managerPID(id))
		for deadline := time.Now().Add(harness.Hang); scans.Load() == before; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("kill %d: no scan for %s", i, harness.Hang)
			}
		}
	}
	list, err := c.Indexes(ctx, bucket)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range list.Indexes {
		delete(acknowledged, i.Name)
	}
	if len(acknowledged) > 0 {
		t.Errorf("acknowledged and lost: %v", acknowledged)
	}
	stop()
	wg.Wait()
	rate := float64(w.Writes.Load()-written) / time.Since(began).Seconds()
	// An additional connection may come from a request that KV answered too late, or from a read of documents.
	if o, r, _ := streamCounters(ctx, t, up); r != streams {
		t.Errorf("streams went from %d to %d: leader kills restarted streams (DCP connections from %d to %d)", streams, r,
			opens, o)
	}
	for _, s := range kept {
		if d := s.Check(w.History); d != "" {
			t.Fatalf("a scan among the kills: %s", d)
		}
	}
	if len(fresh) == 0 {
		t.Fatal("no session scan among the kills")
	}
	slices.Sort(fresh)
	t.Logf("%d kills: the next DDL took at most %s; %d scans, %d cut; %.0f writes a second; %d session scans: p50 %s, "+
		"p99 %s, most %s", *leaderKills, slowest,
		scans.Load(), cut.Load(), rate, len(fresh), fresh[len(fresh)/2], fresh[len(fresh)*99/100], fresh[len(fresh)-1])
	harness.CheckFinal(ctx, t, c, w, bucket)
}

// TestOthersKilled kills an indexer, a projector and a KV node, one after the other, under load. All indexes end up
// equal to the oracle, the other processes are not disturbed, and nothing restarts from zero without need.
func TestOthersKilled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	up := testcluster.Start(t, t.TempDir(), "--managers", "1", "--vbuckets", "32")
	c, bucket := up.Client(), up.Manifest().Bucket
	w := harness.NewWorkloadOf(ctx, t, up.KV(ctx), 8)
	harness.CreateSampleIndexes(ctx, t, c, bucket)
	load, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { w.Run(load, 3, 300) })

	first := *up.Manifest()
	_, streams, _ := streamCounters(ctx, t, up)
	steps := []struct {
		name string
		pid  func(m *localcluster.Manifest) int
	}{
		{"indexer", func(m *localcluster.Manifest) int { return m.Indexers[0].PID }},
		{"projector", func(m *localcluster.Manifest) int { return m.Projectors[0].PID }},
		{"KV node", func(m *localcluster.Manifest) int { return m.KV[1].PID }},
	}
	for _, step := range steps {
		up.Kill(step.pid)
		back := time.Now()
		for _, name := range harness.SampleIndexes() {
			s, err := harness.ScanSoon(ctx, c, bucket, name, harness.Hang)
			if err != nil {
				t.Fatalf("after the kill of a %s: %s: %v", step.name, name, err)
			}
			t.Logf("%s killed: session scan of %s (%d rows) %s after its return", step.name, name, len(s.IDs),
				time.Since(back).Round(time.Millisecond))
		}
		_, r, items := streamCounters(ctx, t, up)
		t.Logf("after the kill of a %s: %d streams more, %d items sent in all", step.name, r-streams, items)
		streams = r
	}
	stop()
	wg.Wait()
	now := up.Manifest()
	for i := range first.Managers {
		if first.Managers[i].PID != now.Managers[i].PID {
			t.Errorf("manager %s was disturbed", first.Managers[i].ID)
		}
	}
	for i := range first.Indexers {
		if (first.Indexers[i].PID != now.Indexers[i].PID) != (i == 0) {
			t.Errorf("indexer %s: pid %d, then %d", first.Indexers[i].ID, first.Indexers[i].PID, now.Indexers[i].PID)
		}
	}
	t.Logf("%d writes, %d without an answer", w.Writes.Load(), w.Failed.Load())
	harness.CheckFinal(ctx, t, c, w, bucket)
}

// TestStopAndResume checks that after an orderly stop and another `up` on the same folder everything is present
// without a rebuild; and that a SIGKILL of `up` itself leaves no child behind, so that the next `up` gets the same
// ports at once and has everything again.
func TestStopAndResume(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	dir := t.TempDir()
	up := testcluster.Start(t, dir, "--vbuckets", "32")
	c, bucket := up.Client(), up.Manifest().Bucket
	w := harness.NewWorkloadOf(ctx, t, up.KV(ctx), 8)
	harness.CreateSampleIndexes(ctx, t, c, bucket)
	before := map[string]harness.Scanned{}
	for _, name := range harness.SampleIndexes() {
		s, err := harness.ScanSoon(ctx, c, bucket, name, harness.Hang)
		if err != nil {
			t.Fatal(err)
		}
		before[name] = s
	}
	pids := allPIDs(up.Manifest())
	t.Logf("the stop took %s", up.Stop())
	noneAlive(t, pids)

	resume := func() {
		t.Helper()
		started := time.Now()
		up = testcluster.Start(t, dir)
		c = up.Client()
		for _, name := range harness.SampleIndexes() {
			s, err := harness.ScanSoon(ctx, c, bucket, name, harness.Hang)
			if err != nil {
				t.Fatal(err)
			}
			if d := s.Check(w.History); d != "" || len(s.IDs) != len(before[name].IDs) {
				t.Errorf("%s has %d rows, had %d: %s", name, len(s.IDs), len(before[name].IDs), d)
			}
		}
		t.Logf("ready again after %s", time.Since(started))
	}
	resume()
	if _, _, items := streamCounters(ctx, t, up); items > int64(len(w.Keys)/5) {
		t.Errorf("KV sent %d items after the restart: something was built again", items)
	}

	pids = allPIDs(up.Manifest())
	if err := syscall.Kill(up.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-up.Ended()
	resume() // while the old children are still stopping
	noneAlive(t, pids)
}

func allPIDs(m *localcluster.Manifest) (pids []int) {
	for _, e := range m.Managers {
		pids = append(pids, e.PID)
	}
	for _, e := range m.KV {
		pids = append(pids, e.PID)
	}
	for _, e := range m.Projectors {
		pids = append(pids, e.PID)
	}
	for _, e := range m.Indexers {
		pids = append(pids, e.PID)
	}
	return pids
}

// noneAlive waits until no process of the list exists.
func noneAlive(t *testing.T, pids []int) {
	t.Helper()
	for deadline := time.Now().Add(harness.Hang); ; time.Sleep(20 * time.Millisecond) {
		var left []int
		for _, pid := range pids {
			if syscall.Kill(pid, 0) == nil {
				left = append(left, pid)
			}
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("processes left behind: %v", left)
		}
	}
}

// TestDeferredIndexDelaysNothing checks that the copies of a deferred index, which no stream feeds, do not delay the
// stability timestamps and scans of other indexes, and that BUILD makes it ready.
func TestDeferredIndexDelaysNothing(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	up := testcluster.Start(t, t.TempDir(), "--managers", "1", "--vbuckets", "32")
	c, bucket, kv := up.Client(), up.Manifest().Bucket, up.KV(ctx)
	w := harness.NewWorkloadOf(ctx, t, kv, 8)
	harness.CreateSampleIndexes(ctx, t, c, bucket)
	if _, err := c.Create(ctx, v1.CreateRequest{Bucket: bucket, Name: "later", IsPrimary: true,
		DeferBuild: true}); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if err := w.Set(ctx, w.Keys[i], []byte(`{"name":"again"}`)); err != nil {
			t.Fatal(err)
		}
		s, err := harness.ScanSoon(ctx, c, bucket, "places_by_name", harness.Hang)
		if err != nil {
			t.Fatal(err)
		}
		if d := s.Check(w.History); d != "" {
			t.Fatal(d)
		}
	}
	if info, err := c.Index(ctx, client.Ref(bucket, "later")); err != nil || info.State != index.Pending ||
		!info.Deferred {
		t.Errorf("%+v, %v", info, err)
	}
	r, err := c.Build(ctx, bucket, "later")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.WaitReady(ctx, []index.ID{r[0].ID}, nil); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Count(ctx, client.Ref(bucket, "later"), v1.ScanRequest{Consistency: "session"}); err != nil ||
		n.Count != uint64(len(w.Keys)) {
		t.Errorf("%+v, %v; want %d", n, err, len(w.Keys))
	}
}
