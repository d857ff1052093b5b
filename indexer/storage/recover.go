package storage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Outcome is the result of opening or recovering a copy.
type Outcome uint8

// Outcomes.
const (
	Intact         Outcome = iota // the copy is at its last durable batch
	FromCheckpoint                // it was damaged and is at its newest intact checkpoint
	// it was damaged and no checkpoint is intact: all positions are zero, it must be built again
	Emptied
)

// String returns the word for logs.
func (o Outcome) String() string {
	switch o {
	case Intact:
		return "intact"
	case FromCheckpoint:
		return "from checkpoint"
	case Emptied:
		return "emptied"
	}
	return "unknown"
}

// Recovery describes how a copy was opened.
type Recovery struct {
	Outcome    Outcome
	Checkpoint uint64 // of FromCheckpoint
	Cause      error  // what was damaged; nil when intact
}

// openSlice opens the copy in dir and returns how many bytes it has read to verify it. A CorruptError means that the
// folder does not even identify its copy; ErrNewer that a newer version has written it; any other error that the file
// system fails.
func openSlice(store *Store, dir string, memTable, budget int64) (*Slice, int64, error) {
	var m metaFile
	if err := readSmall(store.fs, dir, metaName, &m); err != nil {
		return nil, 0, damage(0, store.fs.PathJoin(dir, metaName), err)
	}
	if err := m.check(); err != nil {
		return nil, 0, &CorruptError{Copy: m.Copy, File: store.fs.PathJoin(dir, metaName), Err: err}
	}
	if store.fs.PathBase(dir) != m.Copy.String() {
		err := fmt.Errorf("it belongs to copy %s", m.Copy)
		return nil, 0, &CorruptError{Copy: m.Copy, File: store.fs.PathJoin(dir, metaName), Err: err}
	}
	s := newSlice(store, dir, m.Meta, memTable)
	s.birth = m.Birth
	if err := errors.Join(s.loadCheckpoints(), s.removeGenerations(m.Generation)); err != nil {
		return nil, 0, classify(m.Copy, dir, err)
	}
	read, _, err := s.openOrRecover(context.Background(), m.Generation, max(budget, 0))
	return s, read, err
}

// removeGenerations removes data folders that an interrupted restore left behind.
func (s *Slice) removeGenerations(but uint64) error {
	all, err := s.generations()
	if err != nil {
		return err
	}
	for _, n := range all {
		if n != but {
			err = errors.Join(err, s.store.fs.RemoveAll(s.generationDir(n)))
		}
	}
	return err
}

// openOrRecover opens the given generation, for reading alone if the disk is full, which full then reports. If the
// generation is damaged, it opens the newest intact checkpoint, and without one an empty folder.
func (s *Slice) openOrRecover(ctx context.Context, number uint64, budget int64) (read int64, full, err error) {
	dir := s.generationDir(number)
	eng, err := openPebble(s.store.res, dir, s.meta, s.memTable, false)
	if errors.Is(err, ErrDiskFull) {
		full = err
		eng, err = openToRead(s.store.res, dir, s.meta, s.memTable, full)
	}
	if err == nil {
		if read, err = eng.verify(ctx, budget, nil); err == nil {
			s.install(&generation{number: number, dir: dir, eng: eng})
			s.setRecovery(Recovery{Outcome: Intact})
			return read, full, nil
		}
		err = errors.Join(err, eng.close())
	}
	var corrupt *CorruptError
	if !errors.As(err, &corrupt) {
		return read, nil, err
	}
	return read, nil, s.fallBack(ctx, number+1, corrupt)
}

