package store

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"tidemark/kv/mcbp"
	"tidemark/timestamp"
)

// replicaWorld has vbucket 0 as a replica, vbucket 1 active.
func replicaWorld(t testing.TB) *world {
	w := newWorld(t, 2)
	if err := w.b.VBucket(0).SetState(Replica); err != nil {
		t.Fatal(err)
	}
	w.opts.State = func(vb uint16) State {
		if vb == 0 {
			return Replica
		}
		return Active
	}
	return w
}

// take adds a version to the replica.
func (w *world) take(seqno uint64, key string, start, end uint64) error {
	t, err := w.b.VBucket(0).Replicate(&Doc{Key: key, Value: fmt.Append(nil, seqno), Seqno: seqno, Rev: 1, Cas: seqno},
		SnapshotRange{start, end})
	if err != nil {
		return err
	}
	return t.Wait()
}

func (w *world) position(want string) {
	w.t.Helper()
	uuid, seqno, at := w.b.VBucket(0).Position()
	if got := fmt.Sprint(seqno, at.Start, at.End); got != want || uuid == 0 {
		w.t.Fatalf("position %s, want %s", got, want)
	}
}

func TestReplicaKeepsItsPosition(t *testing.T) {
	w := replicaWorld(t)
	v := w.b.VBucket(0)
	if err := v.Join(timestamp.FailoverLog{{VBUUID: 9, Seqno: 4}, {VBUUID: 5, Seqno: 0}}); err != nil {
		t.Fatal(err)
	}
	w.position("0 0 0")
	for _, c := range []struct{ seqno, start, end uint64 }{{2, 0, 6}, {5, 0, 6}, {6, 0, 6}, {8, 7, 12}} {
		if err := w.take(c.seqno, fmt.Sprint("k", c.seqno), c.start, c.end); err != nil {
			t.Fatal(err)
		}
	}
	for _, orderly := range []bool{true, false} { // in the middle of a snapshot, also after a crash
		w.restart(orderly)
		w.position("8 7 12")
		if i := w.b.VBucket(0).Info(); i.State != Replica || len(i.Failover) != 2 ||
			i.Failover[0] != (timestamp.LogEntry{VBUUID: 9, Seqno: 4}) {
			t.Fatalf("%+v", i)
		}
	}
	if uuid, _, _ := w.b.VBucket(0).Position(); uuid != 9 {
		t.Fatalf("asks on branch %d", uuid)
	}
	for _, bad := range []struct{ seqno, start, end uint64 }{{8, 7, 12}, {3, 1, 12}, {13, 7, 12}, {14, 15, 20}} {
		if err := w.take(bad.seqno, "x", bad.start, bad.end); !errors.Is(err, ErrOrder) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	if _, err := w.apply(0, Change{Key: []byte("x")}); !errors.Is(err, ErrNotMyVBucket) {
		t.Errorf("a client writes to a replica: %v", err)
	}
	if _, err := w.b.VBucket(1).Replicate(&Doc{Key: "x", Seqno: 1}, SnapshotRange{1, 1}); !errors.Is(err, ErrNotReplica) {
		t.Errorf("an active vbucket replicates: %v", err)
	}
}

// TestJoinAgain checks that a replica that joins again and again with the same history, as it does while its disk is
// almost full, writes it once, and writes it again if that has failed.
func TestJoinAgain(t *testing.T) {
	w := replicaWorld(t)
	join := func(uuid uint64) error {
		if err := w.b.VBucket(0).Join(timestamp.FailoverLog{{VBUUID: uuid, Seqno: 0}}); err != nil {
			return err
		}
		return w.b.commit.current().Wait()
	}
	size := w.b.DiskBytes()
	for n := range 100 {
		if err := join(9); err != nil {
			t.Fatal(err)
		}
		if n == 0 && w.b.DiskBytes() == size {
			t.Error("the history was not written")
		} else if n == 0 {
			size = w.b.DiskBytes()
		}
	}
	if now := w.b.DiskBytes(); now != size {
		t.Errorf("joining 100 times has written %d bytes more than joining once", now-size)
	}
	w.full = true
	if err := join(10); !errors.Is(err, ErrTemporary) {
		t.Fatalf("on a full disk: %v, want %v", err, ErrTemporary)
	}
	w.full = false
	w.now = w.now.Add(retryAfterFailure)
	if err := join(10); err != nil {
		t.Fatal(err)
	}
	w.restart(false)
	if log := w.b.VBucket(0).Info().Failover; len(log) != 1 || log[0].VBUUID != 10 {
		t.Errorf("after a crash it has the history %v", log)
	}
}

// A snapshot window whose first write failed is written with the next one: after a crash the replica is still in the
// middle of the snapshot, not at the end of one.
func TestWindowOfAFailedWrite(t *testing.T) {
	w := replicaWorld(t)
	if err := w.take(1, "k1", 0, 1); err != nil {
		t.Fatal(err)
	}
	w.full = true
	if err := w.take(2, "k2", 2, 9); !errors.Is(err, ErrTemporary) {
		t.Fatal(err)
	}
	w.position("1 1 1")
	w.full = false
	w.now = w.now.Add(retryAfterFailure)
	if err := w.take(2, "k2", 2, 9); err != nil {
		t.Fatal(err)
	}
	w.restart(false)
	w.position("2 2 9")
}

// A replica that becomes active in the middle of a snapshot begins its branch where the last complete one ended.
func TestPromotionBranchesAtASnapshot(t *testing.T) {
	for _, c := range []struct {
		last  uint64
		wants string
	}{{6, "6"}, {8, "6"}} {
		w := replicaWorld(t)
		v := w.b.VBucket(0)
		if err := v.Join(timestamp.FailoverLog{{VBUUID: 7, Seqno: 6}, {VBUUID: 5, Seqno: 0}}); err != nil {
			t.Fatal(err)
		}
		for s := uint64(1); s <= c.last; s++ {
			start, end := uint64(0), uint64(6)
			if s > 6 {
				start, end = 6, 12
			}
			if err := w.take(s, fmt.Sprint("k", s), start, end); err != nil {
				t.Fatal(err)
			}
		}
		if err := v.SetState(Active); err != nil {
			t.Fatal(err)
		}
		i := v.Info()
		if len(i.Failover) != 3 || fmt.Sprint(i.Failover[0].Seqno) != c.wants || i.High != c.last {
			t.Fatalf("after %d: %+v", c.last, i)
		}
		if r := w.set(0, "new", "1"); r.Doc.Seqno != c.last+1 || r.VBUUID != i.Failover[0].VBUUID {
			t.Fatalf("%+v", r)
		}
		if err := v.SetState(Replica); err != nil { // its snapshots are complete again
			t.Fatal(err)
		}
		w.position(fmt.Sprint(c.last+1, c.last+1, c.last+1))
	}
}

// Nothing from before a reset comes back, whatever is written, relocated, compacted, crashed and restarted
// afterwards.
func TestResetIsForGood(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := replicaWorld(t)
		defer func() { _ = w.b.Abandon() }()
		have := map[string]uint64{}
		high, purged := uint64(0), false
		for i := range rapid.IntRange(5, 40).Draw(rt, "steps") {
			v := w.b.VBucket(0)
			switch rapid.IntRange(0, 9).Draw(rt, fmt.Sprint("step ", i)) {
			case 0:
				if err := v.Reset(); err != nil {
					rt.Fatal(err)
				}
				clear(have)
				high = 0
			case 1:
				w.restart(rapid.Bool().Draw(rt, "orderly"))
			case 2:
				if err := w.b.PurgeTombstones(context.Background(), time.Hour); err != nil {
					rt.Fatal(err)
				}
				purged = true
			case 3:
				w.full = true
				if err := w.take(high+1, "full", high, high+1); err == nil {
					rt.Fatal("written to a full disk")
				}
				if err := v.Reset(); err == nil && high > 0 {
					rt.Fatal("reset on a full disk")
				}
				w.full = false
				w.now = w.now.Add(time.Minute)
			default:
				high += uint64(rapid.IntRange(1, 3).Draw(rt, "gap"))
				key := fmt.Sprint("k", rapid.IntRange(0, 5).Draw(rt, "key"))
				if err := w.take(high, key, high, high); err != nil {
					rt.Fatal(err)
				}
				have[key] = high
			}
			v = w.b.VBucket(0)
			got := map[string]uint64{}
			if s, _ := v.SnapshotAfter(0, all); s != nil {
				for _, d := range s.Next(nil, 1000) {
					got[d.Key] = d.Seqno
				}
				s.Close()
			}
			if fmt.Sprint(got) != fmt.Sprint(have) || v.Info().High != high || v.Info().Items != len(have) {
				rt.Fatalf("has %v up to %d, want %v up to %d (purged %v)", got, v.Info().High, have, high, purged)
			}
		}
	})
}

