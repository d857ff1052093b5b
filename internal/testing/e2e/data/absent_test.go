package data

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/internal/localcluster"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/kv/kvclient"
	"tidemark/manager/api/v1"
)

var (
	catchupDocuments = flag.Int("catchup.documents", 8000, "documents that the indexer of "+
		"TestCatchupLeavesOthersTheirShare lacks")
	catchupRate   = flag.Int("catchup.rate", 4000, "its --catchup-rate; below 0: none")
	catchupWrites = flag.Int("catchup.writes", 200, "updates a second meanwhile")
	catchupProbe  = flag.Duration("catchup.probe", time.Second, "how long the others' scans are measured before")
	snapshotSize  = flag.Int("snapshot.documents", 8000, "documents of TestLargeDiskSnapshots, in four snapshots")
)

// routerQueues is more bytes than a projector's queues and sockets hold for one indexer: further events leave a gap.
const routerQueues = 20 << 20

// absent ends a process in order, so that it loses nothing, and keeps it away by stopping the `up` that would restart
// it. back resumes `up`.
func absent(t *testing.T, up *testcluster.Cluster, pid func(m *localcluster.Manifest) int) (back func()) {
	t.Helper()
	old := pid(up.Manifest())
	if err := syscall.Kill(up.PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	goOn := func() { once.Do(func() { _ = syscall.Kill(up.PID(), syscall.SIGCONT) }) }
	t.Cleanup(goOn)
	if err := syscall.Kill(old, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, harness.Hang, "the process ends", func() (bool, string) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", old))
		// its exit status has not been collected yet
		return err != nil || strings.Contains(string(b), ") Z "), string(b)
	})
	return func() {
		t.Helper()
		goOn()
		up.WaitRestart(old, pid)
	}
}

// store writes documents n to n+count-1, each with its number and text bytes of filler, pipelined.
func store(ctx context.Context, t *testing.T, kv *kvclient.Client, n, count, text int) {
	t.Helper()
	i := n
	if _, err := kv.Load(ctx, func() (string, []byte, bool, error) {
		i++
		return fmt.Sprintf("doc%07d", i-1), fmt.Appendf(nil, `{"k":"key %07d","text":"%0*d"}`, i-1, text, i), i <= n+count, nil
	}, nil); err != nil {
		t.Fatal(err)
	}
}

// processorTime returns the machine's idle and total processor time.
func processorTime(t *testing.T) (idle, all uint64) {
	t.Helper()
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(b), "\n")
	for i, f := range strings.Fields(first)[1:] {
		n, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if i == 3 {
			idle = n
		}
		if i < 8 { // the later fields are parts of these
			all += n
		}
	}
	return idle, all
}

// probePause is the time between two scans, which leaves the cores to the cluster.
const probePause = 30 * time.Millisecond

// probed is how long session scans took, and how much processor time was idle meanwhile.
type probed struct {
	took  []time.Duration // including failed tries
	again int             // failed tries
	idle  float64
}

func (p probed) at(share float64) time.Duration { return p.took[int(float64(len(p.took)-1)*share)] }

func (p probed) String() string {
	return fmt.Sprintf("%d session scans, %d tries failed: p50 %s, p99 %s, most %s, processors %.0f %% idle", len(p.took),
		p.again, p.at(0.5).Round(time.Microsecond), p.at(0.99).Round(time.Microsecond), p.at(1).Round(time.Microsecond),
		p.idle)
}

// probe makes session scans for one key of an index until over is closed, at least one.
func probe(ctx context.Context, t *testing.T, c *client.Client, bucket, name string, over <-chan struct{}) (p probed) {
	t.Helper()
	idle, all := processorTime(t)
	began := time.Now()
	for done := false; !done; began = time.Now() {
		for {
			_, err := c.Count(ctx, client.Ref(bucket, name), v1.ScanRequest{Consistency: "session", Equal: []json.RawMessage{[]byte(`"key 0000001"`)}})
			if err == nil {
				break
			}
			if p.again++; time.Since(began) > harness.Hang {
				t.Fatalf("a session scan of %s: %v", name, err)
			}
		}
		p.took = append(p.took, time.Since(began))
		select {
		case <-over:
			done = true
		case <-time.After(probePause):
		}
	}
	slices.Sort(p.took)
	nowIdle, nowAll := processorTime(t)
	p.idle = 100 * float64(nowIdle-idle) / float64(max(nowAll-all, 1))
	return p
}

