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

// ownPlace is for how long no place was given back when a bucket whose copies are not back has one of its own: copies
// whose files hang may have all that there are for as long as they keep them.
const ownPlace = 5 * time.Second

// Restores are places for copies that are put back side by side, those of all buckets of a node together: when a KV
// node fails all buckets go back at once, and each copy has a checkpoint open meanwhile, and writes.
type Restores struct {
	places chan struct{} // as many as are taken

	mu    sync.Mutex
	taken map[*taken]bool // also of buckets' own
	given time.Time       // when one was given back last
}

// taken is a place that somebody has.
type taken struct {
	bucket string
	copy   index.CopyID
	since  time.Time
}

func (t *taken) String() string {
	return fmt.Sprintf("copy %s of bucket %s (since %s)", t.copy, t.bucket, t.since.UTC().Format(time.RFC3339))
}

// NewRestores returns the places of a node with so many processors.
func NewRestores(processors int) *Restores {
	return &Restores{places: make(chan struct{}, max(2, processors)), taken: map[*taken]bool{}}
}

// turn is copies of a bucket that wait for places together. A bucket has no more at a time than there are, and waits
// for each of these in one queue with the others.
type turn struct {
	of    *Restores
	slots chan struct{} // as many as are taken
	own   chan struct{} // has the place of its own while that is free
	later *time.Timer   // until then it has none
}

func (r *Restores) turn() *turn {
	t := &turn{of: r, slots: make(chan struct{}, cap(r.places)), own: make(chan struct{}, 1)}
	r.mu.Lock()
	defer r.mu.Unlock()
	t.later = time.AfterFunc(ownPlace, t.look)
	return t
}

// look gives the bucket its own place, once none has been given back for as long.
func (t *turn) look() {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	if idle := time.Since(t.of.given); idle < ownPlace {
		t.later.Reset(ownPlace - idle)
		return
	}
	t.own <- struct{}{}
}

// end is called when nobody is waited for any more: who was let go may wait, or have a place, still.
func (t *turn) end() { t.later.Stop() }

// enter takes a place. Who has it gives it back by leave, and loses it after patience: a copy whose files hang, or that
// has no room, keeps no other from being put back.
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

// giveBack gives back a place of all buckets.
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

// ahead names who has places, longest first.
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
