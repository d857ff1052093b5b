// Package snapshots holds the snapshots that scans read: for each copy the newest few at stability timestamps, and
// those that queries have named. It guarantees that a snapshot stays as long as it is read, and that no scan gets one
// that has left KV's branch or is in doubt. It never makes a snapshot.
package snapshots

import (
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/index"
	"tidemark/indexer/scan"
	"tidemark/indexer/storage"
	"tidemark/ingest"
	"tidemark/timestamp"
	"tidemark/wire"
)

// Held is one snapshot of a copy, exact at a stability timestamp.
type Held struct {
	Ref    wire.StabilityRef
	Vector timestamp.Vector
	Snap   *storage.Snapshot
	// Some vbucket of it is no longer on any branch of KV: scans must not read it, but its other vbuckets may be
	// restored from it.
	parted bool
}

// maxKept bounds the timestamps that are kept for queries, all buckets together; beyond it the least recently used
// one is released.
const maxKept = 32

// keptRef is a timestamp that a query may name again, until then. It is remembered beyond MaxKeep, so that a late
// request, while its snapshots still exist, does not start a new period.
type keptRef struct {
	ref          wire.StabilityRef
	since, until time.Time
}

// Set holds, for each copy, the newest few snapshots at stability timestamps. A scan has its own reference, so that a
// snapshot stays as long as the scan reads it.
type Set struct {
	keep int
	log  hclog.Logger
	now  func() time.Time

	mu       sync.Mutex
	versions Versions                           // of what is held
	copies   map[index.CopyID][]Held            // oldest first
	doubted  map[index.CopyID]bool              // snapshots that are being made of these copies are wrong, see Doubt
	hidden   map[index.CopyID]bool              // until Show
	skipped  map[index.CopyID]wire.StabilityRef // newest timestamp at which a copy could not be made exact
	waiting  map[index.CopyID]chan struct{}     // closed when a snapshot of a copy is added, or will never be
	kept     []keptRef                          // for queries, least recently used first
	pages    pages                              // answers in pages
	long     pages                              // long scans
	refused  []wire.StabilityRef                // timestamps that long had no room for, newest last
	// closed and replaced when all copies have a further snapshot, or never will
	changed chan struct{}
	closed  bool
}

// New returns a Set that keeps the given number of snapshots of each copy, and those that queries have named.
func New(keep int, log hclog.Logger, now func() time.Time) *Set {
	return &Set{keep: keep, log: log, now: now, copies: map[index.CopyID][]Held{},
		skipped: map[index.CopyID]wire.StabilityRef{}, doubted: map[index.CopyID]bool{}, hidden: map[index.CopyID]bool{},
		waiting: map[index.CopyID]chan struct{}{}, changed: make(chan struct{}),
		pages: pages{of: "with pages", advice: ": try again, or scan without want_cursor"},
		long:  pages{of: "that are long"}}
}

// Version returns a number that changes whenever the held snapshots of a bucket change, see Versions.
func (s *Set) Version(bucket string) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.versions.At(bucket)
}

// noteLocked raises the versions of the buckets of these snapshots.
func (s *Set) noteLocked(all ...Held) {
	for i := range all {
		s.versions.Raise(all[i].Ref.Bucket)
	}
}

// Add adds a snapshot and takes over the reference. The oldest beyond the limit are closed.
func (s *Set) Add(id index.CopyID, h Held) {
	s.mu.Lock()
	var gone []Held
	if s.closed || s.doubted[id] || s.hidden[id] {
		gone = []Held{h}
	} else {
		var list []Held
		for i, old := range s.copies[id] {
			if i <= len(s.copies[id])-s.keep && !s.isKept(old.Ref) && !s.pages.keeps(id, old.Ref, s.now()) &&
				!s.long.keeps(id, old.Ref, s.now()) {
				gone = append(gone, old)
			} else {
				list = append(list, old)
			}
		}
		s.copies[id] = append(list, h)
		s.noteLocked(h)
		s.noteLocked(gone...)
		s.wakeLocked(id)
	}
	s.mu.Unlock()
	s.close(gone)
}

