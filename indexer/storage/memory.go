package storage

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"tidemark/index"
)

// memory is the process-wide limit on batches in memory that are not yet written. When half of it is used, the slice
// that holds most starts writing; when all of it is, batches wait until something has been written.
type memory struct {
	limit int64
	hangs time.Duration // hangsAfter; shorter in tests

	mu      sync.Mutex
	total   int64
	engines map[*pebbleEngine]struct{}

	mostKept int64 // limit of kept entries that have been written, see recent
	kept     int64
}

func newMemory(limit, kept int64) *memory {
	return &memory{limit: limit, hangs: hangsAfter, mostKept: kept, engines: map[*pebbleEngine]struct{}{}}
}

const (
	// hangsAfter is how long an engine may write no memtable although some wait, until batches of others do not wait for
	// it any more. What it holds is bounded by maxPending.
	hangsAfter = 30 * time.Second
	// lookAgain bounds the wait for one engine, which may hang, while others write.
	lookAgain = 100 * time.Millisecond
)

// keep changes the number of bytes of written entries that engines keep.
func (m *memory) keep(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kept += n
}

// tooMuch reports whether an engine that keeps n bytes of written entries should evict some: all engines together
// keep more than allowed, and this one more than its share.
func (m *memory) tooMuch(n int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.kept > m.mostKept && n*int64(len(m.engines)) > m.mostKept
}

const (
	// firstShares is the number of equally large slices that fit at first. A slice keeps its memtable size while it
	// is open, so each later one gets the same fraction of what is left, and all of them together stay near the
	// limit.
	firstShares = 8
	// leastShare is the memtable size of a slice when nothing is left, until all together exceed the limit by half;
	// from then on it is minMemTable. Memory beyond the limit is taken from the cache (Cache.Reserve), so that the
	// sum of both stays the same.
	leastShare = 512 << 10
)

// share returns the memtable size of one of n slices. Two of each fit, because the store keeps one that has been
// written for the next.
func (m *memory) share(n int) int64 { return m.limit / int64(2*max(n, firstShares)) }

// next returns the memtable size of one more slice, taking into account those that are being made.
func (m *memory) next(making map[index.CopyID]int64) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	left := m.limit
	for _, size := range making {
		left -= 2 * size
	}
	for e := range m.engines {
		left -= 2 * e.memTable
	}
	least := int64(leastShare)
	if left < -m.limit/2 {
		least = minMemTable
	}
	return max(left/(2*firstShares), least)
}

func (m *memory) join(e *pebbleEngine) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.engines[e] = struct{}{}
}

// leave removes an engine. Afterwards no other engine's writer starts to write it.
func (m *memory) leave(e *pebbleEngine, held int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.engines, e)
	m.total -= held
}

func (m *memory) add(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.total += n
}

// all returns the engines.
func (m *memory) all() []*pebbleEngine {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.engines))
}

// reserved is the divisor of the limit that gives the part which yielding batches leave to others.
const reserved = 8

// admit waits until n more bytes fit, as long as some slice can write and ctx lasts: a slice that fails, or whose disk
// hangs, delays no other. A yielding batch leaves a part of the limit to others until one more memtable has been
// written. The error is ctx's.
func (m *memory) admit(ctx context.Context, n int64, yields bool) error {
	most := m.limit
	if yields {
		most -= m.limit / reserved
	}
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		m.mu.Lock()
		if m.total+n <= most || m.total == 0 {
			m.mu.Unlock()
			return nil
		}
		m.mu.Unlock()
		writing := false
		for _, e := range m.all() {
			oldest, pending := e.reap()
			if pending == 0 || e.failing() != nil || e.stalledFor() > m.hangs {
				continue
			}
			select {
			case <-e.health.closing:
				continue
			default:
			}
			writing = true
			soon, cancel := context.WithTimeout(ctx, lookAgain)
			if e.await(soon, oldest) == nil { // an error is reported to its own writer
				most = m.limit
			}
			cancel()
			_, _ = e.reap() // written bytes do not count any more
			break
		}
		if writing {
			continue
		}
		m.mu.Lock()
		began, err := m.writeLargest()
		m.mu.Unlock()
		if !began || err != nil { // everything left belongs to slices that cannot write
			return nil
		}
	}
}

// shrink makes the largest slice write its memtable when more than half of the limit is used.
func (m *memory) shrink() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.total <= m.limit/2 {
		return nil
	}
	_, err := m.writeLargest()
	return err
}

// writeLargest makes the slice with the largest memtable write it, unless enough is being written already. The caller
// holds the lock.
func (m *memory) writeLargest() (began bool, err error) {
	var most int64
	var largest *pebbleEngine
	waiting := int64(0)
	for e := range m.engines {
		active, pending := e.weights()
		waiting += pending
		if active > most {
			most, largest = active, e
		}
	}
	if largest == nil || m.total-waiting <= m.limit/2 {
		return false, nil // enough is being written already
	}
	_, err = largest.rotate()
	return true, err
}

// MemoryUse is the memory of a store, in bytes.
type MemoryUse struct {
	Used  int64 // blocks in the cache, and batches that are not yet written
	Limit int64
}

// Memory returns the store's use of memory. Memtables are part of the cache's limit.
func (s *Store) Memory() MemoryUse {
	for _, e := range s.res.memory.all() {
		e.settle()
	}
	limit := s.opts.CacheBytes + s.opts.MemTableBytes
	s.res.memory.mu.Lock()
	defer s.res.memory.mu.Unlock()
	return MemoryUse{Used: s.res.cache.Size() + s.res.memory.total + s.res.memory.kept, Limit: limit}
}
