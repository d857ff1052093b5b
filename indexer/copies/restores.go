package copies

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// Restores are places for copies that are put back side by side, those of all buckets of a node together: when a KV
// node fails all buckets go back at once, and each copy has a checkpoint open meanwhile, and writes.
type Restores struct {
	places *semaphore.Weighted
	most   int64
}

// NewRestores returns the places of a node with so many processors.
func NewRestores(processors int) *Restores {
	most := int64(max(2, processors))
	return &Restores{places: semaphore.NewWeighted(most), most: most}
}

// enter takes a place. Who has it gives it back by leave, and loses it after patience: a copy whose files hang, or that
// has no room, keeps no other bucket's from being put back.
func (r *Restores) enter(ctx context.Context, patience time.Duration) (leave func(), err error) {
	if r == nil {
		return func() {}, nil
	}
	if err := r.places.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	release := sync.OnceFunc(func() { r.places.Release(1) })
	t := time.AfterFunc(patience, release)
	return func() {
		t.Stop()
		release()
	}, nil
}
