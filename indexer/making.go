package indexer

import (
	"sync"
	"time"
)

const (
	// fewAtOnce is how many copies are made or dropped concurrently at first. The operating system creates about ten
	// files for each. Where that work dominates, more concurrency is no faster, costs two to three times the
	// processor time because of contention on the same folder, and makes scans wait for a processor.
	fewAtOnce = 2
	// manyAtOnce is the limit where each of them waits for the disk.
	manyAtOnce = 16
	// diskWait is how long making a copy takes where the disk is the bottleneck: it syncs about ten times. The
	// processor's part is a third of it.
	diskWait = 25 * time.Millisecond
	// makerPatience is how long one operation may occupy its slot.
	makerPatience = time.Second
)

// makers limits how many copies are made or dropped concurrently. The limit rises by one, up to manyAtOnce, with each
// operation that took as long as one that waits for the disk, and falls by one with each that took less than half as
// long. Figures: docs/performance.md, "Session scans beside a build".
type makers struct {
	mu      sync.Mutex
	ended   *sync.Cond // signals the end of an operation
	running int
	most    int
}

func newMakers() *makers {
	m := &makers{most: fewAtOnce}
	m.ended = sync.NewCond(&m.mu)
	return m
}

// do runs f when a slot is free. After makerPatience the slot is released although f still runs: its disk hangs, and
// other operations must not wait for it.
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
