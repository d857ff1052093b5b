package copies

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"tidemark/index"
	"tidemark/indexer/core"
	"tidemark/indexer/health"
	"tidemark/indexer/packed"
	"tidemark/indexer/storage"
	"tidemark/ingest"
)

// Batches that the loop hands out are written in lanes. Each copy has one lane, in which its parts of batches are
// written in the order in which they were handed out. There is no other order: a copy waits for no other, so a copy
// whose lock is held, whose memory is full or that has much to write delays only what is reported for several copies
// together, namely the acknowledgement of a stability timestamp by those that serve scans.

// class determines which writers do a task. Neither class waits for writers of the other.
type class uint8

const (
	serving  class = iota // parts of copies that scans may wait for
	building              // all others: batches of side streams, copies that are not exact yet
	classes
)

// task is one copy's part of a batch, or a purge.
type task struct {
	of    *underway
	at    int // number of the copy in its batch
	class class
	idle  bool // nothing waits for it: builds do not pause for it
}

// lane queues the tasks of one copy.
type lane struct {
	copy  index.CopyID
	slice *storage.Slice
	// lost is set when the tasks in the lane must not be written any more, because the copy was removed or reopened;
	// another lane may have replaced this one.
	lost atomic.Bool

	// guarded by lanes.mu
	tasks  []task // the first one is in progress while writer is set
	writer *atWork
	opens  func()        // cancels the reopening of the copy, see revive; nil: none is in progress
	left   bool          // the copy was removed: it is not reopened any more
	rest   chan struct{} // closed when neither a writer nor revive uses the copy's files; nil: nothing waits for that
}

// atWork is the state of a writer that works on a task. lanes.mu guards it.
type atWork struct {
	slow bool // for longer than writerPatience
	left bool // the copy was removed: the writer no longer counts, because it may hang
}

// lanes runs the writers of a bucket's lanes. A writer goroutine exists only while there are tasks.
type lanes struct {
	do      func(*lane, task)
	builds  *Background  // shared by all buckets of the node; nil: none
	owed    debt         // pause that the writers of builds owe
	most    int          // limit of writers per class
	usual   [classes]int // limit of writers per class that are not slow
	mu      sync.Mutex
	waiting [classes][]*lane // lanes whose first task is of that class and not in progress, in turn
	writers [classes]int
	slow    [classes]int // writers whose task has taken longer than writerPatience
	over    bool
	all     sync.WaitGroup
}

// writerPatience is how long a task may take before its writer stops counting: it may wait for a lock or a disk.
const writerPatience = 200 * time.Millisecond

// hurryPatience is how long builds pause for a task that scans may wait for. A task that takes longer waits for its
// disk, not for processors.
const hurryPatience = 2 * time.Second

// newLanes returns lanes with as many writers per class as there are processors. Writers of builds leave one
// processor to everything else, so that a scan does not queue behind a complete write.
func newLanes(processors int, do func(*lane, task)) *lanes {
	most := max(2, processors)
	return &lanes{do: do, most: most, usual: [classes]int{serving: most, building: max(1, processors-1)}}
}

// give appends a task to a lane.
func (l *lanes) give(n *lane, t task) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n.tasks = append(n.tasks, t); len(n.tasks) == 1 {
		l.wait(n)
	}
}

// wait queues a lane for a writer. The caller holds the lock.
func (l *lanes) wait(n *lane) {
	c := n.tasks[0].class
	l.waiting[c] = append(l.waiting[c], n)
	l.begin(c)
}

// begin starts another writer if there is work for it and the limits allow it. The caller holds the lock.
func (l *lanes) begin(c class) {
	if len(l.waiting[c]) > 0 && l.writers[c] < l.most && l.writers[c]-l.slow[c] < l.usual[c] && !l.over {
		l.writers[c]++
		l.all.Add(1)
		go l.write(c)
	}
}

// write does tasks of a class until none is left or there are too many writers.
func (l *lanes) write(c class) {
	defer l.all.Done()
	for n, t := l.next(c); n != nil && l.one(c, n, t); n, t = l.next(c) {
	}
}

// one does a task. While the task is slow, another writer may take its place. The pause after a build's task happens
// outside the lane and delays none of its tasks. one reports whether its writer still counts.
func (l *lanes) one(c class, n *lane, t task) (counts bool) {
	done, at := false, n.writer // done is guarded by mu
	var place *Background
	switch {
	case l.builds == nil || t.idle:
	case c == serving:
		over := l.builds.write()
		defer over()
		defer time.AfterFunc(hurryPatience, over).Stop()
	default:
		place = l.builds
		place.enter()
	}
	began := time.Now()
	late := time.AfterFunc(writerPatience, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if done {
			return
		}
		at.slow = true
		if place != nil {
			place.leave()
		}
		if !at.left {
			l.slow[c]++
			l.begin(c)
		}
	})
	l.do(n, t)
	late.Stop()
	l.free(n)
	if place != nil {
		place.yield(&l.owed, time.Since(began))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if done = true; place != nil && !at.slow {
		place.leave()
	}
	if at.slow && !at.left {
		l.slow[c]--
	}
	return !at.left
}

