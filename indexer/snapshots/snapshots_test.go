package snapshots

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/errcode"
	"tidemark/indexer/scan"
	"tidemark/indexer/storage"
	"tidemark/indexer/storage/storagetest"
	"tidemark/ingest"
	"tidemark/timestamp"
	"tidemark/wire"
)

// hold adds a snapshot with that number, in which vbucket 0 stands at a seqno of branch 7.
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

// TestSnapshots: the newest few are kept, a reader's stays as long as it reads, and those off the branch go.
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
		t.Error("a snapshot that was let go was given")
	}
	h, ok := snaps.Acquire(1, nil)
	if !ok || h.Ref.Number != 5 {
		t.Fatalf("the newest is %v", h.Ref)
	}
	// branch 8 begins at 45: what holds 50 is not on it
	snaps.Part(1, []ingest.Restore{{Copy: 1, Log: timestamp.FailoverLog{{VBUUID: 8, Seqno: 45}, {VBUUID: 7}}}}, s.Logs())
	if refs := snaps.Refs(1); len(refs) != 2 || refs[1].Number != 4 {
		t.Errorf("on the branch: %v", refs)
	}
	if newest, ok := snaps.Acquire(1, nil); !ok || newest.Ref.Number != 4 || newest.Snap.Close() != nil {
		t.Errorf("a scan gets %v", newest.Ref)
	}
	past := snaps.Retain(1) // other vbuckets can still be restored from what has parted
	if len(past) != 3 || past[2].Batch() != 5 {
		t.Errorf("%d snapshots to restore from", len(past))
	}
	for _, p := range past {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	snaps.DropParted(1)
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

// TestQueryKeepsItsTimestamp: a timestamp that a query has named stays over many newer ones, for as long as it is used
// now and then, and goes after that.
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
	// However often it is used, it goes when its greatest age is over, and using it then does not begin anew.
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
	for i := range uint64(3 * maxKept) { // more than can be kept: the ones used last stay
		r := ref
		r.Number = 1000 + i
		snaps.KeepFor(r, time.Minute)
	}
	if n := len(snaps.kept); n != maxKept || snaps.kept[n-1].ref.Number != 1000+3*maxKept-1 {
		t.Errorf("%d are kept", n)
	}
}

// oldBucket is a bucket that leaves.
type oldBucket chan struct{}

func (oldBucket) Flushed() *wire.StabilityRef { return nil }
func (oldBucket) Rollback() uint64            { return 0 }
func (b oldBucket) Gone() <-chan struct{}     { return b }

// TestHoldOfABucketThatLeaves: who waits for a snapshot of a bucket does not wait for the one that takes its name.
func TestHoldOfABucketThatLeaves(t *testing.T) {
	store, _ := storagetest.Open(t)
	p := &Pins{Snapshots: New(3, hclog.NewNullLogger(), time.Now), Store: store,
		Bucket: func(string) (Bucket, bool) { return make(oldBucket), true }} // made anew under the name
	k := make(oldBucket)
	close(k)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := p.Hold(ctx, k, 1, 1, wire.StabilityRef{Bucket: "b", Ref: timestamp.Ref{Number: 1}})
	if scan.CodeOf(err) != errcode.IndexNotHosted || ctx.Err() != nil {
		t.Errorf("%v", err)
	}
}
