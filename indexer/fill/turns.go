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

// Copies are filled one at a time: received data is written, read again and checked, and several fills would compete
// for the same disk. A fill whose disk hangs, or whose copy's writers do not end, loses its turn to the next one; it
// cannot be ended, and stays in progress for as long as that lasts. A copy that has waited too long needs no turn: KV
// fills it.

const (
	// atOnce bounds the fills in progress: the one whose turn it is, those left to KV, and those that hang beyond
	// mostHung.
	atOnce = 16
	// mostHung bounds the fills that hang and do not count towards atOnce, so that they do not keep other copies waiting.
	mostHung = 32
)

// fillingSource is the prefix of the health sources of copies whose disk hangs while they are filled.
const fillingSource = "filling copy "

// fill is the filling of one copy.
type fill struct {
	s      *storage.Slice
	k      *copies.Bucket
	from   []index.NodeID          // sources left to try: nodes that hold the slice by the definitions
	waited time.Duration           // time in the queue, see fillLongest
	moved  time.Time               // when the copy or one of its sources was last seen making progress
	late   bool                    // of Filler.mu: it has waited too long
	shares bool                    // late, and an earlier fill of this id still uses the folder
	taken  time.Time               // of Filler.mu: when it was last taken from the queue
	sent   map[index.NodeID]uint64 // of Filler.mu: the progress that busy sources reported last
	cancel context.CancelFunc
	failed map[index.NodeID]error // the errors of sources that were removed from the list
	anew   int                    // retries, see fillsAnew
	away   map[index.NodeID]int   // retries, see fillsAway
	had    bool                   // some files have been received
	pause  time.Duration
	after  time.Time     // no retry before this time
	gone   atomic.Bool   // the copy was dropped: a later copy with its id is not affected by this fill
	puts   chan struct{} // of Filler.mu; nil before the files are installed, closed when installing has ended
	// expected is the size in bytes of the files being received
	expected atomic.Int64
	disk     diskStep // of Filler.mu
}

// diskStep is the step of a fill in progress that waits for a disk.
type diskStep struct {
	what  string
	since time.Time // zero: none
	hangs bool      // it has taken the turn from the fill, see findHung
}

// leaving is the step in which a copy leaves its bucket, which waits for the copy's writers. The bucket reports a
// writer that hangs, so the fill does not.
const leaving = "leaving the bucket"

// most returns how long a step may take before its fill loses the turn. A writer may have long work to end.
func (d *diskStep) most() time.Duration {
	if d.what == leaving {
		return fillPatience
	}
	return health.Hangs
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

// look wakes Run to choose the next fill.
func (f *Filler) look() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// filling reports whether a fill of the copy is in progress or queued.
func (f *Filler) filling(s *storage.Slice) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.under, func(o *fill) bool { return o.s == s && !o.gone.Load() }) ||
		slices.ContainsFunc(f.queue, func(o *fill) bool { return o.s == s })
}

// patient reports whether the copy may continue to wait for its turn.
func (o *fill) patient(now time.Time) bool {
	return now.Sub(o.moved) <= fillPatience && o.waited <= fillLongest
}

// saw records the progress that a busy source reports, counted since its process began.
func (o *fill) saw(node index.NodeID, moved uint64, now time.Time) {
	if was, known := o.sent[node]; !known || was != moved {
		o.sent[node], o.moved = moved, now
	}
}

