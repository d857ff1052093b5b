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

// Incoming is an Export of another indexer that is being received. It is not used by several goroutines.
type Incoming struct {
	s       *Slice
	dir     string
	files   []File
	writing vfs.File // the file that grows
	name    string
	held    map[string]int64
	whole   bool // Verify has found all good
	info    CheckpointInfo
}

// incomingFiles bounds how many files are received, far above what a copy has.
const incomingFiles = 1 << 20

// Receive makes a folder for files that are to be installed in the slice, with those that are empty. What was received for
// it before goes. Errors wrap ErrInvalid, ErrDiskFull, ErrIO.
func (s *Slice) Receive(files []File) (*Incoming, error) {
	fs, total := s.store.fs, int64(0)
	in := &Incoming{s: s, files: files, held: map[string]int64{},
		dir: fs.PathJoin(s.store.opts.Dir, "in-"+s.meta.Copy.String()+tmpSuffix)}
	seen := map[string]bool{}
	for _, f := range files {
		if f.Name == "" || f.Name != fs.PathBase(f.Name) || strings.HasPrefix(f.Name, ".") || f.Name == lockName || f.Size < 0 ||
			f.Size > 1<<50 || seen[f.Name] || len(files) > incomingFiles {
			return nil, fmt.Errorf("%w: file %q of %d bytes among %d", ErrInvalid, f.Name, f.Size, len(files))
		}
		seen[f.Name] = true
		total += f.Size
	}
	if !seen[checkpointName] {
		return nil, fmt.Errorf("%w: %d files without %s", ErrInvalid, len(files), checkpointName)
	}
	if err := s.store.res.space.room(total); err != nil {
		return nil, err
	}
	err := fs.RemoveAll(in.dir)
	if err == nil {
		err = fs.MkdirAll(in.dir, 0o755)
	}
	for _, f := range files {
		if err == nil && f.Size == 0 {
			err = writeSynced(fs, fs.PathJoin(in.dir, f.Name), nil)
		}
	}
	if err != nil {
		return nil, classify(s.meta.Copy, in.dir, err)
	}
	return in, nil
}

// Held is how much of a file is here.
func (in *Incoming) Held(name string) int64 { return in.held[name] }

// Append adds bytes to a file, each where the last ones ended. A file that is whole is synced. Errors wrap ErrInvalid,
// ErrDiskFull, ErrIO.
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
		err = in.end()
		if err == nil {
			in.writing, err = fs.Create(path, diskCategory)
		}
		in.name = name
	}
	if err == nil {
		_, err = in.writing.Write(p)
	}
	if err == nil {
		if in.held[name] += int64(len(p)); in.held[name] == in.files[i].Size {
			err = in.end()
		}
	}
	return classify(in.s.meta.Copy, path, err)
}

// end syncs and closes the file that grows.
func (in *Incoming) end() error {
	f := in.writing
	if f == nil {
		return nil
	}
	in.writing, in.name = nil, ""
	return errors.Join(f.Sync(), f.Close())
}

// Verify reads and checks all that was received. A CorruptError says that it is not what was sent; what it names is not
// the slice's. It takes as long as reading everything once.
func (in *Incoming) Verify(ctx context.Context) error {
	fs := in.s.store.fs
	if err := in.end(); err != nil {
		return classify(in.s.meta.Copy, in.dir, err)
	}
	for _, f := range in.files {
		path := fs.PathJoin(in.dir, f.Name)
		if in.held[f.Name] != f.Size {
			return &CorruptError{Copy: in.s.meta.Copy, File: path,
				Err: fmt.Errorf("%d bytes of %d are here", in.held[f.Name], f.Size)}
		}
		if isTable(f.Name) {
			continue
		}
		if _, sum, err := sumOf(fs, path); err != nil || sum != f.Sum {
			return damage(in.s.meta.Copy, path, errors.Join(err, fmt.Errorf("%w: checksum %08x, want %08x", errSmallFile, sum,
				f.Sum)))
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
	_, err = eng.verify(-1)
	if written := eng.state(); err == nil && written.number != in.info.Batch {
		err = &CorruptError{Copy: in.s.meta.Copy, File: in.dir,
			Err: fmt.Errorf("its rows are of batch %d, its positions of %d", written.number, in.info.Batch)}
	}
	if err = errors.Join(err, eng.close(), syncDir(fs, in.dir)); err == nil {
		in.whole = true
		err = context.Cause(ctx)
	}
	return classify(in.s.meta.Copy, in.dir, err)
}

// checkInfo: what is said of the rows is of a bucket of so many vbuckets.
func (in *Incoming) checkInfo() error {
	n, v := in.s.meta.VBuckets, in.info.Stable
	if len(in.info.Positions) != n || len(in.info.Logs) != n {
		return fmt.Errorf("%w: positions of %d vbuckets, want %d", errSmallFile, len(in.info.Positions), n)
	}
	return v.Check(n)
}

// Discard removes what was received, unless it was installed.
func (in *Incoming) Discard() error { return errors.Join(in.end(), in.s.store.fs.RemoveAll(in.dir)) }

// Install makes the slice what the Export was, rows and positions, in the place of all that it held, checkpoints too. It
// is durable when it returns; a crash before leaves what was. in has been verified. Snapshots taken before stay as they
// are.
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
		s.forgetCheckpoints() // batches are counted anew: those of before mean nothing any more
		err = s.switchTo(next)
	}
	if err = errors.Join(err, s.release(g)); err != nil {
		return err
	}
	return s.stand(ctx, in)
}

// fromIncoming opens what was received as a data folder.
func (s *Slice) fromIncoming(in *Incoming, number uint64) (*generation, error) {
	fs, dir := s.store.fs, s.generationDir(number)
	err := fs.RemoveAll(dir)
	if err == nil {
		err = fs.Remove(fs.PathJoin(in.dir, checkpointName))
	}
	if err == nil {
		err = fs.Rename(in.dir, dir)
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

// stand notes where the copy stood that was exported: further, perhaps, than it had stored with its rows (KeepCommon).
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
	if err = g.eng.flush(ctx, nil, nil, next, false, false); err == nil {
		err = g.eng.persist(ctx)
	}
	return s.finish(g, next, err)
}
