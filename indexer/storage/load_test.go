package storage

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"tidemark/collate"
)

// TestLoad: the entries that batches change and scans read are counted; other reads are not. During a recording, the
// leading components of their keys are kept, in ascending encoding.
func TestLoad(t *testing.T) {
	for _, desc := range []bool{false, true} {
		store := openTest(t, t.TempDir())
		meta := testMeta(1)
		meta.Desc = []bool{desc}
		slice, err := store.Create(meta)
		must(t, err)
		seqno := uint64(0)
		write := func(doc string, values ...int) {
			seqno++
			u := Update{DocID: []byte(doc), Seqno: seqno}
			for _, v := range values {
				key, err := collate.AppendComposite(nil, [][]byte{fmt.Append(nil, v)}, meta.Desc)
				must(t, err)
				u.Keys = append(u.Keys, key)
			}
			must(t, slice.Flush(t.Context(), Batch{Updates: []Update{u}}))
		}
		counted := func(what string, written, read uint64) {
			t.Helper()
			if st := slice.Stats(); st.Written != written || st.Read != read {
				t.Fatalf("%s: %d written and %d read, want %d and %d", what, st.Written, st.Read, written, read)
			}
		}
		write("a", 1, 2)
		counted("two entries", 2, 0)
		write("none")
		counted("a document without entries", 2, 0)
		write("a", 2)
		counted("one that is changed, and one removed", 4, 0)
		write("a")
		counted("the last one removed", 5, 0)
		for i := range 1000 {
			write(fmt.Sprint("doc", i), i)
		}
		counted("a thousand more", 1005, 0)
		read := func(scan bool, most int) {
			snap, err := slice.Snapshot()
			must(t, err)
			walk := snap.Rows
			if scan {
				walk = snap.Scan
			}
			rows, err := walk(t.Context(), Range{}, false)
			must(t, err)
			for most > 0 && rows.Next() {
				most--
			}
			must(t, errors.Join(rows.Close(), snap.Close()))
		}
		read(false, 2000)
		counted("read, but not by a scan", 1005, 0)
		read(true, 2000)
		counted("read whole by a scan", 1005, 1000)
		read(true, 300)
		counted("read in part", 1005, 1300)

		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		ended := make(chan error, 1)
		go func() {
			_, _, err := slice.Load(ctx, time.Hour)
			ended <- err
		}()
		for slice.load.recording.Load() == nil {
			time.Sleep(time.Millisecond)
		}
		if _, _, err := slice.Load(t.Context(), time.Millisecond); !errors.Is(err, ErrRecording) {
			t.Fatalf("a second recording: %v", err)
		}
		rec := slice.load.recording.Load()
		write("b", 7)
		write("b", 9)
		read(true, 2)
		if stop(); !errors.Is(<-ended, context.Canceled) || slice.load.recording.Load() != nil {
			t.Fatal("it goes on")
		}
		keys, of := rec.samples.Spread(10, 1000)
		if rec.seen != 4 || of != 4 {
			t.Fatalf("%d of %d are kept", of, rec.seen)
		}
		var values string
		for _, k := range keys {
			v, err := collate.Decode(nil, k)
			must(t, err)
			values += string(v) + " "
		}
		if want := map[bool]string{false: "0 1 7 9 ", true: "7 9 998 999 "}[desc]; values != want {
			t.Errorf("descending %v: %s, want %s", desc, values, want)
		}
		samples, seen, err := slice.Load(t.Context(), time.Millisecond)
		must(t, err)
		if _, of := samples.Spread(1, 1000); seen != 0 || of != 0 {
			t.Errorf("%d in a moment without any", seen)
		}
		must(t, store.Close())
	}
}
