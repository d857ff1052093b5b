package storage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strconv"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A copy is sent to another indexer as the files of a checkpoint that is made for this purpose (Export), and is
// installed there in place of what the copy held (Incoming). An export is stored next to the copies' folders under a
// name that Open removes, so that remains after a crash are gone at the next start. Received files stay in their
// copy's folder.

// ExportFormat identifies the format of an Export's files. An indexer with another format cannot install them.
var ExportFormat = fmt.Sprintf("%d.%d", fileVersion, formatVersion)

// File is one file of an Export.
type File struct {
	Name string
	Size int64
	Sum  uint32 // CRC-32C; for a table only of its end, see summedEnd
}

// Export is the state of a copy at one moment. It is immutable, whatever happens to the copy. The caller must close
// it.
type Export struct {
	// Source identifies the folder of the tables: tables of the same source with the same name and size are
	// identical.
	Source string
	Files  []File
	store  *Store
	fs     vfs.FS
	dir    string
	open   map[string]vfs.File
	linked int64 // in bytes; 0 after Close
}

// Export exports the present state of the copy: it flushes everything and links the files. It blocks and fails like
// Checkpoint. It calls step after each part of the work.
func (s *Slice) Export(ctx context.Context, step func()) (*Export, error) {
	if err := s.Persist(ctx); err != nil { // most of the work, while batches are still written
		return nil, err
	}
	step()
	e := &Export{store: s.store, fs: s.store.fs, open: map[string]vfs.File{}}
	e.dir = s.store.fs.PathJoin(s.store.opts.Dir, "out-"+s.meta.Copy.String()+"-"+
		strconv.FormatUint(s.store.exports.Add(1), 10)+tmpSuffix)
	err := s.export(ctx, e)
	if err == nil {
		step()
		e.Files, err = filesOf(ctx, e.fs, e.dir, step)
	}
	if err != nil {
		return nil, errors.Join(classify(s.meta.Copy, e.dir, err), e.Close())
	}
	for _, f := range e.Files {
		e.linked += f.Size
	}
	s.store.exported.Add(e.linked)
	return e, nil
}

func (s *Slice) export(ctx context.Context, e *Export) error {
	s.write.Lock()
	defer s.write.Unlock()
	g, cur, err := s.hold()
	if err != nil {
		return err
	}
	e.Source = fmt.Sprintf("%016x.%d", s.birth, g.number)
	if err = errors.Join(g.eng.failing(), g.eng.persist(ctx)); err == nil {
		info := CheckpointInfo{Generation: g.number, Batch: cur.number, Exact: cur.exact,
			Positions: slices.Clone(cur.positions)}
		info.Stable, info.Logs = cur.stable.Clone(), slices.Clone(cur.logs)
		err = s.linkTo(ctx, g, e.dir, info)
	}
	return errors.Join(err, s.release(g))
}

// filesOf returns the files of a folder, smallest first, so that an unusable export is detected early.
func filesOf(ctx context.Context, fs vfs.FS, dir string, step func()) (all []File, err error) {
	names, err := fs.List(dir)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if name == lockName {
			continue
		}
		f := File{Name: name}
		if f.Size, f.Sum, err = sumOf(ctx, fs, fs.PathJoin(dir, name)); err != nil {
			return nil, err
		}
		step()
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b File) int { return cmp.Or(cmp.Compare(a.Size, b.Size), cmp.Compare(a.Name, b.Name)) })
	return all, nil
}

// summedEnd is the size of the end of a table that is checksummed: its blocks have checksums of their own, and its
// end distinguishes it from other tables.
const summedEnd = 64 << 10

// sumOf returns a file's size and the checksum of the file, or of a table's end. It stops when ctx ends.
func sumOf(ctx context.Context, fs vfs.FS, path string) (size int64, sum uint32, err error) {
	f, err := openUntil(ctx, fs, path, nil)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return 0, 0, err
	}
	size, from := info.Size(), int64(0)
	if isTable(path) {
		from = max(size-summedEnd, 0)
	}
	h := crc32.New(castagnoli)
	n, err := io.Copy(h, io.NewSectionReader(f, from, size-from))
	if err == nil && n < size-from {
		err = io.ErrUnexpectedEOF
	}
	return size, h.Sum32(), err
}

// ReadAt reads from one of the files. It must not be called concurrently.
func (e *Export) ReadAt(name string, p []byte, at int64) (n int, err error) {
	f := e.open[name]
	if f == nil {
		if !slices.ContainsFunc(e.Files, func(o File) bool { return o.Name == name }) {
			return 0, fmt.Errorf("file %q: %w", name, ErrNotFound)
		}
		e.close() // files are read one after the other
		if f, err = e.fs.Open(e.fs.PathJoin(e.dir, name)); err != nil {
			return 0, err
		}
		e.open[name] = f
	}
	n, err = f.ReadAt(p, at)
	if n == len(p) {
		err = nil
	}
	return n, err
}

func (e *Export) close() {
	for name, f := range e.open {
		_ = f.Close() // it was only read
		delete(e.open, name)
	}
}

// Close removes the export.
func (e *Export) Close() error {
	e.close()
	e.store.exported.Add(-e.linked)
	e.linked = 0
	return e.fs.RemoveAll(e.dir)
}