// Drop ends the fill of a copy that is being removed. After it returns, nothing is installed in the copy, and the
// copy is not added to its bucket.
func (f *Filler) Drop(ctx context.Context, id index.CopyID) error {
	f.mu.Lock()
	f.queue = slices.DeleteFunc(f.queue, func(o *fill) bool { return o.id() == id })
	var puts chan struct{}
	for _, o := range f.under { // of which at most one installs files: a later one is left to KV, see next
		if o.id() == id {
			o.gone.Store(true)
			o.cancel()
			if o.puts != nil {
				puts = o.puts
			}
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

// UnderWay returns how many bytes of a copy's files have been received, of how many; 0 if no transfer is in progress.
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

// putting records that files are being installed in a copy, unless the copy was dropped. The caller must call done
// when installing has ended, successfully or not.
func (f *Filler) putting(o *fill) (done func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o.gone.Load() {
		return nil, copies.ErrUnwanted
	}
	o.puts = make(chan struct{})
	return func() { close(o.puts) }, nil
}

// Watch monitors the fills until ctx ends: a copy that has waited too long for a source is left to KV, and a fill
// whose disk hangs loses its turn.
func (f *Filler) Watch(ctx context.Context) error {
	for last := f.Now(); pace.Sleep(ctx, fillPause) == nil; {
		now := f.Now()
		f.expire(now, max(now.Sub(last), 0))
		f.hung(now)
		last = now
	}
	return nil
}

// expire marks the copies that have waited too long; past is the time since the last call.
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

// onDisk runs a step of a fill that may hang.
func (f *Filler) onDisk(o *fill, what string, do func() error) error {
	f.begins(o, what)
	defer f.begins(o, "")
	return do()
}

// begins records a fill's step in progress; what is empty when it has ended.
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
		f.Log.Info("disk of a copy that is being filled responds "+
			"again", "copy", o.id(), "what", was.what, "took", now.Sub(was.since))
	}
}

// hung takes the turn from fills whose disk hangs, and logs each of them.
func (f *Filler) hung(now time.Time) {
	for _, h := range f.findHung(now) {
		f.Log.Error("disk of a copy that is being filled hangs, or is far too slow; other copies are filled meanwhile",
			"copy", h.copy, "what", h.what, "for", h.most())
	}
}

// hungStep is a step that hangs.
type hungStep struct {
	copy index.CopyID
	diskStep
}

func (f *Filler) findHung(now time.Time) (all []hungStep) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.under {
		if o.disk.since.IsZero() || o.disk.hangs || now.Sub(o.disk.since) <= o.disk.most() {
			continue
		}
		o.disk.hangs = true
		if o.disk.what != leaving {
			f.Health.Set(fillingSource+o.id().String(), health.Hanging(o.disk.what, health.Hangs))
		}
		if f.turn == o {
			f.turn = nil
		}
		f.look()
		all = append(all, hungStep{o.id(), o.disk})
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

// next takes the first fill that may run now; if there is none, pause is the longest time to wait for one.
func (f *Filler) next(ctx context.Context) (below context.Context, o *fill, pause time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	pause = time.Hour
	if f.countedLocked() >= atOnce {
		return ctx, nil, pause
	}
	now := f.Now()
	for i, o := range f.queue {
		wait := o.after.Sub(now)
		switch {
		case o.late:
			o.taken, o.shares = now, f.isUnderLocked(o.id())
			return f.takeLocked(ctx, i), o, 0
		case f.turn != nil || f.isUnderLocked(o.id()):
		case wait > 0:
			pause = min(pause, wait)
		default:
			f.turn, o.taken = o, now
			return f.takeLocked(ctx, i), o, 0
		}
	}
	return ctx, nil, pause
}

// countedLocked returns the number of fills in progress that count towards atOnce.
func (f *Filler) countedLocked() int {
	hung := 0
	for _, o := range f.under {
		if o.disk.hangs {
			hung++
		}
	}
	return len(f.under) - min(hung, mostHung)
}

// isUnderLocked reports whether a fill of this copy id is in progress: of an earlier copy, which was dropped. It still
// uses the folder, possibly for as long as the disk hangs.
func (f *Filler) isUnderLocked(id index.CopyID) bool {
	return slices.ContainsFunc(f.under, func(u *fill) bool { return u.id() == id })
}

// takeLocked takes the fill at index i from the queue.
func (f *Filler) takeLocked(ctx context.Context, i int) (below context.Context) {
	o := f.queue[i]
	below, o.cancel = context.WithCancel(ctx)
	f.queue, f.under = slices.Delete(f.queue, i, i+1), append(f.under, o)
	return below
}

// endLocked removes a fill from those in progress.
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

// putBack puts a fill at the end of the queue; it returns false if the copy was dropped.
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
