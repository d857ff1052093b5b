package data

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"tidemark/client"
	"tidemark/expression"
	"tidemark/index"
	"tidemark/internal/localcluster"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/oracle"
	"tidemark/internal/testing/testcluster"
	"tidemark/keyversion"
	"tidemark/kv/kvclient"
	"tidemark/kv/mcbp"
	"tidemark/manager/api/v1"
)

var (
	buildDocuments = flag.Int("build.documents", 10_000, "documents of TestBuildWithKill; from 500,000 on progress must "+
		"be true within 5 percent points, and a killed indexer must not begin again from nothing")
	buildRate = flag.Int("build.rate", 1000, "updates a second while TestBuildWithKill builds")
)

// hotShare is the number of documents of which one is hot, which means that it is updated during the build. The
// others are cold.
const hotShare = 10

// buildIndexes returns the indexes that are built together. The first one has one entry per cold document: its number
// of entries is the progress of the build, whatever is written meanwhile.
func buildIndexes(t *testing.T, bucket string) (all []schemeIndex) {
	t.Helper()
	for _, text := range []string{
		`CREATE INDEX cold_names ON %s(name) WHERE cold = true`,
		`CREATE INDEX by_group ON %s(grp, name DESC)`,
		`CREATE INDEX spread ON %s(name) PARTITION BY HASH(name)`,
	} {
		x := schemeIndex{statement: fmt.Sprintf(text, bucket) + ` WITH {"defer_build": true}`}
		parsed, err := expression.Parse(x.statement)
		if err != nil {
			t.Fatal(err)
		}
		d := parsed[0].(*expression.CreateIndex).Definition()
		x.name, x.oracle, x.by = d.Name, oracle.OfDefinition(&d), d.PartitionBy
		all = append(all, x)
	}
	return all
}

func buildDocument(i int, version uint64) []byte {
	return fmt.Appendf(nil, `{"name":"document %d of %d","grp":"group %d","cold":%v,"fill":"the rest of a document that no index looks at, so that it is as long as a small one"}`,
		version, i, (uint64(i)+version)%97, i%hotShare != 0)
}

func buildKey(i int) string { return fmt.Sprintf("build::%07d", i) }

// sampled is a sample of a build, in percent of the cold documents: what the copies held just before and just after
// the request for the progress.
type sampled struct {
	at                      time.Time
	before, progress, after float64
}

// off returns the error of the reported progress in percentage points, above 0 if it was too high.
func (s sampled) off() float64 {
	switch {
	case s.progress < s.before:
		return s.progress - s.before
	case s.progress > s.after:
		return s.progress - s.after
	}
	return 0
}

// buildRun is one run of TestBuildWithKill.
type buildRun struct {
	t       *testing.T
	up      *testcluster.Cluster
	c       *client.Client
	w       *harness.Workload
	bucket  string
	docs    int
	indexes []schemeIndex
	samples []sampled
}

// load stores the documents, pipelined. Each key's first version is older than every later one; the history needs no
// more.
func (r *buildRun) load(ctx context.Context) {
	began, vbuckets, i := time.Now(), r.w.KV.Config().NumVBuckets(), 0
	_, err := r.w.KV.Load(ctx, func() (string, []byte, bool, error) {
		if i == r.docs {
			return "", nil, false, nil
		}
		key, value := buildKey(i), buildDocument(i, 0)
		r.w.History.Record(mcbp.VBucket([]byte(key), vbuckets), oracle.Op{Key: key, Value: value})
		i++
		return key, value, true, nil
	}, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Logf("%d documents stored in %s", r.docs, time.Since(began).Round(time.Millisecond))
}

// updateWriters is how many writers update in parallel; each owns its keys.
const updateWriters = 8

// update changes, deletes and recreates hot documents at a rate until ctx ends. Writes that are due together are sent
// together: a writer that waited for each answer would be limited by the latency, which is high while a build takes
// all processors.
func (r *buildRun) update(ctx context.Context, perSecond int) {
	var wg sync.WaitGroup
	for n := range updateWriters {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(9, uint64(n)))
			harness.Paced(ctx, time.Second*updateWriters/time.Duration(perSecond), func(ctx context.Context, due int) {
				if err := r.together(ctx, random, n, due); err != nil {
					r.t.Errorf("writer %d: %v", n, err)
				}
			})
		})
	}
	wg.Wait()
}

