package store

import (
	"context"
	"path/filepath"
	"sync/atomic"

	"tidemark/internal/diskspace"
)

// Disk is what the buckets of a node share of their disk: what is free of it, which each of them may use up, and the
// room for a compaction, which is kept for one at a time.
type Disk struct {
	measure    func(dir string) (diskspace.Space, error)
	dir        string
	free       atomic.Int64 // when it was last measured
	known      atomic.Bool  // free has been measured
	waiting    atomic.Int64 // bytes that are to be written, or are being written
	compacting chan struct{}

	deletionsRefused atomic.Uint64 // how many deletions were refused for lack of room, of all buckets
}

// NewDisk returns the disk of a folder.
func NewDisk(dir string) *Disk {
	return &Disk{measure: diskspace.Of, dir: filepath.Clean(dir), compacting: make(chan struct{}, 1)}
}

// look measures what is free. It costs a system call that reads no disk.
func (d *Disk) look() (total int64) {
	r, err := d.measure(d.dir)
	if d.known.Store(err == nil && r.Total > 0); err == nil {
		d.free.Store(int64(min(r.Free, 1<<62)))
	}
	return int64(min(r.Total, 1<<62))
}

// lacks reports whether less than want bytes are left besides what is to be written.
func (d *Disk) lacks(want int64) bool { return d.known.Load() && d.free.Load()-d.waiting.Load() < want }

// begin waits until no other compaction runs on the disk, and returns a function to call at the end of this one.
func (d *Disk) begin(ctx context.Context) (end func(), err error) {
	select {
	case d.compacting <- struct{}{}:
		return func() { <-d.compacting }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
