package indexer

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tidemark/indexer/storage"
	"tidemark/indexer/storage/storagetest"
	"tidemark/indexer/verify"
	"tidemark/keyversion"
	"tidemark/manager/api/v1"
	"tidemark/wire"
)

// TestVerifyFindsLossOnStreams loses a document on the streams, both on maintenance streams and on those that
// verifications read, so that it is missing in the index and in what the index is compared with. The sums of the
// evaluation do not come over these streams, so the loss is reported.
func TestVerifyFindsLossOnStreams(t *testing.T) {
	const lost = "doc-0020"
	w := newWorld(t)
	w.lose = func(e *keyversion.Event) bool { return string(e.DocID) == lost }
	w.write(docs(0, 100, 1)...)
	w.start()
	if err := w.define(10, 20); err != nil {
		t.Fatal(err)
	}
	w.begin(nil)
	w.promote(t.Context())
	w.held(10, 20)
	found, end, err := w.verify(t.Context(), 1, ``)
	if err != nil || len(found) != 1 || end.Differences != 1 {
		t.Fatalf("%+v, %+v, %v; want one difference", found, end, err)
	}
	d := found[0]
	says := fmt.Sprintf("projector %s evaluated %d keys of vbucket %d for this slice", "p", 25, vbOf(lost))
	if d.Kind != wire.LostOnWay || d.VBucket != vbOf(lost) || d.Copy != 10 || !strings.HasPrefix(d.Detail, says[:10]) ||
		!strings.Contains(d.Detail, says[12:]) ||
		!strings.Contains(d.Detail, "24 were received") {
		t.Errorf("%+v", d)
	}
}

// TestAuditReportsWhatItCannotRepair checks that a loss on the way from KV is reported in the node's health, and that
// no vbucket is taken again for it.
func TestAuditReportsWhatItCannotRepair(t *testing.T) {
	w := newWorld(t)
	w.tweak = func(c *Config) { c.AuditRate, c.AuditEvery = v1.MaxVerifyRate, 10*time.Millisecond }
	w.lose = func(e *keyversion.Event) bool { return string(e.DocID) == "doc-0020" }
	w.write(docs(0, 100, 1)...)
	w.start()
	if err := w.define(10, 20); err != nil {
		t.Fatal(err)
	}
	w.begin(nil)
	w.promote(t.Context())
	w.held(10, 20)
	w.until("the audit reports it", func() bool {
		return strings.Contains(w.health, "would not repair") && strings.Contains(w.health, "were received")
	})
	if n := w.x.metrics.counted(t, "tidemark_indexer_retaken_vbuckets_total"); n != 0 {
		t.Errorf("%v vbuckets were taken anew", n)
	}
}

// TestVerifyPages checks that a vbucket with more documents than fit in memory is compared page by page, without
// omissions or duplicates.
func TestVerifyPages(t *testing.T) {
	t.Parallel()
	w := built(t)
	w.stopIndexer()
	err := storagetest.Edit(filepath.Join(w.dir, copiesDir), 10, func(r *storagetest.Rows) error {
		return errors.Join(r.Remove(testKey(21), "doc-0020"), r.Remove(testKey(41), "doc-0040"),
			r.Add(testKey(9000), "nobody"))
	})
	if err != nil {
		t.Fatal(err)
	}
	w.tweak = func(c *Config) { c.verifyRoom = 4 << 10 } // 50 documents of a vbucket take about 10 KiB
	w.again(t)
	for range 3 {
		found, end, err := w.verify(t.Context(), 1, ``)
		var got []string
		for _, d := range found {
			got = append(got, fmt.Sprint(d.ID, " ", d.Kind))
		}
		slices.Sort(got)
		if err != nil || !slices.Equal(got, []string{"doc-0020 missing_row", "doc-0040 missing_row", "nobody extra_row"}) ||
			end.Documents != 200 {
			t.Errorf("%v, %+v, %v", got, end, err)
		}
	}
	w.stopIndexer()
	w.tweak = func(c *Config) { c.verifyRoom = 10 } // less than one document
	w.again(t)
	if _, _, err := w.verify(t.Context(), 1, ``); err == nil || !strings.Contains(err.Error(), "one document in 1024") {
		t.Errorf("no room at all: %v", err)
	}
}

