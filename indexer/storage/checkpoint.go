package storage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"tidemark/ingest"
	"tidemark/timestamp"
)

// CheckpointMeta is the metadata of a checkpoint. Slices have one entry per vbucket. Stable and Logs are the slice's
// own at that moment: values given by the caller are replaced.
type CheckpointMeta struct {
	Stable     timestamp.Vector        `json:"stable"` // newest stability timestamp flushed to
	Logs       []timestamp.FailoverLog `json:"logs,omitempty"`
	Number     uint64                  `json:"number"` // of that timestamp; set by the caller
	RollbackID uint64                  `json:"rollback_id"`
	Windows    []timestamp.Window      `json:"windows,omitempty"`
	CreatedMS  int64                   `json:"created_ms"` // unix milliseconds
}

// CheckpointInfo describes a stored checkpoint.
type CheckpointInfo struct {
	Seq uint64 `json:"seq"` // number of the checkpoint within its copy; its name
	// of the data folder; batch numbers are comparable within one generation
	Generation uint64            `json:"generation"`
	Batch      uint64            `json:"batch"`
	Exact      bool              `json:"exact"` // the rows are exactly those at Stable
	Positions  []ingest.Position `json:"positions"`
	CheckpointMeta
}

// Checkpoint stores the present state of the slice: it flushes everything and links the files into a new folder,
// which gets its final name last. Batches wait only while the rest since the first flush is written and linked. The
// oldest checkpoint beyond Options.KeepCheckpoints is removed; if it is being read, a later call removes it.
func (s *Slice) Checkpoint(ctx context.Context, m CheckpointMeta) (CheckpointInfo, error) {
	if err := s.Persist(ctx); err != nil { // most of the work, while batches are still written
		return CheckpointInfo{}, err
	}
	s.write.Lock()
	defer s.write.Unlock()
	g, cur, err := s.hold()
	if err != nil {
		return CheckpointInfo{}, err
	}
	info, err := s.checkpoint(ctx, g, cur, m)
	return info, errors.Join(err, s.release(g))
}

func (s *Slice) checkpoint(ctx context.Context, g *generation, cur *state, m CheckpointMeta) (CheckpointInfo, error) {
	if err := errors.Join(g.eng.failing(), g.eng.persist(ctx)); err != nil {
		return CheckpointInfo{}, err
	}
	kept := s.Checkpoints()
	m.Stable, m.Logs = cur.stable.Clone(), slices.Clone(cur.logs)
	s.newestSeq++ // also if it fails: its remains may occupy the name
	info := CheckpointInfo{Seq: s.newestSeq, Generation: g.number, Batch: cur.number, Exact: cur.exact,
		Positions: slices.Clone(cur.positions), CheckpointMeta: m}
	fs, dir := s.store.fs, s.checkpointDir(info.Seq)
	tmp := dir + tmpSuffix
	err := s.linkTo(ctx, g, tmp, info)
	if err == nil {
		err = fs.Rename(tmp, dir)
	}
	if err == nil {
		err = syncDir(fs, s.fsCheckpoints())
	}
	if err != nil {
		return CheckpointInfo{}, errors.Join(classify(s.meta.Copy, dir, err), fs.RemoveAll(tmp))
	}
	kept = append([]CheckpointInfo{info}, kept...)
	for len(kept) > s.store.opts.KeepCheckpoints && !s.isRead(kept[len(kept)-1].Seq) {
		if err := s.removeCheckpoint(kept[len(kept)-1].Seq); err != nil {
			s.log.Warn("old checkpoint cannot be removed yet", "checkpoint", kept[len(kept)-1].Seq, "error", err)
		}
		kept = kept[:len(kept)-1]
	}
	s.setCheckpoints(kept)
	return info, nil
}

