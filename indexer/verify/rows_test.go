package verify

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemark/index"
	"tidemark/indexer/pace"
	"tidemark/indexer/storage"
	"tidemark/kv/mcbp"
	"tidemark/wire"
)

// TestVerifyIsLinearInTheKeysOfADocument checks that the cost of finding rows that no entry lists does not grow with
// the number of keys for each row of a document: entries are read once along with all rows, and once more where
// something differs.
func TestVerifyIsLinearInTheKeysOfADocument(t *testing.T) {
	const documents, keys, vbuckets = 3, 2000, 4
	store, err := storage.Open(storage.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}()
	s, err := store.Create(storage.Meta{Copy: 10, Index: 1, Bucket: "b", BucketUUID: "u", VBuckets: vbuckets})
	if err != nil {
		t.Fatal(err)
	}
	var b storage.Batch
	for d := range documents {
		u := storage.Update{DocID: fmt.Appendf(nil, "doc-%d", d), Seqno: uint64(d + 1)}
		u.VBucket = mcbp.VBucket(u.DocID, vbuckets)
		for k := range keys {
			u.Keys = append(u.Keys, fmt.Appendf(nil, "key-%05d", k))
		}
		b.Updates = append(b.Updates, u)
	}
	if err := s.Flush(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	snap, err := s.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer snap.Close()
	now := time.Unix(1000, 0) // the clock stands still: the time that is due shows how much was read
	x := &Verifier{metrics: newMetrics(prometheus.NewRegistry()), now: func() time.Time { return now }}
	v := &verification{Verifier: x, k: few(vbuckets), atOnce: verifyRows,
		pace: pace.New(1_000_000_000, 0, x.now)}
	c := &verifiedCopy{extra: map[string][][]byte{}}
	lost := looksUp(t, v, c, snap)
	if len(lost) != 0 {
		t.Errorf("%d rows are said to have no entry", len(lost))
	}
	units := int(v.pace.Due().Sub(now)) + v.owed // one nanosecond per unit
	if least, most := documents*keys, 2*documents*keys; units < least || units > most {
		t.Errorf("%d things were looked at for %d rows, want %d to %d", units, documents*keys, least, most)
	}
}

// TestRowsBeyondTheLimitAreCountedOnce checks that a document with rows without an entry is counted once: when the
// document is compared if some of the rows are kept, and otherwise at once.
func TestRowsBeyondTheLimitAreCountedOnce(t *testing.T) {
	v, c, listed := tallied(10, 1<<20)
	v.k, c.extras = few(4), verifyExtras-2
	for _, x := range []struct {
		id   string
		rows int
	}{{"a", 1}, {"b", 3}, {"a", 2}, {"c", 2}, {"none", 0}} {
		if err := v.remember(c, x.id, make([][]byte, x.rows)); err != nil {
			t.Fatal(err)
		}
	}
	if fmt.Sprint(*listed) != "[c]" || v.sum.Differences != 1 || len(c.extra) != 2 || len(c.extra["a"]) != 1 ||
		len(c.extra["b"]) != 1 {
		t.Errorf("%d differences, of %v; %v are kept", v.sum.Differences, *listed, c.extra)
	}
}

// few is a bucket with that number of vbuckets. Nothing else of it is used.
type few int

func (few) Name() string    { return "b" }
func (few) UUID() string    { return "u" }
func (n few) VBuckets() int { return int(n) }

func (few) Flushed() *wire.StabilityRef { panic("no request") }

func (few) Rollback() uint64 { panic("no request") }

func (few) Gone() <-chan struct{} { panic("no request") }

func (few) Owners(context.Context) ([]index.ProjectorID, error) { panic("no request") }

func (few) Retake(context.Context, index.CopyID, int, []storage.Row, bool) error {
	panic("no request")
}

// looksUp looks up all rows of a snapshot, as verify does where a sum differs, and returns those without an entry.
func looksUp(t *testing.T, v *verification, c *verifiedCopy, snap *storage.Snapshot) map[string][][]byte {
	t.Helper()
	s := suspects{v: v, c: c, rows: map[string][][]byte{}}
	if _, err := v.someRows(t.Context(), snap, nil, func(snap *storage.Snapshot, key, docID []byte) error {
		return s.add(t.Context(), snap, key, docID)
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.lookUp(t.Context(), snap); err != nil {
		t.Fatal(err)
	}
	return c.extra
}