// free records that the first task of a lane is done, and queues the lane for its next one.
func (l *lanes) free(n *lane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n.tasks[0] = task{}
	n.tasks, n.writer = n.tasks[1:], nil
	n.atRest()
	if len(n.tasks) > 0 {
		l.wait(n)
	} else {
		n.tasks = nil
	}
}

// next returns the next lane and its first task, nil if the writer has to end.
func (l *lanes) next(c class) (*lane, task) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over || len(l.waiting[c]) == 0 || l.writers[c]-l.slow[c] > l.usual[c] {
		l.writers[c]--
		return nil, task{}
	}
	n := l.waiting[c][0]
	l.waiting[c][0] = nil
	l.waiting[c] = l.waiting[c][1:]
	n.writer = &atWork{}
	return n, n.tasks[0]
}

// atRest closes rest when neither a writer nor revive uses the copy's files any more. The caller holds lanes.mu.
func (n *lane) atRest() {
	if n.rest != nil && n.writer == nil && n.opens == nil {
		close(n.rest)
		n.rest = nil
	}
}

// opening records that a lane's copy is being reopened, and that end cancels that. It returns false if the copy was
// removed. Otherwise the caller must call opened when it has finished.
func (l *lanes) opening(n *lane, end func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n.left {
		return false
	}
	l.all.Add(1)
	n.opens = end
	return true
}

func (l *lanes) opened(n *lane) {
	defer l.all.Done()
	l.mu.Lock()
	defer l.mu.Unlock()
	n.opens()
	n.opens = nil
	n.atRest()
}

// lose stops all writes of a lane, stops counting its writer and cancels the reopening of its copy. The channel that
// it returns is closed when nothing uses the copy's files any more; nil: nothing does now.
func (l *lanes) lose(n *lane) <-chan struct{} {
	n.lost.Store(true)
	l.mu.Lock()
	defer l.mu.Unlock()
	n.left = true
	if n.opens != nil {
		n.opens()
	}
	if n.writer == nil && n.opens == nil {
		return nil
	}
	if n.writer != nil && !n.writer.left {
		c := n.tasks[0].class
		n.writer.left = true
		l.writers[c]--
		if n.writer.slow {
			l.slow[c]--
		}
		l.begin(c)
	}
	if n.rest == nil {
		n.rest = make(chan struct{})
	}
	return n.rest
}

// has returns the tasks of a lane, including the one in progress.
func (l *lanes) has(n *lane) []task {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(n.tasks)
}

// close starts no further tasks and waits for those in progress.
func (l *lanes) close() {
	l.mu.Lock()
	l.over = true
	l.mu.Unlock()
	l.all.Wait()
}

// copyLanes holds the lanes of copies. The loop owns it.
type copyLanes struct {
	*lanes
	of      map[index.CopyID]*lane   // of copies that have had something to write
	leaving map[index.CopyID][]*lane // of copies that were removed or are shut: their files may still be in use
}

func newCopyLanes() copyLanes {
	return copyLanes{of: map[index.CopyID]*lane{}, leaving: map[index.CopyID][]*lane{}}
}

// leave stops writes to a copy. When all channels in waits are closed, none is in progress.
func (l *copyLanes) leave(id index.CopyID) (waits []<-chan struct{}) {
	if n := l.of[id]; n != nil {
		l.leaving[id] = append(l.leaving[id], n)
		delete(l.of, id)
	}
	for _, n := range l.leaving[id] {
		if rest := l.lose(n); rest != nil {
			waits = append(waits, rest)
		}
	}
	if len(waits) == 0 {
		delete(l.leaving, id)
	}
	return waits
}

// underway is a batch or a purge while its copies write their parts.
type underway struct {
	*core.Handed
	strays []*stray // see wrong
	began  time.Time
	known  []atomic.Bool // by number of the copy: its task has ended or was given up
	failed []atomic.Bool // by number of the copy: its task failed
	leaves bool          // a task was given up, and its writer may still be running; owned by the loop
	purged atomic.Int32  // of a purge: how many of its vbuckets are done, -1 if the copy could not be written to

	spread   sync.Once
	spreader *packed.Spreader
	shares   []packed.Share

	servingLeft, left atomic.Int32 // tasks that are not done: of copies that serve scans, of all copies
}

// share returns the events of the batch that concern a copy. The first caller computes the shares of all copies.
func (u *underway) share(k *Bucket, at int) *packed.Share {
	u.spread.Do(func() {
		u.spreader = k.spreaders.Take()
		u.shares = u.spreader.Spread(u.Batch)
	})
	if u.shares == nil {
		return nil
	}
	return &u.shares[at]
}

// newUnderway returns the underway of a batch or purge with the given number of tasks.
func newUnderway(h *core.Handed, began time.Time, tasks int) *underway {
	u := &underway{Handed: h, began: began, known: make([]atomic.Bool, tasks), failed: make([]atomic.Bool, tasks)}
	u.left.Store(int32(tasks))
	u.purged.Store(-1)
	return u
}

