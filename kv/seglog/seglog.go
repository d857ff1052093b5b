// Package seglog is an append-only log of checksummed records in numbered segment files: the durable half of a KV
// bucket.
//
// What Write accepted is read back by the next Open in the same order, even if the process is killed at any moment.
// An unfinished record at the very end (a torn tail) is cut off. Any other damage makes Open fail with the file, the
// offset and what can be done. A failed write leaves the log as it was before. A marker that contains the exact end
// of the log distinguishes an orderly stop from a crash. A file whose sync has failed is not synced again, since a
// second sync may succeed without the data that the kernel has dropped: the log reports ErrUnsynced until the owner
// has rewritten everything that is still needed.
//
// The package never interprets a payload, never rewrites a record in place, and never syncs on its own: the owner
// decides when.
package seglog

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Limits of a log.
const (
	// DefaultSegmentBytes is the size at which a segment is sealed and the next one begun.
	DefaultSegmentBytes = 64 << 20
	// MaxPayload bounds one record: a 20 MiB document, its key and metadata fit.
	MaxPayload = 24 << 20

	manifestName = "manifest.json"
	cleanName    = "clean.json"
	unsyncedName = "unsynced.json"
	formatName   = 1
)

// Errors of this package; test with errors.Is.
var (
	// ErrCorrupt means that the stored bytes differ from those written. Nothing was changed on disk.
	ErrCorrupt = errors.New("log is damaged")
	// ErrBroken means that a failed write could not be undone: the log accepts no more writes until it is opened
	// again.
	ErrBroken = errors.New("log is broken until the next start")
	// ErrUnsynced means that a sync has failed: data may not be on disk until the owner has written it again.
	ErrUnsynced = errors.New("log may not be on disk")
)

// File is what a segment needs of an open file; tests wrap it to inject faults.
type File interface {
	io.Writer
	io.ReaderAt
	io.Closer
	Truncate(size int64) error
	Sync() error
}

// Options of a log.
type Options struct {
	// Dir holds the segments; it is created if missing.
	Dir string
	// Identity identifies the log's owner (a bucket's uuid); a folder with another identity is refused.
	Identity string
	// SegmentBytes seals a segment once it is this large; 0 means DefaultSegmentBytes.
	SegmentBytes int64
	// Wrap, when set, wraps each segment file that is opened for writing.
	Wrap func(File) File
}

// Record is one stored record as passed to the callbacks of Open and ReadSegment. Payload is valid only during the
// call.
type Record struct {
	Segment uint64
	Offset  int64
	Payload []byte
}

// Report describes what Open found.
type Report struct {
	// Fresh means that there was no log.
	Fresh bool
	// Clean means that the last stop was orderly and nothing was added or lost since.
	Clean bool
	// TornBytes is the length of the unfinished tail that was cut off.
	TornBytes int64
	// Records and Bytes count the records read.
	Records, Bytes int64
}

// Log is an open log. The owner must serialize Write, Rotate and Close (its commit lock); the other methods are safe
// for concurrent use.
type Log struct {
	opts Options

	syncing  sync.Mutex // held during a sync, so that a second sync waits for the files of the first
	dropping sync.Mutex // held while segments are dropped; taken before mu

	size     atomic.Int64 // of all segments; atomic, so that Size does not wait for a write
	largest  atomic.Int64 // of the largest segment; changed with mu held
	mu       sync.Mutex   // guards the fields below; held during disk writes
	segments []segment    // ascending by number; the last one is open for writing
	file     File
	unsynced []sealedFile // not yet synced
	dirty    bool
	broken   error
	lost     uint64 // not all segments up to this one are synced, and they never will be
	lostBy   error
}

type sealedFile struct {
	File
	number uint64
}

type segment struct {
	number uint64
	size   int64
}

type manifest struct {
	Format   int    `json:"format"`
	Identity string `json:"identity"`
	First    uint64 `json:"first_segment"`
}

type cleanMarker struct {
	Segment uint64 `json:"segment"`
	Size    int64  `json:"size"`
}

