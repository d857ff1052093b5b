package storage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"tidemark/timestamp"
)

// Incoming is an Export of another indexer that is being received. It must not be used concurrently. Its files are in
// the copy's own folder and outlive the process: receiving an export of the same source again reuses complete tables,
// because tables are immutable.
type Incoming struct {
	s       *Slice
	dir     string
	files   []File
	writing vfs.File // the incomplete file, which has a temporary name
	name    string
	held    map[string]int64
	whole   bool // Verify has succeeded
	info    CheckpointInfo
}

const (
	incomingName = "incoming"
	sourceName   = "SOURCE"
	// incomingFiles bounds the number of received files, far above what a copy has.
	incomingFiles = 1 << 20
)

// sourceFile is the content of the file SOURCE: the Export.Source of the tables in the same folder.
type sourceFile struct {
	Source string `json:"source"`
}

// Receive creates a folder for files that are to be installed in the slice, and creates those that are empty. It
// keeps complete tables that were received earlier from the same source and are still wanted, and removes everything
// else. Errors wrap ErrInvalid, ErrDiskFull or ErrIO.
func (s *Slice) Receive(source string, files []File) (*Incoming, error) {
	fs := s.store.fs
	total, err := s.store.checkFiles(files)
	if err != nil {
		return nil, err
	}
	in := &Incoming{s: s, files: files, held: map[string]int64{}, dir: fs.PathJoin(s.dir, incomingName)}
	kept, err := in.resume(source)
	if err == nil {
		err = s.store.res.space.room(total - kept)
	}
	for _, f := range files {
		if err == nil && f.Size == 0 {
			err = writeSynced(fs, fs.PathJoin(in.dir, f.Name), nil)
		}
	}
	if err != nil {
		return nil, classify(s.meta.Copy, in.dir, err)
	}
	s.incoming.Store(kept)
	return in, nil
}

// checkFiles returns the total size of the files that another indexer offers. It refuses names that are not plain
// files of the folder, or that this program uses itself.
func (st *Store) checkFiles(files []File) (total int64, err error) {
	seen := map[string]bool{}
	for _, f := range files {
		if f.Name == "" || f.Name != st.fs.PathBase(f.Name) || strings.HasPrefix(f.Name, ".") || f.Name == lockName ||
			f.Name == sourceName || f.Size < 0 || f.Size > 1<<50-total || seen[f.Name] || len(files) > incomingFiles {
			return 0, fmt.Errorf("%w: file %q of %d bytes among %d", ErrInvalid, f.Name, f.Size, len(files))
		}
		seen[f.Name] = true
		total += f.Size
	}
	if !seen[checkpointName] {
		return 0, fmt.Errorf("%w: %d files without %s", ErrInvalid, len(files), checkpointName)
	}
	return total, nil
}

// resume keeps complete tables of the same source and removes everything else.
func (in *Incoming) resume(source string) (kept int64, err error) {
	fs := in.s.store.fs
	var was sourceFile
	if readSmall(fs, in.dir, sourceName, &was) != nil || was.Source != source {
		if err = in.s.DropIncoming(); err == nil {
			err = fs.MkdirAll(in.dir, 0o700)
		}
		if err == nil {
			err = writeSmall(fs, in.dir, sourceName, sourceFile{source})
		}
		// the copy was dropped meanwhile: nothing may remain
		if _, e := fs.Stat(fs.PathJoin(in.s.dir, metaName)); e != nil {
			err = errors.Join(ErrClosed, e, fs.RemoveAll(in.dir), fs.Remove(in.s.dir))
		}
		return 0, err
	}
	names, err := fs.List(in.dir)
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		path := fs.PathJoin(in.dir, name)
		i := slices.IndexFunc(in.files, func(f File) bool { return f.Name == name && isTable(name) })
		if size, sum, e := sumOf(context.Background(), fs, path); e == nil && i >= 0 && size == in.files[i].Size &&
			sum == in.files[i].Sum {
			in.held[name] = in.files[i].Size
			kept += in.files[i].Size
		} else if name != sourceName {
			err = errors.Join(err, fs.RemoveAll(path))
		}
	}
	return kept, err
}

