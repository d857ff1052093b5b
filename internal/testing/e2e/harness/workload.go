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
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"tidemark/internal/sample"
	"tidemark/internal/testing/oracle"
	"tidemark/kv/kvclient"
)

// Workload writes documents of the sample and records every acknowledged write by its token.
type Workload struct {
	KV       *kvclient.Client
	History  *oracle.History
	Keys     []string
	original map[string][]field
	Writes   atomic.Int64 // acknowledged
	Failed   atomic.Int64 // writes without an answer: the outcome is unknown
}

// NewWorkload stores the sample's documents one by one, so that each one's token is known.
func NewWorkload(ctx context.Context, t *testing.T, kv *kvclient.Client) *Workload {
	t.Helper()
	return NewWorkloadOf(ctx, t, kv, 1)
}

// NewWorkloadOf stores every n-th document of the sample, where n is every.
func NewWorkloadOf(ctx context.Context, t *testing.T, kv *kvclient.Client, every int) *Workload {
	t.Helper()
	w := &Workload{KV: kv, History: oracle.NewHistory(kv.Config().NumVBuckets()), original: map[string][]field{}}
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
		if w.original[d.Key], err = fieldsOf(values[d.Key]); err != nil {
			t.Fatalf("%s: %v", d.Key, err)
		}
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

// Set writes one document and records the write.
func (w *Workload) Set(ctx context.Context, key string, value []byte) error {
	_, err := w.Store(ctx, key, value)
	return err
}

// Store is Set, and returns the write's token.
func (w *Workload) Store(ctx context.Context, key string, value []byte) (kvclient.Mutation, error) {
	m, err := w.KV.Set(ctx, key, value, kvclient.StoreOptions{})
	if err != nil {
		return m, fmt.Errorf("set %s: %w", key, err)
	}
	w.History.Record(m.VBucket, oracle.Op{Seqno: m.Seqno, Key: key, Value: value})
	w.Writes.Add(1)
	return m, nil
}

// The writers of a load are few, and each sends its due writes together, so that the load itself takes little of the
// machine.
const (
	// loadWriters is the number of writers.
	loadWriters = 8
	// loadTick is the interval at which each writer looks for due writes.
	loadTick = 10 * time.Millisecond
	// mostTogether is the most writes that a writer has in flight.
	mostTogether = 64
	// mostBehind is the most time for which a writer makes up after late answers; older writes are left out.
	mostBehind = time.Second
)

// Run makes random updates, deletions and re-creations at a rate per second until ctx ends. Writes that fell due
// while answers were late are made up for, so that the average rate holds, except for delays of more than mostBehind.
// Each writer owns its keys and has one write per key in flight, so that the writes of a key are acknowledged in
// their order.
func (w *Workload) Run(ctx context.Context, seed uint64, perSecond int) {
	var wg sync.WaitGroup
	for n := range loadWriters {
		wg.Go(func() {
			l := writer{w: w, n: n, r: rand.New(rand.NewPCG(seed, uint64(n))), gone: map[string]bool{}}
			Paced(ctx, time.Second*loadWriters/time.Duration(perSecond), l.together)
		})
	}
	wg.Wait()
}

// writer is one writer of a load.
type writer struct {
	w    *Workload
	n    int
	r    *rand.Rand
	gone map[string]bool
}

// Paced lets a writer of a load write once per interval each until ctx ends. Writes that are due together are sent
// together, at most mostTogether at once, and writes that fell due while answers were late are made up for, except
// for delays of more than mostBehind. The context of write does not end with ctx.
func Paced(ctx context.Context, each time.Duration, write func(ctx context.Context, due int)) {
	tick := time.NewTicker(min(loadTick, each))
	defer tick.Stop()
	for next := time.Now().Add(each); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for now := time.Now(); !next.After(now) && ctx.Err() == nil; now = time.Now() {
			if late := now.Add(-mostBehind); next.Before(late) {
				next = late
			}
			due := min(int(now.Sub(next)/each)+1, mostTogether)
			next = next.Add(time.Duration(due) * each)
			write(context.WithoutCancel(ctx), due)
		}
	}
}

