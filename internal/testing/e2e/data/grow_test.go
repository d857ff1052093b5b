package data

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/kv/kvclient"
	"tidemark/manager/api/v1"
	"tidemark/statecontext"
)

var (
	growDocs = flag.Int("grow.docs", 0, "documents of TestGrow; 0: it is left out")
	growRate = flag.Int("grow.rate", 5000, "updates a second of TestGrow")
	growKV   = flag.Bool("grow.kv", false, "TestGrow fills new copies from KV alone")
)

// grower measures a cluster that grows and shrinks.
type grower struct {
	t      *testing.T
	ctx    context.Context
	c      *client.Client
	bucket string

	mu    sync.Mutex
	took  map[string][]time.Duration // of scans by consistency, since the last call of scans
	wrong map[string]int
}

func growDoc(n, version int) []byte {
	return fmt.Appendf(nil, `{"a":%d,"b":%d,"c":"name %d","d":%d}`, n%1000, (n+version)%5000, n, version)
}

func growKey(n int) string { return "doc" + strconv.Itoa(n) }

// load stores the documents.
func (g *grower) load(kv *kvclient.Client) {
	n := 0
	if _, err := kv.Load(g.ctx, func() (string, []byte, bool, error) {
		n++
		return growKey(n - 1), growDoc(n-1, 0), n <= *growDocs, nil
	}, nil); err != nil {
		g.t.Fatal(err)
	}
}

// update changes documents at the rate until ctx ends.
func (g *grower) update(ctx context.Context, kv *kvclient.Client) (done int) {
	r := rand.New(rand.NewPCG(1, 2))
	harness.Paced(ctx, time.Second/time.Duration(*growRate), func(ctx context.Context, due int) {
		end := done + due
		_, _ = kv.Load(ctx, func() (string, []byte, bool, error) { // it ends with ctx
			done++
			n := r.IntN(*growDocs)
			return growKey(n), growDoc(n, done), done <= end, nil
		}, nil)
		done = end
	})
	return done
}

// scan reads a few rows of one index after the other until ctx ends, always with this consistency.
func (g *grower) scan(ctx context.Context, seed uint64, consistency string) {
	r := rand.New(rand.NewPCG(seed, 3))
	for ctx.Err() == nil {
		name := fmt.Sprintf("g%d", 1+r.IntN(4))
		began := time.Now()
		_, err := harness.Collect(ctx, g.c, g.bucket, name, v1.ScanRequest{Limit: 20, Consistency: consistency,
			Equal: []json.RawMessage{json.RawMessage(strconv.Itoa(r.IntN(1000)))}})
		g.mu.Lock()
		if err == nil {
			g.took[consistency] = append(g.took[consistency], time.Since(began))
		} else if ctx.Err() == nil {
			g.wrong[err.Error()]++
		}
		g.mu.Unlock()
		time.Sleep(20 * time.Millisecond)
	}
}

// scans formats the durations and errors of scans since the last call.
func (g *grower) scans() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	all, wrong := g.took, g.wrong
	g.took, g.wrong = map[string][]time.Duration{}, map[string]int{}
	if len(wrong) > 0 {
		g.t.Errorf("scans failed: %v", wrong)
	}
	var lines []string
	for _, consistency := range slices.Sorted(maps.Keys(all)) {
		took := all[consistency]
		slices.Sort(took)
		at := func(q float64) time.Duration {
			return took[int(q*float64(len(took)-1))].Round(100 * time.Microsecond)
		}
		lines = append(lines, fmt.Sprintf("%d scans %q: p50 %v, p99 %v, most %v", len(took), consistency, at(0.5), at(0.99),
			at(1)))
	}
	return strings.Join(lines, ", ")
}

// Counters of an indexer that TestGrow logs.
const (
	growBytes = `tidemark_indexer_fill_bytes_total{direction="received"}`
	growParts = `tidemark_indexer_scan_parts_total{indexer="other"}`
	growScans = `tidemark_indexer_scans_total{code="OK"}`
)

// figures returns the counters of each indexer. It includes indexers that are not active: a new leader has not seen
// any of them yet.
func (g *grower) figures() map[string]map[string]float64 {
	st, err := g.c.Status(g.ctx)
	if err != nil {
		g.t.Fatal(err)
	}
	all := map[string]map[string]float64{}
	for _, i := range st.Indexers {
		_, page := harness.Get(g.ctx, g.t, i.Admin+"/metrics")
		all[i.ID] = map[string]float64{}
		for line := range strings.Lines(page) {
			name, n, _ := strings.Cut(strings.TrimSpace(line), " ")
			if name == growBytes || name == growParts || name == growScans {
				all[i.ID][name], _ = strconv.ParseFloat(n, 64)
			}
		}
	}
	return all
}

// grown returns by how much a counter of all indexers together has grown.
func grown(from, to map[string]map[string]float64, name string) (by float64) {
	for id := range to {
		by += to[id][name] - from[id][name]
	}
	return by
}

// others returns how many other indexers a scan has asked on average between two times.
func others(from, to map[string]map[string]float64) string {
	return fmt.Sprintf("%.2f others asked", grown(from, to, growParts)/max(grown(from, to, growScans), 1))
}

// lookFor is for how long scans are measured before and after a rebalance.
const lookFor = 15 * time.Second

