package copies

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

const (
	// yields is how many times as long as they have worked writers of builds pause while somebody waits for something
	// else: builds go on with a third of what they would do, and stand still for nobody.
	yields = 2
	// leastYield is the shortest pause that is worth a timer, and mostYield the longest one.
	leastYield = time.Millisecond
	mostYield  = 50 * time.Millisecond
)

// Background is the work of a node, for all its buckets, that nobody waits for: writers of builds, and merges of
// tables. The writers together leave a processor to everything else, and both pause while scans wait: for their rows,
// or for a stability timestamp, which needs processors in every process that it passes through; not while one waits
// for a copy to be filled, which they do. One that is slow does not count, so that a bucket's waits for another's a
// task's patience at most.
type Background struct {
	places *semaphore.Weighted

	mu    sync.Mutex
	all   hurry // scans, and writers of ready indexes
	scans hurry
}

// hurry is how many wait for a node; Background.mu guards it.
type hurry struct {
	waiting int
	calm    chan struct{} // closed when nobody does any more
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

// debt is for how long who works for builds has yet to pause; Background.mu guards it. Tasks are often shorter than a
// pause that is worth a timer.
type debt time.Duration

// NewBackground returns those of a node with so many processors, on which nobody waits.
func NewBackground(processors int) *Background {
	return &Background{places: semaphore.NewWeighted(int64(max(1, processors-1)))}
}

// Hurry says that a scan waits for this node, and who it is of has to call what it returns, once or more often, when
// that is over.
func (b *Background) Hurry() (over func()) { return b.begin(&b.all, &b.scans) }

// write says the same of a writer of a ready index, for which merges do not pause.
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

// enter takes a place. Who has one keeps it for writerPatience and a pause at most.
func (b *Background) enter() { _ = b.places.Acquire(context.Background(), 1) }

// leave gives a place back.
func (b *Background) leave() { b.places.Release(1) }

// yield pauses after work of a build, if somebody waits, and until nobody does.
func (b *Background) yield(d *debt, worked time.Duration) { b.pause(&b.all, d, worked) }

// Merger returns what a merge of tables pauses by while scans wait.
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

// owes returns the pause after work, and what is closed when none is needed any more.
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
