package copies

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"tidemark/index"
)

// ownPlace is how long no place must have been released before a bucket that waits gets a place of its own: copies
// whose files hang may occupy all the shared ones.
const ownPlace = 5 * time.Second

// Restores limits how many copies are restored concurrently, all buckets of a node together. When a KV node fails,
// all buckets roll back at once, and each restore keeps a checkpoint open and writes.
type Restores struct {
	places chan struct{} // semaphore

	mu    sync.Mutex
	taken map[*taken]bool // including the buckets' own places
	given time.Time       // when a place was last released
}

// taken is an occupied place.
type taken struct {
	bucket string
	copy   index.CopyID
	since  time.Time
}

func (t *taken) String() string {
	return fmt.Sprintf("copy %s of bucket %s (since %s)", t.copy, t.bucket, t.since.UTC().Format(time.RFC3339))
}

// NewRestores returns the places of a node with the given number of processors.
func NewRestores(processors int) *Restores {
	return &Restores{places: make(chan struct{}, max(2, processors)), taken: map[*taken]bool{}}
}

// turn is a group of copies of one bucket that wait for places together. Of one bucket, no more copies than there are
// places wait in the queue that all buckets share, so that no bucket fills it.
type turn struct {
	of    *Restores
	slots chan struct{} // semaphore of the bucket's copies in that queue or with a place
	own   chan struct{} // contains the bucket's own place while it is free
	later *time.Timer   // calls look
}

func (r *Restores) turn() *turn {
	t := &turn{of: r, slots: make(chan struct{}, cap(r.places)), own: make(chan struct{}, 1)}
	r.mu.Lock()
	defer r.mu.Unlock()
	t.later = time.AfterFunc(ownPlace, t.look)
	return t
}

// look gives the bucket its own place once no place was released for ownPlace.
func (t *turn) look() {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	if idle := time.Since(t.of.given); idle < ownPlace {
		t.later.Reset(ownPlace - idle)
		return
	}
	t.own <- struct{}{}
}

// end is called when no copy is waited for any more. Copies that were removed may still wait or have a place.
func (t *turn) end() { t.later.Stop() }

// enter takes a place. The holder releases it by leave, and loses it after patience: a copy whose files hang, or
// whose disk is full, must not keep others from being restored.
func (t *turn) enter(ctx context.Context, bucket string, id index.CopyID, now time.Time, patience time.Duration) (
	leave func(), err error) {
	select {
	case t.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	var give func()
	select {
	case t.of.places <- struct{}{}:
		give = t.of.giveBack
	case <-t.own:
		give = func() { t.own <- struct{}{} }
	case <-ctx.Done():
		<-t.slots
		return nil, context.Cause(ctx)
	}
	has := &taken{bucket, id, now}
	t.of.note(has, true)
	release := sync.OnceFunc(func() {
		t.of.note(has, false)
		give()
		<-t.slots
	})
	late := time.AfterFunc(patience, release)
	return func() {
		late.Stop()
		release()
	}, nil
}

// giveBack releases a shared place.
func (r *Restores) giveBack() {
	r.mu.Lock()
	r.given = time.Now()
	r.mu.Unlock()
	<-r.places
}

func (r *Restores) note(t *taken, has bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if has {
		r.taken[t] = true
	} else {
		delete(r.taken, t)
	}
}

// ahead names the copies that have places, longest first.
func (t *turn) ahead() string {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	all := make([]*taken, 0, len(t.of.taken))
	for h := range t.of.taken {
		all = append(all, h)
	}
	slices.SortFunc(all, func(a, b *taken) int {
		return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.bucket, b.bucket), cmp.Compare(a.copy, b.copy))
	})
	named := make([]string, len(all))
	for i, h := range all {
		named[i] = h.String()
	}
	return strings.Join(named, ", ")
}
