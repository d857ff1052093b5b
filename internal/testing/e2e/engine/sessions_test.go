package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/manager/api/v1"
)

const pageRows = 700

// reader reads an index in a session of its own, repeatedly: whole scans, and the whole index page by page. Each
// version of a document is greater than all earlier versions of all documents.
type reader struct {
	w       *cluster
	name    string
	session client.Session
	seen    map[string]uint64 // the version of each document at its last read
	// counts of scans and answers, and of lost and refused ones
	scans, answers, lost, refused int
	states                        []string // of the pages that were read last: their timestamps
}

// version returns the version of a row's document.
func version(row v1.Row) (uint64, error) {
	if len(row.Key) != 1 {
		return 0, fmt.Errorf("row %s has %d components", row.ID, len(row.Key))
	}
	return strconv.ParseUint(string(row.Key[0]), 10, 64)
}

// take checks an answer against what the session has seen.
func (r *reader) take(rows []v1.Row) error {
	once := map[string]bool{}
	last := uint64(0)
	for _, row := range rows {
		v, err := version(row)
		switch {
		case err != nil:
			return err
		case v <= last:
			return fmt.Errorf("%s: version %d comes after %d", row.ID, v, last)
		case once[row.ID]:
			return fmt.Errorf("%s occurs twice in one answer, as version %d too: it is of more than one state", row.ID, v)
		case v < r.seen[row.ID]:
			return fmt.Errorf("%s is at version %d, and the session has seen %d; nothing was said to be lost", row.ID, v,
				r.seen[row.ID])
		}
		last, once[row.ID] = v, true
	}
	for _, row := range rows {
		v, _ := version(row) // already decoded above
		r.seen[row.ID] = v
	}
	return nil
}

// noteLost records that an answer, or a page of one, reports the loss of something that the session has seen. The
// loss is reported once, also if the answer fails after that.
func (r *reader) noteLost(lost string) {
	if lost != "" {
		r.lost++
		r.seen = map[string]uint64{}
	}
}

// scan reads the index with one scan.
func (r *reader) scan(ctx context.Context) (all []v1.Row, err error) {
	rows, err := r.session.Scan(ctx, r.w.client, client.Ref(bucket, r.name), v1.ScanRequest{})
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		row := rows.Row()
		all = append(all, v1.Row{ID: row.ID, Key: append([]json.RawMessage(nil), row.Key...)})
	}
	end, err := rows.End()
	r.noteLost(end.SessionLost)
	return all, err
}

// pages reads the index page by page, with pauses, in the newest state that all copies are known to hold.
func (r *reader) pages(ctx context.Context) ([]v1.Row, error) { return r.paged(ctx, "any") }

func (r *reader) paged(ctx context.Context, consistency string) (all []v1.Row, err error) {
	req := v1.ScanRequest{Limit: pageRows, Consistency: consistency}
	r.states = r.states[:0]
	for page, err := range r.session.Pages(ctx, r.w.client, client.Ref(bucket, r.name), req) {
		if err != nil {
			return nil, err
		}
		all = append(all, page.Rows...)
		r.states = append(r.states, page.End.Timestamp.ID)
		r.noteLost(page.End.SessionLost)
		time.Sleep(20 * time.Millisecond) // writes happen in between
	}
	return all, nil
}

// run reads until ctx ends. A failed answer does not count, but a loss that it reports does.
func (r *reader) run(ctx context.Context) error {
	for ctx.Err() == nil {
		read := r.scan
		if r.scans++; r.scans%2 == 0 {
			read = r.pages
		}
		rows, err := read(ctx)
		if err != nil {
			r.refused++
			time.Sleep(50 * time.Millisecond)
			continue
		}
		r.answers++
		if err := r.take(rows); err != nil {
			return fmt.Errorf("answer %d: %w", r.answers, err)
		}
	}
	return nil
}

// TestSessions checks that a session never sees the past, and that pages are of one state, while the engine is
// killed, failed over with loss and flushed under writes; losses are reported. In the end the pages have what KV has.
func TestSessions(t *testing.T) {
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
				{"flush", func() { w.flush(ctx, bucket, *vbuckets) }},
				{"failover without having stored", func() { w.forgetful(ctx); w.failover(ctx) }},
				{"crash", func() { w.crash(ctx) }},
				{"failover", func() { w.failover(ctx) }},
			}
			readers := []*reader{{w: w, name: "kept"}, {w: w, name: "kept"}, {w: w, name: "kept"}}
			for _, r := range readers {
				r.seen = map[string]uint64{}
			}
			for round := range *rounds {
				x := troubles[round%len(troubles)]
				reading, stop := context.WithCancel(ctx)
				var wg sync.WaitGroup
				for n, r := range readers {
					wg.Go(func() {
						if err := r.run(reading); err != nil {
							t.Errorf("round %d: %s: reader %d: %v", round, x.name, n, err)
						}
					})
				}
				w.writing(ctx, func() {
					w.some(2 * time.Second)
					x.do()
					w.some(3 * time.Second)
				})
				w.check(ctx, round, "kept")
				stop()
				wg.Wait()
				for _, r := range readers {
					w.lastPages(ctx, r)
				}
				t.Logf("round %d: %s", round, x.name)
			}
			for n, r := range readers {
				t.Logf("reader %d: %d answers, %d refused, %d say that something is lost", n, r.answers, r.refused, r.lost)
				if *rounds > len(troubles) && r.lost == 0 { // it has seen rows before the second flush
					t.Errorf("reader %d never got the report of a loss", n)
				}
			}
			t.Logf("at least %d seqnos were lost, up to %d of a vbucket at a time", w.seqnos, w.most)
		})
	}
}

// lastPages compares a reader's pages with a scan, both of everything that KV has; no writes run any more.
func (w *cluster) lastPages(ctx context.Context, r *reader) {
	w.t.Helper()
	var rows []v1.Row
	harness.Eventually(w.t, harness.Hang, "all pages are read", func() (bool, string) {
		all, err := r.paged(ctx, "session")
		if err != nil {
			return false, err.Error()
		}
		rows = all
		if err := r.take(rows); err != nil {
			w.t.Fatal(err)
		}
		return true, ""
	})
	s, err := harness.ScanSoon(ctx, w.client, bucket, r.name, harness.Hang)
	if err != nil {
		w.t.Fatal(err)
	}
	paged := map[string]string{}
	for _, row := range rows {
		paged[row.ID] = string(row.Key[0])
	}
	var differ []string
	for i, id := range s.IDs {
		if key := joined(s.Keys[i]); paged[id] != key {
			differ = append(differ, fmt.Sprintf("%s: pages %q, scan %s", id, paged[id], key))
		}
		delete(paged, id)
	}
	for id, key := range paged {
		differ = append(differ, fmt.Sprintf("%s: pages %s, scan nothing", id, key))
	}
	if len(differ) > 0 {
		w.t.Fatalf("pages have %d rows of timestamps %v, a scan %d of timestamp %s: %d differ: %.10q", len(rows), r.states,
			len(s.IDs), s.Timestamp, len(differ), differ)
	}
	for i, row := range rows {
		if row.ID != s.IDs[i] {
			w.t.Fatalf("row %d: pages have %s, a scan %s", i, row.ID, s.IDs[i])
		}
	}
}
