package storagetest

import (
	"context"
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"tidemark/indexer/storage"
	"tidemark/ingest"
	"tidemark/timestamp"
)

// Open opens a store with copy 1, of two vbuckets, for the duration of the test.
func Open(t testing.TB) (*storage.Store, *storage.Slice) {
	t.Helper()
	return OpenOn(t, vfs.Default)
}

// OpenOn is Open on a disk.
func OpenOn(t testing.TB, disk vfs.FS) (*storage.Store, *storage.Slice) {
	t.Helper()
	st, err := storage.Open(storage.Options{Dir: t.TempDir(), CacheBytes: 4 << 20, MemTableBytes: 4 << 20, FS: disk})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// a hung disk is not waited for
		if err := st.Close(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
	s, err := st.Create(storage.Meta{Copy: 1, Index: 1, Bucket: "b", BucketUUID: "u", VBuckets: 2, Desc: []bool{false}})
	if err != nil {
		t.Fatal(err)
	}
	return st, s
}

// FlushAt sets the position of vbucket 0 of a copy from Open.
func FlushAt(t testing.TB, s *storage.Slice, uuid, seqno uint64) {
	t.Helper()
	v := timestamp.New(2)
	v.Set(0, timestamp.Position{VBUUID: uuid, Seqno: seqno})
	err := s.Flush(t.Context(), storage.Batch{Timestamp: v, Positions: []storage.VBPosition{{VBucket: 0,
		Position: ingest.Position{VBUUID: uuid, Main: seqno, Side: seqno, A: seqno},
		Log:      timestamp.FailoverLog{{VBUUID: uuid}}}}})
	if err != nil {
		t.Fatal(err)
	}
}