// Versions that were taken back before others of the same block do not count as stored with those.
func TestReplicatedVersionsTakenBack(t *testing.T) {
	w := newWorld(t, 2)
	replicate := func(vb uint16, seqno uint64) *Ticket {
		t.Helper()
		ticket, err := w.b.VBucket(vb).Replicate(&Doc{Key: "k", Seqno: seqno, Rev: 1, Cas: seqno},
			SnapshotRange{seqno, seqno})
		if err != nil {
			t.Fatal(err)
		}
		return ticket
	}
	for vb := range uint16(2) {
		if err := w.b.VBucket(vb).SetState(Replica); err != nil {
			t.Fatal(err)
		}
	}
	stored := w.b.Replicating()
	w.full = true
	if err := replicate(0, 1).Wait(); !errors.Is(err, ErrTemporary) { // another goroutine waits for it, too
		t.Fatal(err)
	}
	w.full, w.now = false, w.now.Add(time.Minute)
	last := replicate(1, 1)
	if err := last.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := stored(last); !errors.Is(err, ErrTemporary) {
		t.Fatalf("the first of two versions was taken back: %v", err)
	}
	if err := w.b.Replicating()(replicate(0, 1)); err != nil {
		t.Fatal(err)
	}
}

// While a vbucket is emptied it accepts neither another state nor versions: otherwise it would be emptied as the
// active copy, with acknowledged writes.
func TestResetExcludesOtherWrites(t *testing.T) {
	w := replicaWorld(t)
	defer func() { _ = w.b.Close() }()
	v := w.b.VBucket(0)
	if err := w.take(1, "a", 0, 1); err != nil {
		t.Fatal(err)
	}
	writes := 0
	beside := func() {
		writes++
		_, replicated := v.Replicate(&Doc{Key: "b", Seqno: 2, Rev: 1, Cas: 2}, SnapshotRange{2, 2})
		for what, err := range map[string]error{
			"state": v.SetState(Active), "version": replicated, "reset": v.Reset(), "purge seqno": v.RaisePurge(9),
			"history": v.Join(timestamp.FailoverLog{{VBUUID: 9}}),
		} {
			if !errors.Is(err, ErrTemporary) {
				t.Errorf("another %s during write %d of a reset: %v, want ErrTemporary", what, writes, err)
			}
		}
	}
	w.writing = beside
	if err := v.Reset(); err != nil || writes == 0 {
		t.Fatalf("%v after %d writes", err, writes)
	}
	if i := v.Info(); i.State != Replica || i.High != 0 || i.Items != 0 || i.Purge != 0 {
		t.Fatalf("%+v", i)
	}
	if err := v.SetState(Active); err != nil {
		t.Fatal(err)
	}
	w.set(0, "b", "2")
	if err := v.Reset(); err == nil {
		t.Fatal("an active vbucket was emptied")
	}
}

