package copies

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

const (
	// yields is the ratio of pause to work for writers of builds while other work is waiting: builds then progress at
	// a third of their speed, and never stop.
	yields = 2
	// leastYield is the shortest pause that is worth a timer, mostYield the longest pause.
	leastYield = time.Millisecond
	mostYield  = 50 * time.Millisecond
)

// Background throttles the background work of a node, all buckets together: writers of builds, and merges of tables.
// The writers together leave one processor to everything else. Both kinds pause while scans wait for rows or for a
// stability timestamp, which needs processors in every process that it passes through. They do not pause for a scan
// that waits for a copy to be filled, which is their own work. A slow writer does not hold a place, so that a
// bucket's writers wait for another bucket's for at most the patience of one task.
type Background struct {
	places *semaphore.Weighted

	mu    sync.Mutex
	all   hurry // scans, and writers of ready indexes
	scans hurry
}

// hurry counts the waiting operations that background work pauses for. Background.mu guards it.
type hurry struct {
	waiting int
	calm    chan struct{} // closed when waiting returns to 0
}

func (h *hurry) begin() {
	if h.waiting++; h.waiting == 1 {
		h.calm = make(chan struct{})
	}
}

func (h *hurry) end() {
	if h.waiting--; h.waiting == 0 {
		close(h.calm)
	}
}

// debt is the pause that background work still owes. It accumulates, because tasks are often shorter than a pause
// that is worth a timer. Background.mu guards it.
type debt time.Duration

// NewBackground returns the Background of a node with the given number of processors.
func NewBackground(processors int) *Background {
	return &Background{places: semaphore.NewWeighted(int64(max(1, processors-1)))}
}

// Hurry records that a scan waits for this node. The caller must call over, once or more often, when the wait has
// ended.
func (b *Background) Hurry() (over func()) { return b.begin(&b.all, &b.scans) }

// write does the same for a writer of a ready index, for which merges do not pause.
func (b *Background) write() (over func()) { return b.begin(&b.all) }

func (b *Background) begin(of ...*hurry) (over func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, h := range of {
		h.begin()
	}
	return sync.OnceFunc(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, h := range of {
			h.end()
		}
	})
}

// enter takes a place. A holder keeps its place for writerPatience and one pause at most.
func (b *Background) enter() { _ = b.places.Acquire(context.Background(), 1) }

// leave releases a place.
func (b *Background) leave() { b.places.Release(1) }

// yield pauses after work of a build if other work is waiting, at most until none is.
func (b *Background) yield(d *debt, worked time.Duration) { b.pause(&b.all, d, worked) }

// Merger returns the function by which a merge of tables pauses while scans wait.
func (b *Background) Merger() (yield func(worked time.Duration)) {
	var d debt
	return func(worked time.Duration) { b.pause(&b.scans, &d, worked) }
}

func (b *Background) pause(h *hurry, d *debt, worked time.Duration) {
	pause, calm := b.owes(h, d, worked)
	if pause == 0 {
		return
	}
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-t.C:
	case <-calm:
	}
}

// owes returns the pause that is due after work, and a channel that is closed when it is no longer needed.
func (b *Background) owes(h *hurry, d *debt, worked time.Duration) (time.Duration, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if h.waiting == 0 {
		*d = 0
		return 0, nil
	}
	if *d += debt(yields * worked); *d < debt(leastYield) {
		return 0, nil
	}
	pause := min(time.Duration(*d), mostYield)
	*d = 0
	return pause, h.calm
}
