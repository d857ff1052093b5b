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

// What is handed out to be written goes by lanes: each copy has one, in which its parts of batches are done in the
// order in which they were handed out. Nothing else is ordered: a copy waits for no other, so that one whose lock is
// held, whose memory is full or that has much to write holds up only what is told of several copies together: the
// acknowledgement of a stability timestamp, of those that serve scans.

// class says which writers do a task: neither class waits for writers of the other.
type class uint8

const (
	serving  class = iota // parts of copies that scans may wait for
	building              // all others: what side streams bring, copies that are not exact yet
	classes
)

// task is a copy's part of something that is under way.
type task struct {
	of    *underway
	at    int // number of the copy in its batch
	class class
	idle  bool // nobody waits for it: builds go on beside it
}

// lane is what one copy has to write.
type lane struct {
	copy  index.CopyID
	slice *storage.Slice
	// lost: nothing that was handed out is written any more: the copy is gone, or has gone back, and another lane took
	// over.
	lost atomic.Bool

	// guarded by lanes.mu
	tasks []task // the first one is under way while a writer is at it
	under *atWork
	opens func()        // ends what opens its copy again, see revive; nil: nothing does
	left  bool          // the copy was let go: nothing opens it again any more
	rest  chan struct{} // closed when nothing of it is at its files; nil: nobody waits for it
}

// atWork is a writer at a task; lanes.mu guards it.
type atWork struct {
	slow bool // for longer than writerPatience
	left bool // the copy was let go: the writer counts as none any more, as it may hang
}

// lanes lets writers do the tasks of all lanes of a bucket. A writer lives as long as there is something to do.
type lanes struct {
	do      func(*lane, task)
	builds  *Background  // of all buckets of the node; nil: none
	owed    debt         // of its writers of builds
	most    int          // writers of each class
	usual   [classes]int // of those that are not slow
	mu      sync.Mutex
	waiting [classes][]*lane // lanes whose first task is of that class and not under way, in turn
	writers [classes]int
	slow    [classes]int // of them, those whose task has taken longer than writerPatience
	over    bool
	all     sync.WaitGroup
}

// writerPatience is how long a task may take before its writer does not count: it may wait for a lock, or for a disk.
const writerPatience = 200 * time.Millisecond

// hurryPatience is for how long builds leave their time to a task that scans may wait for: one that takes longer waits
// for its disk, not for them.
const hurryPatience = 2 * time.Second

// newLanes makes them for as many writers as there are processors. What builds leaves one of these to everything else:
// whatever a scan has to wait for would have its turn behind a whole write else.
func newLanes(processors int, do func(*lane, task)) *lanes {
	most := max(2, processors)
	return &lanes{do: do, most: most, usual: [classes]int{serving: most, building: max(1, processors-1)}}
}

// give adds a task to a lane.
func (l *lanes) give(n *lane, t task) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n.tasks = append(n.tasks, t); len(n.tasks) == 1 {
		l.wait(n)
	}
}

// wait lets a lane wait for a writer. The lock is held.
func (l *lanes) wait(n *lane) {
	c := n.tasks[0].class
	l.waiting[c] = append(l.waiting[c], n)
	l.begin(c)
}

// begin lets another writer begin, if there is something for it and it may. The lock is held.
func (l *lanes) begin(c class) {
	if len(l.waiting[c]) > 0 && l.writers[c] < l.most && l.writers[c]-l.slow[c] < l.usual[c] && !l.over {
		l.writers[c]++
		l.all.Add(1)
		go l.write(c)
	}
}

// write does tasks of a class until there is none, or there are writers enough.
func (l *lanes) write(c class) {
	defer l.all.Done()
	for n, t := l.next(c); n != nil && l.one(c, n, t); n, t = l.next(c) {
	}
}

// one does a task. While it is slow another writer may do others. A pause behind it holds up nothing else of its lane.
// It reports whether its writer counts still.
func (l *lanes) one(c class, n *lane, t task) (counts bool) {
	done, at := false, n.under // the former is guarded by mu
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

// free notes that the first task of a lane is done: the next one may have its turn.
func (l *lanes) free(n *lane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n.tasks[0] = task{}
	n.tasks, n.under = n.tasks[1:], nil
	n.atRest()
	if len(n.tasks) > 0 {
		l.wait(n)
	} else {
		n.tasks = nil
	}
}

// next takes the lane whose turn it is, and its first task; nil when there is none.
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
	n.under = &atWork{}
	return n, n.tasks[0]
}

// atRest tells who waits for it that neither a writer nor what opens the copy again is at its files. lanes.mu is held.
func (n *lane) atRest() {
	if n.rest != nil && n.under == nil && n.opens == nil {
		close(n.rest)
		n.rest = nil
	}
}

// opening notes that a lane's copy is being opened again, which end ends, unless it was let go. Who does it calls
// opened.
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

