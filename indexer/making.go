package indexer

import (
	"sync"
	"time"
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
	// makerPatience is how long one may keep others from having its place.
	makerPatience = time.Second
)

// makers lets what makes and drops copies run a few at once: one more, up to manyAtOnce, for each that took as long as
// one takes that waits for the disk, and one less for each that took half as long. Figures: docs/performance.md,
// "Session scans beside a build".
type makers struct {
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

// do runs f when there is a place for it. One that takes longer than makerPatience has none any more: its disk hangs,
// and others do not wait for it.
func (m *makers) do(f func()) {
	m.mu.Lock()
	for m.running >= m.most {
		m.ended.Wait()
	}
	m.running++
	m.mu.Unlock()
	began := time.Now()
	leave := sync.OnceFunc(func() { m.end(time.Since(began)) })
	late := time.AfterFunc(makerPatience, leave)
	defer late.Stop()
	defer leave()
	f()
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
	for range m.most - m.running {
		m.ended.Signal()
	}
}
