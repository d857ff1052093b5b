package indexer

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/scan"
	"tidemark/indexer/scanserver"
	"tidemark/manager/api/v1"
	"tidemark/partition"
)

// TestCopiesRemovedDuringAScan drops the index of a scan, or moves its copy away, after the scan's first row.
// The scan still returns all rows of its snapshot in order. A scan without stability continues with another copy, or
// fails at its next page because there is no such index. A timestamp that was kept for the index is not valid for
// another one. The files are removed when they have no readers any more.
func TestCopiesRemovedDuringAScan(t *testing.T) {
	t.Parallel()
	const rows = scan.PageRows + 2000
	for _, tc := range []struct {
		name string
		stay []index.CopyID // the others are dropped
		body v1.ScanRequest
		want errcode.Code // code of the error
	}{
		{"dropped, scan", []index.CopyID{20}, v1.ScanRequest{}, ""},
		{"dropped, query", []index.CopyID{20}, v1.ScanRequest{Stability: "query"}, ""},
		{"dropped, none", []index.CopyID{20}, v1.ScanRequest{Stability: "none"}, "INDEX_NOT_HOSTED"},
		{"moved, scan", []index.CopyID{11, 20}, v1.ScanRequest{}, ""},
		{"moved, none", []index.CopyID{11, 20}, v1.ScanRequest{Stability: "none"}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := goStraight(t, long(rows), func(s *straight) {
				s.place = func(c *partition.Copy) { c.Replica = partition.Replica(c.ID % 10) }
				// the client does not read while copies come and go
				s.tune = func(o *scanserver.Options) { o.ClientStall = time.Hour }
			})
			if err := s.define(10, 20); err != nil {
				t.Fatal(err)
			}
			s.begin(nil)
			s.promote(t.Context())
			s.held(10, 20)
			c := client.New(s.manager.URL)
			defer c.Close()
			all := s.begun(t.Context(), c, tc.body)
			s.places(1)
			if len(tc.stay) > 1 { // the copy that takes over
				if err := s.define(10, 11, 20); err != nil {
					t.Fatal(err)
				}
				s.begin(nil)
				s.promote(t.Context())
				s.held(11)
			}
			if err := s.define(tc.stay...); err != nil {
				t.Fatal(err)
			}
			s.until("copy 10 is dropped", func() bool { _, there := s.x.store.Slice(10); return !there })
			n, last := 1, all.Row().ID
			for ; all.Next(); n++ {
				if id := all.Row().ID; id <= last {
					t.Fatalf("row %d: %s after %s", n, id, last)
				} else {
					last = id
				}
			}
			if tc.want == "" {
				if end, err := all.End(); err != nil || n != rows || end.Timestamp.ID == "" {
					t.Errorf("%d rows of %d, %+v, %v", n, rows, end, err)
				}
			} else if err := all.Err(); n != scan.PageRows || code(err) != tc.want {
				t.Errorf("%d rows, %v; want %d and %s", n, err, scan.PageRows, tc.want)
			}
			if err := all.Close(); err != nil && tc.want == "" {
				t.Error(err)
			}
			s.places(0)
			s.until("its files are gone", func() bool {
				_, err := os.Stat(filepath.Join(s.dir, copiesDir, "10"))
				return errors.Is(err, os.ErrNotExist)
			})
		})
	}
}