// fallBack opens the newest intact checkpoint, or an empty folder.
func (s *Slice) fallBack(ctx context.Context, number uint64, cause *CorruptError) error {
	s.log.Error("copy is damaged", "file", cause.File, "error", cause.Err)
	for _, c := range s.Checkpoints() {
		next, err := s.fromCheckpoint(ctx, c.Seq, number)
		var corrupt *CorruptError
		if errors.As(err, &corrupt) {
			s.log.Error("checkpoint is damaged, too", "checkpoint", c.Seq, "file", corrupt.File, "error", corrupt.Err)
			s.dropCheckpoint(c.Seq)
			continue
		}
		if err != nil {
			return err
		}
		if err := s.switchTo(next); err != nil {
			return err
		}
		s.log.Warn("copy continues from a checkpoint", "checkpoint", c.Seq, "batch", c.Batch)
		s.setRecovery(Recovery{Outcome: FromCheckpoint, Checkpoint: c.Seq, Cause: cause})
		return s.removeGenerations(number)
	}
	dir := s.generationDir(number)
	eng, err := openPebble(s.store.res, dir, s.meta, s.memTable, false)
	if err != nil {
		return err
	}
	if err := s.switchTo(&generation{number: number, dir: dir, eng: eng}); err != nil {
		return err
	}
	s.log.Error("copy has no intact checkpoint: it is empty and must be built again")
	s.setRecovery(Recovery{Outcome: Emptied, Cause: cause})
	return s.removeGenerations(number)
}

func (s *Slice) dropCheckpoint(seq uint64) {
	if err := s.removeCheckpoint(seq); err != nil {
		s.log.Warn("damaged checkpoint cannot be removed yet", "checkpoint", seq, "error", err)
	}
	s.setCheckpoints(slices.DeleteFunc(s.Checkpoints(), func(c CheckpointInfo) bool { return c.Seq == seq }))
}

func (s *Slice) setRecovery(r Recovery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recovery = r
}

// Broken returns why the slice must be recovered, whether or not there is anything to write. It returns nil if it
// need not be, or if there is no space for that now, because the slice stays readable.
func (s *Slice) Broken() error {
	s.mu.Lock()
	g := s.gen
	s.mu.Unlock()
	if g == nil {
		return nil
	}
	return g.eng.broken()
}

// Recover closes the slice and opens it again: at its last durable batch, or like Open if it is damaged. It is the
// remedy for ErrReopen and ErrDamaged. It waits until all snapshots of the slice are closed, at most for readers.
// Positions may go back. Every file is verified, until ctx ends or the slice is closed or dropped. After an error it
// may be called again; until it succeeds, the slice returns ErrClosed, or is readable if only the disk is full. A slice
// that is open for reading alone stays so without being closed while there is no space. closing, which may be nil, is
// called once it is certain that the slice will be closed, and closes the snapshots that the caller holds.
func (s *Slice) Recover(ctx context.Context, readers time.Duration, closing func()) (Recovery, error) {
	s.write.Lock()
	defer s.write.Unlock()
	ctx, done := context.WithCancelCause(ctx)
	defer done(nil)
	s.mu.Lock()
	g, ended, number := s.gen, s.ended, s.number
	s.checking = done
	s.mu.Unlock()
	if ended {
		return Recovery{}, fmt.Errorf("copy %s: %w", s.meta.Copy, ErrClosed)
	}
	if g != nil {
		if err := g.eng.stuck(); err != nil {
			return Recovery{}, err
		}
	}
	if closing != nil {
		closing()
	}
	if g := s.retire(); g != nil {
		if err := s.release(g); err != nil {
			s.log.Warn("closing the copy in order to recover it", "error", err)
		}
		if err := s.awaitClosed(ctx, readers, g); err != nil {
			return Recovery{}, err
		}
	}
	_, full, err := s.openOrRecover(ctx, number, -1)
	if err != nil {
		return Recovery{}, err
	}
	return s.Recovery(), full
}

// awaitClosed waits until a retired generation has no readers. If that takes too long, the generation is reinstated.
func (s *Slice) awaitClosed(ctx context.Context, readers time.Duration, g *generation) error {
	ctx, cancel := context.WithTimeout(ctx, readers)
	defer cancel()
	select {
	case <-g.done:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	if g.refs > 0 {
		g.refs++
		s.gen = g
		s.mu.Unlock()
		return fmt.Errorf("copy %s is still being read: %w", s.meta.Copy, context.Cause(ctx))
	}
	s.mu.Unlock()
	<-g.done
	return nil
}
