package storage

import (
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

const (
	// maxRest bounds the pause after failed compactions.
	maxRest = 5 * time.Second
	// crowd is the number of stores that must wait for a slot for a running compaction to stop yielding to other
	// work.
	crowd = 3
)

// compactions is the process-wide limit on compactions, whose slots the stores of all slices share. A free slot goes
// to the first store that asks; a slot that becomes free goes to the waiting store with the most urgent compaction.
type compactions struct {
	limit int

	mu      sync.Mutex
	running int
	waiting int // stores that wait for a slot
	members map[*compactor]struct{}
}

func newCompactions(limit int) *compactions {
	return &compactions{limit: limit, members: map[*compactor]struct{}{}}
}

// compactor is one store's part of compactions. It implements pebble.CompactionScheduler and the handle of a granted
// slot.
type compactor struct {
	all *compactions
	// guarded by all.mu:
	db      pebble.DBForCompaction
	running int
	asked   bool // the last request was refused: the store waits for a slot
	calls   int  // calls into db in progress
	idle    *sync.Cond
	// no compactions any more: the store is being closed, or has a damaged file that every compaction would read
	// again
	stopped bool
	delay   time.Duration
	rest    *time.Timer // pause after a failure, during which no compaction starts; nil: none
}

func (c *compactions) member() *compactor {
	return &compactor{all: c, idle: sync.NewCond(&c.mu)}
}

// Register implements pebble.CompactionScheduler.
func (m *compactor) Register(_ int, db pebble.DBForCompaction) {
	m.all.mu.Lock()
	defer m.all.mu.Unlock()
	m.db = db
	m.all.members[m] = struct{}{}
}

// Unregister implements pebble.CompactionScheduler.
func (m *compactor) Unregister() {
	m.all.mu.Lock()
	defer m.all.mu.Unlock()
	delete(m.all.members, m)
	m.end()
	for m.calls > 0 {
		m.idle.Wait()
	}
}

// stop ends the compactions of this store.
func (m *compactor) stop() {
	m.all.mu.Lock()
	defer m.all.mu.Unlock()
	m.end()
}

// end prevents further compactions of this store. The caller holds the lock.
func (m *compactor) end() {
	m.stopped = true
	m.waits(false)
	m.rested()
}

// rested ends the pause after a failure. The caller holds the lock.
func (m *compactor) rested() {
	if m.rest != nil {
		m.rest.Stop()
		m.rest = nil
	}
}

// ended records the result of a compaction. After a failure the store pauses, longer each time, because it would
// retry at once. again reports that the previous compaction had failed, too.
func (m *compactor) ended(ok bool) (again bool) {
	m.all.mu.Lock()
	defer m.all.mu.Unlock()
	again = m.delay > 0
	m.rested()
	switch {
	case ok:
		m.delay = 0
	case !m.stopped:
		m.delay = min(max(2*m.delay, firstDelay), maxRest)
		var rest *time.Timer
		rest = time.AfterFunc(m.delay, func() { m.wake(&rest) })
		m.rest = rest
	}
	return again
}

// wake lets a store compact again after its pause, even if no write makes it ask for a slot.
func (m *compactor) wake(after **time.Timer) {
	m.all.mu.Lock()
	rested := m.rest != nil && m.rest == *after // false if another failure or the end has come
	if rested {
		m.rest = nil
	}
	m.all.mu.Unlock()
	for rested && m.all.grant() {
	}
}

// TrySchedule implements pebble.CompactionScheduler. Pebble holds its DB lock.
func (m *compactor) TrySchedule() (bool, pebble.CompactionGrantHandle) {
	m.all.mu.Lock()
	defer m.all.mu.Unlock()
	if !m.mayRun() {
		m.waits(!m.stopped && m.rest == nil && m.running == 0)
		return false, nil
	}
	m.take()
	return true, m
}

// waits records whether the store waits for a slot.
func (m *compactor) waits(asked bool) {
	if m.asked == asked {
		return
	}
	if m.asked = asked; asked {
		m.all.waiting++
	} else {
		m.all.waiting--
	}
}

// mayPause reports whether a running compaction of this store may hold its slot longer than necessary.
func (m *compactor) mayPause() bool {
	m.all.mu.Lock()
	defer m.all.mu.Unlock()
	return !m.stopped && m.all.waiting < crowd
}

func (m *compactor) mayRun() bool {
	return !m.stopped && m.rest == nil && m.all.running < m.all.limit && m.running < m.db.GetAllowedWithoutPermission()
}

func (m *compactor) take() {
	m.waits(false)
	m.all.running++
	m.running++
}

func (m *compactor) giveBack() {
	m.all.running--
	m.running--
}

// UpdateGetAllowedWithoutPermission implements pebble.CompactionScheduler. It does nothing, because a store asks
// again after each flush.
func (m *compactor) UpdateGetAllowedWithoutPermission() {}

// Started implements pebble.CompactionGrantHandle.
func (m *compactor) Started() {}

// MeasureCPU implements pebble.CompactionGrantHandle.
func (m *compactor) MeasureCPU(pebble.CompactionGoroutineKind) {}

// CumulativeStats implements pebble.CompactionGrantHandle.
func (m *compactor) CumulativeStats(pebble.CompactionGrantHandleStats) {}

// Done implements pebble.CompactionGrantHandle. It frees the slot, which goes to the store with the most urgent
// compaction.
func (m *compactor) Done() {
	m.all.mu.Lock()
	m.giveBack()
	m.all.mu.Unlock()
	for m.all.grant() {
	}
}

// grant gives one free slot to a waiting store. It returns false if there is no slot, or no store takes it.
func (c *compactions) grant() bool {
	c.mu.Lock()
	var asked []*compactor
	for m := range c.members {
		if m.mayRun() {
			m.calls++
			asked = append(asked, m)
		}
	}
	c.mu.Unlock()
	var best *compactor
	var urgent pebble.WaitingCompaction
	var content []*compactor
	for _, m := range asked {
		switch waiting, w := m.db.GetWaitingCompaction(); {
		case !waiting:
			content = append(content, m)
		case best == nil || moreUrgent(w, urgent):
			best, urgent = m, w
		}
	}
	granted := false
	if best != nil {
		c.mu.Lock()
		reserved := best.mayRun()
		if reserved {
			best.take()
		}
		c.mu.Unlock()
		if reserved {
			granted = best.db.Schedule(best)
			if !granted {
				c.mu.Lock()
				best.giveBack()
				c.mu.Unlock()
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range content {
		m.waits(false)
	}
	for _, m := range asked {
		m.calls--
		m.idle.Broadcast()
	}
	return granted
}

func moreUrgent(a, b pebble.WaitingCompaction) bool {
	switch {
	case a.Optional != b.Optional:
		return !a.Optional
	case a.Priority != b.Priority:
		return a.Priority > b.Priority
	}
	return a.Score > b.Score
}
