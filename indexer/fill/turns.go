package fill

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"tidemark/index"
	"tidemark/indexer/copies"
	"tidemark/indexer/health"
	"tidemark/indexer/pace"
	"tidemark/indexer/storage"
)

// Copies are filled one at a time: what comes here is written, read again and checked, and more at once would share
// the same disk. One whose disk hangs loses its turn to the next, and keeps a place among atOnce for as long as it
// hangs, as it cannot be ended. What has waited too long needs no turn: KV fills it.

// atOnce is how many copies are filled, or left to KV, at once: the one whose turn it is, and others whose disk hangs.
const atOnce = 16

// fillingSource begins the names under which the node's health has a copy that is filled and whose disk hangs.
const fillingSource = "filling copy "

// fill is a copy that is to be filled.
type fill struct {
	s      *storage.Slice
	k      *copies.Bucket
	from   []index.NodeID          // who has the slice, by the definitions, and may be able to send it
	waited time.Duration           // in the queue, while no files came here, or those of one copy for long
	moved  time.Time               // when something that it waits for, or it itself, was seen moving
	late   bool                    // of filler.mu: it has waited too long
	taken  time.Time               // of filler.mu: from the queue, the last time
	sent   map[index.NodeID]uint64 // of filler.mu: what busy sources have moved, as they said last
	cancel context.CancelFunc
	failed map[index.NodeID]error // why those that have gone from the list cannot send it
	anew   int                    // of fillsAnew
	away   map[index.NodeID]int   // of fillsAway
	had    bool                   // something has come
	pause  time.Duration
	after  time.Time     // it is not to be tried before
	gone   atomic.Bool   // the copy was let go: another one of its id is none of this fill's business
	puts   chan struct{} // of filler.mu; closed when its files are not being installed any more; nil: they are not yet
	// expected is how many bytes the files are that are being received
	expected atomic.Int64
	disk     diskStep // of filler.mu
}

// diskStep is what a fill does with its copy's disk now.
type diskStep struct {
	what  string
	since time.Time // zero: nothing
	hangs bool      // the node's health says so
}

func (o *fill) id() index.CopyID { return o.s.Meta().Copy }

func (f *Filler) add(k *copies.Bucket, s *storage.Slice, from []index.NodeID) {
	now := f.Now()
	f.mu.Lock()
	f.queue = append(f.queue, &fill{s: s, k: k, from: slices.Clone(from), moved: now,
		sent: map[index.NodeID]uint64{}, failed: map[index.NodeID]error{}, away: map[index.NodeID]int{}})
	f.mu.Unlock()
	f.look()
}

// look lets Run look whose turn it is.
func (f *Filler) look() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// filling reports whether something is under way, or waits, for a copy.
func (f *Filler) filling(s *storage.Slice) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.under, func(o *fill) bool { return o.s == s && !o.gone.Load() }) ||
		slices.ContainsFunc(f.queue, func(o *fill) bool { return o.s == s })
}

// patient reports whether it may still wait for its turn.
func (o *fill) patient(now time.Time) bool {
	return now.Sub(o.moved) <= fillPatience && o.waited <= fillLongest
}

// saw notes what a busy source has moved since its process began.
func (o *fill) saw(node index.NodeID, moved uint64, now time.Time) {
	if was, heard := o.sent[node]; !heard || was != moved {
		o.sent[node], o.moved = moved, now
	}
}