// together writes different documents of one writer in parallel, so that each document's writes are acknowledged in
// their order.
func (r *buildRun) together(ctx context.Context, random *rand.Rand, writer, due int) error {
	mine := r.docs / hotShare / updateWriters
	var chosen []int
	for range min(due, mine) {
		if i := hotShare * (writer + updateWriters*random.IntN(mine)); !slices.Contains(chosen, i) {
			chosen = append(chosen, i)
		}
	}
	var g errgroup.Group
	for _, i := range chosen {
		remove, version := random.IntN(10) == 0, random.Uint64N(1<<40)
		g.Go(func() error {
			if err := r.one(ctx, i, version, remove); err != nil {
				return fmt.Errorf("%s: %w", buildKey(i), err)
			}
			return nil
		})
	}
	return g.Wait()
}

// one writes a document, or deletes it; a document that does not exist is recreated.
func (r *buildRun) one(ctx context.Context, i int, version uint64, remove bool) error {
	if remove {
		m, err := r.w.KV.Delete(ctx, buildKey(i), 0)
		if err == nil {
			r.w.History.Record(m.VBucket, oracle.Op{Seqno: m.Seqno, Key: buildKey(i)})
			r.w.Writes.Add(1)
			return nil
		}
		if !errors.Is(err, kvclient.ErrKeyNotFound) {
			return err
		}
	}
	return r.w.Set(ctx, buildKey(i), buildDocument(i, version))
}

// metricSum sums a metric over all lines of all pages that contain holds. ok is false if a page cannot be read.
func metricSum(ctx context.Context, t *testing.T, urls []string, name, holds string) (sum float64, ok bool) {
	t.Helper()
	for _, url := range urls {
		status, page := harness.Get(ctx, t, url+"/metrics")
		if status != 200 {
			return 0, false
		}
		for line := range strings.Lines(page) {
			if !strings.HasPrefix(line, name) || !strings.Contains(line, holds) {
				continue
			}
			v, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:]), 64)
			if err != nil {
				t.Errorf("%s: %s: %v", url, line, err)
			}
			sum += v
		}
	}
	return sum, true
}

func indexerURLs(m *localcluster.Manifest) (urls []string) {
	for _, e := range m.Indexers {
		urls = append(urls, e.Admin)
	}
	return urls
}

// sent returns how many versions of documents KV has sent so far.
func (r *buildRun) sent(ctx context.Context) float64 {
	var urls []string
	for _, e := range r.up.Manifest().KV {
		urls = append(urls, e.Admin)
	}
	n, ok := metricSum(ctx, r.t, urls, "tidemark_kv_dcp_items_total", "")
	if !ok {
		r.t.Fatal("no metrics of the KV nodes")
	}
	return n
}

// received returns how many versions of documents the projectors have received from KV so far, by class of stream.
func (r *buildRun) received(ctx context.Context) (byClass [3]float64) {
	var urls []string
	for _, e := range r.up.Manifest().Projectors {
		urls = append(urls, e.Admin)
	}
	for i, class := range []keyversion.Class{keyversion.ClassMaintenance, keyversion.ClassBackfill,
		keyversion.ClassCatchup} {
		n, ok := metricSum(ctx, r.t, urls, "tidemark_projector_received_versions_total", fmt.Sprintf("class=%q", class))
		if !ok {
			r.t.Fatal("no metrics of the projectors")
		}
		byClass[i] = n
	}
	return byClass
}

// look takes a sample of the first index. building is false once it is READY.
func (r *buildRun) look(ctx context.Context) (s sampled, whole, building bool) {
	info, err := r.c.Index(ctx, client.Ref(r.bucket, r.indexes[0].name))
	if err != nil {
		r.t.Fatal(err)
	}
	urls, label := indexerURLs(r.up.Manifest()), fmt.Sprintf("index=%q", info.ID.String())
	percent := 100 / float64(r.docs-(r.docs+hotShare-1)/hotShare)
	before, has := metricSum(ctx, r.t, urls, "tidemark_indexer_copy_items", label)
	if info, err = r.c.Index(ctx, client.Ref(r.bucket, r.indexes[0].name)); err != nil {
		r.t.Fatal(err)
	}
	s = sampled{at: time.Now(), before: percent * before, progress: info.Progress}
	after, still := metricSum(ctx, r.t, urls, "tidemark_indexer_copy_items", label)
	s.after = percent * after
	if info.State == index.Backfill && (info.Progress < 0 || info.Progress >= 100) {
		r.t.Errorf("progress of an index that is being built: %g", info.Progress)
	}
	return s, has && still, info.State != index.Maintenance
}

