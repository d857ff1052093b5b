package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"tidemark/internal/oracle"
	"tidemark/kvclient"
	"tidemark/sample"
)

// Workload writes documents of the sample and remembers every acknowledged write by its token.
type Workload struct {
	KV       *kvclient.Client
	History  *oracle.History
	Keys     []string
	original map[string]map[string]any // as decoded, numbers as json.Number
	Writes   atomic.Int64              // acknowledged
	Failed   atomic.Int64              // writes without an answer: their outcome is unknown
}

// NewWorkload stores the sample documents one by one, so that each one's token is known.
func NewWorkload(ctx context.Context, t *testing.T, kv *kvclient.Client) *Workload {
	t.Helper()
	return NewWorkloadOf(ctx, t, kv, 1)
}

// NewWorkloadOf stores one of every so many sample documents.
func NewWorkloadOf(ctx context.Context, t *testing.T, kv *kvclient.Client, every int) *Workload {
	t.Helper()
	w := &Workload{KV: kv, History: oracle.NewHistory(kv.Config().NumVBuckets()), original: map[string]map[string]any{}}
	r, err := sample.Open()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string][]byte{}
	for i := 0; ; i++ {
		d, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if i%every != 0 {
			continue
		}
		w.Keys = append(w.Keys, d.Key)
		values[d.Key] = bytes.Clone(d.Value)
		dec := json.NewDecoder(bytes.NewReader(d.Value))
		dec.UseNumber()
		doc := map[string]any{}
		if err := dec.Decode(&doc); err != nil {
			t.Fatalf("%s: %v", d.Key, err)
		}
		w.original[d.Key] = doc
	}
	var g errgroup.Group
	const writers = 32
	for n := range writers {
		g.Go(func() error {
			for i := n; i < len(w.Keys); i += writers {
				if err := w.Set(ctx, w.Keys[i], values[w.Keys[i]]); err != nil {
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

// Set writes one document and remembers it.
func (w *Workload) Set(ctx context.Context, key string, value []byte) error {
	m, err := w.KV.Set(ctx, key, value, kvclient.StoreOptions{})
	if err != nil {
		return fmt.Errorf("set %s: %w", key, err)
	}
	w.History.Record(m.VBucket, oracle.Op{Seqno: m.Seqno, Key: key, Value: value})
	w.Writes.Add(1)
	return nil
}

// A writer waits for each answer: this many writes a second are one's, so that some milliseconds of waiting do not slow the
// load down.
const (
	writesEach   = 100
	leastWriters = 8
	mostWriters  = 128
)

// Run makes random updates, deletions and re-creations at a rate per second until ctx ends. Each writer owns its keys,
// so that a key's writes are acknowledged in their order.
func (w *Workload) Run(ctx context.Context, seed uint64, perSecond int) {
	writers := min(max(perSecond/writesEach, leastWriters), mostWriters)
	var wg sync.WaitGroup
	for n := range writers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(n)))
			gone := map[string]bool{}
			tick := time.NewTicker(time.Second * time.Duration(writers) / time.Duration(perSecond))
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				key := w.Keys[n+writers*r.IntN(len(w.Keys)/writers)]
				if err := w.One(context.WithoutCancel(ctx), r, key, gone); err != nil {
					w.Failed.Add(1)
				}
			}
		})
	}
	wg.Wait()
}

// One is a single random write, tried for at most a minute (a KV node may be on its way back). gone are the keys that the
// caller's writes have deleted.
func (w *Workload) One(ctx context.Context, r *rand.Rand, key string, gone map[string]bool) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if !gone[key] && r.IntN(5) == 0 {
		m, err := w.KV.Delete(ctx, key, 0)
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
		w.History.Record(m.VBucket, oracle.Op{Seqno: m.Seqno, Key: key})
		w.Writes.Add(1)
		return nil
	}
	delete(gone, key)
	return w.Set(ctx, key, w.Mutated(r, key))
}

// Mutated is the sample document of a key, changed at random.
func (w *Workload) Mutated(r *rand.Rand, key string) []byte { return mutate(r, w.original[key]) }

// mutate gives a document changed at random: fields that the indexes look at come, go and change their types.
func mutate(r *rand.Rand, original map[string]any) []byte {
	doc := maps.Clone(original)
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
		return []byte("{}") // of what was decoded nothing fails
	}
	return b
}
