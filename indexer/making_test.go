package indexer

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestMakers checks that on a fast disk only a few copies are made at once, so that others get a processor, and that
// on a slow disk the maximum number is soon made at once.
func TestMakers(t *testing.T) {
	for _, c := range []struct {
		name   string
		each   time.Duration
		atOnce int32
		within time.Duration
	}{
		{"a fast disk", 5 * time.Millisecond, fewAtOnce, 60 / fewAtOnce * 5 * time.Millisecond},
		{"a slow disk", diskWait, manyAtOnce, 7 * diskWait}, // 2, 4, 8, 16, 16, 14
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var now, most atomic.Int32
				began, m := time.Now(), newMakers()
				var all sync.WaitGroup
				for range 60 {
					all.Go(func() {
						m.do(func() {
							if n := now.Add(1); n > most.Load() {
								most.Store(n)
							}
							time.Sleep(c.each)
							now.Add(-1)
						})
					})
				}
				all.Wait()
				if n := most.Load(); n != c.atOnce {
					t.Errorf("%d at once, want %d", n, c.atOnce)
				}
				if took := time.Since(began); took > c.within {
					t.Errorf("it took %v, want %v", took, c.within)
				}
			})
		})
	}
}

// TestHungMakerFreesItsPlace checks that a maker that hangs does not keep its place from others for longer than
// makerPatience.
func TestHungMakerFreesItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, goOn := newMakers(), make(chan struct{})
		var hang, all sync.WaitGroup
		for range 3 * manyAtOnce {
			hang.Go(func() { m.do(func() { <-goOn }) })
		}
		synctest.Wait()
		began := time.Now()
		for range 10 {
			all.Go(func() { m.do(func() {}) })
		}
		all.Wait()
		if took := time.Since(began); took > 6*makerPatience { // of those that hang, first 2 run, then 4, 8, 16, 16
			t.Errorf("others waited %v", took)
		}
		close(goOn)
		hang.Wait()
	})
}