// together sends due writes of different keys at once and waits for their answers.
func (l *writer) together(ctx context.Context, due int) {
	var wg sync.WaitGroup
	mine := len(l.w.Keys) / loadWriters
	all := make([]randomWrite, 0, due)
	for range min(due, mine) {
		key := l.w.Keys[l.n+loadWriters*l.r.IntN(mine)]
		if !slices.ContainsFunc(all, func(o randomWrite) bool { return o.key == key }) {
			all = append(all, l.w.choose(l.r, key, l.gone))
		}
	}
	for i := range all {
		wg.Go(func() { all[i].err = all[i].do(ctx, l.w) })
	}
	wg.Wait()
	for _, o := range all {
		if o.settle(l.gone) != nil {
			l.w.Failed.Add(1)
		}
	}
}

// randomWrite is a random write and its outcome. A deletion has no value.
type randomWrite struct {
	key   string
	value []byte
	err   error
}

// choose draws a write. gone holds the keys that the caller's writes have deleted.
func (w *Workload) choose(r *rand.Rand, key string, gone map[string]bool) randomWrite {
	if !gone[key] && r.IntN(5) == 0 {
		return randomWrite{key: key}
	}
	delete(gone, key)
	return randomWrite{key: key, value: w.Mutated(r, key)}
}

// do tries the write for at most a minute, because a KV node may be restarting.
func (o *randomWrite) do(ctx context.Context, w *Workload) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if o.value != nil {
		return w.Set(ctx, o.key, o.value)
	}
	m, err := w.KV.Delete(ctx, o.key, 0)
	if err != nil {
		return err
	}
	w.History.Record(m.VBucket, oracle.Op{Seqno: m.Seqno, Key: o.key})
	w.Writes.Add(1)
	return nil
}

// settle records the write's effect on its document.
func (o *randomWrite) settle(gone map[string]bool) error {
	switch {
	case o.value != nil:
	case errors.Is(o.err, kvclient.ErrKeyNotFound): // an earlier load has deleted it
		gone[o.key] = true
		return nil
	case o.err == nil || errors.Is(o.err, kvclient.ErrAmbiguous):
		gone[o.key] = true
	}
	return o.err
}

// One makes a single random write. gone holds the keys that the caller's writes have deleted.
func (w *Workload) One(ctx context.Context, r *rand.Rand, key string, gone map[string]bool) error {
	o := w.choose(r, key, gone)
	o.err = o.do(ctx, w)
	return o.settle(gone)
}

// Mutated returns the sample document of a key, changed at random.
func (w *Workload) Mutated(r *rand.Rand, key string) []byte { return mutate(r, w.original[key]) }

// field is one field of a document, its value as JSON.
type field struct {
	name  string
	value []byte
}

// fieldsOf splits a document, which must be an object, into its fields.
func fieldsOf(value []byte) ([]field, error) {
	var doc map[string]json.RawMessage
	if err := json.Unmarshal(value, &doc); err != nil {
		return nil, err
	}
	fields := make([]field, 0, len(doc))
	for _, name := range slices.Sorted(maps.Keys(doc)) {
		fields = append(fields, field{name, doc[name]})
	}
	return fields, nil
}

// mutate returns a document changed at random: fields that the indexes use are added, removed and change their types.
func mutate(r *rand.Rand, original []field) []byte {
	name, value := "", ""
	switch r.IntN(8) {
	case 0:
		name = "name" // removed
	case 1:
		name, value = "name", fmt.Sprintf(`"renamed %d"`, r.IntN(1000))
	case 2:
		name, value = "iso_country", []string{`"FR"`, `"DE"`, `"CH"`}[r.IntN(3)]
	case 3:
		name, value = "elevation_ft", strconv.Itoa(r.IntN(20000)-1000)
	case 4:
		name, value = "elevation_ft", fmt.Sprintf("%d.%d", r.IntN(9000), r.IntN(10))
	case 5:
		name, value = "scheduled_service", strconv.FormatBool(r.IntN(2) == 0)
	case 6:
		name, value = "kind", []string{`"airport"`, `"ruin"`}[r.IntN(2)]
	case 7:
		name, value = "name", []string{`null`, `true`, `7`, `"é"`, `["a"]`}[r.IntN(5)]
	}
	doc := []byte{'{'}
	for _, f := range original {
		if f.name != name {
			doc = appendField(doc, f.name, f.value)
		}
	}
	if value != "" {
		doc = appendField(doc, name, []byte(value))
	}
	return append(doc, '}')
}

func appendField(doc []byte, name string, value []byte) []byte {
	if len(doc) > 1 {
		doc = append(doc, ',')
	}
	doc = append(strconv.AppendQuote(doc, name), ':')
	return append(doc, value...)
}
