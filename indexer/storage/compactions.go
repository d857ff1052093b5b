package storage

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

const (
	// maxRest bounds the pause after failed compactions.
	maxRest = 5 * time.Second
	// crowd is the number of stores that must wait for a slot for a running compaction to stop yielding to other
	// work.
	crowd = 3
	// patience is how long a compaction holds its slot without progress.
	patience = 5 * time.Second
	// spare bounds the compactions without progress that run beside the limit.
	spare = 4
)

// compactions is the process-wide limit on compactions, whose slots the stores of all slices share. A slot goes to the
// waiting store with the most urgent compaction.
//
// A store whose disk hangs must not stop the others: only run, which has a goroutine per store, calls the store. It
// records the compaction that the store wants, and grant chooses among the recorded ones. A slot whose holder has
// made no progress for patience does not count.
type compactions struct {
	limit int
	since time.Time

	mu      sync.Mutex
	running int
	waiting int // stores that wait for a slot
	members map[*compactor]struct{}
	busy    map[*compactor]struct{} // stores with compactions in progress, including stores that are no longer members
	check   *time.Timer             // grants again after patience; nil: no store waits
}

func newCompactions(limit int) *compactions {
	return &compactions{limit: limit, since: time.Now(), members: map[*compactor]struct{}{},
		busy: map[*compactor]struct{}{}}
}