// lose lets nothing more of a lane be written, counts its writer no more, and ends what opens its copy again. What it
// gives is closed when nothing of it is at the copy's files; nil: it is not.
func (l *lanes) lose(n *lane) <-chan struct{} {
	n.lost.Store(true)
	l.mu.Lock()
	defer l.mu.Unlock()
	n.left = true
	if n.opens != nil {
		n.opens()
	}
	if n.under == nil && n.opens == nil {
		return nil
	}
	if n.under != nil && !n.under.left {
		c := n.tasks[0].class
		n.under.left = true
		l.writers[c]--
		if n.under.slow {
			l.slow[c]--
		}
		l.begin(c)
	}
	if n.rest == nil {
		n.rest = make(chan struct{})
	}
	return n.rest
}

// has lists the tasks of a lane, that under way among them.
func (l *lanes) has(n *lane) []task {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(n.tasks)
}

// close ends it: no task is begun any more, and those under way have ended when it returns.
func (l *lanes) close() {
	l.mu.Lock()
	l.over = true
	l.mu.Unlock()
	l.all.Wait()
}

// copyLanes are the lanes of copies. They are the loop's.
type copyLanes struct {
	*lanes
	of      map[index.CopyID]*lane   // of those that have had something to write
	leaving map[index.CopyID][]*lane // of copies that were let go, or are shut: something may be at their files
}

func newCopyLanes() copyLanes {
	return copyLanes{of: map[index.CopyID]*lane{}, leaving: map[index.CopyID][]*lane{}}
}

// leave lets nothing more be written to a copy. When all waits are over nothing is.
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

// underway is a batch or a purge while its copies have their parts to write.
type underway struct {
	*core.Handed
	strays []*stray // see wrong
	began  time.Time
	known  []atomic.Bool // by number of the copy: what became of its task is
	failed []atomic.Bool // by number of the copy
	leaves bool          // of the loop: a task was given up, and its writer may still be at it

	spread   sync.Once
	spreader *packed.Spreader
	shares   []packed.Share

	servingLeft, left atomic.Int32 // tasks that are not done: of copies that serve, of all
}

// share returns which events of the batch a copy has to look at; who comes first looks for all.
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

// newUnderway is that of something with so many tasks.
func newUnderway(h *core.Handed, began time.Time, tasks int) *underway {
	u := &underway{Handed: h, began: began, known: make([]atomic.Bool, tasks), failed: make([]atomic.Bool, tasks)}
	u.left.Store(int32(tasks))
	return u
}

// end takes over what became of a task, the first time it is told, and reports whether all is done by that, or else
// what serves scans is, at a stability timestamp.
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

// missed lists the copies that a batch was not written to.
func (u *underway) missed() (ids []index.CopyID) {
	for i := range u.failed {
		if u.failed[i].Load() && u.Batch != nil {
			ids = append(ids, u.Batch.Copies[i].ID)
		}
	}
	return ids
}

// hand hands a batch out: each of its copies has its part to write.
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
		k.tell(k.work.Served(h))
	}
}

// lane returns a copy's lane; that of a copy which is not here is lost.
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

// handPurge hands out the removal of tombstones.
func (k *Bucket) handPurge(h *core.Handed) {
	u := newUnderway(h, k.node.Now(), 1)
	k.lanes.give(k.lane(h.Purge.Copy), task{of: u, class: serving, idle: true}) // its copy's newest rows wait behind it
}

// doTask does a copy's part of what is under way, and tells the loop what has come to its end by that.
func (k *Bucket) doTask(ctx context.Context, n *lane, t task) {
	u := t.of
	o := outcome{missing: true}
	if !n.lost.Load() {
		o = k.toLane(ctx, n, health.Hangs, func() error {
			if u.Batch == nil {
				return n.slice.PurgeTombstones(ctx, uint16(u.Purge.VBucket))
			}
			return k.writeCopy(ctx, u, t.at, n.slice)
		})
	}
	if ctx.Err() != nil {
		return // nobody takes it any more; what was written says by itself how far it is
	}
	switch {
	case o.again != nil:
		n.lost.Store(true)
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

// giveUp lets nothing wait for what a copy that was let go has still to write: it may hang. Of what is under way the
// other copies are told without it. It runs in the loop.
func (k *Bucket) giveUp(n *lane) {
	for _, t := range k.lanes.has(n) {
		u := t.of
		u.leaves = true
		switch ended, shown := u.end(t.at, true); {
		case ended:
			k.ended(u)
		case shown:
			k.tell(k.work.Served(u.Handed, u.missed()...))
		}
	}
}

// toLane is persistentlyWithin for a lane's copy, and ends when the lane is lost: a full disk is not waited for by who
// was let go.
func (k *Bucket) toLane(ctx context.Context, n *lane, patience time.Duration, f func() error) outcome {
	return k.persistentlyWithin(ctx, n.slice, patience, func() error {
		if n.lost.Load() {
			k.node.Health.Set(CopySource+n.copy.String(), "")
			return storage.ErrClosed
		}
		return f()
	})
}

// result returns a result to the loop.
func (k *Bucket) result(ctx context.Context, r result) {
	select {
	case k.results <- r:
	case <-ctx.Done():
	}
}
