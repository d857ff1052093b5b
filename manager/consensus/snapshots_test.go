package consensus

import (
	"io"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"
)

// TestSnapshotsOfOneMillisecond: a snapshot that is sent again at once, or when the clock shows the same time again,
// is the first one; while that one is being written, the second is refused.
func TestSnapshotsOfOneMillisecond(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		files, err := raft.NewFileSnapshotStore(dir, 3, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		store, err := openSnapshots(files, raft.NewInmemStore())
		if err != nil {
			t.Fatal(err)
		}
		_, trans := raft.NewInmemTransport("")
		create := func() (raft.SnapshotSink, error) {
			return store.Create(raft.SnapshotVersionMax, 7, 2, raft.Configuration{}, 1, trans)
		}
		for range 3 {
			sink, err := create()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := create(); err == nil {
				t.Fatal("a snapshot is written twice at once")
			}
			if n, err := sink.Write([]byte("state")); n != 5 || err != nil {
				t.Fatal(n, err)
			}
			if err := sink.Close(); err != nil {
				t.Fatal(err)
			}
			_, content, err := store.Open(sink.ID())
			if err != nil {
				t.Fatal(err)
			}
			if b, err := io.ReadAll(content); string(b) != "state" || err != nil {
				t.Errorf("it has %q, %v", b, err)
			}
			if err := content.Close(); err != nil {
				t.Error(err)
			}
		}
		if all, err := store.List(); err != nil || len(all) != 1 {
			t.Errorf("%d snapshots, %v", len(all), err)
		}
		sink, err := create()
		if err != nil {
			t.Fatal(err)
		}
		if err := sink.Cancel(); err != nil {
			t.Fatal(err)
		}
		if _, err := create(); err != nil {
			t.Errorf("after one that was cancelled: %v", err)
		}
	})
}

// TestLogFollowsSnapshot: exactly the entries that a snapshot does not continue are removed from the log, even if the
// process ended between the two.
func TestLogFollowsSnapshot(t *testing.T) {
	for _, tc := range []struct {
		name               string
		first, last, term  uint64 // the log
		index, of          uint64 // the snapshot's end
		wantFirst, wantEnd uint64
	}{
		{"one of our own", 3, 9, 2, 7, 2, 3, 9},
		{"one of our own, at the end", 3, 9, 2, 9, 2, 3, 9},
		{"another term at its end", 3, 9, 2, 7, 4, 8, 9},
		{"another term at its end, which is the log's", 3, 9, 2, 9, 4, 0, 0},
		{"far behind the log", 3, 9, 2, 70, 4, 0, 0},
		{"right before the log", 8, 9, 4, 7, 4, 8, 9},
		{"no log", 0, 0, 0, 7, 4, 0, 0},
	} {
		for _, opened := range []bool{false, true} {
			files := raft.NewInmemSnapshotStore()
			log := raft.NewInmemStore()
			for i := tc.first; i <= tc.last && i > 0; i++ {
				if err := log.StoreLog(&raft.Log{Index: i, Term: tc.term}); err != nil {
					t.Fatal(err)
				}
			}
			store, err := openSnapshots(files, log)
			if err != nil {
				t.Fatal(err)
			}
			end := position{tc.index, tc.of}
			var into raft.SnapshotStore = store
			if opened {
				into = files
			}
			sink, err := into.Create(raft.SnapshotVersionMax, end.index, end.term, raft.Configuration{}, 1, nil)
			if err == nil {
				err = sink.Close()
			}
			if err == nil && opened {
				store, err = openSnapshots(files, log)
			}
			if err != nil {
				t.Fatal(err)
			}
			first, _ := log.FirstIndex() // this store returns no errors
			last, _ := log.LastIndex()
			if first != tc.wantFirst || last != tc.wantEnd || store.end() != end {
				t.Errorf("%s, opened %v: the log has %d to %d, want %d to %d", tc.name, opened, first, last, tc.wantFirst,
					tc.wantEnd)
			}
			if err := store.follow(position{1, 1}); err != nil || store.end() != end {
				t.Errorf("%s: an older snapshot is followed: %v", tc.name, err)
			}
		}
	}
}

// trimmed is a log that calls back before it removes entries.
type trimmed struct {
	*raft.InmemStore
	removing func(low, high uint64)
}

func (l trimmed) DeleteRange(low, high uint64) error {
	l.removing(low, high)
	return l.InmemStore.DeleteRange(low, high)
}

// TestEntriesBesideASnapshotAreNotCommitted checks that entries that a snapshot does not continue, while they are
// still in the log, do not count as committed, and may be removed.
func TestEntriesBesideASnapshotAreNotCommitted(t *testing.T) {
	var store *snapshots
	end, calls := position{7, 4}, 0
	log := trimmed{raft.NewInmemStore(), func(low, high uint64) {
		calls++
		if low != 3 || high != 7 || store.end() != (position{}) || *store.placed.Load() != end {
			t.Errorf("%d to %d are removed, the newest snapshot ends at %+v, the one in place at %+v", low, high, store.end(),
				*store.placed.Load())
		}
	}}
	for i := uint64(3); i <= 9; i++ {
		if err := log.StoreLog(&raft.Log{Index: i, Term: 2}); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if store, err = openSnapshots(raft.NewInmemSnapshotStore(), log); err != nil {
		t.Fatal(err)
	}
	sink, err := store.Create(raft.SnapshotVersionMax, end.index, end.term, raft.Configuration{}, 1, nil)
	if err == nil {
		err = sink.Close()
	}
	if err != nil || calls != 1 || store.end() != end {
		t.Errorf("%v, removed %d times, the newest snapshot ends at %+v", err, calls, store.end())
	}
}