// start starts the builds of all indexes together, and returns their ids.
func (r *buildRun) start(ctx context.Context) (ids []index.ID) {
	var names []string
	for _, x := range r.indexes {
		made, err := r.c.Statement(ctx, x.statement)
		if err != nil {
			r.t.Fatalf("%s: %v", x.statement, err)
		}
		ids, names = append(ids, made[0].ID), append(names, x.name)
	}
	if _, err := r.c.Statement(ctx, "CREATE INDEX doomed ON "+r.bucket+`(grp) WITH {"defer_build": true}`); err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.c.Build(ctx, r.bucket, append(names, "doomed")...); err != nil {
		r.t.Fatal(err)
	}
	return ids
}

// middle takes samples until the build is well advanced. It returns false if the build ended before that was seen.
func (r *buildRun) middle(ctx context.Context) bool {
	for {
		s, whole, building := r.look(ctx)
		switch {
		case !building:
			return false
		case whole:
			r.samples = append(r.samples, s)
		}
		if s.progress > 20 {
			return s.progress < 90
		}
	}
}

// drop drops the indexes before another try.
func (r *buildRun) drop(ctx context.Context) {
	for _, name := range []string{r.indexes[0].name, r.indexes[1].name, r.indexes[2].name, "doomed"} {
		if err := r.c.Drop(ctx, client.Ref(r.bucket, name), 0); err != nil {
			r.t.Fatal(err)
		}
	}
	r.samples = nil
}

// kill kills an indexer in the middle of the build, and drops one of the indexes meanwhile. It returns how many
// entries of the first index the victim held before, and with how many it came back.
func (r *buildRun) kill(ctx context.Context, id index.ID) (held, kept float64) {
	const victim = 0
	label := fmt.Sprintf("index=%q", id.String())
	urls := indexerURLs(r.up.Manifest())[victim : victim+1]
	if _, err := harness.Scan(ctx, r.c, r.bucket, r.indexes[1].name, "any"); err != nil &&
		!harness.RefusedAs(err, "INDEX_NOT_READY") {
		r.t.Errorf("a scan of an index that is being built: %v", err)
	}
	held, _ = metricSum(ctx, r.t, urls, "tidemark_indexer_copy_items", label)
	old := r.up.Manifest().Indexers[victim].PID
	if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
		r.t.Fatal(err)
	}
	if err := r.c.Drop(ctx, client.Ref(r.bucket, "doomed"), 0); err != nil {
		r.t.Errorf("drop in the middle of a build, an indexer being away: %v", err)
	}
	r.up.WaitRestart(old, func(m *localcluster.Manifest) int { return m.Indexers[victim].PID })
	harness.Eventually(r.t, time.Minute, "the killed indexer's metrics", func() (ok bool, _ string) {
		kept, ok = metricSum(ctx, r.t, urls, "tidemark_indexer_copy_items", label)
		return ok, ""
	})
	harness.Eventually(r.t, time.Minute, "a report of the killed indexer", func() (bool, string) {
		n, _ := metricSum(ctx, r.t, urls, "tidemark_indexer_reports_total", `outcome="ok"`)
		return n > 1, ""
	})
	return held, kept
}

// truth compares the reported progress with what the copies held. Samples between the kill and the indexer's return
// do not count, because its last report stays in force until it reports again.
func (r *buildRun) truth(killed, back, ready time.Time) {
	var worst sampled
	sum, n := 0.0, 0
	for _, s := range r.samples {
		if s.at.After(killed) && s.at.Before(back) {
			continue
		}
		if math.Abs(s.off()) > math.Abs(worst.off()) {
			worst = s
		}
		sum, n = sum+math.Abs(s.off()), n+1
	}
	if n == 0 {
		return
	}
	r.t.Logf("progress in %d samples: off by %+.1f percent points at most (%.1f reported, %.1f to %.1f true, %s before "+
		"READY), %.2f in the mean", n, worst.off(),
		worst.progress, worst.before, worst.after, ready.Sub(worst.at).Round(time.Millisecond), sum/float64(n))
	if allowed := r.allowed(); math.Abs(worst.off()) > allowed {
		r.t.Errorf("progress was off by %+.1f percent points, want at most %.1f", worst.off(), allowed)
	}
}

// stepDocuments is more than the documents in batches of side streams in flight on the indexers, which some copies
// have written and no report includes yet.
const stepDocuments = 10_000

// allowed returns the highest error of the progress, in percentage points.
func (r *buildRun) allowed() float64 {
	if r.docs >= 500_000 {
		return 5
	}
	return 5 + 100*stepDocuments/float64(r.docs)
}

