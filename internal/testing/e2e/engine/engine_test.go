// Package engine runs the product with a real KV engine of the 6.0 line, no part of which is in this repository: the
// environment variable ENGINE_DIR names the folder of a build (docs/couchbase.md); without it every test of the
// package is skipped. The tests do the work of a cluster manager (bucket, states of vbuckets, map, compaction) and
// compare indexes with KV, document by document.
package engine

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/ports"
	"tidemark/internal/testing/testcluster"
	"tidemark/internal/testing/tracingtest"
	"tidemark/kv/kvclient"
	"tidemark/kv/mcbp"
	"tidemark/projector/feed"
	"tidemark/timestamp"
)

var (
	rounds   = flag.Int("rounds", 20, "rounds of each campaign")
	vbuckets = flag.Int("vbuckets", 64, "vbuckets of the bucket")
	seed     = flag.Uint64("seed", 1, "seed of the campaigns")
)

const (
	bucket    = "world"
	documents = 8000
	writers   = 8
	perSecond = 4000
	statement = `CREATE INDEX %s ON world(n) WITH {"num_partition":8}`
)

func TestMain(m *testing.M) { harness.Main(m) }

// cluster is an engine, a manager, a projector of the engine's node, and two indexers.
type cluster struct {
	*node
	dir     string
	base    int
	procs   map[string]*testcluster.Process
	kv      *kvclient.Client
	client  *client.Client
	r       *rand.Rand
	version atomic.Uint64

	other *node                  // an engine without the bucket
	pad   string                 // filler of each document
	spans *tracingtest.Collector // nil: no tracing
	rough bool                   // writes may fail
	// seqnos that kills have lost, in all, and the most of one vbucket at a time
	seqnos, most uint64
}

func newCluster(ctx context.Context, t testing.TB, feed string, settings ...string) *cluster {
	t.Helper()
	w := emptyCluster(t)
	w.engine(ctx, *vbuckets, settings...)
	w.product(ctx, w.addr(), feed)
	return w
}

// engineDir returns the folder of the engine's build.
func engineDir(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("ENGINE_DIR")
	if dir == "" {
		t.Skip("needs a real KV engine: ENGINE_DIR does not name a folder where one was built (docs/couchbase.md)")
	}
	return dir
}

// emptyCluster is newCluster without starting anything.
func emptyCluster(t testing.TB) *cluster {
	t.Helper()
	w := &cluster{node: &node{t: t}, dir: t.TempDir(), base: ports.Range(t), procs: map[string]*testcluster.Process{},
		r: rand.New(rand.NewPCG(*seed, 0))}
	if err := os.WriteFile(filepath.Join(w.dir, "password"), []byte(password), 0o600); err != nil {
		t.Fatal(err)
	}
	return w
}

// engine starts the engine and creates the bucket.
func (w *cluster) engine(ctx context.Context, vbuckets int, settings ...string) {
	w.t.Helper()
	dir, folder := engineDir(w.t), filepath.Join(w.dir, "engine")
	if err := os.Mkdir(folder, 0o700); err != nil {
		w.t.Fatal(err)
	}
	w.node = startNode(w.t, dir, folder, w.base+40)
	w.extra = settings
	w.create(ctx, bucket, vbuckets)
}

// product starts a manager, a projector for a KV node, two indexers, and the clients of both.
func (w *cluster) product(ctx context.Context, kv, feed string) {
	w.t.Helper()
	w.spawn("m1", "manager", "--id", "m1", "--data", filepath.Join(w.dir, "m1"), "--rest", w.at(0), "--raft", w.at(1),
		"--bootstrap-expect", "1", "--join", w.at(0))
	w.spawn("p1", "projector", "--id", "p1", "--managers", w.at(0), "--admin", w.at(2), "--kv", kv, "--kv-user",
		user, "--kv-password-file", "password",
		"--feed", feed)
	w.indexer(1)
	w.indexer(2)
	w.client = client.Open(client.Options{Servers: []string{"http://" + w.at(0)}})
	w.t.Cleanup(w.client.Close)
	var err error
	if w.kv, err = kvclient.Connect(ctx, []string{kv}, kvclient.Options{User: user, Password: password,
		Bucket: bucket}); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = w.kv.Close() })
}

