package consensus

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
)

// TestVoteIsStoredAtomically: the disk fills up before any of the writes of a vote, and the store is opened again. The
// vote that is read is the previous or the new one, never the new term with the previous candidate: the library would
// grant that candidate the new term without a check.
func TestVoteIsStoredAtomically(t *testing.T) {
	for full := range 3 { // from which write on
		path := filepath.Join(t.TempDir(), "raft.db")
		writes, limit := 0, 1<<30
		open := func() *recorder {
			store, err := raftboltdb.NewBoltStore(path)
			if err != nil {
				t.Fatal(err)
			}
			disk := newDisk(&Config{Dir: filepath.Dir(path), Logger: hclog.NewNullLogger(), SlowWrite: hangsNever,
				Failpoint: func() error {
					if writes++; writes > limit {
						return syscall.ENOSPC
					}
					return nil
				}})
			return &recorder{BoltStore: store, disk: disk, stop: make(chan struct{})}
		}
		var store raft.StableStore
		vote := func(term uint64, candidate string) error { // as the library does
			if err := store.SetUint64(voteTermKey, term); err != nil {
				return err
			}
			return store.Set(voteKey, []byte(candidate))
		}
		first := open()
		store = first
		if _, err := store.GetUint64(voteTermKey); err == nil || err.Error() != "not found" {
			t.Fatalf("the library wants \"not found\", gets %v", err)
		}
		if err := vote(5, "a"); err != nil {
			t.Fatal(err)
		}
		limit = writes + full
		stored := vote(6, "b") == nil
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
		again := open()
		term, err := again.GetUint64(voteTermKey)
		candidate, err2 := again.Get(voteKey)
		got := [2]any{term, string(candidate)}
		if err != nil || err2 != nil || got != [2]any{uint64(5), "a"} && got != [2]any{uint64(6), "b"} ||
			stored != (term == 6) {
			t.Errorf("full from write %d on: the vote is read as %v (%v, %v); stored: %v", full, got, err, err2, stored)
		}
		if err := again.Close(); err != nil {
			t.Error(err)
		}
	}
}

const hangsNever = 1 << 50
