package storage

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"tidemark/index"
)

// TestMemTableSizes: however many slices are created one after another, their memtables, two of each, stay near the
// limit.
func TestMemTableSizes(t *testing.T) {
	for _, limit := range []int64{128 << 20, 256 << 20, 4 << 30} {
		m, sum := newMemory(limit, 0), int64(0)
		for n := range 200 {
			size := max(m.next(nil), minMemTable)
			m.join(&pebbleEngine{memTable: size})
			sum += 2 * size
			most := limit
			if n >= firstShares {
				most = limit + int64(n)*2*leastShare
			}
			if sum > min(most, 2*limit) {
				t.Fatalf("limit %d: %d slices have memtables of %d together, want at most %d", limit, n+1, sum, min(most, 2*limit))
			}
		}
		making := map[index.CopyID]int64{}
		for id := range index.CopyID(40) { // all at once
			making[id] = newMemory(limit, 0).next(making)
		}
		sum = 0
		for _, size := range making {
			sum += 2 * size
		}
		if sum > limit+40*2*leastShare {
			t.Errorf("limit %d: 40 slices that are made at once have %d together", limit, sum)
		}
		if n := m.share(1000) * 2000; n > limit {
			t.Errorf("limit %d: 1000 slices that are opened have %d together", limit, n)
		}
	}
}