func (w *cluster) at(offset int) string { return fmt.Sprintf("127.0.0.1:%d", w.base+offset) }

func (w *cluster) spawn(name string, args ...string) {
	w.t.Helper()
	w.procs[name] = testcluster.Spawn(w.t, w.dir, name, args...)
}

func (w *cluster) indexer(n int) {
	w.t.Helper()
	id, at := fmt.Sprint("i", n), 5+5*n
	w.spawn(id, "indexer", "--id", id, "--data", filepath.Join(w.dir, id), "--managers", w.at(0), "--admin", w.at(at),
		"--scan", w.at(at+1),
		"--maintenance", w.at(at+2), "--backfill", w.at(at+3), "--catchup", w.at(at+4))
}

func key(n int) string { return fmt.Sprint("k", n) }

func (w *cluster) set(ctx context.Context, n int) error {
	_, err := w.kv.Set(ctx, key(n), fmt.Appendf(nil, `{"n":%d%s}`, w.version.Add(1), w.pad), kvclient.StoreOptions{})
	return err
}

// try is change for writes that may fail, because the engine or the vbucket is away.
func (w *cluster) try(ctx context.Context, writer int, r *rand.Rand) error {
	one, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_ = w.change(one, writer, r) // the outcome shows when the documents are read in the end
	return nil
}

// change writes or deletes one of a writer's own keys.
func (w *cluster) change(ctx context.Context, writer int, r *rand.Rand) error {
	n := writer + writers*r.IntN(documents/writers)
	if r.IntN(3) > 0 {
		return w.set(ctx, n)
	}
	if _, err := w.kv.Delete(ctx, key(n), 0); err != nil && !isMissing(err) {
		return err
	}
	return nil
}

// load stores every document.
func (w *cluster) load(ctx context.Context) {
	w.t.Helper()
	w.side(func(writer int) error {
		for n := writer; n < documents; n += writers {
			if err := w.set(ctx, n); err != nil {
				return err
			}
		}
		return nil
	})
}

// side runs f for each writer in parallel.
func (w *cluster) side(f func(writer int) error) {
	w.t.Helper()
	var wg sync.WaitGroup
	for n := range writers {
		wg.Go(func() {
			if err := f(n); err != nil {
				w.t.Errorf("writer %d: %v", n, err)
			}
		})
	}
	wg.Wait()
}

// writing runs f under writes and deletions.
func (w *cluster) writing(ctx context.Context, f func()) {
	w.t.Helper()
	load, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for n := range writers {
		r := rand.New(rand.NewPCG(w.r.Uint64(), uint64(n)))
		change := w.change
		if w.rough {
			change = w.try
		}
		wg.Go(func() {
			harness.Paced(load, time.Second*writers/perSecond, func(ctx context.Context, due int) {
				for range due {
					if ctx.Err() != nil {
						return
					}
					if err := change(ctx, n, r); err != nil {
						w.t.Errorf("writer %d: %v", n, err)
						stop()
						return
					}
				}
			})
		})
	}
	f()
	stop()
	wg.Wait()
}

// some waits for a random time, so that rounds differ in what has arrived when a fault strikes.
func (w *cluster) some(most time.Duration) { time.Sleep(time.Duration(w.r.Int64N(int64(most)))) }

// purgeAll purges deletions until every vbucket has purged some.
func (w *cluster) purgeAll(ctx context.Context) {
	w.t.Helper()
	harness.Eventually(w.t, harness.Hang, "each vbucket has a purge seqno", func() (bool, string) {
		w.purge(ctx, bucket, *vbuckets)
		none := 0
		for _, seqno := range w.purged(ctx, bucket) {
			if seqno == 0 {
				none++
			}
		}
		return none == 0, fmt.Sprintf("%d vbuckets have none", none)
	})
}