// Compaction during a reset does not write the vbucket's old state after the reset: the vbucket would be empty at its
// old seqno after a restart.
func TestCompactionBesideAReset(t *testing.T) {
	for _, c := range []struct {
		name    string
		compact func(b *Bucket) error
	}{
		{"of a segment", func(b *Bucket) error { return b.saveStates(map[uint16]bool{0: true}) }},
		{"of all", func(b *Bucket) error { return b.VBucket(0).rewrite(context.Background()) }},
		{"of tombstones", func(b *Bucket) error { return b.VBucket(0).ForgetTombstones() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, 1)
			v := w.b.VBucket(0)
			for i := range 10 {
				w.set(0, fmt.Sprint("k", i), "1")
			}
			w.delete(0, "k0")
			w.set(0, "k1", "2")
			if err := v.SetState(Dead); err != nil {
				t.Fatal(err)
			}
			var err error
			w.writing = func() { w.writing = func() { err = c.compact(w.b) } } // the second write is that of the reset
			if failed := v.SetState(Active); failed != nil {
				t.Fatal(failed)
			}
			if !errors.Is(err, ErrTemporary) {
				t.Errorf("it returned %v, want ErrTemporary", err)
			}
			before := v.Info()
			w.restart(true)
			defer func() { _ = w.b.Close() }()
			if after := w.b.VBucket(0).Info(); before.High != 0 || after.High != 0 || after.Purge != 0 {
				t.Fatalf("an empty vbucket at seqno %d is at %d after a restart, purged up to %d", before.High, after.High,
					after.Purge)
			}
		})
	}
}

