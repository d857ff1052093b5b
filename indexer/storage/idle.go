package storage

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

const (
	// maxIdleIters bounds the iterators that one view keeps for its next readers.
	maxIdleIters = 8
	// maxAllIdle bounds those of all views of a store: each pins a block of a table or two for every level, for which
	// idleCache of the cache are reckoned.
	maxAllIdle = 512
	idleCache  = 512 << 10
	// idleFor is how long one waits for a reader, and iterAge how long it is read with: it pins memtables and tables that
	// have been written, or compacted, since it was opened.
	idleFor = time.Second
	iterAge = 10 * time.Second
)

// idleIters keeps iterators over a view's rows that nobody uses: to open one costs more than to read a hundred rows.
// They end with the view, or sooner.
type idleIters struct {
	mu   sync.Mutex
	its  []idleIter // that was used last at the end
	reap *time.Timer
}

// idleIter was opened at one time, and used last at another.
type idleIter struct {
	*pebble.Iterator
	born, used time.Time
}

// take returns one, whose bounds are still to be set.
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

// give takes one back that has met no error; false when there are enough, or it is too old, and it is to be closed.
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

// closeUnused closes those that have waited for too long.
func (i *idleIters) closeUnused(e *pebbleEngine) {
	i.mu.Lock()
	defer i.mu.Unlock()
	now, n := time.Now(), 0
	for n < len(i.its) && now.Sub(i.its[n].used) >= idleFor {
		n++
	}
	_ = i.closeFirst(e, n) // none has met an error while it was read
	if len(i.its) > 0 {
		i.reap.Reset(idleFor)
	} else {
		i.reap = nil
	}
}

// close closes them all.
func (i *idleIters) close(e *pebbleEngine) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.reap != nil {
		i.reap.Stop()
	}
	return i.closeFirst(e, len(i.its))
}

// closeFirst closes so many. The lock is held.
func (i *idleIters) closeFirst(e *pebbleEngine, n int) error {
	var errs []error
	for _, it := range i.its[:n] {
		errs = append(errs, e.closeIter(it.Iterator, nil))
	}
	i.its = slices.Delete(i.its, 0, n)
	e.res.idle.Add(-int64(n))
	return errors.Join(errs...)
}