// linkTo creates a folder with the files of a generation, which must be persisted, and the checkpoint's metadata.
func (s *Slice) linkTo(ctx context.Context, g *generation, dir string, info CheckpointInfo) error {
	err := s.store.fs.RemoveAll(dir)
	if err == nil {
		err = g.eng.checkpoint(ctx, dir)
	}
	if err == nil {
		err = writeSmall(s.store.fs, dir, checkpointName, info)
	}
	return err
}

func (s *Slice) setCheckpoints(all []CheckpointInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cps = all
	s.marks = slices.DeleteFunc(s.marks, func(m CheckpointInfo) bool {
		return !slices.ContainsFunc(all, func(c CheckpointInfo) bool { return c.Seq == m.Seq })
	})
}

// Mark records the present position of the copy as another past state of its newest checkpoint, if no batch has
// changed the rows since: the checkpoint's rows are valid for both positions. Marks are kept in memory only.
func (s *Slice) Mark() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.cps) == 0 || s.gen == nil || s.cps[0].Batch != s.cur.number || s.cps[0].Generation != s.number {
		return
	}
	m := s.cps[0]
	m.Positions, m.Stable, m.Logs, m.Exact = s.cur.positions, s.cur.stable, s.cur.logs, s.cur.exact
	s.marks = append([]CheckpointInfo{m}, s.marks[:min(len(s.marks), s.store.opts.KeepCheckpoints-1)]...)
}

// Pasts returns the states on disk that the slice can be restored to, newest first: checkpoints and marks.
func (s *Slice) Pasts() []CheckpointInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := append(slices.Clone(s.marks), s.cps...)
	slices.SortStableFunc(all, func(a, b CheckpointInfo) int { return cmp.Compare(b.Batch, a.Batch) })
	return all
}

// removeCheckpoint renames the folder before removing it, so that a partly removed checkpoint is never used.
func (s *Slice) removeCheckpoint(seq uint64) error {
	fs, dir := s.store.fs, s.checkpointDir(seq)
	if err := fs.Rename(dir, dir+tmpSuffix); err != nil {
		return err
	}
	return fs.RemoveAll(dir + tmpSuffix)
}

func (s *Slice) fsCheckpoints() string { return s.store.fs.PathJoin(s.dir, checkpointsName) }

func (s *Slice) checkpointDir(seq uint64) string {
	return s.store.fs.PathJoin(s.fsCheckpoints(), strconv.FormatUint(seq, 10))
}

// Checkpoints returns the stored checkpoints, newest first.
func (s *Slice) Checkpoints() []CheckpointInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.cps)
}

// loadCheckpoints lists the checkpoints on disk and removes torn and damaged ones.
func (s *Slice) loadCheckpoints() error {
	fs, dir := s.store.fs, s.fsCheckpoints()
	if err := fs.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	names, err := fs.List(dir)
	if err != nil {
		return err
	}
	var all []CheckpointInfo
	for _, name := range names {
		path := fs.PathJoin(dir, name)
		if strings.HasSuffix(name, tmpSuffix) {
			if err := fs.RemoveAll(path); err != nil {
				return err
			}
			continue
		}
		seq, err := strconv.ParseUint(name, 10, 64)
		if err != nil {
			continue
		}
		s.newestSeq = max(s.newestSeq, seq)
		var info CheckpointInfo
		if err = readSmall(fs, path, checkpointName, &info); err == nil &&
			(info.Seq != seq || len(info.Positions) != s.meta.VBuckets) {
			err = fmt.Errorf("%w: it does not belong to this copy", errSmallFile)
		}
		if err != nil {
			s.passOver(seq, damage(s.meta.Copy, fs.PathJoin(path, checkpointName), err))
			continue
		}
		all = append(all, info)
	}
	slices.SortFunc(all, func(a, b CheckpointInfo) int { return int(int64(b.Seq - a.Seq)) })
	s.setCheckpoints(all)
	return nil
}

