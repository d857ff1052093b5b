package snapshots

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/scan"
	"tidemark/indexer/storage/storagetest"
	"tidemark/timestamp"
	"tidemark/wire"
)

// TestSnapshotsOfLongScansAreKept checks that the snapshots of such a scan stay for other nodes that may continue it,
// but only of its copies, until the scan has ended or a minute after its last request. Scans at the same timestamp
// share them.
func TestSnapshotsOfLongScansAreKept(t *testing.T) {
	m := newMoving(t)
	snaps, move := m.Set, m.move
	ask := func(id uint64, ref wire.StabilityRef, copies ...index.CopyID) {
		t.Helper()
		if err := snaps.KeepScan(scan.Pages{ID: id}, copies, ref); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what string, ref wire.StabilityRef, want bool) {
		t.Helper()
		move()
		m.check(what, ref, want)
	}
	other, ref := move(), move()
	ask(1, other, 2) // a copy other than the one that check looks at
	ask(2, ref, 1)
	ask(3, ref, 1)
	check("of another copy", other, false)
	check("of two scans", ref, true)
	snaps.EndPages(scan.Pages{ID: 2})
	check("when one of two has ended", ref, true)
	m.clock = m.clock.Add(50 * time.Second)
	ask(3, ref, 1)
	m.clock = m.clock.Add(50 * time.Second)
	check("when it was asked for again", ref, true)
	snaps.EndPages(scan.Pages{ID: 3})
	check("when both have ended", ref, false)

	next := wire.StabilityRef{Bucket: ref.Bucket, Ref: timestamp.Ref{Number: m.ref + 2, Hash: ref.Hash}}
	ask(4, next, 1) // before the snapshot is there
	m.ref += 2
	next = hold(t, snaps, m.slice, m.ref, 10*m.ref)
	ask(5, next, 1)
	check("a minute later", next, true)
	m.clock = m.clock.Add(61 * time.Second)
	check("when its time is over", next, false)
	if err := snaps.KeepScan(scan.Pages{ID: 6}, []index.CopyID{1}, ref); scan.CodeOf(err) != errcode.SnapshotTooOld {
		t.Errorf("one that is gone: %v", err)
	}
	if n, bytes := snaps.LongKept(); n != 0 || bytes != 0 {
		t.Errorf("%d are counted, %d bytes", n, bytes)
	}
}

// TestSnapshotsOfLongScansAreBounded checks that snapshots for long scans have their own limit: pages have as much
// room as before, and a later request for a timestamp that was refused says that there was no room for it.
func TestSnapshotsOfLongScansAreBounded(t *testing.T) {
	const vbuckets = 1024
	store, s := storagetest.Open(t)
	snaps := New(3, hclog.NewNullLogger(), time.Now)
	c := s.Meta().Copy
	at := func(n int) wire.StabilityRef {
		return wire.StabilityRef{Bucket: s.Meta().Bucket, Ref: timestamp.Ref{Number: uint64(n)}}
	}
	// all others are assumed to be as large as this one
	snaps.copies[c] = []Held{{Ref: at(0), Vector: timestamp.New(vbuckets)}}
	const most = maxPageBytes / (perVBucket * vbuckets)
	for i := range most {
		if err := snaps.KeepScan(scan.Pages{ID: uint64(i)}, []index.CopyID{c}, at(i+1)); err != nil {
			t.Fatal(err)
		}
	}
	id := uint64(most)
	ask := func(ref wire.StabilityRef) error {
		id++
		return snaps.KeepScan(scan.Pages{ID: id}, []index.CopyID{c}, ref)
	}
	if err := ask(at(most + 1)); scan.CodeOf(err) != errcode.Busy || !strings.Contains(err.Error(), "that are long") {
		t.Errorf("more than there is room for: %v", err)
	}
	if err := ask(at(1)); err != nil {
		t.Errorf("one that is kept already: %v", err)
	}
	if n, bytes := snaps.LongKept(); n != most || bytes != most*perVBucket*vbuckets {
		t.Errorf("%d are kept, %d bytes", n, bytes)
	}
	done, err := snaps.KeepPages(scan.Pages{ID: 1}, []index.CopyID{c}, at(most+1))
	if err != nil {
		t.Fatalf("a page: %v", err)
	}
	done(true)
	if len(snaps.refused) != 1 {
		t.Errorf("%v were refused", snaps.refused)
	}
	for i := range 2 * maxRefused { // only the newest refusals are remembered
		if err := ask(at(most + 2 + i)); scan.CodeOf(err) != errcode.Busy {
			t.Fatal(err)
		}
	}
	if len(snaps.refused) != maxRefused {
		t.Errorf("%d are remembered", len(snaps.refused))
	}
	refused := at(most + 1 + 2*maxRefused)
	snaps.copies[c] = []Held{{Ref: at(1 << 20)}}
	p := &Pins{Snapshots: snaps, Store: store, Bucket: func(string) (Bucket, bool) { return make(oldBucket), true }}
	for _, x := range []struct {
		ref    wire.StabilityRef
		noRoom bool
	}{{refused, true}, {at(most + 1), false}} {
		_, err := p.Pin(t.Context(), s.Meta().Index, []index.CopyID{c}, x.ref, time.Minute)
		if scan.CodeOf(err) != errcode.SnapshotTooOld || strings.Contains(fmt.Sprint(err), "no room") != x.noRoom {
			t.Errorf("timestamp %d: %v", x.ref.Number, err)
		}
	}
	snaps.copies = map[index.CopyID][]Held{}
}
