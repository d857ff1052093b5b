package indexer

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tidemark/index"
	"tidemark/indexer/copies"
	"tidemark/indexer/scanserver"
	"tidemark/wire"
)

// stats requests the indexer's figures.
func (w *world) stats() *wire.IndexerStats {
	w.t.Helper()
	s, err := w.admin.Stats(w.t.Context(), w.endpoint.Admin)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// statsOf waits until the figures of a copy are as wanted, and returns them.
func (w *world) statsOf(id index.CopyID, what string, ok func(c *wire.CopyStats) bool) (found wire.CopyStats) {
	w.t.Helper()
	w.until(what, func() bool {
		w.mu.Unlock() // the indexer asks this world for KV's seqnos
		defer w.mu.Lock()
		for _, c := range w.stats().Copies {
			if c.Copy == id {
				found = c
			}
		}
		return ok(&found)
	})
	return found
}

// silently stores documents in KV, but the stream does not send them.
func (w *world) silently(docs ...testDoc) {
	m := w.stream
	w.mu.Lock()
	w.stream = nil
	w.mu.Unlock()
	w.write(docs...)
	w.mu.Lock()
	w.stream = m
	w.mu.Unlock()
}

// TestStats checks the figures exactly. If nothing is going on items_count equals what a scan counts and no backlog
// is reported. What KV has not sent yet is pending, what has come but is not applied is queued. Scans are counted,
// with their rows, errors and time.
func TestStats(t *testing.T) {
	w := newWorld(t)
	w.write(docs(0, 200, 1)...)
	w.start()
	if err := w.define(10); err != nil {
		t.Fatal(err)
	}
	w.statsOf(10, "all is pending before there is a stream", func(c *wire.CopyStats) bool {
		return c.NumDocsPending == 200 && c.NumDocsQueued == 0 && c.ItemsCount == 0
	})
	w.begin(nil)
	w.promote(t.Context())
	w.held(10)
	idle := func(c *wire.CopyStats) bool { return c.NumDocsPending == 0 && c.NumDocsQueued == 0 }
	c := w.statsOf(10, "it comes to rest", idle)
	rows, err := w.scan(1, `{"consistency":"session"}`)
	if err != nil || c.ItemsCount != uint64(len(rows)) || len(rows) != 200 || !c.Ready || c.Done != c.Total ||
		c.DataSize == 0 {
		t.Errorf("%d rows, %v, figures %+v", len(rows), err, c)
	}

	w.silently(docs(100, 150, 1000)...) // updates
	w.statsOf(10, "KV has 50 more", func(c *wire.CopyStats) bool { return c.NumDocsPending == 50 && c.NumDocsQueued == 0 })
	w.write(testDoc{id: "doc-0000"}) // a deletion, which makes the stream send everything that is left
	w.statsOf(10, "51 have come", func(c *wire.CopyStats) bool {
		return c.NumDocsPending == 0 && c.NumDocsQueued == 51 && c.ItemsCount == 200
	})
	w.promote(t.Context())
	c = w.statsOf(10, "they are applied", idle)
	if c.ItemsCount != 199 {
		t.Errorf("nothing is queued, yet %+v", c)
	}
	w.held(10)
	if rows, err = w.scan(1, `{}`); err != nil || len(rows) != 199 || c.ItemsCount != 199 {
		t.Errorf("%d rows, %v, figures %+v", len(rows), err, c)
	}

	if _, err := w.scan(1, `{"range":{"low":[1100]},"limit":7}`); err != nil {
		t.Error(err)
	}
	if _, err := w.scan(1, `{"limit":-1}`); err == nil {
		t.Error("limit -1")
	}
	if _, err := w.scan(9, `{}`); err == nil {
		t.Error("index 9 was scanned")
	}
	s := w.stats()
	if len(s.Scans) != 1 {
		t.Fatalf("%+v", s.Scans)
	}
	if g := s.Scans[0]; g.Index != 1 || g.NumRequests != 4 || g.NumRowsReturned != 200+199+7 || g.NumScanErrors != 1 ||
		g.NumScanTimeouts != 0 ||
		g.TotalScanDuration == 0 || g.LastKnownScanTime == 0 || !strings.Contains(g.LastScanError, "limit -1") {
		t.Errorf("%+v", g)
	}
	if s.State != "active" || s.MemoryQuota == 0 || s.MemoryRSS == 0 || s.MemoryUsed > s.MemoryQuota ||
		len(s.Unknown) > 0 {
		t.Errorf("%+v", s)
	}
	w.metrics()
	if err := w.define(20); err != nil { // index 1 is gone, along with its counts
		t.Fatal(err)
	}
	if s = w.stats(); len(s.Scans) != 0 {
		t.Errorf("%+v", s.Scans)
	}
}

// metrics checks that the metrics show the same figures.
func (w *world) metrics() {
	w.t.Helper()
	resp, err := http.Get(w.endpoint.Admin + "/metrics")
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, line := range []string{
		`tidemark_index_items{bucket="world",index="i1"} 199`, `tidemark_index_docs_pending{bucket="world",index="i1"} 0`,
		`tidemark_index_docs_queued{bucket="world",index="i1"} 0`,
		`tidemark_index_scans_total{bucket="world",index="i1"} 4`,
		`tidemark_index_scan_rows_total{bucket="world",index="i1"} 406`,
		`tidemark_index_scan_errors_total{bucket="world",index="i1"} 1`,
		`tidemark_index_build_progress_ratio{bucket="world",index="i1"} 1`,
		`# TYPE tidemark_index_scan_seconds_total counter`, `# TYPE tidemark_index_disk_bytes gauge`,
	} {
		if !strings.Contains(string(text), line+"\n") {
			w.t.Errorf("no line %s in\n%s", line, text)
		}
	}
}

// TestStatsWithoutKV checks that the figures say that the backlog may be larger if no projector can be asked.
func TestStatsWithoutKV(t *testing.T) {
	w := newWorld(t)
	w.write(docs(0, 20, 1)...)
	w.serve(10)
	w.proj.Close()
	if s := w.stats(); !strings.Contains(s.Unknown[testBucket], "4 vbuckets") || len(s.Copies) != 1 ||
		s.Copies[0].ItemsCount != 20 {
		t.Errorf("%+v", s)
	}
}

// hangs are projectors that never answer.
type hangs struct{}

func (hangs) Seqnos(ctx context.Context, _ string, _ *wire.SeqnosRequest) (*wire.SeqnosReply, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// TestStatsBesideAProjectorThatHangs checks that the figures of all buckets are complete and take no longer than
// those of one.
func TestStatsBesideAProjectorThatHangs(t *testing.T) {
	newNode, s := aloneNode(t)
	synctest.Test(t, func(t *testing.T) {
		node := newNode()
		x := &Indexer{buckets: buckets{named: map[string]*copies.Bucket{}}, truth: scanserver.NewTruth(scanserver.Sources{
			Definitions: func() (d wire.Definitions) {
				d.Projectors = []wire.ProjectorEndpoint{{ID: "p1", Admin: "p1"}}
				return d
			}, Projectors: hangs{}})}
		const buckets = 3 * seqnosAtOnce
		var running sync.WaitGroup
		for n := range buckets {
			k, err := copies.NewBucket(node, wire.Bucket{Name: fmt.Sprintf("b%d", n), UUID: "u", VBuckets: 2})
			if err != nil {
				t.Fatal(err)
			}
			running.Go(func() { _ = k.Run(t.Context()) })
			x.buckets.named[k.Name()] = k
		}
		if _, err := x.buckets.named["b9"].Add(t.Context(), s, false, nil); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		all, unknown := x.bucketStats(t.Context())
		if took := time.Since(began); took > seqnosPatience {
			t.Errorf("they take %s", took)
		}
		if len(all) != 1 || all[0].Copy != 1 || len(unknown) != buckets ||
			!strings.Contains(unknown["b9"], "2 vbuckets have no owner that could be asked") {
			t.Errorf("figures of %+v; unknown %v", all, unknown)
		}
		for _, k := range x.buckets.named {
			k.Stop()
		}
		running.Wait()
	})
}