// TestCatchupLeavesOthersTheirShare checks that an indexer that was away catches up at its limited rate, while scans
// of the others' indexes continue. With more documents, and on an idle machine, it also measures what that costs the
// others: session scans before and during the catchup.
func TestCatchupLeavesOthersTheirShare(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	up := testcluster.StartWith(t, []string{fmt.Sprint("TIDEMARK_CATCHUP_RATE=", *catchupRate)}, t.TempDir(),
		"--managers", "1", "--kv", "1", "--indexers", "2")
	c, kv, bucket := up.Client(), up.KV(ctx), up.Manifest().Bucket
	store(ctx, t, kv, 0, 1000, 200)
	harness.Create(ctx, t, c, fmt.Sprintf(`CREATE INDEX gone ON %s(k, text) WITH {"nodes": ["i1"]}`, bucket), fmt.Sprintf(`CREATE INDEX there ON %s(k) WITH {"nodes": ["i2"]}`, bucket))

	load, stop := context.WithCancel(ctx)
	defer stop()
	var writer sync.WaitGroup
	defer writer.Wait()
	defer stop()
	writer.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(*catchupWrites))
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-load.Done():
				return
			case <-tick.C:
			}
			if _, err := kv.Set(ctx, fmt.Sprintf("doc%07d", 2+i%900), fmt.Appendf(nil, `{"k":"key %07d","n":%d}`, 2+i%900, i), kvclient.StoreOptions{}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	back := absent(t, up, func(m *localcluster.Manifest) int { return m.Indexers[0].PID })
	store(ctx, t, kv, 1000, *catchupDocuments, max(200, routerQueues / *catchupDocuments))
	// once a scan of the other index is answered, the leader no longer waits for the absent indexer
	if _, err := harness.ScanSoon(ctx, c, bucket, "there", harness.Hang); err != nil {
		t.Fatal(err)
	}
	quiet := make(chan struct{})
	time.AfterFunc(*catchupProbe, func() { close(quiet) })
	t.Logf("while it is away: %v", probe(ctx, t, c, bucket, "there", quiet))

	received := func() float64 {
		n, ok := metricSum(ctx, t, []string{up.Manifest().Projectors[0].Admin}, "tidemark_projector_received_versions_total", `class="catchup"`)
		if !ok {
			t.Fatal("the projector does not say what KV has sent")
		}
		return n
	}
	before, began := received(), time.Now()
	back()
	whole := make(chan struct{})
	var took time.Duration
	var rows int
	var failed error
	go func() {
		defer close(whole)
		var s harness.Scanned
		s, failed = harness.ScanSoon(ctx, c, bucket, "gone", 10*time.Minute)
		took, rows = time.Since(began), len(s.IDs)
	}()
	t.Logf("while it catches up: %v", probe(ctx, t, c, bucket, "there", whole))
	if failed != nil || rows != 1000+*catchupDocuments {
		t.Fatalf("%d rows of %d: %v", rows, 1000+*catchupDocuments, failed)
	}
	n := received() - before
	t.Logf("whole again after %s; %.0f versions of %d documents were sent by KV for it, the projector's queue had the "+
		"others", took.Round(time.Millisecond), n, *catchupDocuments)
	switch least := time.Duration(n / float64(*catchupRate) * float64(time.Second)); {
	case n == 0:
		t.Error("nothing was caught up: the projector's queue held all")
	case took < least:
		t.Errorf("at %d a second that takes %s", *catchupRate, least)
	}
	stop()
	writer.Wait()
	t.Log(harness.MustRun(ctx, t, up, "index", "verify", bucket+"/gone", "--rate", "1000000"))
}

// TestLargeDiskSnapshots brings a projector back that was away and finds in each vbucket one DCP snapshot far larger
// than the queue of a stability timestamp, no part of which is a state that KV had. Stability timestamps continue
// meanwhile or afterwards, scans at any timestamp are answered all the time, session scans are answered or fail with
// a reason, and in the end the index equals KV.
func TestLargeDiskSnapshots(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	up := testcluster.Start(t, t.TempDir(), "--managers", "1", "--kv", "1", "--indexers", "1", "--vbuckets", "4")
	c, kv, bucket := up.Client(), up.KV(ctx), up.Manifest().Bucket
	store(ctx, t, kv, 0, 100, 200)
	harness.Create(ctx, t, c, fmt.Sprintf(`CREATE INDEX i ON %s(k)`, bucket))
	if _, err := harness.ScanSoon(ctx, c, bucket, "i", harness.Hang); err != nil {
		t.Fatal(err)
	}
	number := func() uint64 {
		s, err := c.Timestamps(ctx, bucket, 0, 1)
		if err != nil {
			t.Fatal(err)
		}
		return s.Number
	}
	first := number()
	back := absent(t, up, func(m *localcluster.Manifest) int { return m.Projectors[0].PID })
	store(ctx, t, kv, 100, *snapshotSize, 200)
	store(ctx, t, kv, 0, 50, 200) // again: the snapshot leaves out the first versions
	began := time.Now()
	back()
	refusals := map[string]int{}
	anyScans := 0
	harness.Eventually(t, 10*time.Minute, "a session scan is answered", func() (bool, string) {
		if _, err := c.Count(ctx, client.Ref(bucket, "i"), v1.ScanRequest{Consistency: "any"}); err != nil {
			t.Fatalf("a scan at any timestamp: %v", err)
		}
		anyScans++
		n, err := c.Count(ctx, client.Ref(bucket, "i"), v1.ScanRequest{Consistency: "session"})
		if err != nil {
			refusals[err.Error()]++
			return false, err.Error()
		}
		if want := uint64(100 + *snapshotSize); n.Count != want {
			t.Fatalf("%d rows, %d documents", n.Count, want)
		}
		return true, ""
	})
	t.Logf("%d documents in four snapshots: a session scan %s after the projector was asked to come back; stability "+
		"timestamp %d, then %d; %d scans at any timestamp; session scans refused: %v",
		*snapshotSize, time.Since(began).Round(time.Millisecond), first, number(), anyScans, refusals)
	if number() <= first {
		t.Errorf("the stability timestamp is %d as before", first)
	}
	for i := range 3 { // and the cluster continues to work
		if _, err := kv.Set(ctx, "after", fmt.Appendf(nil, `{"k":"after %d"}`, i), kvclient.StoreOptions{}); err != nil {
			t.Fatal(err)
		}
		n, err := c.Count(ctx, client.Ref(bucket, "i"), v1.ScanRequest{Consistency: "session", Equal: []json.RawMessage{fmt.Appendf(nil, `"after %d"`, i)}})
		if err != nil || n.Count != 1 {
			t.Fatalf("%d rows: %v", n.Count, err)
		}
	}
	t.Log(harness.MustRun(ctx, t, up, "index", "verify", bucket+"/i", "--rate", "1000000"))
}
