// Package snapshots keeps what scans read: per copy its newest few snapshots at stability timestamps, and those that
// queries have named. It promises that what somebody reads stays for as long as it is read, and that nobody is given
// what has left KV's branch or is in doubt. It never makes a snapshot.
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
	// some vbucket of it is on no branch of KV's any more: no scan may read it, others of its vbuckets may be restored
	// from it
	parted bool
}

// maxKept bounds the timestamps that are kept for queries, all buckets together; beyond it the least lately used one
// goes.
const maxKept = 32

// keptRef is a timestamp that a query may name again, until then. It is remembered until its greatest age is over, so
// that whoever names it once more, before what was held for it is gone, does not begin to keep it anew.
type keptRef struct {
	ref          wire.StabilityRef
	since, until time.Time
}

// Set keeps, per copy, the newest few snapshots at stability timestamps for scans. A scan holds its own
// reference, so that what it reads stays as long as it reads.
type Set struct {
	keep int
	log  hclog.Logger
	now  func() time.Time

	mu       sync.Mutex
	versions Versions                           // of what is held
	copies   map[index.CopyID][]Held            // oldest first
	doubted  map[index.CopyID]bool              // what is on its way of them is wrong, see doubt
	hidden   map[index.CopyID]bool              // until Show
	skipped  map[index.CopyID]wire.StabilityRef // the newest one that a copy could not be made exact at
	waiting  map[index.CopyID]chan struct{}     // closed when one of a copy is added, or will never be
	kept     []keptRef                          // for queries, least lately used first
	pages    pages                              // that come page by page
	long     pages                              // of scans that take long
	refused  []wire.StabilityRef                // that there was no room for in long, newest last
	changed  chan struct{}                      // closed and replaced when all copies have one more, or will never have
	closed   bool
}

// New keeps so many of each copy, and those beside that queries have named.
func New(keep int, log hclog.Logger, now func() time.Time) *Set {
	return &Set{keep: keep, log: log, now: now, copies: map[index.CopyID][]Held{},
		skipped: map[index.CopyID]wire.StabilityRef{}, doubted: map[index.CopyID]bool{}, hidden: map[index.CopyID]bool{},
		waiting: map[index.CopyID]chan struct{}{}, changed: make(chan struct{}),
		pages: pages{of: "that come page by page", advice: ": try again, or ask without want_cursor"},
		long:  pages{of: "that take long"}}
}

// Version is a number that changes whenever what is held of a bucket does, see Versions.
func (s *Set) Version(bucket string) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.versions.At(bucket)
}

// noteLocked says that these have come or gone.
func (s *Set) noteLocked(all ...Held) {
	for i := range all {
		s.versions.Raise(all[i].Ref.Bucket)
	}
}

// Add takes over a snapshot; the oldest beyond the limit goes.
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

// Skip notes that a copy is no further than beyond a timestamp that it has no snapshot of.
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

// wakeLocked lets those who wait for a copy look again.
func (s *Set) wakeLocked(id index.CopyID) {
	if c := s.waiting[id]; c != nil {
		close(c)
		delete(s.waiting, id)
	}
}

// KeepFor lets the snapshots at a timestamp stay for so long, or until scan.MaxKeep has passed since it was first kept.
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

// expire forgets the timestamps whose time is long over. The lock is held.
func (s *Set) expire() {
	now := s.now()
	s.kept = slices.DeleteFunc(s.kept, func(k keptRef) bool {
		return k.since.Add(scan.MaxKeep +
			scan.KeepFor).Before(now)
	})
}

// isKept reports whether snapshots at a timestamp stay; those whose time is over go with the next that comes. The lock
// is held.
func (s *Set) isKept(ref wire.StabilityRef) bool {
	now := s.now()
	return slices.ContainsFunc(s.kept, func(k keptRef) bool { return k.ref == ref && !k.until.Before(now) })
}

// Changes returns a channel that is closed when the next look at all copies may find something else.
func (s *Set) Changes() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// ChangesOf returns a channel that is closed when the next look at a copy may find something else.
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

// Signal lets all who wait look again.
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

// Gone are snapshots that nobody is given any more, and that are still to be closed: who closes the last one of files
// that are not used any more closes and removes those, and waits for the disk.
type Gone struct {
	of  *Set
	all []Held
}

// None reports whether there are none.
func (g Gone) None() bool { return len(g.all) == 0 }

// Close closes them.
func (g Gone) Close() {
	for _, h := range g.all {
		if err := h.Snap.Close(); err != nil {
			g.of.log.Warn("closing a snapshot", "error", err)
		}
	}
}

// Acquire returns the snapshot of a copy at a stability timestamp, or its newest when ref is nil. The caller closes it.
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

// Retain returns all snapshots of a copy, those that parted too; the caller closes each.
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

// Refs lists what is held of a copy, oldest first.
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

// Doubt lets all snapshots of a copy go, and whatever writers that are at work, or have their turn before those that
// mend it, add to them. Those that have gone are the caller's to close.
func (s *Set) Doubt(id index.CopyID) Gone { return s.let(id, func(bool) bool { return true }) }

// InDoubt reports whether what a copy holds is known to be wrong.
func (s *Set) InDoubt(id index.CopyID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.doubted[id]
}

// Trust ends the doubt: a writer that mends the copy has done so, and what comes after it is right.
func (s *Set) Trust(id index.CopyID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.doubted, id)
}

// Hide lets all snapshots of a copy go, and whatever is added to them until Show: it is not the one that is wanted
// under its id. Those that have gone are the caller's to close.
func (s *Set) Hide(id index.CopyID) Gone {
	s.mu.Lock()
	s.hidden[id] = true
	s.mu.Unlock()
	return s.let(id, func(was bool) bool { return was })
}

// Show ends Hide.
func (s *Set) Show(id index.CopyID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.hidden, id)
}

// Drop lets all snapshots of a copy go, and ends the doubt: it will hold something else.
func (s *Set) Drop(id index.CopyID) { s.let(id, func(bool) bool { return false }).Close() }

// Release lets all snapshots of a copy go. It is in doubt afterwards if it was.
func (s *Set) Release(id index.CopyID) { s.let(id, func(was bool) bool { return was }).Close() }

func (s *Set) let(id index.CopyID, doubt func(was bool) bool) Gone {
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

// Part takes those away from scans that hold something of a vbucket that is not on the branch it is restored to. They
// stay for restores until dropParted. logs are those of the copy.
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

// leaves reports whether what is held of a vbucket is not on the branch that it is restored to.
func (h *Held) leaves(r ingest.Restore, log timestamp.FailoverLog) bool {
	p, _ := h.Snap.At(uint16(r.VBucket))
	return p.Content() > ingest.History(p.VBUUID, log).Common(r.Log)
}

// DropParted lets those of a copy go that part has taken away. They are the caller's to close.
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

// CloseAll ends it.
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
