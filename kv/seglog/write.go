package seglog

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Write appends whole frames (BeginFrame, FinishFrame) to the current segment with one write, after starting a new
// segment if the current one is full, and returns the segment's number. If it fails, nothing was added and the caller
// may retry; if even that cannot be ensured, the error is ErrBroken.
func (l *Log) Write(frames []byte) (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken != nil {
		return 0, l.broken
	}
	last := &l.segments[len(l.segments)-1]
	if last.number <= l.lost || last.size > segmentHeaderBytes && last.size+int64(len(frames)) > l.opts.SegmentBytes {
		if err := l.rotateLocked(); err != nil {
			return 0, err
		}
		last = &l.segments[len(l.segments)-1]
	}
	if _, err := l.file.Write(frames); err != nil {
		if terr := l.file.Truncate(last.size); terr != nil {
			l.broken = fmt.Errorf("%w: %s: write failed (%w) and could not be undone (%w)", ErrBroken, l.path(last.number), err,
				terr)
			return 0, l.broken
		}
		return 0, fmt.Errorf("append to %s: %w", l.path(last.number), err)
	}
	last.size += int64(len(frames))
	l.size.Add(int64(len(frames)))
	l.largest.Store(max(l.largest.Load(), last.size))
	l.dirty = true
	return last.number, nil
}

// rotateLocked seals the current segment and starts the next one.
func (l *Log) rotateLocked() error {
	number := l.segments[len(l.segments)-1].number + 1
	old := l.file
	if err := l.createSegment(number); err != nil {
		l.file = old
		return err
	}
	l.segments = append(l.segments, segment{number: number, size: segmentHeaderBytes})
	l.size.Add(segmentHeaderBytes)
	l.unsynced = append(l.unsynced, sealedFile{old, number - 1})
	return nil
}

// createSegment creates the file of a segment with its header and opens it for appending.
func (l *Log) createSegment(number uint64) error {
	f, err := os.OpenFile(l.path(number), os.O_RDWR|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("create segment: %w", err)
	}
	wrapped := l.wrap(f)
	if _, err := wrapped.Write(segmentHeader(number, l.opts.Identity)); err != nil {
		_ = f.Close()
		_ = os.Remove(f.Name())
		return fmt.Errorf("create segment %s: %w", f.Name(), err)
	}
	l.file = wrapped
	if n := len(l.segments); n > 0 && l.segments[n-1].number == number {
		l.segments[n-1].size = segmentHeaderBytes
	}
	return nil
}

// Sync makes everything written so far durable against a crash of the machine. It may run concurrently with Write.
// After a failure it returns ErrUnsynced until DropThrough has dropped the segments that may not be on disk.
func (l *Log) Sync() error {
	err := l.sync()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && l.lost > 0 {
		err = fmt.Errorf("%w: %s and the segments before it: %w", ErrUnsynced, l.path(l.lost), l.lostBy)
	}
	return err
}

// sync syncs all files except those whose sync has failed before.
func (l *Log) sync() error {
	l.syncing.Lock()
	defer l.syncing.Unlock()
	l.mu.Lock()
	files, lost, number := l.unsynced, l.lost, l.segments[len(l.segments)-1].number
	l.unsynced = nil
	current, dirty := l.file, l.dirty
	l.dirty = false
	l.mu.Unlock()
	var first error
	failed := uint64(0)
	for _, f := range files {
		if f.number > lost {
			if err := f.Sync(); err != nil {
				first, failed = err, f.number
			}
		}
		_ = f.Close()
	}
	if dirty && number > lost {
		if err := current.Sync(); err != nil {
			first, failed = err, number
		}
	}
	if len(files) > 0 && first == nil { // there are new segments: their directory entries must be durable, too
		if first = syncDir(l.opts.Dir); first != nil {
			failed = number
		}
	}
	if first == nil {
		return nil
	}
	l.mu.Lock()
	l.lost, l.lostBy = failed, first
	l.mu.Unlock()
	// best effort on such a disk
	_ = WriteJSON(filepath.Join(l.opts.Dir, unsyncedName), cleanMarker{Segment: failed})
	return fmt.Errorf("%w: %s and the segments before it: %w", ErrUnsynced, l.path(failed), first)
}

// Size returns the number of bytes on disk. It does not block while the disk hangs.
func (l *Log) Size() int64 { return l.size.Load() }

// Largest returns the size of the largest segment. One that began with a large batch is larger than SegmentBytes. It
// does not block while the disk hangs.
func (l *Log) Largest() int64 { return l.largest.Load() }

// measureLocked determines the size of the largest segment anew.
func (l *Log) measureLocked() {
	var bytes int64
	for _, s := range l.segments {
		bytes = max(bytes, s.size)
	}
	l.largest.Store(bytes)
}

