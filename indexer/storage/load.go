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

// ErrRecording is wrapped when it is recorded already what of a slice is written and read.
var ErrRecording = errors.New("its load is being recorded already")

// load is how much a slice is written and read. Nothing is kept of single keys unless somebody records them.
type load struct {
	written, read atomic.Uint64 // entries, since the process began
	recording     atomic.Pointer[recording]
	mu            sync.Mutex // one recording at a time
}

// wrote counts what a batch has done.
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

// reads notes the entry at which a scan is, where that is recorded; it is counted elsewhere.
func (l *load) reads(it rowIter) {
	if rec := l.recording.Load(); rec != nil {
		key, _ := it.row()
		rec.add(key)
	}
}

// recording takes leading components of keys that are written and read.
type recording struct {
	desc bool

	mu      sync.Mutex
	samples partition.Samples
	upright []byte
	seen    int64
	err     error // the first key that is none
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

// leading returns the first component of a key, upright; space is what it may be made in.
func leading(key []byte, desc bool, space []byte) (component, used []byte, err error) {
	c, _, err := collate.Next(key, desc)
	if err != nil || !desc {
		return c, space, err
	}
	space = append(space[:0], c...)
	collate.Complement(space)
	return space, space, nil
}

// Load records for so long which entries are written and read by scans, and returns leading components of their keys,
// with how many there were: an entry that is touched twice is two. Keys that documents had before and have no more are
// not among them. While somebody else records, it is ErrRecording.
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
	s.load.recording.Store(nil) // who still holds it is waited for, or comes too late
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.err != nil {
		return nil, 0, &CorruptError{Copy: s.meta.Copy, File: s.dir, Err: rec.err}
	}
	samples := rec.samples
	rec.samples = partition.Samples{}
	return &samples, rec.seen, nil
}
