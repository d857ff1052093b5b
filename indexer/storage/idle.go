package storage

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

const (
	// maxIdleIters bounds the iterators that one view keeps for reuse.
	maxIdleIters = 8
	// maxAllIdle bounds the idle iterators of all views of a store. Each pins one or two blocks per level, for which
	// idleCache bytes of the cache are assumed.
	maxAllIdle = 512
	idleCache  = 512 << 10
	// idleFor is how long an iterator stays idle before it is closed, iterAge the age from which on it is not reused:
	// it pins memtables and tables that have been written or compacted since it was opened.
	idleFor = time.Second
	iterAge = 10 * time.Second
)

// idleIters keeps unused iterators over a view's rows, because opening one costs more than reading a hundred rows.
// They are closed with the view, or sooner.
type idleIters struct {
	mu   sync.Mutex
	its  []idleIter // last used at the end
	reap *time.Timer
}

// idleIter is an iterator with the times when it was opened and last used.
type idleIter struct {
	*pebble.Iterator
	born, used time.Time
}

// take returns an idle iterator. The caller must set its bounds.
func (i *idleIters) take(e *pebbleEngine) (it idleIter, ok bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	n := len(i.its)
	if n == 0 {
		return it, false
	}
	it = i.its[n-1]
	i.its = i.its[:n-1]
	e.res.idle.Add(-1)
	return it, true
}

// give stores an iterator without errors for reuse. It returns false if there are enough, or it is too old; the
// caller must then close it.
func (i *idleIters) give(e *pebbleEngine, it *pebble.Iterator, born time.Time) bool {
	now := time.Now()
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.its) >= maxIdleIters || now.Sub(born) >= iterAge {
		return false
	}
	if e.res.idle.Add(1) > e.res.mostIdle {
		e.res.idle.Add(-1)
		return false
	}
	i.its = append(i.its, idleIter{it, born, now})
	if i.reap == nil {
		i.reap = time.AfterFunc(idleFor, func() { i.closeUnused(e) })
	}
	return true
}

// closeUnused closes iterators that have been idle for too long.
func (i *idleIters) closeUnused(e *pebbleEngine) {
	i.mu.Lock()
	defer i.mu.Unlock()
	now, n := time.Now(), 0
	for n < len(i.its) && now.Sub(i.its[n].used) >= idleFor {
		n++
	}
	_ = i.closeFirst(e, n) // none of them had an error while it was read
	if len(i.its) > 0 {
		i.reap.Reset(idleFor)
	} else {
		i.reap = nil
	}
}

// close closes all idle iterators.
func (i *idleIters) close(e *pebbleEngine) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.reap != nil {
		i.reap.Stop()
	}
	return i.closeFirst(e, len(i.its))
}

// closeFirst closes the first n iterators. The caller holds the lock.
func (i *idleIters) closeFirst(e *pebbleEngine, n int) error {
	var errs []error
	for _, it := range i.its[:n] {
		errs = append(errs, e.closeIter(it.Iterator, nil))
	}
	i.its = slices.Delete(i.its, 0, n)
	e.res.idle.Add(-int64(n))
	return errors.Join(errs...)
}
