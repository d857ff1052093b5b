package storage

import (
	"errors"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"

	"tidemark/index"
)

// TestCreateAtOnce: copies are made side by side, one id once; a store that is closed meanwhile leaves none open.
func TestCreateAtOnce(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(Options{Dir: dir, Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	const copies = 6
	var mu sync.Mutex
	made, refused := map[index.CopyID]int{}, 0
	var all sync.WaitGroup
	for i := range 2 * copies {
		all.Go(func() {
			id := index.CopyID(i/2 + 1)
			_, err := s.Create(testMeta(id))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				made[id]++
			case errors.Is(err, ErrExists):
				refused++
			default:
				t.Error(err)
			}
		})
	}
	all.Wait()
	if len(made) != copies || refused != copies || len(s.Slices()) != copies {
		t.Errorf("made %v, %d refused, %d there; want %d each", made, refused, len(s.Slices()), copies)
	}
	for i := range copies {
		all.Go(func() {
			if _, err := s.Create(testMeta(index.CopyID(copies + 1 + i))); err != nil && !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
		})
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	all.Wait()
	if s, err = Open(Options{Dir: dir, Logger: hclog.NewNullLogger()}); err != nil { // nobody holds its lock
		t.Fatal(err)
	}
	if n := len(s.Slices()); n < copies || n > 2*copies {
		t.Errorf("%d copies after it was closed, want %d to %d", n, copies, 2*copies)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