// end records the result of a task; only the first call for a task counts. ended reports that all tasks are done now;
// shown reports, for a batch at a stability timestamp with others still to do, that those of the copies that serve
// scans are.
func (u *underway) end(at int, failed bool) (ended, shown bool) {
	if u.known[at].Swap(true) {
		return false, false
	}
	u.failed[at].Store(failed)
	shown = u.Batch != nil && u.Batch.Copies[at].Serves && u.servingLeft.Add(-1) == 0
	if u.left.Add(-1) == 0 {
		return true, false
	}
	return false, shown && u.Batch.Kind == ingest.AtStability
}

// missed returns the copies to which a batch was not written.
func (u *underway) missed() (ids []index.CopyID) {
	for i := range u.failed {
		if u.failed[i].Load() && u.Batch != nil {
			ids = append(ids, u.Batch.Copies[i].ID)
		}
	}
	return ids
}

// hand hands a batch out: each of its copies gets a task.
func (k *Bucket) hand(h *core.Handed) {
	t := h.Batch
	u := newUnderway(h, k.node.Now(), len(t.Copies))
	u.strays = k.wrong.deleted(t)
	all := make([]task, len(t.Copies))
	for i := range t.Copies {
		all[i] = task{of: u, at: i, class: building}
		if t.Copies[i].Ready {
			all[i].class = serving
		}
		if t.Copies[i].Serves {
			u.servingLeft.Add(1)
		}
	}
	served := u.servingLeft.Load() == 0
	for i := range all {
		k.lanes.give(k.lane(t.Copies[i].ID), all[i])
	}
	switch {
	case len(all) == 0:
		k.ended(u)
	case served:
		k.announce(k.work.Served(h))
	}
}

// lane returns a copy's lane. If the copy is not here, the lane is a new one that is lost.
func (k *Bucket) lane(id index.CopyID) *lane {
	if n := k.lanes.of[id]; n != nil {
		return n
	}
	n := &lane{copy: id, slice: k.slices[id]}
	if n.slice == nil {
		n.lost.Store(true)
		return n
	}
	k.lanes.of[id] = n
	return n
}

// handPurge hands out a removal of tombstones.
func (k *Bucket) handPurge(h *core.Handed) {
	u := newUnderway(h, k.node.Now(), 1)
	// of class serving: the copy's newest rows wait behind it
	k.lanes.give(k.lane(h.Purge.Copy), task{of: u, class: serving, idle: true})
}

// purge removes the tombstones of a purge's first vbuckets.
func (u *underway) purge(ctx context.Context, s *storage.Slice) error {
	done, err := s.PurgeTombstones(ctx, u.Purge.VBuckets, u.Purge.Last)
	if err == nil {
		u.purged.Store(int32(done))
	}
	return err
}

// doTask does a copy's part of a batch or purge and reports to the loop what is complete now.
func (k *Bucket) doTask(ctx context.Context, n *lane, t task) {
	u := t.of
	o := outcome{missing: true}
	if !n.lost.Load() {
		o = k.toLane(ctx, n, health.Hangs, func() error {
			if u.Batch == nil {
				return u.purge(ctx, n.slice)
			}
			return k.writeCopy(ctx, u, t.at, n.slice)
		})
	}
	if ctx.Err() != nil {
		return // the loop has ended; the store itself records what was written
	}
	switch {
	case o.again != nil:
		n.lost.Store(true)
		u.purged.Store(0) // the reopened copy has another lane, in which all of it is done
		k.result(ctx, result{reopened: n})
	case o.shut && !n.lost.Swap(true):
		k.revive(ctx, n)
	}
	switch ended, shown := u.end(t.at, o != outcome{}); {
	case ended:
		k.result(ctx, result{ended: u})
	case shown:
		k.result(ctx, result{shown: u})
	}
}

// giveUp counts the tasks of a removed copy as failed, because its writer may hang, and completes the batches for
// which only these were missing. It runs in the loop.
func (k *Bucket) giveUp(n *lane) {
	for _, t := range k.lanes.has(n) {
		u := t.of
		u.leaves = true
		switch ended, shown := u.end(t.at, true); {
		case ended:
			k.ended(u)
		case shown:
			k.announce(k.work.Served(u.Handed, u.missed()...))
		}
	}
}

// toLane is persistentlyWithin for a lane's copy. It ends when the lane is lost, so that a removed copy does not wait
// for a full disk.
func (k *Bucket) toLane(ctx context.Context, n *lane, patience time.Duration, f func() error) outcome {
	return k.persistentlyWithin(ctx, n.slice, patience, func() error {
		if n.lost.Load() {
			k.node.Health.Set(CopySource+n.copy.String(), "")
			return storage.ErrClosed
		}
		return f()
	})
}

// result sends a result to the loop.
func (k *Bucket) result(ctx context.Context, r result) {
	select {
	case k.results <- r:
	case <-ctx.Done():
	}
}