// Open opens or creates the log in opts.Dir and calls replay for every stored record, oldest first. If replay fails,
// Open returns its error with the record's place.
func Open(opts Options, replay func(Record) error) (*Log, Report, error) {
	if opts.SegmentBytes <= 0 {
		opts.SegmentBytes = DefaultSegmentBytes
	}
	if err := os.MkdirAll(opts.Dir, 0o700); err != nil {
		return nil, Report{}, fmt.Errorf("make log folder: %w", err)
	}
	log := &Log{opts: opts}
	m, fresh, err := log.readManifest()
	if err != nil {
		return nil, Report{}, err
	}
	report := Report{Fresh: fresh}
	if fresh {
		return log, report, log.counted(log.startFresh())
	}
	if err := log.findSegments(m); err != nil {
		return nil, Report{}, err
	}
	if err := log.replayAll(replay, &report); err != nil {
		return nil, Report{}, err
	}
	report.Clean = log.takeCleanMarker() && report.TornBytes == 0
	log.recallUnsynced()
	return log, report, log.counted(log.openLast())
}

// counted sets size and largest once the log is open.
func (l *Log) counted(err error) error {
	for _, s := range l.segments {
		l.size.Add(s.size)
	}
	l.measureLocked()
	return err
}

// Exists reports whether a folder contains a log.
func Exists(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, manifestName))
	return err == nil
}

func (l *Log) readManifest() (manifest, bool, error) {
	path := filepath.Join(l.opts.Dir, manifestName)
	raw, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		if names, _ := filepath.Glob(filepath.Join(l.opts.Dir, "*"+segmentSuffix)); len(names) > 0 && !onlyUnfinished(names) {
			return manifest{}, false, fmt.Errorf("%w: %s is missing but there are %d segments; restore it from a copy of this "+
				"folder, or move the folder away to start empty",
				ErrCorrupt, path, len(names))
		}
		return manifest{}, true, nil
	}
	if err != nil {
		return manifest{}, false, fmt.Errorf("read manifest: %w", err)
	}
	var m manifest
	if err := json.Unmarshal(raw, &m); err != nil || m.First == 0 {
		return manifest{}, false, fmt.Errorf("%w: %s is not a manifest (%d bytes); restore it from a copy, or move the "+
			"folder away to start empty", ErrCorrupt, path, len(raw))
	}
	if m.Format != formatName {
		return manifest{}, false, fmt.Errorf("%s has format %d, this program reads format %d: use the program version that "+
			"wrote it", path, m.Format, formatName)
	}
	if m.Identity != l.opts.Identity {
		return manifest{}, false, fmt.Errorf("%s belongs to %q, not to %q: give the node its own folder", path,
			m.Identity, l.opts.Identity)
	}
	return m, false, nil
}

// onlyUnfinished reports whether the files are what a start leaves that was killed before its manifest was written:
// one segment with no more than a header.
func onlyUnfinished(names []string) bool {
	info, err := os.Stat(names[0])
	return len(names) == 1 && err == nil && info.Size() <= segmentHeaderBytes
}

func (l *Log) startFresh() error {
	l.segments = []segment{{number: 1}}
	_ = os.Remove(l.path(1))
	if err := l.createSegment(1); err != nil {
		return err
	}
	return l.writeManifest(1)
}

func (l *Log) writeManifest(first uint64) error {
	return WriteJSON(filepath.Join(l.opts.Dir, manifestName), manifest{Format: formatName, Identity: l.opts.Identity,
		First: first})
}