// check compares an index with KV; no writes run meanwhile.
func (w *cluster) check(ctx context.Context, round int, name string) {
	w.t.Helper()
	keys := make([]string, documents)
	for n := range keys {
		keys[n] = key(n)
	}
	docs, err := testcluster.Documents(ctx, w.kv, keys)
	if err != nil {
		w.t.Fatal(err)
	}
	s, err := harness.ScanSoon(ctx, w.client, bucket, name, harness.Hang)
	if err != nil {
		w.t.Fatalf("round %d: %s: %v", round, name, err)
	}
	var missing, stale, extra []string
	seen := map[string]bool{}
	for i, id := range s.IDs {
		switch doc := fmt.Sprintf(`{"n":%s%s}`, joined(s.Keys[i]), w.pad); {
		case docs[id] == nil || seen[id]:
			extra = append(extra, id)
		case doc != string(docs[id]):
			stale = append(stale, fmt.Sprintf("%s: %.30s, KV has %.30s", id, doc, docs[id]))
		}
		seen[id] = true
	}
	for id := range docs {
		if !seen[id] {
			missing = append(missing, id)
		}
	}
	slices.Sort(missing)
	missing = w.unsent(ctx, name, missing, s.Seqnos)
	if len(missing)+len(stale)+len(extra) > 0 {
		w.t.Errorf("round %d: %s: of %d documents %d are missing, %d stale, %d too many: %.300q %.300q %.300q", round, name,
			len(docs), len(missing),
			len(stale), len(extra), missing, stale, extra)
		w.explain(ctx, name, missing, s.Seqnos)
		return
	}
	w.t.Logf("round %d: %s: %d documents as in KV", round, name, len(docs))
}

// unsent returns the missing documents without those for which the engine contradicts itself: GET returns the document,
// and the engine's own stream, read from 0, ends with its deletion at or below the seqno of the scan. An index has what
// the stream has. Engines of the 6.0 line do this rarely, for the first seqno after a crash (docs/campaigns.md).
func (w *cluster) unsent(ctx context.Context, name string, missing []string, at []uint64) (others []string) {
	w.t.Helper()
	for _, id := range missing {
		vb := mcbp.VBucket([]byte(id), *vbuckets)
		s, err := w.sends(ctx, vb, id)
		if err == nil && s.last == feed.Deletion && s.seqno <= at[vb] {
			w.t.Logf("%s: %s: the engine contradicts itself: GET returns the document, and its stream deletes it: %v", name,
				id, s)
			continue
		}
		others = append(others, id)
	}
	return others
}

// explain reports, for documents that an index lacks, what KV sends of their vbuckets, and whether the index has them
// later. It distinguishes losses at KV, losses on the way, and a wrong choice of the timestamp.
func (w *cluster) explain(ctx context.Context, name string, missing []string, at []uint64) {
	w.t.Helper()
	for _, id := range missing[:min(len(missing), 3)] {
		vb := mcbp.VBucket([]byte(id), *vbuckets)
		s, err := w.sends(ctx, vb, id)
		w.t.Errorf("%s: %s: the scan's seqno %d; KV sends %v, %v", name, id, at[vb], s, err)
	}
	again, err := harness.ScanSoon(ctx, w.client, bucket, name, harness.Hang)
	var still []string
	for _, id := range missing {
		if !slices.Contains(again.IDs, id) {
			still = append(still, id)
		}
	}
	w.t.Errorf("%s: scanned again it lacks %.300q, %v", name, still, err)
}

// sent is what KV sends of a document when its vbucket is streamed from the beginning.
type sent struct {
	vb    uint16
	log   timestamp.FailoverLog
	high  uint64
	all   []string  // the document's versions, and the windows
	last  feed.Kind // of the document's newest version
	seqno uint64
}

func (s sent) String() string {
	return fmt.Sprintf("%v of vbucket %d at %d, with history %v", s.all, s.vb, s.high, s.log)
}