// compactor is one store's part of compactions. It implements pebble.CompactionScheduler and the handle of a granted
// slot.
type compactor struct {
	all   *compactions
	moved atomic.Int64 // when its compactions were last seen making progress, since all.since
	// guarded by all.mu:
	db      pebble.DBForCompaction
	running int
	asked   bool                      // the last request was refused: the store waits for a slot
	want    *pebble.WaitingCompaction // what it waits for; nil: nothing, or run has not found out yet
	calling bool                      // run is in progress
	inside  bool                      // run is in a call of db
	stale   bool                      // run has to find out want again
	granted bool                      // a slot is taken for it, and run has not passed it on yet
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
	for m.calling {
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
	defer m.all.mu.Unlock()
	if m.rest != nil && m.rest == *after { // not if another failure or the end has come
		m.rest = nil
		m.ask()
	}
}

// TrySchedule implements pebble.CompactionScheduler. Pebble holds its DB lock and can say only later, to run, how
// urgent the compaction is: no slot is taken here, and grant compares the store with all others. After a refusal,
// Pebble remembers that it waits, also while grant's slot is used; of a slot that it had taken here it would tell
// nobody, when Done frees it, that it has more to compact, until it calls TrySchedule again.
func (m *compactor) TrySchedule() (bool, pebble.CompactionGrantHandle) {
	m.all.mu.Lock()
	defer m.all.mu.Unlock()
	m.waits(!m.stopped && m.rest == nil && m.running == 0)
	m.ask()
	return false, nil
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

// mayRun reports whether the store may begin another compaction if there is a slot.
func (m *compactor) mayRun() bool {
	return !m.stopped && m.rest == nil && m.running < m.db.GetAllowedWithoutPermission()
}

// canUse reports whether grant may give a free slot to the store.
func (m *compactor) canUse() bool { return m.want != nil && !m.inside && m.mayRun() }

// free reports whether there is a slot. The caller holds the lock.
func (c *compactions) free() bool {
	if c.running < c.limit {
		return true
	}
	hung := 0
	for m := range c.busy {
		if time.Since(c.since)-time.Duration(m.moved.Load()) > patience {
			hung += m.running
		}
	}
	return c.running-min(hung, spare) < c.limit
}

// moves records progress of the store's compactions.
func (m *compactor) moves() { m.moved.Store(int64(time.Since(m.all.since))) }

func (m *compactor) take() {
	m.moves()
	m.want = nil
	m.waits(false)
	m.all.running++
	m.running++
	m.all.busy[m] = struct{}{}
}

func (m *compactor) giveBack() {
	m.all.running--
	if m.running--; m.running == 0 {
		delete(m.all.busy, m)
	}
}

// UpdateGetAllowedWithoutPermission implements pebble.CompactionScheduler. It does nothing, because a store asks
// again after each flush.
func (m *compactor) UpdateGetAllowedWithoutPermission() {}

// Started implements pebble.CompactionGrantHandle.
func (m *compactor) Started() { m.moves() }

// MeasureCPU implements pebble.CompactionGrantHandle. Pebble calls it every few keys.
func (m *compactor) MeasureCPU(pebble.CompactionGoroutineKind) { m.moves() }

// CumulativeStats implements pebble.CompactionGrantHandle.
func (m *compactor) CumulativeStats(pebble.CompactionGrantHandleStats) {}

// Done implements pebble.CompactionGrantHandle. It frees the slot, which goes to the store with the most urgent
// compaction once run has found out what this one wants next.
func (m *compactor) Done() {
	m.all.mu.Lock()
	defer m.all.mu.Unlock()
	m.giveBack()
	if m.ask(); !m.calling {
		m.all.grant()
	}
}

// changed has run find out again how urgent the compaction of a store that waits is, because its tables have changed.
func (m *compactor) changed() {
	m.all.mu.Lock()
	defer m.all.mu.Unlock()
	if m.want != nil {
		m.ask()
	}
}

// ask has run find out what the store wants. The caller holds the lock.
func (m *compactor) ask() {
	m.stale = true
	m.call()
	m.all.later()
}

// call starts run if it is not in progress, and the store is open. The caller holds the lock.
func (m *compactor) call() {
	if !m.calling && !m.stopped && m.db != nil {
		m.calling = true
		go m.run()
	}
}

// run calls the store until what it wants is recorded, and a slot that was granted is passed on. Each call may hang
// with the disk.
func (m *compactor) run() {
	m.all.mu.Lock()
	defer m.all.mu.Unlock()
	for m.granted || m.stale && !m.stopped {
		switch {
		case m.granted && m.stopped:
			m.granted = false
			m.giveBack()
		case m.granted:
			m.granted = false
			if !m.schedule() {
				m.giveBack()
			}
		default:
			m.stale = false
			want := m.waiting()
			if m.stale && !m.stopped {
				continue // the store has asked again meanwhile
			}
			if m.want = want; want == nil {
				m.waits(false)
			}
		}
		m.all.grant()
	}
	m.calling = false
	m.idle.Broadcast()
}

// schedule offers the store its slot, and reports whether the store takes it. The caller holds the lock.
func (m *compactor) schedule() (taken bool) {
	defer m.leave()()
	return m.db.Schedule(m)
}

// waiting returns what the store wants; nil: nothing. The caller holds the lock.
func (m *compactor) waiting() *pebble.WaitingCompaction {
	defer m.leave()()
	if waits, want := m.db.GetWaitingCompaction(); waits {
		return &want
	}
	return nil
}

// leave frees the lock for a call of the store.
func (m *compactor) leave() (enter func()) {
	m.inside = true
	m.all.mu.Unlock()
	return func() {
		m.all.mu.Lock()
		m.inside = false
	}
}

// grant gives free slots to the stores with the most urgent compactions among those recorded. The caller holds the
// lock.
func (c *compactions) grant() {
	for c.free() {
		var best *compactor
		for m := range c.members {
			if m.canUse() && (best == nil || moreUrgent(*m.want, *best.want)) {
				best = m
			}
		}
		if best == nil {
			break
		}
		best.take()
		best.granted = true
		best.call()
	}
	c.later()
}

// later lets grant look again after patience if a store waits: by then the store that has the slot, or that was
// called first, may prove to hang. The caller holds the lock.
func (c *compactions) later() {
	if c.check != nil {
		return
	}
	for m := range c.members {
		if m.want != nil {
			c.check = time.AfterFunc(patience, c.look)
			return
		}
	}
}

func (c *compactions) look() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.check = nil
	c.grant()
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