func TestSeal(t *testing.T) {
	w := newWorld(t, 1)
	v := w.b.VBucket(0)
	w.set(0, "a", "1")
	if _, err := w.apply(0, Change{Key: []byte("e"), Expiry: uint32(w.now.Unix()) + 1}); err != nil {
		t.Fatal(err)
	}
	high, err := v.Seal(time.Minute)
	if err != nil || high != 2 {
		t.Fatal(high, err)
	}
	if _, err := w.apply(0, Change{Key: []byte("b")}); !errors.Is(err, ErrSealed) || !errors.Is(err, ErrTemporary) {
		t.Fatal(err)
	}
	w.now = w.now.Add(2 * time.Second)
	if _, err := v.Get([]byte("e")); !errors.Is(err, ErrNotFound) { // expired, but no tombstone may be made
		t.Fatal(err)
	}
	w.b.Expire()
	if err := v.HoldSeal(1); !errors.Is(err, ErrSealBroken) {
		t.Fatal(err)
	}
	w.now = w.now.Add(2 * time.Minute) // it expires
	w.set(0, "b", "1")
	if err := v.HoldSeal(2); !errors.Is(err, ErrSealBroken) {
		t.Fatal(err)
	}
	if high, err = v.Seal(time.Minute); err != nil || high != v.Info().High {
		t.Fatal(high, err)
	}
	if err := v.HoldSeal(high); err != nil {
		t.Fatal(err)
	}
	if _, err := v.Seal(time.Minute); err != nil {
		t.Fatal(err)
	}
	v.Unseal() // as a caller does that does not know that the seal is held
	w.now = w.now.Add(time.Hour)
	if _, err := w.apply(0, Change{Key: []byte("c")}); !errors.Is(err, ErrSealed) {
		t.Fatal(err)
	}
	v.ReleaseSeal()
	w.set(0, "c", "1")
	if err := v.SetState(Replica); err != nil {
		t.Fatal(err)
	}
	if _, err := v.Seal(time.Minute); !errors.Is(err, ErrNotMyVBucket) {
		t.Fatal(err)
	}
}

// A replica without memory accepts what frees memory: deletions, and the end of a collection with the other events.
func TestFullReplicaAcceptsWhatFreesMemory(t *testing.T) {
	w := replicaWorld(t)
	w.opts.Quota = NewQuota(10_000)
	w.restart(true)
	defer func() { _ = w.b.Close() }()
	v := w.b.VBucket(0)
	seqno := uint64(0)
	take := func(d *Doc) error {
		d.Seqno, d.Rev, d.Cas = seqno+1, 1, seqno+1
		ticket, err := v.Replicate(d, SnapshotRange{seqno + 1, seqno + 1})
		if err == nil {
			seqno++
			err = ticket.Wait()
		}
		return err
	}
	must := func(d *Doc) {
		t.Helper()
		if err := take(d); err != nil {
			t.Fatal(err)
		}
	}
	about := mcbp.CollectionEvent{Manifest: 1, Scope: 8, Collection: 9}
	must(NewEvent(mcbp.EventScopeBegins, about, []byte("s")))
	must(NewEvent(mcbp.EventCollectionBegins, about, []byte("a")))
	for err := error(nil); err == nil; {
		if err = take(&Doc{Key: fmt.Sprint(seqno), Collection: 9}); err != nil && !errors.Is(err, ErrNoMemory) {
			t.Fatal(err)
		}
	}
	must(&Doc{Key: "3", Collection: 9, Deleted: true})
	full := w.opts.Quota.Used()
	must(NewEvent(mcbp.EventCollectionEnds, about, nil))
	if used := w.opts.Quota.Used(); used > full/4 {
		t.Fatalf("%d bytes of %d are used after the collection has ended", used, full)
	}
	must(&Doc{Key: "more"})
}

// A replica deletes nothing by itself.
func TestReplicaEvictsNothing(t *testing.T) {
	w := replicaWorld(t)
	defer func() { _ = w.b.Close() }()
	if err := w.take(1, "k", 1, 1); err != nil {
		t.Fatal(err)
	}
	w.b.VBucket(0).Evict(nil)
	if err := w.b.commit.current().Wait(); err != nil {
		t.Fatal(err)
	}
	if i := w.b.VBucket(0).Info(); i.High != 1 || i.Items != 1 {
		t.Fatalf("%+v", i)
	}
}
