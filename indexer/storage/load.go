package storage

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"tidemark/collate"
	"tidemark/partition"
)

// ErrRecording is wrapped when the load of a slice is already being recorded.
var ErrRecording = errors.New("its load is already being recorded")

// load tracks how much a slice is written and read. Single keys are recorded only during Load.
type load struct {
	written, read atomic.Uint64 // entries since the process started
	recording     atomic.Pointer[recording]
	mu            sync.Mutex // one recording at a time
}

// wrote counts the entries of a batch.
func (l *load) wrote(touched int, updates []Update) {
	if touched > 0 {
		l.written.Add(uint64(touched))
	}
	rec := l.recording.Load()
	if rec == nil {
		return
	}
	for i := range updates {
		for _, k := range updates[i].Keys {
			rec.add(k)
		}
	}
}

// reads records the entry that a scan has reached, if a recording is active. Entries are counted elsewhere.
func (l *load) reads(it rowIter) {
	if rec := l.recording.Load(); rec != nil {
		key, _ := it.row()
		rec.add(key)
	}
}

// recording collects leading components of keys that are written and read.
type recording struct {
	desc bool

	mu      sync.Mutex
	samples partition.Samples
	upright []byte
	seen    int64
	err     error // first key that cannot be decoded
}

func (r *recording) add(key []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, upright, err := leading(key, r.desc, r.upright)
	if r.upright = upright; err != nil {
		r.err = err
		return
	}
	r.seen++
	r.samples.Add(c)
}

// leading returns the first component of a key in ascending encoding. It may use space for that, and returns it as
// used.
func leading(key []byte, desc bool, space []byte) (component, used []byte, err error) {
	c, _, err := collate.Next(key, desc)
	if err != nil || !desc {
		return c, space, err
	}
	space = append(space[:0], c...)
	collate.Complement(space)
	return space, space, nil
}

// Load records for the duration d which entries are written, and read by scans. It returns leading components of
// their keys and the number of entries, where an entry touched twice counts twice. Keys that documents no longer have
// are not included. If another recording is active, the error wraps ErrRecording.
func (s *Slice) Load(ctx context.Context, d time.Duration) (*partition.Samples, int64, error) {
	if !s.load.mu.TryLock() {
		return nil, 0, fmt.Errorf("copy %s: %w", s.meta.Copy, ErrRecording)
	}
	defer s.load.mu.Unlock()
	rec := &recording{desc: s.meta.descends()}
	s.load.recording.Store(rec)
	defer s.load.recording.Store(nil)
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
		return nil, 0, context.Cause(ctx)
	}
	// a goroutine that still has it either finishes before the lock below is taken, or comes too late
	s.load.recording.Store(nil)
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.err != nil {
		return nil, 0, &CorruptError{Copy: s.meta.Copy, File: s.dir, Err: rec.err}
	}
	samples := rec.samples
	rec.samples = partition.Samples{}
	return &samples, rec.seen, nil
}
