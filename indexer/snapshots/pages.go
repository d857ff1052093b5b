package snapshots

import (
	"slices"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/scan"
	"tidemark/wire"
)

// Snapshots are kept for a minute after each page, independent of other requests; beyond these limits further
// requests are refused. One user may use half of each limit, or all of it if users are not known. Long scans have the
// same limits again.
const (
	maxPages = 16 << 10 // answers in pages
	// maxPageBytes bounds the memory of the snapshots that are kept for answers in pages. A snapshot counts
	// perVBucket bytes for each vbucket.
	maxPageBytes = 64 << 20
	perVBucket   = 80
)

// pages tracks answers and the snapshots that are kept for them. The zero value is empty. The Set's lock guards it.
type pages struct {
	of     string // kind of answers, for error messages
	advice string // advice for a refused client
	all    map[scan.Pages]*paged
	held   map[copyAt]heldPage
	bytes  int64              // of held
	by     map[string]pagesOf // by user
	number int                // answers that are held
	looked time.Time
}

// copyAt identifies a snapshot.
type copyAt struct {
	copy index.CopyID
	ref  wire.StabilityRef
}

// heldPage is a kept snapshot: the number of answers that it is kept for, its size, and the user of the first answer.
type heldPage struct {
	by    int
	bytes int64
	first string
}

// pagesOf is what is kept for a user.
type pagesOf struct {
	number int
	bytes  int64
}

// paged is one answer. After MaxKeep an answer is remembered for a while, so that a late request for another page,
// while its snapshots still exist, does not start a new period.
type paged struct {
	ref          wire.StabilityRef
	copies       []index.CopyID
	since, until time.Time
	reading      int  // pages that are being read
	held         bool // false: its time is over
}

// KeepPages keeps snapshots of copies for the pages of an answer: while one is being read, and for scan.KeepFor after
// each, but at most until scan.MaxKeep after the first. The caller must call done when the page was read, or with
// read = false if it could not be. Errors are *scan.Error with code BUSY.
func (s *Set) KeepPages(p scan.Pages, copies []index.CopyID, ref wire.StabilityRef) (done func(read bool), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, fresh, err := s.pages.keep(p, copies, ref, s.sizeOf(copies), s.now())
	if err != nil {
		return nil, err
	}
	if a == nil {
		return func(bool) {}, nil
	}
	a.reading++
	return func(read bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		a.reading--
		if s.pages.all[p] != a { // it has ended meanwhile
			return
		}
		if a.read(s.now()); fresh && !read && a.reading == 0 {
			s.pages.end(p)
		}
	}, nil
}

// keep holds copies for an answer. fresh reports that the answer is new. It returns nil for an answer of a forged
// cursor, or one that is too old to be kept any longer.
func (g *pages) keep(p scan.Pages, copies []index.CopyID, ref wire.StabilityRef, size int64, now time.Time) (a *paged,
	fresh bool, err error) {
	if now.Sub(g.looked) >= time.Second {
		g.expire(now)
	}
	a = g.all[p]
	if a != nil && (a.ref != ref || now.After(a.since.Add(scan.MaxKeep))) {
		return nil, false, nil
	}
	if err := g.room(p, a, copies, ref, size); err != nil {
		return nil, false, err
	}
	if fresh = a == nil; fresh {
		a = &paged{ref: ref, since: now}
		g.add(p, a)
	}
	g.hold(p, a, copies, size)
	return a, fresh, nil
}

// read extends the time of an answer as after a page.
func (a *paged) read(now time.Time) {
	a.until = minTime(now.Add(scan.KeepFor), a.since.Add(scan.MaxKeep))
}

// sizeOf returns the size of a snapshot of these copies, which are of one index. The caller holds the lock.
func (s *Set) sizeOf(copies []index.CopyID) int64 {
	for _, c := range copies {
		if n := len(s.copies[c]); n > 0 {
			return perVBucket * int64(s.copies[c][n-1].Vector.Len())
		}
	}
	return 0 // there is no snapshot
}

// EndPages releases what is kept for an answer, because it has no further page or the scan has ended.
func (s *Set) EndPages(p scan.Pages) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pages.end(p)
	s.long.end(p)
}