// TestBuildWithKill builds three indexes together over stored documents, while others are updated and one indexer is
// killed in the middle. The indexes are exact from READY on; an index dropped in the middle leaves nothing. KV sends
// the bucket once to each indexer, for all indexes together, and again what the killed one had lost. -build.documents
// 1000000 -build.rate 5000 is the run of docs/performance.md.
func TestBuildWithKill(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute+time.Duration(*buildDocuments)*time.Millisecond)
	defer cancel()
	dir := t.TempDir()
	up := testcluster.Start(t, dir, "--managers", "1")
	kv := up.KV(ctx)
	w := &harness.Workload{KV: kv, History: oracle.NewHistory(kv.Config().NumVBuckets())}
	r := &buildRun{t: t, up: up, c: up.Client(), w: w, bucket: up.Manifest().Bucket, docs: *buildDocuments}
	r.indexes = buildIndexes(t, r.bucket)
	r.load(ctx)
	load, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { r.update(load, *buildRate) })

	var ids []index.ID
	var began time.Time
	var sent float64
	var received [3]float64
	var writes int64
	for try := 1; ; try++ {
		sent, received, writes, began = r.sent(ctx), r.received(ctx), r.w.Writes.Load(), time.Now()
		ids = r.start(ctx)
		if r.middle(ctx) {
			break
		}
		if try == 20 {
			t.Fatalf("no build of %d documents was met in its middle, of %d", r.docs, try)
		}
		r.drop(ctx)
	}
	killed := time.Now()
	held, found := r.kill(ctx, ids[0])
	back := time.Now()
	for building := true; building; {
		var s sampled
		var whole bool
		if s, whole, building = r.look(ctx); whole && building {
			r.samples = append(r.samples, s)
		}
	}
	if err := r.c.WaitReady(ctx, ids, nil); err != nil {
		t.Fatal(err)
	}
	ready := time.Now()
	sent, writes = r.sent(ctx)-sent, r.w.Writes.Load()-writes
	t.Logf("ready %s after the BUILD; %.0f updates/s", ready.Sub(began).Round(time.Millisecond),
		float64(writes)/ready.Sub(began).Seconds())
	t.Logf("killed after %s, holding %.0f entries of %s; back %s later with %.0f",
		killed.Sub(began).Round(time.Millisecond), held, r.indexes[0].name,
		back.Sub(killed).Round(time.Millisecond), found)
	r.truth(killed, back, ready)
	indexers := float64(len(up.Manifest().Indexers))
	streamed := (sent - float64(writes)) / float64(r.docs)
	for i, n := range r.received(ctx) {
		received[i] = n - received[i]
	}
	t.Logf("KV sent the bucket %.2f times, beside the updates, to %.0f indexers: %.0f versions on maintenance streams, "+
		"%.2f times the bucket on backfills, %.2f on catchups",
		streamed, indexers, received[0], received[1]/float64(r.docs), received[2]/float64(r.docs))
	// Once to each indexer, and at most once more to the killed one. The updates were subtracted once, but each side
	// stream may send them again.
	if most := indexers + 1 + (indexers+1)*float64(writes)/float64(r.docs); streamed > most {
		t.Errorf("KV sent the bucket %.2f times, want at most %.2f", streamed, most)
	}
	if r.docs >= 500_000 && found == 0 {
		t.Errorf("the killed indexer held %.0f entries and came back with none", held)
	}
	var scans []kept
	for _, x := range r.indexes {
		scans = append(scans, r.scan(ctx, x, "any"))
	}
	stop()
	wg.Wait()
	for _, x := range r.indexes {
		scans = append(scans, r.scan(ctx, x, "session"))
	}
	rows := 0
	for _, k := range scans {
		if d := k.check(w.History); d != "" {
			t.Errorf("%s: %s", k.what, d)
		}
		rows += len(k.s.IDs)
	}
	t.Logf("%d writes; %d scans with %d rows equal the oracle's", w.Writes.Load(), len(scans), rows)
	onlyKnownCopies(ctx, t, r.c, dir)
}

// scan reads a whole index, which must be ready.
func (r *buildRun) scan(ctx context.Context, x schemeIndex, consistency string) kept {
	s, err := harness.Collect(ctx, r.c, r.bucket, x.name, v1.ScanRequest{Consistency: consistency})
	if err != nil {
		r.t.Fatalf("%s, %s scan: %v", x.name, consistency, err)
	}
	return kept{x.name + ", " + consistency, x.oracle, s}
}
