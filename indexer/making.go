package indexer

import (
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// fewAtOnce is how many copies are made, or dropped, side by side at first. The operating system makes some ten files
	// for each; where that is its work more at once are no faster, cost two to three times the processor time, as they
	// contend for the same folder, and scans wait for a processor.
	fewAtOnce = 2
	// manyAtOnce is how many there may be where each waits for the disk.
	manyAtOnce = 16
	// diskWait is what a copy takes where the disk makes it wait: it is synced some ten times. The processor's part is a
	// third of it.
	diskWait = 25 * time.Millisecond
)

// makers runs what makes and drops copies, a few at once: one more, up to manyAtOnce, for each that took as long as one
// takes that waits for the disk, and one less for each that took half as long. Figures: docs/performance.md, "Session
// scans beside a build".
type makers struct {
	group errgroup.Group

	mu      sync.Mutex
	ended   *sync.Cond // something has
	running int
	most    int
}

func newMakers() *makers {
	m := &makers{most: fewAtOnce}
	m.ended = sync.NewCond(&m.mu)
	return m
}

// do runs f when there is a place for it. It waits for the place, not for f.
func (m *makers) do(f func() error) {
	m.mu.Lock()
	for m.running >= m.most {
		m.ended.Wait()
	}
	m.running++
	m.mu.Unlock()
	m.group.Go(func() error {
		began := time.Now()
		err := f()
		m.end(time.Since(began))
		return err
	})
}

func (m *makers) end(took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running--
	switch {
	case took >= diskWait:
		m.most = min(m.most+1, manyAtOnce)
	case took < diskWait/2:
		m.most = max(m.most-1, fewAtOnce)
	}
	m.ended.Signal() // one goroutine asks for places
}

// wait returns the first error when all is done.
func (m *makers) wait() error { return m.group.Wait() }