// passOver removes a damaged checkpoint, which would keep its tables on the disk. It keeps one that could not be read
// for another reason, or that a newer version of the program may use.
func (s *Slice) passOver(seq uint64, why error) {
	var corrupt *CorruptError
	if !errors.As(why, &corrupt) {
		s.log.Error("checkpoint cannot be read and is not used; its files are kept", "checkpoint", seq, "error", why)
		return
	}
	s.log.Error("checkpoint is damaged and is removed", "checkpoint", seq, "error", why)
	s.dropCheckpoint(seq)
}

func (s *Slice) findCheckpoint(seq uint64) (CheckpointInfo, error) {
	for _, c := range s.Checkpoints() {
		if c.Seq == seq {
			return c, nil
		}
	}
	return CheckpointInfo{}, fmt.Errorf("checkpoint %d of copy %s: %w", seq, s.meta.Copy, ErrNotFound)
}

// RestoreVBuckets sets the rows and positions of vbuckets to those of a checkpoint, by difference over the back
// index. Logs and other vbuckets remain unchanged. The checkpoint is opened once for all vbuckets. They are written
// in batches of bounded size: after an error or a crash each vbucket is either restored or unchanged, and repeating
// the call completes it.
func (s *Slice) RestoreVBuckets(ctx context.Context, vbs []uint16, seq uint64) error {
	info, err := s.findCheckpoint(seq)
	if err != nil {
		return err
	}
	return s.RestoreVBucketsTo(ctx, vbs, info)
}

// RestoreVBucketsTo is RestoreVBuckets to one of Pasts. If the checkpoint turns out to be damaged, it is dropped and
// the error wraps ErrNotFound; the caller then chooses another one.
func (s *Slice) RestoreVBucketsTo(ctx context.Context, vbs []uint16, past CheckpointInfo) error {
	if _, err := s.findCheckpoint(past.Seq); err != nil {
		return err
	}
	to, err := s.positionsAt(vbs, past.Positions)
	if err != nil {
		return err
	}
	damaged, err := s.replaceFrom(ctx, to, past.Seq)
	if damaged == nil {
		return err
	}
	s.write.Lock() // no checkpoint is made meanwhile
	defer s.write.Unlock()
	s.log.Error("checkpoint is damaged and no longer used", "checkpoint", past.Seq, "error", damaged)
	s.dropCheckpoint(past.Seq)
	//nolint:errorlint // the copy is not damaged
	return fmt.Errorf("checkpoint %d of copy %s: %w: %v", past.Seq, s.meta.Copy, ErrNotFound, damaged)
}

// replaceFrom sets the rows and positions of vbuckets to those of a checkpoint. damaged is set if the checkpoint
// cannot be read. It is separate from other errors because the copy's own tables may be damaged instead, which
// Recover checks.
func (s *Slice) replaceFrom(ctx context.Context, to []VBPosition, seq uint64) (damaged *CorruptError, err error) {
	s.readCheckpoint(seq, 1)
	defer s.readCheckpoint(seq, -1)
	old, err := openPebble(s.store.res, s.checkpointDir(seq), s.meta, minMemTable, true)
	if err != nil {
		errors.As(err, &damaged)
		return damaged, err
	}
	from := old.view()
	err = s.replace(ctx, to, from)
	if errors.Is(err, ErrDamaged) {
		_, verr := old.verify(ctx, -1, nil)
		errors.As(verr, &damaged)
	}
	return damaged, errors.Join(err, from.close(), old.close())
}

// RestoreVBucketsFrom is RestoreVBuckets to the state of a snapshot. The snapshot must be of this slice. The caller
// still has to close it.
func (s *Slice) RestoreVBucketsFrom(ctx context.Context, vbs []uint16, snap *Snapshot) error {
	if snap.slice != s {
		return fmt.Errorf("%w: copy %s from a snapshot of copy %s", ErrInvalid, s.meta.Copy, snap.slice.meta.Copy)
	}
	to, err := s.positionsAt(vbs, snap.at.positions)
	if err != nil {
		return err
	}
	if !snap.Retain() {
		return fmt.Errorf("snapshot of copy %s: %w", s.meta.Copy, ErrNotFound)
	}
	return errors.Join(s.replace(ctx, to, snap.view), snap.Close())
}

