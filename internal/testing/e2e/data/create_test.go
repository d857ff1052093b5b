package data

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/index"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/internal/testing/tracingtest"
	"tidemark/manager/api/v1"
)

var (
	createRounds    = flag.Int("create.rounds", 10, "indexes that TestCreateAndDrop creates, each dropped before the next")
	createDocuments = flag.Int("create.documents", 4000, "documents of 2 KiB that they are built over: more than a side "+
		"stream's buffer takes")
	createMost = flag.Duration("create.most", time.Minute, "how long the slowest of them may take")
	createKV   = flag.Int("create.kv", 2, "KV nodes of TestCreateAndDrop, each with its projector")
)

// TestCreateAndDrop creates an index, waits until it is ready and drops it, repeatedly. No request for a stream may
// need a retry: a side stream that a projector refuses, or does not answer for, costs pauses that a user notices. The
// number of entries in the list of indexes is that of the moment of readiness. Each index's life is one trace, and
// the slowest is logged.
func TestCreateAndDrop(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute+time.Duration(*createRounds)**createMost)
	defer cancel()
	dir := t.TempDir()
	spans := tracingtest.New(t)
	up := testcluster.StartWith(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + spans.URL, "OTEL_BSP_SCHEDULE_DELAY=200"},
		dir, "--managers", "1", "--kv", fmt.Sprint(*createKV), "--indexers", "1")
	c, kv, bucket := up.Client(), up.KV(ctx), up.Manifest().Bucket
	i, fill := 0, strings.Repeat("x", 2048)
	if _, err := kv.Load(ctx, func() (string, []byte, bool, error) {
		i++
		return fmt.Sprintf("create::%07d", i), fmt.Appendf(nil, `{"name":"name %d","fill":%q}`, i, fill), i <= *createDocuments, nil
	}, nil); err != nil {
		t.Fatal(err)
	}
	var took []time.Duration
	var slowest []tracingtest.Span
	stages := map[string][]time.Duration{}
	for n := range *createRounds {
		name := fmt.Sprintf("round%d", n)
		began := time.Now()
		traced, id := tracingtest.Begin(ctx)
		made, err := c.Statement(traced, "CREATE INDEX "+name+" ON "+bucket+"(name)")
		if err != nil {
			t.Fatal(err)
		}
		if err := c.WaitReady(ctx, []index.ID{made[0].ID}, nil); err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(began))
		life := lifeOfIndex(t, spans, id)
		for _, s := range life {
			if strings.HasPrefix(s.Name, "build: ") || s.Name == "make copies" || s.Name == "drop copies" {
				stages[s.Name] = append(stages[s.Name], s.Ended.Sub(s.Began))
			}
		}
		if last := took[len(took)-1]; last == slices.Max(took) {
			slowest = life
		}
		info, err := c.Index(ctx, client.Ref(bucket, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Items != uint64(*createDocuments) {
			t.Errorf("round %d: %d entries are shown of an index that is ready, %d documents have one", n, info.Items,
				*createDocuments)
		}
		if last := took[len(took)-1]; last > *createMost {
			t.Fatalf("round %d took %s, at most %s are allowed", n, last, *createMost)
		}
		if err := c.Drop(ctx, client.Ref(bucket, name), 0); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("the slowest:\n%s", tracingtest.Timeline(slowest))
	for _, name := range slices.Sorted(maps.Keys(stages)) {
		all := stages[name]
		slices.Sort(all)
		t.Logf("%4d × %-55s %s at the median, %s at most", len(all), name, all[len(all)/2].Round(time.Millisecond),
			all[len(all)-1].Round(time.Millisecond))
	}
	slices.Sort(took)
	t.Logf("%d indexes over %d documents: ready after %s at the median, %s at most", len(took), *createDocuments,
		took[len(took)/2].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond))
	urls := indexerURLs(up.Manifest())
	all, _ := metricSum(ctx, t, urls, "tidemark_indexer_side_streams_total", "")
	begun, _ := metricSum(ctx, t, urls, "tidemark_indexer_side_streams_total", `outcome="begun"`)
	t.Logf("side streams of %.0f vbuckets were asked for, %.0f of them began", all, begun)
	if again := all - begun; again > 0 {
		t.Errorf("side streams of %.0f vbuckets were asked for in vain", again)
	}
}

// lifeOfIndex returns the trace of a CREATE INDEX, from the statement until all components have the index as ready.
func lifeOfIndex(t *testing.T, spans *tracingtest.Collector, id string) (all []tracingtest.Span) {
	t.Helper()
	stages := []string{"POST /v1/statements", "build index", "build: hosts make copies", "build: streams begin",
		"build: components receive that it is ready"} // without spans that may be too short to be recorded
	parts := append(slices.Clone(stages), "side stream ", "connect to KV", "request the streams from KV")
	harness.Eventually(t, harness.Hang, "the whole trace of a CREATE INDEX", func() (bool, string) {
		all = spans.Trace(id)
		for _, name := range parts {
			if !slices.ContainsFunc(all, func(s tracingtest.Span) bool { return strings.HasPrefix(s.Name, name) }) {
				return false, fmt.Sprintf("no %q in\n%s", name, tracingtest.Timeline(all))
			}
		}
		return true, ""
	})
	at := 0
	for _, s := range all { // ordered by their start
		if at < len(stages) && s.Name == stages[at] {
			at++
		}
	}
	if at < len(stages) {
		t.Errorf("%q does not come after what should be before it:\n%s", stages[at], tracingtest.Timeline(all))
	}
	return all
}

// promoted matches a bucket's timestamps once there is a stability timestamp.
var promoted = regexp.MustCompile(`"stability_number": [1-9]`)

// TestReadyHasEverything stops a projector while the first index of a bucket is created. The index must not become
// ready without the documents of that projector's KV node; it does when the projector is back.
func TestReadyHasEverything(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	up := testcluster.Start(t, t.TempDir(), "--managers", "1", "--kv", "2", "--indexers", "1")
	c, bucket := up.Client(), up.Manifest().Bucket
	store(ctx, t, up.KV(ctx), 0, 2000, 10)
	slow := up.Manifest().Projectors[1].PID
	if err := syscall.Kill(slow, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(slow, syscall.SIGCONT) })
	made, err := c.Statement(ctx, "CREATE INDEX keys ON "+bucket+"(k)")
	if err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, harness.Hang, "streams of the other projector", func() (bool, string) {
		out := harness.MustRun(ctx, t, up, "cluster", "timestamps", bucket, "--output", "json")
		return promoted.MatchString(out), out
	})
	soon, stop := context.WithTimeout(ctx, 2*time.Second)
	defer stop()
	if err := c.WaitReady(soon, []index.ID{made[0].ID}, nil); err == nil {
		n, err := c.Count(ctx, client.Ref(bucket, "keys"), v1.ScanRequest{})
		t.Fatalf("it is ready without half of the vbuckets, a scan counts %+v, %v", n, err)
	}
	if err := syscall.Kill(slow, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitReady(ctx, []index.ID{made[0].ID}, nil); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Count(ctx, client.Ref(bucket, "keys"), v1.ScanRequest{}); err != nil || n.Count != 2000 {
		t.Fatalf("ready: a scan counts %+v, %v, 2000 documents have an entry", n, err)
	}
}