// sends streams a vbucket from the beginning to its high seqno.
func (w *cluster) sends(ctx context.Context, vb uint16, id string) (s sent, err error) {
	s.vb = vb
	c, err := feed.Dial(ctx, feed.Config{Addr: w.addr(), Bucket: bucket, User: user, Password: password,
		Name: "explain" + id})
	if err != nil {
		return s, err
	}
	defer c.Close()
	if s.log, err = c.FailoverLog(ctx, vb); err != nil {
		return s, err
	}
	highs, err := c.HighSeqnos(ctx)
	if err != nil {
		return s, err
	}
	for _, h := range highs {
		if h.VBucket == vb {
			s.high = h.Seqno
		}
	}
	if _, err := c.OpenStream(ctx, feed.StreamRequest{VBucket: vb, End: s.high}); err != nil {
		return s, err
	}
	for {
		block, err := c.Next(ctx)
		if err != nil {
			return s, err
		}
		for i := range block.Events {
			switch e := &block.Events[i]; {
			case e.Kind == feed.StreamEnd:
				block.Release()
				return s, nil
			case e.Kind == feed.SnapshotMarker:
				s.all = append(s.all, fmt.Sprintf("window %d to %d", e.SnapStart, e.SnapEnd))
			case string(e.Key) == id:
				s.all = append(s.all, fmt.Sprintf("%v %d", e.Kind, e.Seqno))
				s.last, s.seqno = e.Kind, e.Seqno
			}
		}
		block.Release()
	}
}

func joined(key []json.RawMessage) string {
	var parts []string
	for _, k := range key {
		parts = append(parts, string(k))
	}
	return strings.Join(parts, ",")
}

// begun stores the documents, deletes some, and purges these deletions.
func (w *cluster) begun(ctx context.Context) {
	w.t.Helper()
	w.load(ctx)
	w.writing(ctx, func() { time.Sleep(time.Second) })
	w.purgeAll(ctx)
}

// TestCreateUnderWrites checks that an index created while documents are written has every document, after deletions
// were purged and, in every second round, while they are being purged.
func TestCreateUnderWrites(t *testing.T) {
	for _, feed := range []string{"native", "gocbcore"} {
		t.Run(feed, func(t *testing.T) {
			ctx := t.Context()
			w := newCluster(ctx, t, feed)
			w.begun(ctx)
			for round := range *rounds {
				name := fmt.Sprint("made", round)
				w.writing(ctx, func() {
					w.some(500 * time.Millisecond)
					var wg sync.WaitGroup
					if round%2 == 1 {
						wg.Go(func() { w.purge(ctx, bucket, *vbuckets) })
					}
					harness.Create(ctx, t, w.client, fmt.Sprintf(statement, name))
					wg.Wait()
				})
				w.check(ctx, round, name)
				if err := w.client.Drop(ctx, client.Ref(bucket, name), 0); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// TestIndexerKilled checks that an indexer that was away while deletions were purged takes its vbuckets again from 0,
// is killed meanwhile, and has every document in the end.
func TestIndexerKilled(t *testing.T) {
	for _, feed := range []string{"native", "gocbcore"} {
		t.Run(feed, func(t *testing.T) {
			ctx := t.Context()
			w := newCluster(ctx, t, feed)
			w.begun(ctx)
			harness.Create(ctx, t, w.client, fmt.Sprintf(statement, "kept"))
			for round := range *rounds {
				w.writing(ctx, func() {
					w.procs["i1"].Kill()
					w.some(time.Second)
					w.purge(ctx, bucket, *vbuckets)
					for range 1 + w.r.IntN(3) {
						w.indexer(1)
						w.some(3 * time.Second)
						w.procs["i1"].Kill()
						if w.r.IntN(2) == 0 {
							w.purge(ctx, bucket, *vbuckets)
						}
					}
					w.indexer(1)
					w.some(2 * time.Second)
				})
				w.check(ctx, round, "kept")
			}
		})
	}
}

func isMissing(err error) bool { return errors.Is(err, kvclient.ErrKeyNotFound) }