// findSegments lists the segment files from the manifest's first one on. A gap is damage; files below the first are
// left over from an interrupted drop and are removed.
func (l *Log) findSegments(m manifest) error {
	names, err := filepath.Glob(filepath.Join(l.opts.Dir, "*"+segmentSuffix))
	if err != nil {
		return fmt.Errorf("list segments: %w", err)
	}
	slices.Sort(names)
	next := m.First
	for _, name := range names {
		number, ok := segmentNumber(name)
		if !ok {
			continue
		}
		if number < m.First {
			if err := os.Remove(name); err != nil {
				return fmt.Errorf("remove dropped segment: %w", err)
			}
			continue
		}
		if number != next {
			return fmt.Errorf("%w: segment %s is missing (found %s); restore it from a copy, or move the folder away to start "+
				"empty",
				ErrCorrupt, l.path(next), filepath.Base(name))
		}
		info, err := os.Stat(name)
		if err != nil {
			return fmt.Errorf("stat segment: %w", err)
		}
		l.segments = append(l.segments, segment{number: number, size: info.Size()})
		next++
	}
	if len(l.segments) == 0 {
		return fmt.Errorf("%w: segment %s is missing; restore it from a copy, or move the folder away to start empty",
			ErrCorrupt, l.path(m.First))
	}
	return nil
}

func (l *Log) replayAll(replay func(Record) error, report *Report) error {
	for i := range l.segments {
		s := &l.segments[i]
		last := i == len(l.segments)-1
		end, err := scanSegment(l.path(s.number), s.number, l.opts.Identity, last, func(r Record) error {
			report.Records++
			report.Bytes += int64(len(r.Payload)) + FrameOverhead
			return replay(r)
		})
		if err != nil {
			return err
		}
		if end < s.size {
			report.TornBytes = s.size - end
			s.size = end
		}
	}
	return nil
}

// takeCleanMarker reads and removes the marker of an orderly stop: from here on this run counts as unclean.
func (l *Log) takeCleanMarker() bool {
	path := filepath.Join(l.opts.Dir, cleanName)
	raw, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	var m cleanMarker
	last := l.segments[len(l.segments)-1]
	ok := json.Unmarshal(raw, &m) == nil && m.Segment == last.number && m.Size == last.size
	if err := os.Remove(path); err != nil {
		return false
	}
	return ok && syncDir(l.opts.Dir) == nil
}

// recallUnsynced reads which segment an earlier run could not sync. That run wrote the file while its syncs failed,
// so it may be missing or garbled.
func (l *Log) recallUnsynced() {
	raw, err := os.ReadFile(filepath.Join(l.opts.Dir, unsyncedName))
	var m cleanMarker
	if err == nil && json.Unmarshal(raw, &m) == nil && m.Segment >= l.segments[0].number {
		l.lost = min(m.Segment, l.segments[len(l.segments)-1].number)
		l.lostBy = errors.New("a sync failed before the last start")
	}
}

func (l *Log) openLast() error {
	last := &l.segments[len(l.segments)-1]
	if last.size < segmentHeaderBytes { // killed while the segment was created
		if err := os.Remove(l.path(last.number)); err != nil {
			return fmt.Errorf("remove unfinished segment: %w", err)
		}
		return l.createSegment(last.number)
	}
	f, err := os.OpenFile(l.path(last.number), os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open segment: %w", err)
	}
	if err := f.Truncate(last.size); err != nil {
		_ = f.Close()
		return fmt.Errorf("truncating the torn tail of %s: %w", f.Name(), err)
	}
	l.file = l.wrap(f)
	return nil
}

func (l *Log) wrap(f File) File {
	if l.opts.Wrap != nil {
		return l.opts.Wrap(f)
	}
	return f
}

func (l *Log) path(number uint64) string {
	return filepath.Join(l.opts.Dir, fmt.Sprintf("%016d%s", number, segmentSuffix))
}

func segmentNumber(path string) (uint64, bool) {
	var number uint64
	base := strings.TrimSuffix(filepath.Base(path), segmentSuffix)
	_, err := fmt.Sscanf(base, "%016d", &number)
	return number, err == nil && number > 0
}

// WriteJSON replaces the file at path by value as JSON, atomically and synced.
func WriteJSON(path string, value any) error {
	raw, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", filepath.Base(path), err)
	}
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("create %s: %w", tmp, err)
	}
	_, err = f.Write(append(raw, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp)
		return fmt.Errorf("write %s: %w", path, err)
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("open folder: %w", err)
	}
	err = d.Sync()
	_ = d.Close()
	if err != nil {
		return fmt.Errorf("sync folder %s: %w", dir, err)
	}
	return nil
}
