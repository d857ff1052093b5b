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

// Builders lets the writers of builds of all buckets of a node together leave a processor to everything else, and pause
// while scans wait, as merges of tables do: for their rows, or for a stability timestamp, which needs processors in
// every process that it passes through; not while one waits for a copy to be filled, which they do. One that is slow
// does not count, so that a bucket's waits for another's a task's patience at most.
type Builders struct {
	places *semaphore.Weighted

	mu      sync.Mutex
	hurried int
	calm    chan struct{} // closed when nobody waits any more
}

// debt is for how long who works for builds has yet to pause; Builders.mu guards it. Tasks are often shorter than a
// pause that is worth a timer.
type debt time.Duration

// NewBuilders returns those of a node with so many processors, on which nobody waits.
func NewBuilders(processors int) *Builders {
	return &Builders{places: semaphore.NewWeighted(int64(max(1, processors-1)))}
}

// Hurry says that somebody waits for this node, who has to call what it returns, once or more often, when that is over.
func (b *Builders) Hurry() (over func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.hurried++; b.hurried == 1 {
		b.calm = make(chan struct{})
	}
	return sync.OnceFunc(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.hurried--; b.hurried == 0 {
			close(b.calm)
		}
	})
}

// enter takes a place. Who has one keeps it for writerPatience and a pause at most.
func (b *Builders) enter() { _ = b.places.Acquire(context.Background(), 1) }

// leave gives a place back.
func (b *Builders) leave() { b.places.Release(1) }

// yield pauses after work, if somebody waits, and until nobody does.
func (b *Builders) yield(d *debt, worked time.Duration) {
	pause, calm := b.owes(d, worked)
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

// Merger returns what a merge of tables pauses by, as a writer of builds does.
func (b *Builders) Merger() (yield func(worked time.Duration)) {
	var d debt
	return func(worked time.Duration) { b.yield(&d, worked) }
}

// owes returns the pause after work, and what is closed when none is needed any more.
func (b *Builders) owes(d *debt, worked time.Duration) (time.Duration, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.hurried == 0 {
		*d = 0
		return 0, nil
	}
	if *d += debt(yields * worked); *d < debt(leastYield) {
		return 0, nil
	}
	pause := min(time.Duration(*d), mostYield)
	*d = 0
	return pause, b.calm
}
