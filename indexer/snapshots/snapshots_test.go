package snapshots

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/scan"
	"tidemark/indexer/storage"
	"tidemark/indexer/storage/storagetest"
	"tidemark/ingest"
	"tidemark/timestamp"
	"tidemark/wire"
)

// hold adds a snapshot with that number, at which vbucket 0 has that seqno on branch 7.
func hold(t *testing.T, snaps *Set, s *storage.Slice, number, seqno uint64) wire.StabilityRef {
	t.Helper()
	storagetest.FlushAt(t, s, 7, seqno)
	snap, err := s.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	ref := wire.StabilityRef{Ref: timestamp.Ref{Number: number}}
	snaps.Add(1, Held{Ref: ref, Snap: snap})
	return ref
}

// TestSnapshots checks that the newest few snapshots are kept, that one in use stays until its reader is done, and
// that those that are not on the branch are removed.
func TestSnapshots(t *testing.T) {
	_, s := storagetest.Open(t)
	snaps := New(3, hclog.NewNullLogger(), time.Now)
	for n := range uint64(5) {
		hold(t, snaps, s, n+1, 10*(n+1))
	}
	if refs := snaps.Refs(1); len(refs) != 3 || refs[0].Number != 3 || refs[2].Number != 5 {
		t.Fatalf("kept %v", refs)
	}
	if _, ok := snaps.Acquire(1, &wire.StabilityRef{Ref: timestamp.Ref{Number: 2}}); ok {
		t.Error("a released snapshot was returned")
	}
	h, ok := snaps.Acquire(1, nil)
	if !ok || h.Ref.Number != 5 {
		t.Fatalf("the newest is %v", h.Ref)
	}
	// Branch 8 begins at 45, so what contains 50 is not on it.
	snaps.Part(1, []ingest.Restore{{Copy: 1, Log: timestamp.FailoverLog{{VBUUID: 8, Seqno: 45}, {VBUUID: 7}}}}, s.Logs())
	if refs := snaps.Refs(1); len(refs) != 2 || refs[1].Number != 4 {
		t.Errorf("on the branch: %v", refs)
	}
	if newest, ok := snaps.Acquire(1, nil); !ok || newest.Ref.Number != 4 || newest.Snap.Close() != nil {
		t.Errorf("a scan gets %v", newest.Ref)
	}
	past := snaps.Retain(1) // other vbuckets can still be restored from a snapshot that is not on the branch
	if len(past) != 3 || past[2].Batch() != 5 {
		t.Errorf("%d snapshots to restore from", len(past))
	}
	for _, p := range past {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	snaps.DropParted(1).Close()
	if past := snaps.Retain(1); len(past) != 2 {
		t.Errorf("%d snapshots to restore from when all is restored", len(past))
	} else if err := errors.Join(past[0].Close(), past[1].Close()); err != nil {
		t.Error(err)
	}
	snaps.CloseAll()
	if got := s.Stats().Snapshots; got != 1 {
		t.Errorf("%d snapshots open, the reader has 1", got)
	}
	if err := h.Snap.Close(); err != nil {
		t.Error(err)
	}
}

// TestQueryKeepsItsTimestamp checks that a timestamp that a query has named stays over many newer ones as long as it
// is used from time to time, and is removed after that.
func TestQueryKeepsItsTimestamp(t *testing.T) {
	const keep = 6
	_, s := storagetest.Open(t)
	clock := time.Unix(1000, 0)
	snaps := New(keep, hclog.NewNullLogger(), func() time.Time { return clock })
	defer snaps.CloseAll()
	pass := func(d time.Duration) { clock = clock.Add(d) }
	number := uint64(0)
	move := func() wire.StabilityRef {
		number++
		return hold(t, snaps, s, number, 10*number)
	}
	ref := move()
	holds := func() bool {
		h, ok := snaps.Acquire(1, &ref)
		if ok {
			_ = h.Snap.Close()
		}
		return ok
	}
	snaps.KeepFor(ref, time.Minute)
	for range 3 * keep {
		move()
	}
	if !holds() || len(snaps.Refs(1)) != keep+1 {
		t.Errorf("%s is gone, held are %v", "the timestamp", snaps.Refs(1))
	}
	pass(50 * time.Second)
	snaps.KeepFor(ref, time.Minute) // used again
	pass(50 * time.Second)
	move()
	if !holds() {
		t.Error("it went although it was used")
	}
	pass(11 * time.Second)
	next := move()
	if holds() {
		t.Error("it is still held when its time is over")
	}
	// However often it is used, it is removed when it has reached its maximum age. Using it then does not start a new
	// time.
	ref = next
	for used := time.Duration(0); used <= scan.MaxKeep; used += 50 * time.Second {
		snaps.KeepFor(ref, time.Minute)
		if used+50*time.Second > scan.MaxKeep {
			for range keep + 1 {
				move()
			}
			if !holds() {
				t.Errorf("it went %s after its first use", used)
			}
		}
		pass(50 * time.Second)
	}
	snaps.KeepFor(ref, time.Minute)
	move()
	if holds() {
		t.Error("it is held for ever when it is used again and again")
	}
	for i := range uint64(3 * maxKept) { // more than can be kept: the most recently used stay
		r := ref
		r.Number = 1000 + i
		snaps.KeepFor(r, time.Minute)
	}
	if n := len(snaps.kept); n != maxKept || snaps.kept[n-1].ref.Number != 1000+3*maxKept-1 {
		t.Errorf("%d are kept", n)
	}
}

// oldBucket is a bucket that has been removed.
type oldBucket chan struct{}

func (oldBucket) Flushed() *wire.StabilityRef { return nil }
func (oldBucket) Rollback() uint64            { return 0 }
func (b oldBucket) Gone() <-chan struct{}     { return b }

// TestHoldOfARemovedBucket checks that a reader that waits for a snapshot of a removed bucket does not wait for
// the next bucket of that name.
func TestHoldOfARemovedBucket(t *testing.T) {
	store, _ := storagetest.Open(t)
	p := &Pins{Snapshots: New(3, hclog.NewNullLogger(), time.Now), Store: store,
		Bucket: func(string) (Bucket, bool) { return make(oldBucket), true }} // the next one of that name
	k := make(oldBucket)
	close(k)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := p.Hold(ctx, k, 1, 1, wire.StabilityRef{Bucket: "b", Ref: timestamp.Ref{Number: 1}})
	if scan.CodeOf(err) != errcode.IndexNotHosted || ctx.Err() != nil {
		t.Errorf("%v", err)
	}
}

// TestLateCopyReportsWhy checks that the error of a scan that has waited in vain for a copy names the copy and its
// problem.
func TestLateCopyReportsWhy(t *testing.T) {
	store, s := storagetest.Open(t)
	p := &Pins{Snapshots: New(3, hclog.NewNullLogger(), time.Now), Store: store,
		Bucket: func(string) (Bucket, bool) { return make(oldBucket), true },
		Wrong:  func(c index.CopyID) string { return "the disk of copy " + c.String() + " hangs" }}
	m := s.Meta()
	_, err := p.Pin(t.Context(), m.Index, []index.CopyID{m.Copy}, wire.StabilityRef{Bucket: m.Bucket,
		Ref: timestamp.Ref{Number: 7}}, time.Millisecond)
	want := fmt.Sprintf("copy %s has no snapshot of it yet: the disk of copy %s hangs", m.Copy, m.Copy)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

// moving has the snapshots of one copy. The test moves its timestamps and its clock.
type moving struct {
	*Set
	t     *testing.T
	slice *storage.Slice
	clock time.Time
	ref   uint64 // number of the newest timestamp
}

// movingKeep is how many of the newest timestamps are kept.
const movingKeep = 3

func newMoving(t *testing.T) *moving {
	_, s := storagetest.Open(t)
	m := &moving{t: t, slice: s, clock: time.Unix(1000, 0)}
	m.Set = New(movingKeep, hclog.NewNullLogger(), func() time.Time { return m.clock })
	t.Cleanup(m.CloseAll)
	return m
}

// move adds as many timestamps as needed to remove all that nothing keeps, and returns the newest.
func (m *moving) move() (ref wire.StabilityRef) {
	for range movingKeep + 1 {
		m.ref++
		ref = hold(m.t, m.Set, m.slice, m.ref, 10*m.ref)
	}
	return ref
}

// check compares whether copy 1 has a snapshot at a timestamp with what is wanted.
func (m *moving) check(what string, ref wire.StabilityRef, want bool) {
	m.t.Helper()
	h, ok := m.Acquire(1, &ref)
	if ok {
		_ = h.Snap.Close()
	}
	if ok != want {
		m.t.Errorf("%s: held %v, are %v", what, ok, m.Refs(1))
	}
}

// TestSnapshotsOfPagesAreKept checks that the snapshots of an answer in pages stay, but only of its copies, while a
// page is read and for a minute after each page, however many newer timestamps come and whatever others request.
// After that they are removed.
func TestSnapshotsOfPagesAreKept(t *testing.T) {
	m := newMoving(t)
	snaps, move, check := m.Set, m.move, m.check
	pass := func(d time.Duration) { m.clock = m.clock.Add(d); move() }
	begin := func(p scan.Pages, ref wire.StabilityRef, copies ...index.CopyID) func(bool) {
		t.Helper()
		done, err := snaps.KeepPages(p, copies, ref)
		if err != nil {
			t.Fatal(err)
		}
		return done
	}
	a, b := scan.Pages{ID: 1, For: "ann"}, scan.Pages{ID: 1, For: "bob"}
	other := move()
	ref := move()
	done := begin(a, ref, 1)
	begin(b, other, 2)(true) // another copy
	pass(5 * time.Minute)
	check("while it is read", ref, true)
	check("of another copy", other, false)
	done(true)
	pass(50 * time.Second)
	begin(a, ref, 1)(true)
	pass(50 * time.Second)
	check("after another page", ref, true)
	pass(11 * time.Second)
	check("when a minute is over", ref, false)
	if n, bytes := snaps.PagesKept(); n != 0 || bytes != 0 {
		t.Errorf("%d are counted, %d bytes", n, bytes)
	}

	ref = move()
	a.ID++
	begin(a, ref, 1)(true)
	snaps.EndPages(a)
	snaps.EndPages(a)
	move()
	check("when it is over", ref, false)
	ref = move()
	begin(a, ref, 1)(false)
	move()
	check("when it could not be read", ref, false)

	ref = move()
	a.ID++
	for used := time.Duration(0); used <= scan.MaxKeep; used += 50 * time.Second {
		begin(a, ref, 1)(true)
		check("within ten minutes", ref, true)
		pass(50 * time.Second)
	}
	begin(a, ref, 1)(true)
	move()
	check("after ten minutes", ref, false)
	pass(2 * scan.MaxKeep)
	if n, bytes := snaps.PagesKept(); n != 0 || bytes != 0 || len(snaps.pages.all) != 0 || len(snaps.pages.by) != 0 ||
		snaps.pages.number != 0 {
		t.Errorf("%d are counted, and %v is remembered", n, snaps.pages.all)
	}
}

// TestSnapshotsOfPagesAreBounded checks the limits of what is kept for pages, in total and per caller. A request
// beyond them gets an error, and no caller loses what is already kept for it.
func TestSnapshotsOfPagesAreBounded(t *testing.T) {
	clock := time.Unix(1000, 0)
	snaps := New(3, hclog.NewNullLogger(), func() time.Time { return clock })
	defer snaps.CloseAll()
	at := func(n int) wire.StabilityRef { return wire.StabilityRef{Ref: timestamp.Ref{Number: uint64(n)}} }
	begin := func(who string, id, copies int, ref wire.StabilityRef) error {
		all := make([]index.CopyID, copies)
		for i := range all {
			all[i] = index.CopyID(i + 1)
		}
		done, err := snaps.KeepPages(scan.Pages{ID: uint64(id), For: who}, all, ref)
		if err == nil {
			done(true)
		}
		return err
	}
	for i := range maxPages / 2 {
		if err := begin("ann", i, 1, at(1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := begin("ann", maxPages, 1, at(1)); scan.CodeOf(err) != errcode.Busy {
		t.Errorf("more than half: %v", err)
	}
	if err := begin("ann", 7, 1, at(1)); err != nil {
		t.Errorf("the next page of one that is kept: %v", err)
	}
	for i := range maxPages / 2 {
		if err := begin("bob", i, 1, at(1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := begin("joe", 1, 1, at(1)); scan.CodeOf(err) != errcode.Busy {
		t.Errorf("more than all: %v", err)
	}
	if n, _ := snaps.PagesKept(); n != 1 {
		t.Errorf("%d snapshots are kept of one timestamp", n)
	}
	clock = clock.Add(scan.KeepFor + time.Second) // all of them have expired
	const vbuckets, copies = 1024, 8
	snaps.copies[3] = []Held{{Vector: timestamp.New(vbuckets)}}
	for _, c := range []struct {
		who string
		n   int // number of timestamps
	}{{"joe", maxPageBytes / 2}, {"", maxPageBytes}} {
		clock = clock.Add(scan.KeepFor + time.Second)
		n := c.n / (perVBucket * vbuckets * copies)
		for i := range n {
			if err := begin(c.who, i, copies, at(i)); err != nil {
				t.Fatal(err)
			}
		}
		if err := begin(c.who, 1<<20, copies, at(n+1)); scan.CodeOf(err) != errcode.Busy {
			t.Errorf("more snapshots of %q than may be: %v", c.who, err)
		}
		if err := begin(c.who, 1<<20, 3, at(1)); err != nil {
			t.Errorf("one that is kept already: %v", err)
		}
		if got, bytes := snaps.PagesKept(); got != n*copies || bytes != int64(n*copies*perVBucket*vbuckets) {
			t.Errorf("%d snapshots are kept, %d bytes", got, bytes)
		}
	}
	if err := begin("ann", 1<<21, copies, at(1<<20)); scan.CodeOf(err) != errcode.Busy {
		t.Errorf("more than all: %v", err)
	}
	snaps.copies = map[index.CopyID][]Held{}
}
