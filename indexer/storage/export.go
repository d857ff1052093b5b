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

// A copy goes to another indexer as the files of a checkpoint (Export), which is made for that alone, and is installed
// there in the place of what the copy held (Incoming). An export lies beside the copies' folders under a name that Open
// removes: what a crash leaves of it is gone at the next start. What was received stays in its copy's folder.

// ExportFormat names what the files of an Export are written by; who has another one cannot install them.
var ExportFormat = fmt.Sprintf("%d.%d", fileVersion, formatVersion)

// File is one file of an Export.
type File struct {
	Name string
	Size int64
	Sum  uint32 // crc32c; of a table of its end alone, see summedEnd
}

// Export is what a copy held at one moment. It stays as it is, whatever becomes of the copy; close it.
type Export struct {
	// Source names the folder that the tables are of: one of the same name and size there is the same table.
	Source string
	Files  []File
	store  *Store
	fs     vfs.FS
	dir    string
	open   map[string]vfs.File
	linked int64 // bytes, as far as Close has not been called
}

// Export makes one of the copy as it is now: everything is written, the files are linked. It waits and fails as
// Checkpoint does. It calls step whenever it has done something.
func (s *Slice) Export(ctx context.Context, step func()) (*Export, error) {
	if err := s.Persist(ctx); err != nil { // most of the work, beside the writer
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

// filesOf lists the files of a folder, the small ones first: what cannot be used is seen early.
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

// summedEnd is how much of a table is summed up: its blocks have sums of their own, and its end tells it from others.
const summedEnd = 64 << 10

// sumOf sums a file up, of a table its end, for as long as ctx lasts.
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

// ReadAt reads from one of the files. One goroutine at a time may read.
func (e *Export) ReadAt(name string, p []byte, at int64) (n int, err error) {
	f := e.open[name]
	if f == nil {
		if !slices.ContainsFunc(e.Files, func(o File) bool { return o.Name == name }) {
			return 0, fmt.Errorf("file %q: %w", name, ErrNotFound)
		}
		e.close() // one after the other is read
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

// Close removes it.
func (e *Export) Close() error {
	e.close()
	e.store.exported.Add(-e.linked)
	e.linked = 0
	return e.fs.RemoveAll(e.dir)
}
