package storage

import (
	"sync"
	"testing"
)

// TestSwitchLeavesNoGap: while a slice switches from one generation to the next, again and again, readers find one or
// the other.
func TestSwitchLeavesNoGap(t *testing.T) {
	s := &Slice{store: &Store{}}
	s.install(&generation{number: 1, eng: &pebbleEngine{}})
	var readers sync.WaitGroup
	done := make(chan struct{})
	for range 4 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				g, _, err := s.hold()
				if err != nil {
					t.Error(err)
					return
				}
				s.mu.Lock()
				g.refs--
				s.mu.Unlock()
			}
		})
	}
	for n := range uint64(50_000) {
		if old := s.install(&generation{number: n + 2, eng: &pebbleEngine{}}); old == nil || old.number != n+1 {
			t.Fatalf("after generation %d came %d", n+2, n)
		}
	}
	close(done)
	readers.Wait()
}