// positionsAt returns the positions of the given vbuckets.
func (s *Slice) positionsAt(vbs []uint16, all []ingest.Position) ([]VBPosition, error) {
	to := make([]VBPosition, len(vbs))
	for i, vb := range vbs {
		if int(vb) >= len(all) {
			return nil, fmt.Errorf("%w: vbucket %d of copy %s, the bucket has %d", ErrInvalid, vb, s.meta.Copy, len(all))
		}
		to[i] = VBPosition{VBucket: vb, Position: all[vb]}
	}
	return to, nil
}

// readCheckpoint changes the number of readers of a checkpoint by n. A checkpoint with readers is not removed.
func (s *Slice) readCheckpoint(seq uint64, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reading == nil {
		s.reading = map[uint64]int{}
	}
	if s.reading[seq] += n; s.reading[seq] == 0 {
		delete(s.reading, seq)
	}
}

func (s *Slice) isRead(seq uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reading[seq] > 0
}

// Restore sets the whole slice to the state of a checkpoint. Earlier snapshots remain unchanged.
func (s *Slice) Restore(seq uint64) error {
	if _, err := s.findCheckpoint(seq); err != nil {
		return err
	}
	s.write.Lock()
	defer s.write.Unlock()
	g, _, err := s.hold()
	if err != nil {
		return err
	}
	next, err := s.fromCheckpoint(context.Background(), seq, g.number+1)
	if err == nil {
		err = s.switchTo(next)
	}
	return errors.Join(err, s.release(g))
}

// fromCheckpoint links a checkpoint's files into a new data folder and opens it. It verifies every file, until ctx
// ends.
func (s *Slice) fromCheckpoint(ctx context.Context, seq, number uint64) (*generation, error) {
	fs, from, dir := s.store.fs, s.checkpointDir(seq), s.generationDir(number)
	if err := linkFolder(fs, from, dir); err != nil {
		return nil, errors.Join(classify(s.meta.Copy, dir, err), fs.RemoveAll(dir))
	}
	eng, err := openPebble(s.store.res, dir, s.meta, s.memTable, false)
	if err != nil {
		return nil, errors.Join(err, fs.RemoveAll(dir))
	}
	if _, err := eng.verify(ctx, -1, nil); err != nil {
		return nil, errors.Join(err, eng.close(), fs.RemoveAll(dir))
	}
	return &generation{number: number, dir: dir, eng: eng}, nil
}

// linkFolder creates a folder with the same files: tables are immutable and linked, other files are copied.
func linkFolder(fs vfs.FS, from, to string) error {
	if err := fs.RemoveAll(to); err != nil {
		return err
	}
	if err := fs.MkdirAll(to, 0o700); err != nil {
		return err
	}
	names, err := fs.List(from)
	if err != nil {
		return err
	}
	for _, name := range names {
		if name == checkpointName || name == lockName {
			continue
		}
		put := vfs.Copy
		if isTable(name) {
			put = vfs.LinkOrCopy
		}
		if err := put(fs, fs.PathJoin(from, name), fs.PathJoin(to, name)); err != nil {
			return err
		}
	}
	return syncDir(fs, to)
}

// switchTo durably makes next the current generation. The previous one is removed when it has no readers any more.
func (s *Slice) switchTo(next *generation) error {
	err := writeSmall(s.store.fs, s.dir, metaName, metaFile{Meta: s.meta, Generation: next.number, Birth: s.birth})
	if err != nil {
		return errors.Join(classify(s.meta.Copy, s.dir, err), next.eng.close(), s.store.fs.RemoveAll(next.dir))
	}
	old := s.install(next)
	if old == nil {
		return nil
	}
	s.mu.Lock()
	old.remove = true
	s.mu.Unlock()
	return s.release(old)
}
