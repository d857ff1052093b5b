package storage

import "sync"

// memory is the process-wide bound on batches that are in memory and not yet written. When it is passed, the slice that
// holds most begins to write.
type memory struct {
	limit int64

	mu      sync.Mutex
	total   int64
	engines map[*pebbleEngine]struct{}
}

func newMemory(limit int64) *memory {
	return &memory{limit: limit, engines: map[*pebbleEngine]struct{}{}}
}

// share gives how large the memtable of one of n slices may be: two of each fit.
func (m *memory) share(n int) int64 { return m.limit / int64(2*max(n, 4)) }

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

// shrink lets the largest slice write its memtable when the limit is passed.
func (m *memory) shrink() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.total <= m.limit {
		return nil
	}
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
		return nil // enough is being written already
	}
	_, err := largest.rotate()
	return err
}

// MemoryUse is what a store holds in memory.
type MemoryUse struct {
	Used  int64 // blocks in the cache, and what is applied and not yet written
	Limit int64
}

// Memory tells how much it is. Memtables are part of the cache's bound.
func (s *Store) Memory() MemoryUse {
	limit := s.opts.CacheBytes + s.opts.MemTableBytes
	s.res.memory.mu.Lock()
	defer s.res.memory.mu.Unlock()
	return MemoryUse{Used: s.res.cache.Size() + s.res.memory.total, Limit: limit}
}
