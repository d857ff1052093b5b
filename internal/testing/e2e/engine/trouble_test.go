package engine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"tidemark/internal/testing/e2e/harness"
	"tidemark/kv/kvclient"
	"tidemark/kv/mcbp"
)

// twoEngines adds a second engine, without the bucket, and its projector.
func (w *cluster) twoEngines(ctx context.Context, feed string) {
	w.t.Helper()
	folder := filepath.Join(w.dir, "engine2")
	if err := os.Mkdir(folder, 0o700); err != nil {
		w.t.Fatal(err)
	}
	w.other = newNode(w.t, os.Getenv("ENGINE_DIR"), folder, w.base+41)
	w.other.extra = w.extra
	w.spawn("p2", "projector", "--id", "p2", "--managers", w.at(0), "--admin", w.at(3), "--kv", w.other.addr(),
		"--kv-user", user, "--kv-password-file", "password", "--feed", feed)
	kv, err := kvclient.Connect(ctx, []string{w.addr(), w.other.addr()}, kvclient.Options{User: user, Password: password,
		Bucket: bucket})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = kv.Close() })
	w.kv = kv
}

// crash kills and restarts the engine, which loses what it had not stored.
func (w *cluster) crash(ctx context.Context) {
	w.t.Helper()
	had := w.highs(ctx, bucket)
	w.kill()
	w.some(500 * time.Millisecond)
	w.start()
	w.create(ctx, bucket, *vbuckets)
	w.lost(had, w.highs(ctx, bucket))
}

// lost records how many seqnos a kill has lost; writes run before and after, so the true number is higher.
func (w *cluster) lost(had, has map[string]uint64) {
	most := uint64(0)
	for vb, seqno := range had {
		if seqno > has[vb] {
			w.seqnos += seqno - has[vb]
			most = max(most, seqno-has[vb])
		}
	}
	w.most = max(w.most, most)
}

// failover kills the engine; the other one takes over with what the first had stored.
func (w *cluster) failover(ctx context.Context) {
	w.t.Helper()
	had := w.highs(ctx, bucket)
	w.kill()
	from, to := filepath.Join(w.node.dir, bucket), filepath.Join(w.other.dir, bucket)
	if err := os.RemoveAll(to); err != nil {
		w.t.Fatal(err)
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		w.t.Fatal(err)
	}
	w.other.rev = w.rev
	w.node, w.other = w.other, w.node
	w.start()
	w.create(ctx, bucket, *vbuckets)
	w.lost(had, w.highs(ctx, bucket))
}

// forgetful makes the engine store nothing for some time.
func (w *cluster) forgetful(ctx context.Context) {
	w.t.Helper()
	c := w.dial(ctx, bucket)
	defer c.Close()
	w.must(ctx, c, mcbp.Frame{Header: mcbp.Request(opStopStoring, 0, 0)})
	w.some(5 * time.Second)
}

// halt stops the engine for some time: it does not answer.
func (w *cluster) halt() {
	_ = w.cmd.Process.Signal(syscall.SIGSTOP)
	w.some(12 * time.Second)
	_ = w.cmd.Process.Signal(syscall.SIGCONT)
}

// restart kills and restarts one of the product's processes.
func (w *cluster) restart(name string, again func()) {
	w.procs[name].Kill()
	w.some(time.Second)
	again()
}

// TestTrouble checks that indexes follow an engine that is killed with unstored writes, flushed, stopped for a time,
// and failed over to another engine, in any order, under writes, while deletions are purged, indexes are created and
// an indexer is killed. After each round every index has what KV has.
func TestTrouble(t *testing.T) {
	for _, feed := range []string{"native", "gocbcore"} {
		t.Run(feed, func(t *testing.T) {
			ctx := t.Context()
			w := newCluster(ctx, t, feed)
			w.twoEngines(ctx, feed)
			w.begun(ctx)
			w.rough = true
			harness.Create(ctx, t, w.client, fmt.Sprintf(statement, "kept"))
			troubles := []struct {
				name string
				do   func()
			}{
				{"crash", func() { w.crash(ctx) }},
				{"failover", func() { w.failover(ctx) }},
				{"crash without having stored", func() { w.forgetful(ctx); w.crash(ctx) }},
				{"failover without having stored", func() { w.forgetful(ctx); w.failover(ctx) }},
				{"flush", func() { w.flush(ctx, bucket, *vbuckets) }},
				{"two crashes", func() { w.crash(ctx); w.some(2 * time.Second); w.crash(ctx) }},
				{"halt", w.halt},
				{"crash beside an indexer's", func() {
					w.restart("i1", func() { w.crash(ctx); w.indexer(1) })
				}},
				{"purge, then failover", func() { w.purge(ctx, bucket, *vbuckets); w.failover(ctx) }},
			}
			for round := range *rounds {
				x := troubles[(round+w.r.IntN(2))%len(troubles)]
				began := time.Now()
				made := fmt.Sprint("made", round)
				w.writing(ctx, func() {
					w.some(time.Second)
					if round%3 == 1 { // while the index is built
						if _, err := w.client.Statement(ctx, fmt.Sprintf(statement, made)); err != nil {
							t.Error(err)
						}
						w.some(500 * time.Millisecond)
					}
					x.do()
					w.some(2 * time.Second)
				})
				w.check(ctx, round, "kept")
				if round%3 == 1 {
					harness.WaitReady(ctx, t, w.client, bucket)
					w.check(ctx, round, made)
					if _, err := w.client.Statement(ctx, "DROP INDEX "+made+" ON "+bucket); err != nil {
						t.Fatal(err)
					}
				}
				t.Logf("round %d: %s, %s", round, x.name, time.Since(began).Round(time.Second))
			}
			t.Logf("at least %d seqnos were lost, up to %d of a vbucket at a time", w.seqnos, w.most)
		})
	}
}

// TestOverQuota tests a bucket whose documents exceed its memory: values, or whole documents, are on disk only,
// writes fail for lack of memory, and index builds read from disk.
func TestOverQuota(t *testing.T) {
	for _, feed := range []string{"native", "gocbcore"} {
		for _, policy := range []string{"value_only", "full_eviction"} {
			t.Run(feed+"/"+policy, func(t *testing.T) {
				ctx := t.Context()
				w := newCluster(ctx, t, feed, "max_size=20000000", "item_eviction_policy="+policy)
				w.pad = `,"pad":"` + strings.Repeat("x", 4000) + `"`
				w.load(ctx)
				w.rough = true
				w.writing(ctx, func() { w.purgeAll(ctx) }) // few deletions a second: only until each vbucket has one
				harness.Create(ctx, t, w.client, fmt.Sprintf(statement, "kept"))
				for round := range max(1, *rounds/4) {
					made := fmt.Sprint("made", round)
					w.writing(ctx, func() {
						harness.Create(ctx, t, w.client, fmt.Sprintf(statement, made))
						w.some(time.Second)
					})
					w.check(ctx, round, "kept")
					w.check(ctx, round, made)
					if _, err := w.client.Statement(ctx, "DROP INDEX "+made+" ON "+bucket); err != nil {
						t.Fatal(err)
					}
				}
			})
		}
	}
}
