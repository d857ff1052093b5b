package indexer

import (
	"sync/atomic"
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
	// diskWait is what a copy takes where the disk makes it wait; the processor's part is a tenth of it.
	diskWait = 50 * time.Millisecond
)

// makers runs what makes and drops copies, a few at once: one more, up to manyAtOnce, for each that took as long as one
// takes that waits for the disk. Figures: docs/performance.md, "Session scans beside a build".
type makers struct {
	group  errgroup.Group
	places chan struct{}
	given  atomic.Int32
}

func newMakers() *makers {
	m := &makers{places: make(chan struct{}, manyAtOnce)}
	for range fewAtOnce {
		m.widen()
	}
	return m
}

func (m *makers) widen() {
	if m.given.Add(1) <= manyAtOnce {
		m.places <- struct{}{}
	}
}

// do runs f when there is a place for it. It waits for the place, not for f.
func (m *makers) do(f func() error) {
	<-m.places
	m.group.Go(func() error {
		began := time.Now()
		err := f()
		if time.Since(began) >= diskWait {
			m.widen()
		}
		m.places <- struct{}{}
		return err
	})
}

// wait returns the first error when all is done.
func (m *makers) wait() error { return m.group.Wait() }