// change runs a rebalance and logs its cost.
func (g *grower) change(what string, req v1.RebalanceRequest) {
	g.t.Helper()
	first := g.figures()
	g.scans()
	time.Sleep(lookFor)
	had := g.figures()
	before := g.scans() + ", " + others(first, had)
	m := &mover{t: g.t, ctx: g.ctx, c: g.c}
	began := time.Now()
	id := m.begin(req)
	estimates := g.estimates(began, id)
	r := m.over(id)
	took := time.Since(began)
	estimates(what, took)
	if r.Phase != statecontext.RebalanceFinished {
		g.t.Errorf("%s: %+v", what, r)
	}
	has := g.figures()
	moved := grown(had, has, growBytes)
	during := g.scans() + ", " + others(had, has)
	time.Sleep(lookFor) // with as many indexers as during the rebalance, without moves
	g.t.Logf("%s: %d copies of %.1f MiB in %v; files of %.1f MiB arrived: %.2f of that; scans before: %s; during: %s; "+
		"after: %s, %s",
		what, r.Done, float64(r.Bytes)/(1<<20), took.Round(time.Millisecond),
		moved/(1<<20), moved/max(float64(r.Bytes), 1), before, during, g.scans(), others(has, g.figures()))
}

// estimates records the estimates of a rebalance's remaining time until it is over; report then logs their error. It
// does not fail the test, because the remaining time depends on the machine's other load.
func (g *grower) estimates(began time.Time, id uint64) (report func(what string, took time.Duration)) {
	type said struct{ at, left time.Duration }
	var all []said
	ctx, stop := context.WithCancel(g.ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		harness.Paced(ctx, 250*time.Millisecond, func(ctx context.Context, _ int) {
			if r, err := g.c.RebalanceStatus(ctx, id); err == nil && r.RemainingMS != nil {
				all = append(all, said{time.Since(began), time.Duration(*r.RemainingMS) * time.Millisecond})
			}
		})
	})
	return func(what string, took time.Duration) {
		g.t.Helper()
		stop()
		wg.Wait()
		far, worst, at := 0, 0.0, said{}
		all = slices.DeleteFunc(all, func(s said) bool { return s.at < took/10 })
		for _, s := range all {
			off := math.Abs(float64(s.left-(took-s.at))) / float64(max(took-s.at, took/5))
			if off > 0.25 {
				far++
			}
			if off > worst {
				worst, at = off, s
			}
		}
		g.t.Logf("%s: of %d times that it says what is left, after the first tenth, %d are more than 25 %% off; at most "+
			"%.0f %%, after %.1f s of %.1f, when it says %.1f s", what, len(all), far, 100*worst, at.at.Seconds(), took.Seconds(),
			at.left.Seconds())
	}
}

// oneMore starts an indexer in addition to those of `up`, in a folder of dir.
func oneMore(t *testing.T, up *testcluster.Cluster, dir, id string) *testcluster.Process {
	t.Helper()
	var managers []string
	for _, e := range up.Manifest().Managers {
		managers = append(managers, e.REST)
	}
	args := []string{"indexer", "--id", id, "--data", filepath.Join(dir, id), "--managers", strings.Join(managers, ",")}
	for _, port := range []string{"admin", "scan", "maintenance", "backfill", "catchup"} {
		args = append(args, "--"+port, "127.0.0.1:0")
	}
	return testcluster.Spawn(t, dir, id, args...)
}

// verify compares an index with KV; the client resumes a verification that is cut off because the machine is too
// busy.
func (g *grower) verify(up *testcluster.Cluster, name string) {
	g.t.Helper()
	if out, err := harness.Tidemark(g.ctx, g.t, up, "index", "verify", name); err != nil {
		g.t.Fatalf("verifying %s: %v\n%s", name, err, out)
	}
}

// TestGrow adds two indexers to a cluster of three and removes one, under updates and scans. It logs how many bytes
// moved beyond the necessary ones, how long it took, and how long scans took before, during and after it; with
// -grow.kv the same for copies filled from KV. No scan fails, and in the end every index is correct.
func TestGrow(t *testing.T) {
	if *growDocs == 0 {
		t.Skip("a campaign: -grow.docs")
	}
	ctx := t.Context()
	if *growKV {
		t.Setenv("TIDEMARK_TRANSFER_RATE", "0")
	}
	dir := t.TempDir()
	up := testcluster.Start(t, dir)
	m := up.Manifest()
	g := &grower{t: t, ctx: ctx, c: up.Client(), bucket: m.Bucket, wrong: map[string]int{},
		took: map[string][]time.Duration{}}
	began := time.Now()
	g.load(up.KV(ctx))
	t.Logf("%d documents stored in %v", *growDocs, time.Since(began).Round(time.Second))
	began = time.Now()
	for i, keys := range []string{"a, b", "a, c", "a, d", "a, b, c"} {
		harness.Create(ctx, t, g.c, fmt.Sprintf(`CREATE INDEX g%d ON %s(%s) PARTITION BY HASH(META().id) WITH {"num_partition":8,"num_replica":1}`,
			i+1, m.Bucket, keys))
	}
	harness.WaitReady(ctx, t, g.c, m.Bucket)
	t.Logf("4 indexes of 8 slices with a replica built in %v", time.Since(began).Round(time.Second))
	load, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	updates := 0
	wg.Go(func() { updates = g.update(load, up.KV(ctx)) })
	for n, consistency := range []string{"any", "any", "session"} {
		wg.Go(func() { g.scan(load, uint64(n), consistency) })
	}
	for _, id := range []string{"i4", "i5"} {
		oneMore(t, up, dir, id)
	}
	harness.Eventually(t, harness.Hang, "five indexers", func() (bool, string) {
		st, err := g.c.Status(ctx)
		return err == nil && len(st.Indexers) == 5, ""
	})
	began = time.Now()
	g.change("3 to 5", v1.RebalanceRequest{})
	g.change("5 to 4", v1.RebalanceRequest{Remove: []string{"i5"}})
	stop()
	wg.Wait()
	t.Logf("%d updates, %.0f a second", updates, float64(updates)/time.Since(began).Seconds())
	for i := range 4 {
		g.verify(up, fmt.Sprintf("%s/g%d", m.Bucket, i+1))
	}
}
