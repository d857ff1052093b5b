package store

import (
	"context"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"tidemark/internal/diskspace"
)

// lookAfterBytes is how much the buckets of a node write between two measurements of their disk.
const lookAfterBytes = 4 << 20

// Disk is what the buckets of a node share of their disk: the bytes that are free, which each of them may use up, the
// room for a compaction, which is kept for one at a time, and the lines of the log about it.
type Disk struct {
	measure    func(dir string) (diskspace.Space, error)
	dir        string
	limit      atomic.Int64 // of written: what was free when it was last measured, and written before
	written    atomic.Int64 // bytes that the buckets have written
	looked     atomic.Int64 // written when it was last measured
	known      atomic.Bool  // it has been measured
	waiting    atomic.Int64 // bytes that are to be written, or are being written
	compacting chan struct{}

	mu       sync.Mutex
	nextLine time.Time // when the log may have a line about the disk again

	deletionsRefused atomic.Uint64 // how many deletions were refused for lack of room, of all buckets
}

// NewDisk returns the disk that a folder is on. The folder need not exist yet: nothing is measured before a bucket is
// opened.
func NewDisk(dir string) *Disk {
	return &Disk{measure: diskspace.Of, dir: filepath.Clean(dir), compacting: make(chan struct{}, 1)}
}

// look measures how many bytes are free, and returns how many the disk has in all, 0 if that is unknown. It costs a
// system call that reads no disk. What is written meanwhile may count twice until the next look.
func (d *Disk) look() (total int64) {
	written := d.written.Load()
	r, err := d.measure(d.dir)
	if d.known.Store(err == nil && r.Total > 0); err == nil {
		d.limit.Store(written + int64(min(r.Free, 1<<61)))
	}
	d.looked.Store(written)
	return int64(min(r.Total, 1<<62))
}

// took counts what a bucket has written, while it still counts as waiting. The disk is measured again only after every
// lookAfterBytes, since a measurement costs each of many small writes a system call; housekeeping measures it, too.
func (d *Disk) took(bytes int64, err error) {
	if err == nil && d.written.Add(bytes)-d.looked.Load() < lookAfterBytes {
		return
	}
	d.look() // after a failed write, too: what is known of the disk may be wrong
}

// free returns how many bytes are free: as many as were measured, less what the buckets have written since.
func (d *Disk) free() int64 { return max(0, d.limit.Load()-d.written.Load()) }

// lacks reports whether less than want bytes are left besides what is to be written.
func (d *Disk) lacks(want int64) bool { return d.known.Load() && d.free()-d.waiting.Load() < want }

// lineEvery is the least time between two lines of a node's log about a disk that is almost full.
const lineEvery = time.Minute

// due reports whether the log may have a line about the disk, and counts it as written.
func (d *Disk) due(now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now.Before(d.nextLine) {
		return false
	}
	d.nextLine = now.Add(lineEvery)
	return true
}

// begin waits until no other compaction runs on the disk, and returns a function to call at the end of this one.
func (d *Disk) begin(ctx context.Context) (end func(), err error) {
	select {
	case d.compacting <- struct{}{}:
		return func() { <-d.compacting }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