// TestMemoryLimit: many slices that are written at once wait for one another before they hold more than the limit,
// whatever each of them holds, and what is kept for writes does not grow with the number of slices.
func TestMemoryLimit(t *testing.T) {
	const limit, limitKept, writers, copies, batchBytes = 4 << 20, 2 << 20, 4, 16, 200 << 10
	store := openTest(t, t.TempDir(), func(o *Options) { o.MemTableBytes, o.kept = limit, limitKept })
	defer func() { must(t, store.Close()) }()
	var all []*Slice
	for id := range copies {
		s, err := store.Create(testMeta(index.CopyID(id + 1)))
		must(t, err)
		all = append(all, s)
	}
	key := []byte(strings.Repeat("k", 2<<10))
	var wg sync.WaitGroup
	var mu sync.Mutex
	most, held := int64(0), int64(0)
	for w := range writers {
		wg.Go(func() {
			for n := range 120 {
				s := all[(w+n*writers)%copies]
				b := Batch{}
				for i := range 25 {
					k := fmt.Appendf(slices.Clone(key), "%d-%d-%d", w, n, i)
					b.Updates = append(b.Updates, Update{VBucket: uint16(i % testVBuckets), DocID: fmt.Appendf(nil, "d%d-%d-%d", w, n,
						i), Seqno: uint64(n + 1), Keys: [][]byte{k}})
				}
				if err := s.Flush(context.Background(), b); err != nil {
					t.Error(err)
					return
				}
				store.res.memory.mu.Lock()
				total := store.res.memory.total
				store.res.memory.mu.Unlock()
				mu.Lock()
				most, held = max(most, total), held+batchBytes
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if allowed := int64(limit + writers*2*batchBytes); most > allowed || held < 4*limit {
		t.Errorf("%d bytes were written and at most %d held, want at most %d", held, most, allowed)
	}
	if n := len(store.res.scratches.free); n == 0 || n > keptScratches {
		t.Errorf("%d scratches are kept, want 1 to %d", n, keptScratches)
	}
	for _, s := range all {
		must(t, s.Persist(context.Background()))
	}
	// No more is kept of batches in tables than the limit allows, even if no slice is written any more.
	used, sizes := store.Memory().Used-store.res.cache.Size(), int64(0)
	for e := range store.res.memory.engines {
		if active, pending := e.weights(); active+pending != 0 {
			t.Errorf("copy %s counts %d and %d bytes", e.id, active, pending)
		}
		sizes += e.recent.size()
	}
	if total, kept := store.res.memory.total, store.res.memory.kept; total != 0 || kept != sizes || used != sizes ||
		sizes == 0 || sizes > limitKept {
		t.Errorf("%d bytes are counted, none are there; %d and %d are kept, and there are %d, of at most %d", total, kept,
			used, sizes, limitKept)
	}
	must(t, store.Close())
	if kept := store.res.memory.kept; kept != 0 {
		t.Errorf("%d bytes are still counted of a store that is closed", kept)
	}
}

// TestMemoryOfFailingSlice: a slice that cannot write does not prevent others from writing, even if it holds all the
// memory.
func TestMemoryOfFailingSlice(t *testing.T) {
	store := openTest(t, t.TempDir(), func(o *Options) { o.MemTableBytes = 1 << 20 })
	defer func() { must(t, store.Close()) }()
	s, err := store.Create(testMeta(1))
	must(t, err)
	bad := &pebbleEngine{id: 2, health: newHealth(), res: store.res, memTable: minMemTable}
	bad.health.fail(ErrIO)
	bad.mem.pending = []rotated{{1, 8 << 20, make(chan struct{})}}
	store.res.memory.join(bad)
	store.res.memory.add(8 << 20)
	done := make(chan error, 1)
	go func() { done <- s.Flush(context.Background(), historyBatch(1)) }()
	select {
	case err := <-done:
		must(t, err)
	case <-time.After(time.Minute):
		t.Fatal("the write waits for a slice that cannot write")
	}
	store.res.memory.leave(bad, bad.disown())
}

// waiting is a context that reports when something starts to wait for it.
type waiting struct {
	context.Context
	once  sync.Once
	begun chan struct{}
}

func (w *waiting) Done() <-chan struct{} {
	w.once.Do(func() { close(w.begun) })
	return w.Context.Done()
}

// TestMemoryYields: a batch that yields leaves a part of the memory to others, but not for ever.
func TestMemoryYields(t *testing.T) {
	store := openTest(t, t.TempDir(), func(o *Options) { o.MemTableBytes = 1 << 20 })
	defer func() { must(t, store.Close()) }()
	m, full, written := store.res.memory, int64(1<<20-1<<20/reserved), make(chan struct{})
	e := &pebbleEngine{id: 2, health: newHealth(), res: store.res, memTable: minMemTable}
	e.mem.pending, e.mem.moved = []rotated{{1, full, written}, {2, 0, make(chan struct{})}}, time.Now()
	m.join(e)
	m.add(full)
	defer m.leave(e, 0)
	must(t, m.admit(t.Context(), 1, false))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := m.admit(ctx, 1, true); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a batch that yields has the memory that is left: %v", err)
	}
	admitted, waits := make(chan error, 1), &waiting{Context: t.Context(), begun: make(chan struct{})}
	go func() { admitted <- m.admit(waits, 1, true) }()
	<-waits.begun
	m.add(full) // others have taken as much again when the memtable is written
	store.res.space.promise(full)
	close(written)
	select {
	case err := <-admitted:
		must(t, err)
	case <-time.After(time.Minute):
		t.Fatal("it yields for ever")
	}
	m.add(-full)
}

// TestCloseDuringRotation: the memory of a copy that is closed while another copy's writer rotates it is counted
// once, and not any more afterwards.
func TestCloseDuringRotation(t *testing.T) {
	store := openTest(t, "data", func(o *Options) { o.FS = vfs.NewMem() })
	s, err := store.Create(testMeta(1))
	must(t, err)
	must(t, s.Flush(t.Context(), historyBatch(1)))
	e := s.gen.eng.(*pebbleEngine)
	must(t, s.Persist(t.Context()))
	e.reap()
	const bytes = 1 << 10
	for range 100 {
		e.mem.Lock()
		e.mem.active = bytes
		e.mem.Unlock()
		rotated := make(chan error, 1)
		go func() {
			_, err := e.rotate()
			rotated <- err
		}()
		// Until the rotation has begun, though perhaps not ended; its error is checked below.
		for active := int64(bytes); active != 0 && len(rotated) == 0; active, _ = e.weights() {
			runtime.Gosched()
		}
		held := e.disown()
		must(t, <-rotated)
		active, pending := e.weights()
		if held != bytes || active+pending != 0 {
			t.Fatalf("%d bytes are counted, and %d afterwards, of %d", held, active+pending, bytes)
		}
	}
	must(t, store.Close())
}