// DropIncoming removes files that were received for the slice and are not installed.
func (s *Slice) DropIncoming() error {
	s.incoming.Store(0)
	return s.store.fs.RemoveAll(s.store.fs.PathJoin(s.dir, incomingName))
}

// Held returns how many bytes of a file have been received.
func (in *Incoming) Held(name string) int64 { return in.held[name] }

// Append appends bytes to a file; at must be where the previous ones ended. A complete file is synced and gets its
// final name. Errors wrap ErrInvalid, ErrDiskFull or ErrIO.
func (in *Incoming) Append(name string, at int64, p []byte) error {
	i := slices.IndexFunc(in.files, func(f File) bool { return f.Name == name })
	if i < 0 || len(p) == 0 || at != in.held[name] || at+int64(len(p)) > in.files[i].Size || at > 0 && in.name != name {
		return fmt.Errorf("%w: %d bytes at %d of file %q, which has %d", ErrInvalid, len(p), at, name, in.held[name])
	}
	fs, path := in.s.store.fs, in.s.store.fs.PathJoin(in.dir, name)
	if err := in.s.store.res.space.room(int64(len(p))); err != nil {
		return err
	}
	var err error
	if at == 0 {
		err = in.Close()
		if err == nil {
			in.writing, err = fs.Create(path+tmpSuffix, diskCategory)
		}
		in.name = name
	}
	if err == nil {
		_, err = in.writing.Write(p)
	}
	if err == nil {
		in.s.incoming.Add(int64(len(p)))
		if in.held[name] += int64(len(p)); in.held[name] == in.files[i].Size {
			err = errors.Join(in.writing.Sync(), in.Close())
			if err == nil {
				err = fs.Rename(path+tmpSuffix, path)
			}
		}
	}
	return classify(in.s.meta.Copy, path, err)
}

// Close discards the incomplete file. Complete tables stay for the next attempt.
func (in *Incoming) Close() error {
	f, name := in.writing, in.name
	if f == nil {
		return nil
	}
	in.writing, in.name = nil, ""
	for i := range in.files {
		if in.files[i].Name == name && in.held[name] < in.files[i].Size {
			in.s.incoming.Add(-in.held[name])
			in.held[name] = 0
		}
	}
	return f.Close()
}

// Verify reads and checks all received files. A CorruptError means that they are not what was sent; it names files of
// the export, not of the slice. Verify reads everything once at the given pace, and stops when ctx ends, whose cause
// it then wraps.
func (in *Incoming) Verify(ctx context.Context, pace Pace) error {
	fs := in.s.store.fs
	if err := in.Close(); err != nil {
		return classify(in.s.meta.Copy, in.dir, err)
	}
	for i := range in.files {
		if err := in.check(ctx, &in.files[i]); err != nil {
			return err
		}
	}
	if err := readSmall(fs, in.dir, checkpointName, &in.info); err != nil {
		return damage(in.s.meta.Copy, in.dir, err)
	}
	if err := in.checkInfo(); err != nil {
		return &CorruptError{Copy: in.s.meta.Copy, File: fs.PathJoin(in.dir, checkpointName), Err: err}
	}
	eng, err := openPebble(in.s.store.res, in.dir, in.s.meta, minMemTable, true)
	if err != nil {
		return err
	}
	_, err = eng.verify(ctx, -1, pace)
	if written := eng.state(); err == nil && written.number != in.info.Batch {
		err = &CorruptError{Copy: in.s.meta.Copy, File: in.dir,
			Err: fmt.Errorf("its rows are from batch %d, its positions from %d", written.number, in.info.Batch)}
	}
	err = errors.Join(err, eng.close())
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("files of copy %s: %w", in.s.meta.Copy, context.Cause(ctx))
	case err == nil:
		err = syncDir(fs, in.dir)
		in.whole = err == nil
	}
	return classify(in.s.meta.Copy, in.dir, err)
}

