package consensus

import (
	"io"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"
)

// TestSnapshotsOfOneMillisecond: a snapshot that is sent again at once is kept beside the first.
func TestSnapshotsOfOneMillisecond(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		files, err := raft.NewFileSnapshotStore(dir, 3, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		store := &apart{SnapshotStore: files}
		for range 2 {
			sink, err := store.Create(raft.SnapshotVersionMax, 7, 2, raft.Configuration{}, 1, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := sink.Write([]byte("state")); err != nil {
				t.Fatal(err)
			}
			if err := sink.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if all, err := store.List(); err != nil || len(all) != 2 {
			t.Errorf("%d snapshots, %v", len(all), err)
		}
	})
}
