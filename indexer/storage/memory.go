package storage

import (
	"context"
	"maps"
	"slices"
	"sync"

	"tidemark/index"
)

// memory is the process-wide bound on batches that are in memory and not yet written. When half of it is taken, the
// slice that holds most begins to write; when all of it is, batches wait until something has been written.
type memory struct {
	limit int64

	mu      sync.Mutex
	total   int64
	engines map[*pebbleEngine]struct{}

	mostKept int64 // of what has been written, see recent
	kept     int64
}

func newMemory(limit, kept int64) *memory {
	return &memory{limit: limit, mostKept: kept, engines: map[*pebbleEngine]struct{}{}}
}

// keep counts what engines keep of what has been written.
func (m *memory) keep(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kept += n
}

// tooMuch tells an engine that keeps n bytes of what has been written to give up some: all together keep more than they
// may, and this one more than its part.
func (m *memory) tooMuch(n int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.kept > m.mostKept && n*int64(len(m.engines)) > m.mostKept
}

const (
	// firstShares is how many slices of the same size there is room for at first. A slice keeps its size while it is open,
	// so each that comes later takes as large a part of what is left: all of them together stay near to the limit.
	firstShares = 8
	// leastShare is the size that a slice has also when nothing is left, until all together are half as much again: then
	// it is minMemTable. What they take beyond the limit the cache has less (Cache.Reserve), so that both together stay.
	leastShare = 512 << 10
)

// share returns how large the memtable of one of n slices may be: two of each fit, as the store keeps one that is
// written for the next.
func (m *memory) share(n int) int64 { return m.limit / int64(2*max(n, firstShares)) }

// next returns how large the memtable of one more slice may be, beside those that are being made.
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

// leave takes an engine out; afterwards nobody else begins to write it.
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

// all lists the engines.
func (m *memory) all() []*pebbleEngine {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.engines))
}

// reserved is which part of the limit batches that yield leave to others.
const reserved = 8

// admit waits until n bytes more fit, for as long as slices write that can and ctx lasts: one that fails delays no
// other. Who yields leaves a part of the limit to others until one memtable more is written. The error is ctx's.
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
			if pending == 0 || e.failing() != nil {
				continue
			}
			select {
			case <-e.health.closing:
				continue
			default:
			}
			writing = true
			_ = e.await(ctx, oldest) // its error is its own writer's
			_, _ = e.reap()          // what has been written counts no more
			most = m.limit
			break
		}
		if writing {
			continue
		}
		m.mu.Lock()
		began, err := m.writeLargest()
		m.mu.Unlock()
		if !began || err != nil { // all that is left belongs to slices that cannot write
			return nil
		}
	}
}

// shrink lets the largest slice write its memtable when half of the limit is passed.
func (m *memory) shrink() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.total <= m.limit/2 {
		return nil
	}
	_, err := m.writeLargest()
	return err
}

// writeLargest lets the slice write that holds most and is not writing it yet, unless enough is being written. The lock
// is held.
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

// MemoryUse is what a store holds in memory.
type MemoryUse struct {
	Used  int64 // blocks in the cache, and what is applied and not yet written
	Limit int64
}

// Memory returns how much it is. Memtables are part of the cache's bound.
func (s *Store) Memory() MemoryUse {
	for _, e := range s.res.memory.all() {
		e.settle()
	}
	limit := s.opts.CacheBytes + s.opts.MemTableBytes
	s.res.memory.mu.Lock()
	defer s.res.memory.mu.Unlock()
	return MemoryUse{Used: s.res.cache.Size() + s.res.memory.total + s.res.memory.kept, Limit: limit}
}