// Skip records that a copy has passed a timestamp without a snapshot.
func (s *Set) Skip(id index.CopyID, ref wire.StabilityRef) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.skipped[id]; !ok || old.Compare(ref.Ref) < 0 {
		s.skipped[id] = ref
	}
	s.wakeLocked(id)
}

// HasSkipped reports whether a copy has passed a timestamp without a snapshot.
func (s *Set) HasSkipped(id index.CopyID, ref wire.StabilityRef) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, ok := s.skipped[id]
	return ok && last.Compare(ref.Ref) >= 0
}

// wakeLocked wakes everything that waits for a copy.
func (s *Set) wakeLocked(id index.CopyID) {
	if c := s.waiting[id]; c != nil {
		close(c)
		delete(s.waiting, id)
	}
}

// KeepFor keeps the snapshots at a timestamp for d, but at most until scan.MaxKeep after the first request.
func (s *Set) KeepFor(ref wire.StabilityRef, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	s.expire()
	k := keptRef{ref: ref, since: now, until: now}
	i := slices.IndexFunc(s.kept, func(k keptRef) bool { return k.ref == ref })
	switch {
	case i >= 0:
		k = s.kept[i]
		s.kept = slices.Delete(s.kept, i, i+1)
	case len(s.kept) >= maxKept:
		over := slices.IndexFunc(s.kept, func(k keptRef) bool { return k.until.Before(now) })
		s.kept = slices.Delete(s.kept, max(over, 0), max(over, 0)+1)
	}
	if k.until = maxTime(k.until, now.Add(d)); k.until.After(k.since.Add(scan.MaxKeep)) {
		k.until = k.since.Add(scan.MaxKeep)
	}
	s.kept = append(s.kept, k)
}

func maxTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// expire forgets timestamps whose time has long been over. The caller holds the lock.
func (s *Set) expire() {
	now := s.now()
	s.kept = slices.DeleteFunc(s.kept, func(k keptRef) bool {
		return k.since.Add(scan.MaxKeep +
			scan.KeepFor).Before(now)
	})
}

// isKept reports whether snapshots at a timestamp are kept. Those whose time is over are closed when the next one is
// added. The caller holds the lock.
func (s *Set) isKept(ref wire.StabilityRef) bool {
	now := s.now()
	return slices.ContainsFunc(s.kept, func(k keptRef) bool { return k.ref == ref && !k.until.Before(now) })
}

// Changes returns a channel that is closed when a look at all copies may find something new.
func (s *Set) Changes() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// ChangesOf returns a channel that is closed when a look at a copy may find something new.
func (s *Set) ChangesOf(id index.CopyID) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.waiting[id]
	if c == nil {
		c = make(chan struct{})
		s.waiting[id] = c
	}
	return c
}

// Signal wakes all waiters.
func (s *Set) Signal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
	for id := range s.waiting {
		s.wakeLocked(id)
	}
}

func (s *Set) close(gone []Held) { Gone{s, gone}.Close() }

// Gone holds snapshots that are no longer available to scans and must be closed by the caller. Closing the last
// snapshot of unused files closes and removes the files, and waits for the disk.
type Gone struct {
	of  *Set
	all []Held
}

// None reports whether there are none.
func (g Gone) None() bool { return len(g.all) == 0 }

// Close closes the snapshots.
func (g Gone) Close() {
	for _, h := range g.all {
		if err := h.Snap.Close(); err != nil {
			g.of.log.Warn("closing a snapshot", "error", err)
		}
	}
}

// Acquire returns the snapshot of a copy at a stability timestamp, or its newest if ref is nil. The caller must close
// it.
func (s *Set) Acquire(id index.CopyID, ref *wire.StabilityRef) (Held, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.copies[id]
	for i := len(list) - 1; i >= 0; i-- {
		h := list[i]
		if !h.parted && (ref == nil || h.Ref.Compare(ref.Ref) == 0) && h.Snap.Retain() {
			return h, true
		}
	}
	return Held{}, false
}