// check verifies a file's size and checksum. For a table, whose blocks have checksums of their own, it checks the end
// only.
func (in *Incoming) check(ctx context.Context, f *File) error {
	id, path := in.s.meta.Copy, in.s.store.fs.PathJoin(in.dir, f.Name)
	if in.held[f.Name] != f.Size {
		return &CorruptError{Copy: id, File: path, Err: fmt.Errorf("%d of %d bytes have been "+
			"received", in.held[f.Name], f.Size)}
	}
	switch _, sum, err := sumOf(ctx, in.s.store.fs, path); {
	case ctx.Err() != nil:
		return fmt.Errorf("files of copy %s: %w", id, context.Cause(ctx))
	case err != nil || sum != f.Sum:
		return damage(id, path, errors.Join(err, fmt.Errorf("%w: checksum %08x, want %08x", errSmallFile, sum, f.Sum)))
	}
	return nil
}

// checkInfo returns an error unless the metadata is for a bucket with the slice's number of vbuckets.
func (in *Incoming) checkInfo() error {
	n, v := in.s.meta.VBuckets, in.info.Stable
	if len(in.info.Positions) != n || len(in.info.Logs) != n {
		return fmt.Errorf("%w: positions of %d vbuckets, want %d", errSmallFile, len(in.info.Positions), n)
	}
	return v.Check(n)
}

// Discard removes the received files, unless they were installed.
func (in *Incoming) Discard() error { return errors.Join(in.Close(), in.s.DropIncoming()) }

// Install replaces everything that the slice holds, including checkpoints, with the rows and positions of the
// verified export. It is durable when Install returns; after a crash before that, the slice is unchanged. Earlier
// snapshots remain unchanged.
func (s *Slice) Install(ctx context.Context, in *Incoming) error {
	if in.s != s || !in.whole {
		return fmt.Errorf("%w: copy %s from files that were not verified for it", ErrInvalid, s.meta.Copy)
	}
	s.write.Lock()
	defer s.write.Unlock()
	g, _, err := s.hold()
	if err != nil {
		return err
	}
	next, err := s.fromIncoming(in, g.number+1)
	if err == nil {
		s.forgetCheckpoints() // the copy must not be restored to any of them
		err = s.switchTo(next)
	}
	if err = errors.Join(err, s.release(g)); err != nil {
		return err
	}
	return s.stand(ctx, in)
}

// fromIncoming opens the received files as a data folder.
func (s *Slice) fromIncoming(in *Incoming, number uint64) (*generation, error) {
	fs, dir := s.store.fs, s.generationDir(number)
	err := fs.RemoveAll(dir)
	for _, name := range []string{checkpointName, sourceName} {
		if err == nil {
			err = fs.Remove(fs.PathJoin(in.dir, name))
		}
	}
	if err == nil {
		err = fs.Rename(in.dir, dir)
		in.s.incoming.Store(0)
	}
	if err == nil {
		err = syncDir(fs, s.dir)
	}
	if err != nil {
		return nil, classify(s.meta.Copy, dir, err)
	}
	eng, err := openPebble(s.store.res, dir, s.meta, s.memTable, false)
	if err != nil {
		return nil, errors.Join(err, fs.RemoveAll(dir))
	}
	return &generation{number: number, dir: dir, eng: eng}, nil
}

func (s *Slice) forgetCheckpoints() {
	for _, c := range s.Checkpoints() {
		s.dropCheckpoint(c.Seq)
	}
}

// stand sets the position of the export, which may be ahead of what the files have stored with their rows (see
// KeepCommon).
func (s *Slice) stand(ctx context.Context, in *Incoming) error {
	g, cur, err := s.hold()
	if err != nil {
		return err
	}
	to := &in.info
	if cur.exact == to.Exact && cur.stable.Equal(to.Stable) && slices.Equal(cur.positions, to.Positions) &&
		slices.EqualFunc(cur.logs, to.Logs, timestamp.FailoverLog.Equal) {
		return s.release(g)
	}
	next := cur.next(nil)
	next.positions, next.logs, next.stable, next.exact = to.Positions, to.Logs, to.Stable, to.Exact
	if _, err = g.eng.flush(ctx, nil, nil, next, false, false); err != nil {
		return s.finish(g, next, err)
	}
	err = g.eng.persist(ctx)
	return errors.Join(s.finish(g, next, nil), err) // the batch is applied and counts, even if it is not durable yet
}
