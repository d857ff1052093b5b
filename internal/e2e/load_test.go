package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"tidemark/client"
	"tidemark/index"
	"tidemark/internal/oracle"
	"tidemark/internal/testcluster"
	"tidemark/kvclient"
	"tidemark/sample"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testcluster.Cleanup()
	os.Exit(code)
}

// sampleIndexes are those the oracle knows.
var sampleIndexes = []string{"world_ids", "airports_by_country", "places_by_name", "airports_by_elevation"}

// workload writes documents and remembers every acknowledged write by its token.
type workload struct {
	kv       *kvclient.Client
	history  *oracle.History
	keys     []string
	original map[string][]byte
	writes   atomic.Int64
	failed   atomic.Int64 // writes without an answer: their outcome is unknown
}

// newWorkload stores the sample documents one by one, so that each one's token is known.
func newWorkload(ctx context.Context, t *testing.T, kv *kvclient.Client) *workload {
	t.Helper()
	w := &workload{kv: kv, history: oracle.NewHistory(kv.Config().NumVBuckets()), original: map[string][]byte{}}
	r, err := sample.Open()
	if err != nil {
		t.Fatal(err)
	}
	for {
		d, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		w.keys = append(w.keys, d.Key)
		w.original[d.Key] = bytes.Clone(d.Value)
	}
	var g errgroup.Group
	const writers = 32
	for n := range writers {
		g.Go(func() error {
			for i := n; i < len(w.keys); i += writers {
				if err := w.set(ctx, w.keys[i], w.original[w.keys[i]]); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *workload) set(ctx context.Context, key string, value []byte) error {
	m, err := w.kv.Set(ctx, key, value, kvclient.StoreOptions{})
	if err != nil {
		return fmt.Errorf("set %s: %w", key, err)
	}
	w.history.Record(m.VBucket, oracle.Op{Seqno: m.Seqno, Key: key, Value: value})
	w.writes.Add(1)
	return nil
}

// run makes random updates, deletions and re-creations at a rate per second until ctx ends. Each writer owns its keys,
// so that a key's writes are acknowledged in their order.
func (w *workload) run(ctx context.Context, seed uint64, perSecond int) {
	const writers = 8
	var wg sync.WaitGroup
	for n := range writers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(n)))
			gone := map[string]bool{}
			tick := time.NewTicker(time.Second * writers / time.Duration(perSecond))
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				key := w.keys[n+writers*r.IntN(len(w.keys)/writers)]
				if err := w.one(context.WithoutCancel(ctx), r, key, gone); err != nil {
					w.failed.Add(1)
				}
			}
		})
	}
	wg.Wait()
}

// one is a single random write, tried for at most 30 s (a KV node may be on its way back).
func (w *workload) one(ctx context.Context, r *rand.Rand, key string, gone map[string]bool) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if !gone[key] && r.IntN(5) == 0 {
		m, err := w.kv.Delete(ctx, key, 0)
		if errors.Is(err, kvclient.ErrKeyNotFound) { // an earlier load has deleted it
			gone[key] = true
			return nil
		}
		if errors.Is(err, kvclient.ErrAmbiguous) {
			gone[key] = true
			return err
		}
		if err != nil {
			return err
		}
		gone[key] = true
		w.history.Record(m.VBucket, oracle.Op{Seqno: m.Seqno, Key: key})
		w.writes.Add(1)
		return nil
	}
	delete(gone, key)
	return w.set(ctx, key, mutate(r, w.original[key]))
}

// mutate changes a document at random: fields that the indexes look at come, go and change their types.
func mutate(r *rand.Rand, original []byte) []byte {
	dec := json.NewDecoder(bytes.NewReader(original))
	dec.UseNumber()
	doc := map[string]any{}
	if dec.Decode(&doc) != nil {
		return original
	}
	switch r.IntN(8) {
	case 0:
		delete(doc, "name")
	case 1:
		doc["name"] = fmt.Sprintf("renamed %d", r.IntN(1000))
	case 2:
		doc["iso_country"] = []string{"FR", "DE", "CH"}[r.IntN(3)]
	case 3:
		doc["elevation_ft"] = json.Number(fmt.Sprint(r.IntN(20000) - 1000))
	case 4:
		doc["elevation_ft"] = json.Number(fmt.Sprintf("%d.%d", r.IntN(9000), r.IntN(10)))
	case 5:
		doc["scheduled_service"] = r.IntN(2) == 0
	case 6:
		doc["kind"] = []string{"airport", "ruin"}[r.IntN(2)]
	case 7:
		doc["name"] = []any{nil, true, json.Number("7"), "é", []any{"a"}}[r.IntN(5)]
	}
	b, err := json.Marshal(doc)
	if err != nil {
		return original
	}
	return b
}

// scanned is what one scan gave.
type scanned struct {
	index  string
	keys   [][]json.RawMessage
	ids    []string
	seqnos []uint64
	took   time.Duration
}

// scan reads a whole index.
func scan(ctx context.Context, c *client.Client, bucket, name, consistency string) (scanned, error) {
	s := scanned{index: name}
	started := time.Now()
	rows, err := c.Scan(ctx, client.Ref(bucket, name), client.ScanRequest{Consistency: consistency, WantTimestamp: true})
	if err != nil {
		return s, err
	}
	defer rows.Close()
	for rows.Next() {
		row := rows.Row()
		s.keys, s.ids = append(s.keys, slices.Clone(row.Key)), append(s.ids, row.ID)
	}
	end, err := rows.End()
	if err != nil {
		return s, err
	}
	if end.Rows != uint64(len(s.ids)) {
		return s, fmt.Errorf("the end says %d rows, %d came", end.Rows, len(s.ids))
	}
	for _, p := range end.Timestamp.Vector {
		s.seqnos = append(s.seqnos, p.Seqno)
	}
	s.took = time.Since(started)
	return s, nil
}

// check compares a scan with the oracle at the scan's own timestamp.
func (s scanned) check(h *oracle.History) string {
	want, err := oracle.Rows(s.index, h.At(s.seqnos))
	if err != nil {
		return err.Error()
	}
	return oracle.Diff(want, s.keys, s.ids)
}

// createSampleIndexes creates them and waits until they are ready.
func createSampleIndexes(ctx context.Context, t *testing.T, c *client.Client, bucket string) {
	t.Helper()
	var ids []index.ID
	for _, statement := range sample.Statements(bucket) {
		r, err := c.Statement(ctx, statement)
		if err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
		ids = append(ids, r[0].ID)
	}
	if err := c.WaitReady(ctx, ids, nil); err != nil {
		t.Fatal(err)
	}
}

// checkFinal compares every sample index with the documents that KV has now. Documents are read one by one, so that
// writes whose outcome was unknown count as what they became.
func checkFinal(ctx context.Context, t *testing.T, c *client.Client, w *workload, bucket string) {
	t.Helper()
	docs, err := testcluster.Documents(ctx, w.kv, w.keys)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range sampleIndexes {
		s, err := scan(ctx, c, bucket, name, "session")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want, err := oracle.Rows(name, maps.Clone(docs))
		if err != nil {
			t.Fatal(err)
		}
		if d := oracle.Diff(want, s.keys, s.ids); d != "" {
			t.Errorf("%s at the end: %s", name, d)
		}
		t.Logf("%s: %d rows equal the oracle's", name, len(s.ids))
	}
}