// Retain returns all snapshots of a copy, including parted ones. The caller must close each.
func (s *Set) Retain(id index.CopyID) (all []*storage.Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.copies[id] {
		if h.Snap.Retain() {
			all = append(all, h.Snap)
		}
	}
	return all
}

// Refs returns the timestamps of a copy's snapshots, oldest first.
func (s *Set) Refs(id index.CopyID) []wire.StabilityRef {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]wire.StabilityRef, 0, len(s.copies[id]))
	for _, h := range s.copies[id] {
		if !h.parted {
			out = append(out, h.Ref)
		}
	}
	return out
}

// Doubt removes all snapshots of a copy, and drops those that writers still add, until the batch that repairs the
// copy has been written (Trust). The caller must close the returned snapshots.
func (s *Set) Doubt(id index.CopyID) Gone { return s.remove(id, func(bool) bool { return true }) }

// InDoubt reports whether what a copy holds is known to be wrong.
func (s *Set) InDoubt(id index.CopyID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.doubted[id]
}

// Trust ends the doubt: the batch that repairs the copy has been written, and later snapshots are correct.
func (s *Set) Trust(id index.CopyID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.doubted, id)
}

// Hide removes all snapshots of a copy and drops those that are added, until Show: another copy is wanted under its
// id. The caller must close the returned snapshots.
func (s *Set) Hide(id index.CopyID) Gone {
	s.mu.Lock()
	s.hidden[id] = true
	s.mu.Unlock()
	return s.remove(id, func(was bool) bool { return was })
}

// Show ends Hide.
func (s *Set) Show(id index.CopyID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.hidden, id)
}

// Drop closes all snapshots of a copy and ends the doubt, because the copy will hold something else.
func (s *Set) Drop(id index.CopyID) { s.remove(id, func(bool) bool { return false }).Close() }

// Release closes all snapshots of a copy. Its doubt remains.
func (s *Set) Release(id index.CopyID) { s.remove(id, func(was bool) bool { return was }).Close() }

func (s *Set) remove(id index.CopyID, doubt func(was bool) bool) Gone {
	s.mu.Lock()
	defer s.mu.Unlock()
	if doubt(s.doubted[id]) {
		s.doubted[id] = true
	} else {
		delete(s.doubted, id)
	}
	gone := s.copies[id]
	delete(s.copies, id)
	delete(s.skipped, id)
	s.wakeLocked(id)
	s.noteLocked(gone...)
	return Gone{s, gone}
}

// Part makes snapshots unavailable to scans that hold something of a vbucket beyond the branch that the vbucket is
// restored to. They remain available to restores until DropParted. logs are the copy's failover logs.
func (s *Set) Part(id index.CopyID, what []ingest.Restore, logs []timestamp.FailoverLog) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.copies[id] {
		h := &s.copies[id][i]
		if !h.parted && slices.ContainsFunc(what, func(r ingest.Restore) bool { return h.leaves(r, logs[r.VBucket]) }) {
			h.parted = true
			s.noteLocked(*h)
		}
	}
}

// leaves reports whether what the snapshot holds of a vbucket is not on the branch that the vbucket is restored to.
func (h *Held) leaves(r ingest.Restore, log timestamp.FailoverLog) bool {
	p, _ := h.Snap.At(uint16(r.VBucket))
	return p.Content() > ingest.History(p.VBUUID, log).Common(r.Log)
}

// DropParted removes the snapshots of a copy that Part has marked. The caller must close them.
func (s *Set) DropParted(id index.CopyID) Gone {
	s.mu.Lock()
	defer s.mu.Unlock()
	var kept, gone []Held
	for _, h := range s.copies[id] {
		if h.parted {
			gone = append(gone, h)
		} else {
			kept = append(kept, h)
		}
	}
	s.copies[id] = kept
	s.noteLocked(gone...)
	return Gone{s, gone}
}

// CloseAll closes all snapshots, and makes later ones be closed when they are added.
func (s *Set) CloseAll() {
	s.mu.Lock()
	all := s.copies
	s.copies, s.closed = map[index.CopyID][]Held{}, true
	s.versions.RaiseAll()
	s.mu.Unlock()
	for _, list := range all {
		s.close(list)
	}
}