// Drop ends what is under way for a copy that goes. After it nothing is installed in it, or added to its bucket.
func (f *Filler) Drop(ctx context.Context, id index.CopyID) error {
	f.mu.Lock()
	f.queue = slices.DeleteFunc(f.queue, func(o *fill) bool { return o.id() == id })
	var puts chan struct{}
	for _, o := range f.under { // one at most
		if o.id() == id {
			o.gone.Store(true)
			o.cancel()
			puts = o.puts
		}
	}
	f.mu.Unlock()
	if puts == nil {
		return nil
	}
	select {
	case <-puts:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// UnderWay returns what is here of the files that a copy receives, and how much they are; 0 when none are sent.
func (f *Filler) UnderWay(id index.CopyID) (received, expected uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.under {
		if o.id() == id && o.expected.Load() > 0 {
			return uint64(max(o.s.Incoming(), 0)), uint64(o.expected.Load())
		}
	}
	return 0, 0
}

// putting notes that files are being installed in a copy, unless it was let go. done is called when they are, or are
// not.
func (f *Filler) putting(o *fill) (done func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o.gone.Load() {
		return nil, copies.ErrUnwanted
	}
	o.puts = make(chan struct{})
	return func() { close(o.puts) }, nil
}

// Watch looks after the fills until ctx ends: what has waited too long for a source is left to KV, and one whose disk
// hangs loses its turn.
func (f *Filler) Watch(ctx context.Context) error {
	for last := f.Now(); pace.Sleep(ctx, fillPause) == nil; {
		now := f.Now()
		f.expire(now, max(now.Sub(last), 0))
		f.hung(now)
		last = now
	}
	return nil
}

// expire notes what has waited too long; past is the time since it was looked at last.
func (f *Filler) expire(now time.Time, past time.Duration) (late int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	moving := f.turn != nil && f.turn.expected.Load() > 0
	for _, o := range f.queue {
		if moving {
			o.moved = now
		}
		if !moving || now.Sub(f.turn.taken) > fillPatience {
			o.waited += past
		}
		if !o.late && !o.patient(now) {
			o.late = true
			late++
		}
	}
	if late > 0 {
		f.look()
	}
	return late
}

// onDisk does what may hang with the disk of a copy.
func (f *Filler) onDisk(o *fill, what string, do func() error) error {
	f.begins(o, what)
	defer f.begins(o, "")
	return do()
}

// begins notes what is done with a copy's disk from now on, "": nothing.
func (f *Filler) begins(o *fill, what string) {
	now := f.Now()
	f.mu.Lock()
	was := o.disk
	if was.hangs {
		f.Health.Set(fillingSource+o.id().String(), "")
	}
	if o.disk = (diskStep{what: what}); what != "" {
		o.disk.since = now
	}
	f.mu.Unlock()
	if was.hangs {
		f.Log.Info("the disk of a copy that is filled goes on", "copy", o.id(), "what", was.what, "took", now.Sub(was.since))
	}
}

// hung takes the turn from one whose disk hangs, and tells of each.
func (f *Filler) hung(now time.Time) {
	for _, o := range f.findHung(now) {
		f.Log.Error("the disk of a copy that is filled hangs, or is far too slow: others are filled meanwhile",
			"copy", o.id(), "for", health.Hangs)
	}
}

func (f *Filler) findHung(now time.Time) (all []*fill) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.under {
		if o.disk.since.IsZero() || o.disk.hangs || now.Sub(o.disk.since) <= health.Hangs {
			continue
		}
		o.disk.hangs = true
		f.Health.Set(fillingSource+o.id().String(), health.Hanging(o.disk.what, health.Hangs))
		if f.turn == o {
			f.turn = nil
			f.look()
		}
		all = append(all, o)
	}
	return all
}

// Run fills until ctx ends.
func (f *Filler) Run(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	for ctx.Err() == nil {
		below, o, pause := f.next(ctx)
		if o == nil {
			timer := time.NewTimer(pause)
			select {
			case <-f.wake:
			case <-timer.C:
			case <-ctx.Done():
			}
			timer.Stop()
			continue
		}
		cancel := o.cancel
		all.Go(func() {
			defer cancel()
			if !f.one(below, o) {
				f.ended(o)
			}
		})
	}
	return nil
}

// next takes the first that may be tried now; where there is none, pause is how long that may stay so.
func (f *Filler) next(ctx context.Context) (below context.Context, o *fill, pause time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	pause = time.Hour
	if len(f.under) >= atOnce {
		return ctx, nil, pause
	}
	now := f.Now()
	for i, o := range f.queue {
		wait := o.after.Sub(now)
		switch {
		case f.isUnderLocked(o.id()): // another one of its id, which was let go, is not done with the folder yet
		case o.late:
			o.taken = now
			return f.takeLocked(ctx, i), o, 0
		case f.turn != nil:
		case wait > 0:
			pause = min(pause, wait)
		default:
			f.turn, o.taken = o, now
			return f.takeLocked(ctx, i), o, 0
		}
	}
	return ctx, nil, pause
}

// isUnderLocked reports whether a copy of this id is under way.
func (f *Filler) isUnderLocked(id index.CopyID) bool {
	return slices.ContainsFunc(f.under, func(u *fill) bool { return u.id() == id })
}

// takeLocked takes one from the queue.
func (f *Filler) takeLocked(ctx context.Context, i int) (below context.Context) {
	o := f.queue[i]
	below, o.cancel = context.WithCancel(ctx)
	f.queue, f.under = slices.Delete(f.queue, i, i+1), append(f.under, o)
	return below
}

// endLocked notes that nothing is under way for one any more.
func (f *Filler) endLocked(o *fill) {
	f.under = slices.DeleteFunc(f.under, func(u *fill) bool { return u == o })
	if f.turn == o {
		f.turn = nil
	}
	f.look()
}

func (f *Filler) ended(o *fill) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.endLocked(o)
}

// putBack lets a fill be tried again later, behind others; false when its copy was let go.
func (f *Filler) putBack(o *fill) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o.gone.Load() {
		return false
	}
	o.pause = min(max(2*o.pause, fillPause), fillMost)
	o.after = f.Now().Add(o.pause)
	f.endLocked(o)
	f.queue = append(f.queue, o)
	return true
}
