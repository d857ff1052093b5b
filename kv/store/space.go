package store

import (
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"
)

const (
	// leastSegmentBytes and segmentsPerDisk bound the size of a segment on a small disk: compaction copies what is needed
	// of one before it can remove it.
	leastSegmentBytes = 1 << 20
	segmentsPerDisk   = 16
	// compactionBytes is what compaction writes beside the documents of a segment: states of vbuckets, a manifest, and
	// blocks that are not full.
	compactionBytes = 512 << 10
	// slackBytes is kept for what is never refused (states and windows of vbuckets), so that compaction can begin then.
	slackBytes = 512 << 10
	// squeezeShare is the part of the room for deletions that may be garbage while deletions are refused. It is small
	// because the buckets of a node share that room, and each has only its part of the garbage.
	squeezeShare = 64
	// hangsAfter is how long a write or a sync may take until the disk counts as hung.
	hangsAfter = 5 * time.Second
)

// space keeps room on the disk for what makes room: documents are refused while less would be left than compaction and
// deletions need, deletions while less would be left than compaction needs. A full disk could not be freed otherwise,
// since both append to the log before it can be shortened.
type space struct {
	*Disk
	segment           int64 // the size at which a segment is sealed
	compactionReserve atomic.Int64
	deletionReserve   int64
	documents         atomic.Bool  // documents have been refused since the last compaction
	large             atomic.Int64 // the size of a document that has been refused since the last look at the log
}

// newSpace measures the disk and determines the size of segments for it, at most most.
func newSpace(disk *Disk, most int64) *space {
	if total := disk.look(); total > 0 {
		most = min(most, max(leastSegmentBytes, total/segmentsPerDisk))
	}
	s := &space{Disk: disk, segment: most, deletionReserve: (most + compactionBytes) / 4}
	s.fit(0)
	return s
}

// fit keeps room for the compaction of the largest segment: one whose first batch is large is larger than others.
func (s *space) fit(largest int64) { s.compactionReserve.Store(s.reserveFor(largest)) }

func (s *space) reserveFor(largest int64) int64 {
	return max(s.segment, largest) + compactionBytes + slackBytes
}

// low reports whether all documents are refused, full whether deletions are, too. Before, large documents are refused.
func (s *space) low() bool  { return s.lacks(s.compactionReserve.Load() + s.deletionReserve) }
func (s *space) full() bool { return s.lacks(s.compactionReserve.Load()) }

// refuses returns why a version of some size may not be appended to a batch, nil if it may. A batch is not divided
// among segments, and what it needs to be compacted must be left, too.
func (s *space) refuses(deletes bool, size, batch int64) error {
	keep := max(s.compactionReserve.Load(), s.reserveFor(batch+size))
	if deletes {
		if s.lacks(keep + size) {
			s.deletionsRefused.Add(1)
			return fmt.Errorf("%w: %s", ErrTemporary, s.text(keep, "deletions are refused until compaction has made room, "+
				"or you make room on the disk"))
		}
		return nil
	}
	// One that is not large takes a part of the room for deletions, so that all of these are refused at the same time.
	if s.lacks(keep + s.deletionReserve + max(0, size-s.deletionReserve/4)) {
		s.documents.Store(true)
		s.large.Store(size)
		return fmt.Errorf("%w: %s", ErrTemporary, s.text(keep, fmt.Sprintf("a document of %d bytes is refused; delete "+
			"documents, or make room on the disk", size)))
	}
	return nil
}

func (s *space) text(keep int64, so string) string {
	return fmt.Sprintf("%d bytes are free under %s and %d wait to be written; %d are kept for deletions and %d for "+
		"compaction: %s", s.free(), s.dir, s.waiting.Load(), s.deletionReserve, keep, so)
}

// trouble says what is refused on a disk that is low.
func (s *space) trouble() string {
	so := "documents are refused; delete some, or make room on the disk"
	if s.full() {
		so = "documents are refused, and deletions until compaction has made room; make room on the disk"
	}
	return s.text(s.compactionReserve.Load(), so)
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

// hangs returns for how long a write, and for how long a sync of the log has been pending, 0 if not for too long.
func (b *Bucket) hangs() (write, sync time.Duration) {
	now := b.now()
	return b.commit.writing.hangs(now), b.syncs.hangs(now)
}

// DiskTrouble describes what is wrong with the bucket's disk; "" if nothing is. It waits for nothing.
func (b *Bucket) DiskTrouble() string {
	switch hangs, syncs := b.hangs(); {
	case hangs > 0:
		return fmt.Sprintf("cannot be written at the moment: its disk has not answered a write for %v, and writes wait. "+
			"Check the disk of %s", hangs, filepath.Clean(b.opts.Dir))
	case syncs > 0:
		return fmt.Sprintf("is written without being on disk: a sync has not come back for %v, and a crash of the machine "+
			"would lose what was written since. Check the disk of %s", syncs, filepath.Clean(b.opts.Dir))
	case b.unsynced.Load():
		return "is not on disk entirely, because a sync has failed, and writes are refused until all its documents are in " +
			"new files: check the disk; the node's log names the file"
	case b.failing.Load():
		return "cannot be written: make room on the disk"
	case b.commit.space.low():
		return "accepts no documents: " + b.commit.space.trouble()
	}
	return ""
}

// watch logs when the disk begins to hang, or is almost full, and when it is well again.
func (b *Bucket) watch() {
	write, sync := b.hangs()
	if hung := max(write, sync) > 0; hung != b.hung {
		b.hung = hung
		if hung {
			b.opts.Logger.Error("disk hangs", "bucket", b.opts.Name, "because", b.DiskTrouble())
		} else {
			b.opts.Logger.Info("disk answers again", "bucket", b.opts.Name)
		}
	}
	low := b.commit.space.low()
	if b.low && !low {
		b.opts.Logger.Info("disk is not almost full any more", "bucket", b.opts.Name)
	}
	b.low = low
	large := b.commit.space.large.Swap(0)
	switch {
	case low && b.commit.space.due(b.now()):
		b.opts.Logger.Error("disk is almost full", "bucket", b.opts.Name, "because", b.commit.space.trouble())
	case !low && large > 0 && b.commit.space.due(b.now()):
		b.opts.Logger.Error("disk has no room for a large document, which was refused; make room on the disk", "bucket",
			b.opts.Name, "bytes", large, "free", b.commit.space.free(), "folder", b.opts.Disk.dir)
	}
}