// TestRefusedKeysAreShown checks that a key that no index can store, from a projector without a limit, is counted and
// named, and that a verification reports the document that lacks it.
func TestRefusedKeysAreShown(t *testing.T) {
	w := newWorld(t)
	long := bytes.Repeat([]byte{8}, storage.MaxKey+1)
	w.key = func(d testDoc) []byte {
		if d.id == "doc-0020" {
			return long
		}
		return testKey(d.value)
	}
	w.write(docs(0, 40, 1)...)
	w.start()
	if err := w.define(10, 20); err != nil {
		t.Fatal(err)
	}
	w.begin(nil)
	w.promote(t.Context())
	w.held(10, 20)
	found, _, err := w.verify(t.Context(), 1, ``)
	if err != nil || len(found) != 1 || found[0].Kind != wire.RefusedKey || found[0].ID != "doc-0020" ||
		!strings.Contains(found[0].Detail, "1 keys") {
		t.Errorf("%+v, %v", found, err)
	}
	w.until("the leader gets it", func() bool {
		return len(w.faults) == 2 && w.faults[0].Index == 1 && w.faults[0].TooLong == 1 &&
			w.faults[0].Sample.DocID == "doc-0020" &&
			strings.Contains(w.faults[0].Sample.Error, fmt.Sprint(len(long)))
	})
}

// TestVerifyRestartsVBuckets restarts vbuckets after a round in which documents were already compared, because KV has
// failed over or has more to read than fits in memory. Differences and documents are still listed and counted once.
func TestVerifyRestartsVBuckets(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		room      int64
		outcomes  []wire.StartOutcome // of second rounds; after these they begin
		more      int                 // documents that are written in the middle of the first round
		documents uint64              // the maximum number of compared documents
	}{
		{"KV fails over", 0, []wire.StartOutcome{wire.StartFailover, wire.StartStale, wire.StartRollback}, 1, 204},
		{"a load continues", 60 << 10, nil, 1000, 1200},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := built(t)
			w.stopIndexer()
			err := storagetest.Edit(filepath.Join(w.dir, copiesDir), 10, func(r *storagetest.Rows) error {
				return errors.Join(r.Remove(testKey(21), "doc-0020"), r.Remove(testKey(41), "doc-0040"),
					r.Remove(testKey(62), "doc-0061"), r.Add(testKey(9000), "doc-0083"))
			})
			if err != nil {
				t.Fatal(err)
			}
			w.tweak = func(x *Config) { x.verifyRoom = c.room }
			w.again(t)
			var mu sync.Mutex
			again, wrote, outcomes := 0, 0, c.outcomes
			w.locked(func() {
				w.refuse = func(q *wire.StreamRequest) wire.StartOutcome {
					mu.Lock()
					defer mu.Unlock()
					if !verify.IsTopic(q.Topic) {
						return wire.StartBegun
					}
					if q.Buckets[0].Restart.At(0).Seqno == 0 { // the timestamp is held, and from now on older than KV
						if len(outcomes) > 0 || wrote == 0 {
							w.write(docs(1000+wrote, 1000+wrote+c.more, 1)...)
							wrote += c.more
						}
						return wire.StartBegun
					}
					if again++; len(outcomes) == 0 {
						return wire.StartBegun
					}
					next := outcomes[0]
					outcomes = outcomes[1:]
					return next
				}
			})
			found, end, err := w.verify(t.Context(), 1, `{"limit":4}`)
			var got []string
			for _, d := range found {
				got = append(got, fmt.Sprint(d.ID, " ", d.Kind))
			}
			slices.Sort(got)
			want := []string{"doc-0020 missing_row", "doc-0040 missing_row", "doc-0061 missing_row", "doc-0083 extra_row"}
			if err != nil || !slices.Equal(got, want) || end.Differences != 4 || end.Listed != 4 ||
				end.Copies[0].Differences != 4 || end.Copies[0].Documents != end.Documents || end.Documents < 199 ||
				end.Documents > c.documents {
				t.Errorf("%q, %+v, %v", got, end, err)
			}
			if n := w.x.metrics.counted(t, "tidemark_indexer_verify_differences_total"); n != 4 {
				t.Errorf("%v differences are counted, want 4", n)
			}
			mu.Lock()
			defer mu.Unlock()
			if again < max(1, len(c.outcomes)) {
				t.Errorf("%d second rounds, the case is none", again)
			}
		})
	}
}
