package storage

import (
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

const (
	// maxRest bounds the pause after compactions that failed.
	maxRest = 5 * time.Second
	// crowd is how many stores may wait for a slot while a compaction that has one pauses for others' sake.
	crowd = 3
	// leastMerge is the part of a store that has to lie in level 0, as its divisor, before it is merged with all below.
	leastMerge = 8
)

// compactions is the process-wide limit on compactions: the stores of all slices share its slots. When one is free it
// is granted to the waiting store with the most urgent compaction.
//
// A store asks for more than it gains by. Each table with many removed keys is to be merged at once, however small:
// Pebble calls that tombstone density. Such is nearly every table of an index whose documents are updated, as each
// update removes a key; and as rows of one table are spread over all keys, the whole copy is written anew for it. So a
// compaction waits until it is due: a copy that is made durable often, or sent to another indexer, is not written anew
// each time. What scans pass over meanwhile is at most that part of the copy.
type compactions struct {
	limit int

	mu      sync.Mutex
	running int
	waiting int // stores that have asked for a slot in vain
	members map[*compactor]struct{}
}

func newCompactions(limit int) *compactions {
	return &compactions{limit: limit, members: map[*compactor]struct{}{}}
}

// compactor is one store's part of it. It implements pebble.CompactionScheduler and the handle of a granted slot.
type compactor struct {
	all *compactions
	// guarded by all.mu:
	db      pebble.DBForCompaction
	tables  tables // db, where it says which it has; nil: whatever it asks for is due
	due     bool   // what it asks for, as of the last look
	looking bool   // somebody looks, and
	again   bool   // has to look once more
	running int
	asked   bool // in vain, and not again since
	calls   int  // calls into db under way
	idle    *sync.Cond
	stopped bool // no more: the store is being closed, or has a damaged file that compactions would meet again and again
	delay   time.Duration
	rest    *time.Timer // after a failure: none before it is over; nil: may run
}

// tables is a store that says which tables it has, by level.
type tables interface {
	SSTables(opts ...pebble.SSTablesOption) ([][]pebble.SSTableInfo, error)
}

// isDue reports whether a compaction of a store with these tables is worth it: level 0 is empty, and a lower level has
// to be merged, or it has as many tables as scans are to meet at most, or a part of all bytes.
func isDue(levels [][]pebble.SSTableInfo) bool {
	var all, above uint64
	for i := range levels {
		for j := range levels[i] {
			all += levels[i][j].Size
		}
		if i == 0 {
			above = all
		}
	}
	n := 0
	if len(levels) > 0 {
		n = len(levels[0])
	}
	return n == 0 || n >= l0Threshold/2 || above >= all/leastMerge
}

func (c *compactions) member() *compactor {
	return &compactor{all: c, idle: sync.NewCond(&c.mu)}
}

// Register implements pebble.CompactionScheduler.
func (m *compactor) Register(_ int, db pebble.DBForCompaction) {
	m.all.mu.Lock()
	defer m.all.mu.Unlock()
	m.db = db
	m.tables, _ = db.(tables)
	m.all.members[m] = struct{}{}
}

// look lets a compaction begin that is due. It waits for nothing: the store's lock may be held.
func (m *compactor) look() {
	m.all.mu.Lock()
	defer m.all.mu.Unlock()
	m.wanted()
}

// wanted has somebody look, once for all who want it meanwhile. The lock is held.
func (m *compactor) wanted() {
	if m.stopped || m.tables == nil {
		return
	}
	if m.again = true; !m.looking {
		m.looking = true
		m.calls++ // until there is no store any more
		go m.looks()
	}
}

// looks lets compactions begin for as long as somebody wants it.
func (m *compactor) looks() {
	all := m.all
	all.mu.Lock()
	defer all.mu.Unlock()
	for m.again && !m.stopped {
		m.again = false
		all.mu.Unlock()
		waiting, _ := m.db.GetWaitingCompaction() // first: who wanted a look has let go of the store's lock then
		levels, err := m.tables.SSTables()
		all.mu.Lock()
		m.due = err != nil || isDue(levels)
		m.waits(waiting && m.due && !m.stopped && m.rest == nil && m.running == 0 && all.running >= all.limit)
		all.mu.Unlock()
		for waiting && all.grant() {
		}
		all.mu.Lock()
	}
	m.looking = false
	m.calls--
	m.idle.Broadcast()
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

// end lets no compaction of this store begin any more. The lock is held.
func (m *compactor) end() {
	m.stopped = true
	m.waits(false)
	m.rested()
}

// rested ends the pause after a failure. The lock is held.
func (m *compactor) rested() {
	if m.rest != nil {
		m.rest.Stop()
		m.rest = nil
	}
}

// ended is told how a compaction went: after a failure the store rests, longer each time, because it would try the same
// again at once. again: so did the one before.
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

// wake lets a store that has rested run again, also where nothing is written to it that would have it ask.
func (m *compactor) wake(after **time.Timer) {
	m.all.mu.Lock()
	rested := m.rest != nil && m.rest == *after // else another failure came, or the end
	if rested {
		m.rest = nil
	}
	m.all.mu.Unlock()
	for rested && m.all.grant() {
	}
}

// TrySchedule implements pebble.CompactionScheduler; the store's lock is held. It cannot be asked now what it wants:
// it gets a slot as one that waits does.
func (m *compactor) TrySchedule() (bool, pebble.CompactionGrantHandle) {
	m.all.mu.Lock()
	defer m.all.mu.Unlock()
	if m.tables != nil {
		m.wanted()
		return false, nil
	}
	if !m.mayRun() {
		m.waits(!m.stopped && m.rest == nil && m.running == 0)
		return false, nil
	}
	m.take()
	return true, m
}

// waits notes whether the store waits for a slot.
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

// mayPause reports whether a compaction of this store that has a slot may keep it longer than it needs it.
func (m *compactor) mayPause() bool {
	m.all.mu.Lock()
	defer m.all.mu.Unlock()
	return !m.stopped && m.all.waiting < crowd
}

func (m *compactor) mayRun() bool {
	return !m.stopped && m.rest == nil && (m.tables == nil || m.due) && m.all.running < m.all.limit &&
		m.running < m.db.GetAllowedWithoutPermission()
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

// UpdateGetAllowedWithoutPermission implements pebble.CompactionScheduler. A store asks again after each flush anyway.
func (m *compactor) UpdateGetAllowedWithoutPermission() {}

// Started implements pebble.CompactionGrantHandle.
func (m *compactor) Started() {}

// MeasureCPU implements pebble.CompactionGrantHandle.
func (m *compactor) MeasureCPU(pebble.CompactionGoroutineKind) {}

// CumulativeStats implements pebble.CompactionGrantHandle.
func (m *compactor) CumulativeStats(pebble.CompactionGrantHandleStats) {}

// Done implements pebble.CompactionGrantHandle: the slot is free, and whoever waits most urgently gets it.
func (m *compactor) Done() {
	m.all.mu.Lock()
	m.giveBack()
	m.all.mu.Unlock()
	for m.all.grant() {
	}
}

// grant returns one free slot to a waiting store; false when there is no slot or nobody takes it.
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
