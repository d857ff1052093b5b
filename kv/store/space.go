package store

import (
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"tidemark/internal/diskspace"
	"tidemark/internal/loglimit"
)

const (
	// leastSegmentBytes and segmentsPerDisk bound the size of a segment on a small disk: compaction copies what is needed
	// of one before it can remove it.
	leastSegmentBytes = 1 << 20
	segmentsPerDisk   = 16
	// compactionBytes is what compaction writes beside the documents of a segment: states of vbuckets, a manifest, and
	// blocks that are not full.
	compactionBytes = 1 << 20
	// hangsAfter is how long a write or a sync may take until the disk counts as hung.
	hangsAfter = 5 * time.Second
)

// space keeps room on the disk for what makes room: documents are refused while less is free than compaction and
// deletions need, deletions while less is free than compaction needs. A full disk could not be freed otherwise, since
// both append to the log before it can be shortened.
type space struct {
	measure func(dir string) (diskspace.Space, error)
	dir     string
	keep    int64 // for compaction
	more    int64 // for deletions
	free    atomic.Int64
	known   atomic.Bool // free has been measured

	mu    sync.Mutex
	lines loglimit.Limiter // of the log, on a disk at the limit
}

// newSpace measures the disk of a bucket. It returns also the size of segments for it, at most most.
func newSpace(dir string, most int64, measure func(string) (diskspace.Space, error)) (s *space, segment int64) {
	if measure == nil {
		measure = diskspace.Of
	}
	s = &space{dir: filepath.Clean(dir), measure: measure}
	if r, err := measure(dir); err == nil && r.Total > 0 {
		most = min(most, max(leastSegmentBytes, int64(min(r.Total, 1<<62))/segmentsPerDisk))
	}
	s.keep = most + compactionBytes
	s.more = s.keep / 4
	s.look()
	return s, most
}

// look measures what is free. It costs a system call that reads no disk.
func (s *space) look() {
	r, err := s.measure(s.dir)
	if s.known.Store(err == nil && r.Total > 0); err == nil {
		s.free.Store(int64(min(r.Free, 1<<62)))
	}
}

// low reports whether documents are refused.
func (s *space) low() bool { return s.known.Load() && s.free.Load() < s.keep+s.more }

// refuses returns why a version may not be appended, nil if it may.
func (s *space) refuses(deletes bool) error {
	if !s.low() || deletes && s.free.Load() >= s.keep {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrTemporary, s.text())
}

func (s *space) text() string {
	return fmt.Sprintf("%d bytes are free under %s, of which %d are kept for deletions and %d for compaction: documents "+
		"are refused; delete some, or make room on the disk", s.free.Load(), s.dir, s.more, s.keep)
}

// due reports whether the log may have a line about the disk; it has one a minute at the most.
func (s *space) due(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, due := s.lines.Due("low", "", now)
	return due
}

// pendingSince is the begin of something that may hang.
type pendingSince struct{ at atomic.Pointer[time.Time] }

func (p *pendingSince) begin(now time.Time) { p.at.Store(&now) }
func (p *pendingSince) end()                { p.at.Store(nil) }

// hangs returns how long it has been pending if that is too long, otherwise 0.
func (p *pendingSince) hangs(now time.Time) time.Duration {
	if at := p.at.Load(); at != nil {
		if took := now.Sub(*at); took >= hangsAfter {
			return took.Round(time.Second)
		}
	}
	return 0
}

// hangs returns how long a write or a sync of the log has been pending if that is too long, otherwise 0.
func (b *Bucket) hangs() time.Duration {
	now := b.now()
	return max(b.commit.writing.hangs(now), b.syncs.hangs(now))
}

// DiskTrouble describes what is wrong with the bucket's disk; "" if nothing is. It waits for nothing.
func (b *Bucket) DiskTrouble() string {
	switch hangs := b.hangs(); {
	case hangs > 0:
		return fmt.Sprintf("cannot be written at the moment: its disk has not answered for %v; writes wait. Check the disk "+
			"of %s", hangs, filepath.Clean(b.opts.Dir))
	case b.unsynced.Load():
		return "is not on disk entirely, because a sync has failed, and writes are refused until all its documents are in " +
			"new files: check the disk; the node's log names the file"
	case b.failing.Load():
		return "cannot be written: make room on the disk"
	case b.commit.space.low():
		return "accepts no documents: " + b.commit.space.text()
	}
	return ""
}

// watch logs when the disk begins to hang, or is almost full, and when it is well again.
func (b *Bucket) watch() {
	hangs, low := b.hangs() > 0, b.commit.space.low()
	if b.hung.Swap(hangs) != hangs {
		if hangs {
			b.opts.Logger.Error("disk hangs: writes wait; check the disk", "bucket", b.opts.Name, "folder",
				filepath.Clean(b.opts.Dir), "for", b.hangs())
		} else {
			b.opts.Logger.Info("disk answers again", "bucket", b.opts.Name)
		}
	}
	if low && b.commit.space.due(b.now()) {
		b.opts.Logger.Error("disk is almost full", "bucket", b.opts.Name, "because", b.commit.space.text())
	}
}