// Sealed lists the numbers of the segments that accept no more records, oldest first.
func (l *Log) Sealed() []uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []uint64
	for _, s := range l.segments[:len(l.segments)-1] {
		out = append(out, s.number)
	}
	return out
}

// ReadSegment calls each for every record of a sealed segment.
func (l *Log) ReadSegment(number uint64, each func(Record) error) error {
	_, err := scanSegment(l.path(number), number, l.opts.Identity, false, each)
	return err
}

// DropFirst removes the oldest segment, which must be sealed and have this number. The caller has copied the records
// that are still needed to later segments; DropFirst syncs those first.
func (l *Log) DropFirst(number uint64) error {
	if err := l.Sync(); err != nil { // keep the old records until their replacements are on disk
		return err
	}
	l.dropping.Lock()
	defer l.dropping.Unlock()
	sealed := l.Sealed()
	if len(sealed) == 0 || sealed[0] != number {
		return fmt.Errorf("segment %d is not the oldest sealed one of %s", number, l.opts.Dir)
	}
	return l.drop(1)
}

// Renew starts a synced segment, so that later records do not share a segment with those that could not be synced. It
// returns ErrUnsynced if that cannot be synced either.
func (l *Log) Renew() error {
	number, err := l.renew()
	if err != nil {
		return err
	}
	return l.renewed(number)
}

// renewed makes the new segment durable.
func (l *Log) renewed(number uint64) error {
	if err := l.sync(); err != nil {
		return err
	}
	return l.Lost(number - 1) // another sync may have failed on it in the meantime
}

// renew starts a segment and returns its number.
func (l *Log) renew() (number uint64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken != nil {
		return 0, l.broken
	}
	err = l.rotateLocked()
	l.dirty = true
	return l.segments[len(l.segments)-1].number, err
}

// Lost returns ErrUnsynced if a segment above this number could not be synced: then the records written since do not
// yet replace those in the segments up to it.
func (l *Log) Lost(number uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost <= number {
		return nil
	}
	return fmt.Errorf("%w: %s and the segments before it: %w", ErrUnsynced, l.path(l.lost), l.lostBy)
}

// DropThrough removes all segments up to the sealed one with this number. The caller has copied the records that are
// still needed to later segments; DropThrough syncs those first. After it, earlier failures of syncs in the removed
// segments no longer count.
func (l *Log) DropThrough(number uint64) error {
	if err := l.sync(); err != nil {
		return err
	}
	l.dropping.Lock()
	defer l.dropping.Unlock()
	l.mu.Lock()
	n := slices.IndexFunc(l.segments, func(s segment) bool { return s.number > number })
	l.mu.Unlock()
	if n < 1 {
		return fmt.Errorf("segment %d is not a sealed segment of %s", number, l.opts.Dir)
	}
	if err := l.Lost(number); err != nil {
		return err
	}
	if err := l.drop(n); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost > 0 && l.lost < l.segments[0].number {
		l.lost, l.lostBy = 0, nil
		_ = os.Remove(filepath.Join(l.opts.Dir, unsyncedName)) // it has no meaning any more
	}
	return nil
}

// drop removes the first n segments, which are sealed. Writes append to the end and do not wait for the disk
// meanwhile.
func (l *Log) drop(n int) error {
	l.mu.Lock()
	gone, first := slices.Clone(l.segments[:n]), l.segments[n].number
	l.mu.Unlock()
	if err := l.writeManifest(first); err != nil {
		return err
	}
	l.mu.Lock()
	l.segments = l.segments[n:]
	for _, s := range gone {
		l.size.Add(-s.size)
	}
	l.measureLocked()
	l.mu.Unlock()
	for _, s := range gone {
		if err := os.Remove(l.path(s.number)); err != nil {
			return fmt.Errorf("remove segment: %w", err)
		}
	}
	return nil
}

// Close syncs and closes the log. With clean it leaves the marker of an orderly stop.
func (l *Log) Close(clean bool) error {
	err := l.Sync()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return err
	}
	if cerr := l.file.Close(); err == nil && cerr != nil {
		err = fmt.Errorf("close log: %w", cerr)
	}
	l.file = nil
	broken := l.broken
	l.broken = cmp.Or(broken, fmt.Errorf("%w: %s is closed", ErrBroken, l.opts.Dir))
	if err != nil || broken != nil || !clean {
		return err
	}
	last := l.segments[len(l.segments)-1]
	return WriteJSON(filepath.Join(l.opts.Dir, cleanName), cleanMarker{Segment: last.number, Size: last.size})
}

// Rotate seals the current segment and starts the next one, unless the current one is empty.
func (l *Log) Rotate() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken != nil {
		return l.broken
	}
	if l.segments[len(l.segments)-1].size <= segmentHeaderBytes {
		return nil
	}
	return l.rotateLocked()
}
