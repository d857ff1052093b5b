package consensus

import (
	"errors"
	"math"
	"path/filepath"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
)

// marked opens a log in which entries get marks. The log refuses those that continue another log.
func marked(t *testing.T) *recorder {
	t.Helper()
	dir := t.TempDir()
	store, err := raftboltdb.NewBoltStore(filepath.Join(dir, "raft.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	disk := newDisk(&Config{Dir: dir, Logger: hclog.NewNullLogger(), SlowWrite: hangsNever})
	return &recorder{BoltStore: store, disk: disk, forked: func(position) error { return ErrContradicted }}
}

// entryOf returns an entry as a leader makes it.
func entryOf(index, term uint64, data string) *raft.Log {
	return &raft.Log{Index: index, Term: term, Type: raft.LogCommand, Data: []byte(data)}
}

// read returns the entries from first to last as a leader sends them.
func (r *recorder) read(t *testing.T, first, last uint64) (entries []*raft.Log) {
	t.Helper()
	for i := first; i <= last; i++ {
		var l raft.Log
		if err := r.GetLog(i, &l); err != nil {
			t.Fatal(err)
		}
		entries = append(entries, &l)
	}
	return entries
}

// TestEntryOfAnotherLogIsRefused checks which entries of a leader a log takes: those that continue it by their
// contents, not only by index and term, and those of which it cannot know.
func TestEntryOfAnotherLogIsRefused(t *testing.T) {
	a, b, follower := marked(t), marked(t), marked(t)
	common := func() []*raft.Log { return []*raft.Log{entryOf(1, 1, "members"), entryOf(2, 2, "x")} }
	for _, r := range []*recorder{a, b, follower} {
		if err := r.StoreLogs(common()); err != nil {
			t.Fatal(err)
		}
	}
	if m := decodeMark(a.read(t, 2, 2)[0].Extensions); m.lineage == 0 || m != decodeMark(b.read(t, 2, 2)[0].Extensions) {
		t.Fatalf("the mark of entry 2 in equal logs: %+v and another", m)
	}
	for _, r := range []*recorder{a, b} { // two leaders of term 3
		own := map[*recorder]string{a: "a", b: "b"}[r]
		if err := r.StoreLogs([]*raft.Log{entryOf(3, 3, ""), entryOf(4, 3, own), entryOf(5, 3, "same")}); err != nil {
			t.Fatal(err)
		}
	}
	if err := follower.StoreLogs(a.read(t, 3, 4)); err != nil {
		t.Fatalf("of the leader that it follows: %v", err)
	}
	if err := follower.StoreLogs(b.read(t, 5, 5)); !errors.Is(err, ErrContradicted) {
		t.Fatalf("an entry behind another entry 4 of term 3: %v", err)
	}
	if last, err := follower.LastIndex(); err != nil || last != 4 {
		t.Fatalf("it ends at entry %d, %v; want 4", last, err)
	}
	if err := follower.StoreLogs(a.read(t, 5, 5)); err != nil {
		t.Fatalf("the right entry: %v", err)
	}
	if err := follower.DeleteRange(4, 5); err != nil { // as for a leader of a later term
		t.Fatal(err)
	}
	if err := follower.StoreLogs([]*raft.Log{entryOf(4, 4, "c")}); err != nil {
		t.Fatalf("an entry without a mark, of a leader of an earlier version: %v", err)
	}
	if m := decodeMark(follower.read(t, 4, 4)[0].Extensions); m != decodeMark(follower.read(t, 3, 3)[0].Extensions).
		next(entryOf(4, 4, "c")) {
		t.Errorf("an entry without a mark gets %+v, not the one that it has in this log", m)
	}
}

// TestUnrelatedMarksAreIgnored checks that logs whose marks began at different entries are never taken for different
// logs, and that a follower takes over the leader's marks.
func TestUnrelatedMarksAreIgnored(t *testing.T) {
	leader, follower := marked(t), marked(t)
	for _, r := range []*recorder{leader, follower} {
		for _, l := range []*raft.Log{entryOf(1, 1, "members"), entryOf(2, 2, "x")} { // an earlier version stores no marks
			if err := r.BoltStore.StoreLog(l); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.StoreLog(entryOf(3, 2, "y")); err != nil {
			t.Fatal(err)
		}
	}
	theirs, ours := decodeMark(leader.read(t, 3, 3)[0].Extensions), decodeMark(follower.read(t, 3, 3)[0].Extensions)
	if theirs.lineage == ours.lineage || theirs.differs(ours) {
		t.Fatalf("marks %+v and %+v, which began apart", theirs, ours)
	}
	if err := leader.StoreLogs([]*raft.Log{entryOf(4, 2, "z"), entryOf(5, 2, "z")}); err != nil {
		t.Fatal(err)
	}
	if err := follower.StoreLogs(leader.read(t, 4, 4)); err != nil {
		t.Fatalf("an entry whose mark says nothing here: %v", err)
	}
	if err := follower.StoreLogs(leader.read(t, 5, 5)); err != nil {
		t.Fatal(err)
	}
	got, want := decodeMark(follower.read(t, 5, 5)[0].Extensions), decodeMark(leader.read(t, 5, 5)[0].Extensions)
	if got != want {
		t.Errorf("the follower has the mark %+v, the leader %+v", got, want)
	}
	joined := marked(t) // its log begins after a state snapshot
	if err := joined.StoreLogs(leader.read(t, 5, 5)); err != nil {
		t.Errorf("the first entry after a state snapshot: %v", err)
	}
}

// TestStoredSumsStay checks that marks and checksums are the ones that earlier versions have stored.
func TestStoredSumsStay(t *testing.T) {
	first := mark{}.next(entryOf(1, 1, "members"))
	if want := (mark{0xe5a7ee745d8a009d, 0xe5a7ee745d8a009c}); first != want {
		t.Errorf("the first entry of a log has the mark %#x, want %#x", first, want)
	}
	second := entryOf(2, 2, "x")
	if got, want := first.next(second), (mark{first.lineage, 0x2697bb91bf09eb14}); got != want {
		t.Errorf("the second has %#x, want %#x", got, want)
	}
	if got := sum(second, first.encode()); got != 0x77d881bd {
		t.Errorf("and the checksum %#x", got)
	}
}

// TestMarkOfTheTail checks when the mark of the entry stored last is used without a read of that entry: only while it
// is certain to be stored, for the entry behind it.
func TestMarkOfTheTail(t *testing.T) {
	common := []*raft.Log{entryOf(1, 1, "members")}
	ours := []*raft.Log{entryOf(2, 2, "ours"), entryOf(3, 2, "")}
	theirs := []*raft.Log{entryOf(2, 2, "theirs"), entryOf(3, 2, "")}
	stores := func(t *testing.T, r *recorder, entries ...[]*raft.Log) *recorder {
		t.Helper()
		for _, logs := range entries {
			var copies []*raft.Log // marks are written to them
			for _, l := range logs {
				own := *l
				copies = append(copies, &own)
			}
			if err := r.StoreLogs(copies); err != nil {
				t.Fatal(err)
			}
		}
		return r
	}
	at := func(t *testing.T, r *recorder, index uint64) mark {
		t.Helper()
		return decodeMark(r.read(t, index, index)[0].Extensions)
	}
	t.Run("not read", func(t *testing.T) {
		r := stores(t, marked(t), common)
		before := r.Stats().TxN
		stores(t, r, ours, []*raft.Log{entryOf(4, 2, "")})
		if n := r.Stats().TxN - before; n != 0 {
			t.Errorf("%d reads of the log to append to it", n)
		}
		if got, want := at(t, r, 4), at(t, r, 3).next(entryOf(4, 2, "")); got != want {
			t.Errorf("the mark %+v, want %+v", got, want)
		}
	})
	t.Run("replaced by a state snapshot", func(t *testing.T) {
		r, leader := stores(t, marked(t), common, ours), stores(t, marked(t), common, theirs, []*raft.Log{entryOf(4, 2, "")})
		if err := r.DeleteRange(1, 3); err != nil { // the snapshot ends at entry 3
			t.Fatal(err)
		}
		if err := r.StoreLogs(leader.read(t, 4, 4)); err != nil {
			t.Fatalf("the entry after the snapshot: %v", err)
		}
		if got, want := at(t, r, 4), at(t, leader, 4); got != want {
			t.Errorf("it has the mark %+v, the leader %+v", got, want)
		}
	})
	t.Run("after a restart", func(t *testing.T) {
		r := stores(t, marked(t), common, ours)
		again := stores(t, &recorder{BoltStore: r.BoltStore, disk: r.disk}, []*raft.Log{entryOf(4, 2, "")})
		if got, want := at(t, again, 4), at(t, r, 3).next(entryOf(4, 2, "")); got != want {
			t.Errorf("the mark %+v, want %+v", got, want)
		}
	})
	t.Run("end of the log replaced", func(t *testing.T) {
		r := stores(t, marked(t), common, ours)
		if err := r.DeleteRange(2, 3); err != nil {
			t.Fatal(err)
		}
		stores(t, r, []*raft.Log{entryOf(2, 3, "new")})
		if got, want := at(t, r, 2), at(t, r, 1).next(entryOf(2, 3, "new")); got != want {
			t.Errorf("the mark %+v, want %+v", got, want)
		}
	})
	t.Run("another write failed", func(t *testing.T) {
		r := stores(t, marked(t), common, ours)
		lost := at(t, r, 3).next(entryOf(4, 2, "lost"))
		full := errors.New("disk full")
		r.disk.cfg.Failpoint = func() error { return full }
		if err := r.StoreLog(entryOf(4, 2, "lost")); !errors.Is(err, full) {
			t.Fatal(err)
		}
		r.disk.cfg.Failpoint = nil
		stores(t, r, []*raft.Log{entryOf(5, 2, "after a gap")})
		if got := at(t, r, 5); got.lineage == lost.lineage {
			t.Errorf("the mark %+v continues an entry that is not stored", got)
		}
	})
	t.Run("removed while it was written", func(t *testing.T) {
		r := stores(t, marked(t), common, ours)
		r.disk.cfg.Failpoint = func() error {
			r.disk.cfg.Failpoint = nil
			return r.DeleteRange(1, 3) // as if by the goroutine that takes state snapshots
		}
		stores(t, r, []*raft.Log{entryOf(4, 2, "")})
		if r.last.removals == r.removals.Load() {
			t.Error("the entry counts as stored after the removal")
		}
	})
}

// FuzzMarkInCall checks that no text in a call panics, and that a mark is read as it was written.
func FuzzMarkInCall(f *testing.F) {
	f.Add([]byte("10.0.0.1:9523"))
	f.Add(mark{1, math.MaxUint64}.toCall())
	f.Fuzz(func(t *testing.T, b []byte) {
		if m := markInCall(b); m.lineage != 0 && string(m.toCall()) != string(b) {
			t.Errorf("%x is read as %+v", b, m)
		}
	})
}