// PagesKept returns how many snapshots are kept for pages, and their memory in bytes.
func (s *Set) PagesKept() (snapshots int, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pages.expire(s.now())
	return len(s.pages.held), s.pages.bytes
}

func minTime(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func (g *pages) add(p scan.Pages, a *paged) {
	if g.all == nil {
		g.all, g.held, g.by = map[scan.Pages]*paged{}, map[copyAt]heldPage{}, map[string]pagesOf{}
	}
	g.all[p] = a
}

// room refuses a new answer, or further copies of one, if the limits are reached. a is the known answer, or nil.
func (g *pages) room(p scan.Pages, a *paged, copies []index.CopyID, ref wire.StabilityRef, size int64) error {
	more := int64(0)
	for _, c := range copies {
		if g.held[copyAt{c, ref}].by == 0 {
			more += size
		}
	}
	begins, mine := a == nil || !a.held, g.by[p.For]
	switch {
	case more > 0 && (g.bytes+more > maxPageBytes || p.For != "" && mine.bytes+more > maxPageBytes/2):
		return scan.Errorf(errcode.Busy, "%d snapshots are kept for scans %s on this indexer and use %d bytes, "+
			"those of this user %d; the limit is %d bytes, half of that per user%s", len(g.held), g.of, g.bytes,
			mine.bytes, maxPageBytes, g.advice)
	case begins && (g.number >= maxPages || len(g.all) >= 2*maxPages || p.For != "" && mine.number >= maxPages/2):
		return scan.Errorf(errcode.Busy, "this indexer keeps the state of %d scans %s, %d of them of this user; the limit "+
			"is %d, half of that per user%s", g.number, g.of, mine.number, maxPages, g.advice)
	}
	return nil
}

// count changes what is kept for a user.
func (g *pages) count(who string, number int, bytes int64) {
	is := g.by[who]
	is.number, is.bytes = is.number+number, is.bytes+bytes
	g.number, g.bytes = g.number+number, g.bytes+bytes
	if g.by[who] = is; is == (pagesOf{}) {
		delete(g.by, who)
	}
}

// hold holds further copies for an answer.
func (g *pages) hold(p scan.Pages, a *paged, copies []index.CopyID, size int64) {
	if !a.held {
		a.held = true
		g.count(p.For, 1, 0)
		g.take(p.For, a.ref, a.copies, size)
	}
	for _, c := range copies {
		if !slices.Contains(a.copies, c) {
			a.copies = append(a.copies, c)
			g.take(p.For, a.ref, []index.CopyID{c}, size)
		}
	}
}

func (g *pages) take(who string, ref wire.StabilityRef, copies []index.CopyID, size int64) {
	for _, c := range copies {
		at := copyAt{c, ref}
		h := g.held[at]
		if h.by++; h.by == 1 {
			h.bytes, h.first = size, who
			g.count(who, 0, size)
		}
		g.held[at] = h
	}
}

// release undoes hold.
func (g *pages) release(p scan.Pages, a *paged) {
	if !a.held {
		return
	}
	a.held = false
	g.count(p.For, -1, 0)
	for _, c := range a.copies {
		at := copyAt{c, a.ref}
		h := g.held[at]
		if h.by--; h.by > 0 {
			g.held[at] = h
			continue
		}
		g.count(h.first, 0, -h.bytes)
		delete(g.held, at)
	}
}

func (g *pages) end(p scan.Pages) {
	if a := g.all[p]; a != nil {
		g.release(p, a)
		delete(g.all, p)
	}
}

// expire releases what has not been requested for long enough, and forgets answers beyond any age at which they could
// be continued.
func (g *pages) expire(now time.Time) {
	g.looked = now
	for p, a := range g.all {
		switch {
		case a.reading > 0:
		case !now.After(a.until):
		case a.until.Equal(a.since.Add(scan.MaxKeep)) && !now.After(a.until.Add(scan.KeepFor)):
			g.release(p, a)
		default:
			g.end(p)
		}
	}
}

// keeps reports whether a copy's snapshot is kept. It also expires answers, at most once a second.
func (g *pages) keeps(c index.CopyID, ref wire.StabilityRef, now time.Time) bool {
	if len(g.held) == 0 {
		return false
	}
	if now.Sub(g.looked) >= time.Second {
		g.expire(now)
	}
	return g.held[copyAt{c, ref}].by > 0
}
