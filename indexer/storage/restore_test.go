package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"tidemark/ingest"
)

// fillVBuckets writes one document of the given size to each vbucket, and its position.
func fillVBuckets(t fataler, s *Slice, seqno uint64, size int) {
	var b Batch
	for vb := range uint16(s.meta.VBuckets) {
		b.Updates = append(b.Updates, Update{VBucket: vb, DocID: fmt.Appendf(nil, "doc-%d", vb), Seqno: seqno,
			Keys: [][]byte{fmt.Appendf(nil, "%0*d", size, seqno)}})
		b.Positions = append(b.Positions, VBPosition{VBucket: vb, Position: ingest.Position{VBUUID: 7, Main: seqno,
			Side: seqno, A: seqno}})
	}
	must(t, s.Flush(context.Background(), b))
}

// holds fails unless each vbucket is at seqno, with its document.
func holds(t fataler, s *Slice, seqno uint64) {
	t.Helper()
	snap, err := s.Snapshot()
	must(t, err)
	for vb := range uint16(s.meta.VBuckets) {
		p, _ := snap.At(vb)
		got, keys, found, err := snap.Entry(vb, fmt.Appendf(nil, "doc-%d", vb))
		must(t, err)
		if p.Main != seqno || !found || got != seqno || len(keys) != 1 {
			t.Fatalf("vbucket %d at %+v with its document of %d, %v, want %d", vb, p, got, found, seqno)
		}
	}
	if snap.Items() != int64(s.meta.VBuckets) {
		t.Fatalf("%d rows, want one of each vbucket", snap.Items())
	}
	must(t, snap.Close())
}

func allVBuckets(s *Slice) (vbs []uint16) {
	for vb := range uint16(s.meta.VBuckets) {
		vbs = append(vbs, vb)
	}
	return vbs
}

// TestRestoreOpensOnce: a checkpoint is opened once, whatever the number of vbuckets that are restored from it, and
// they are written together.
func TestRestoreOpensOnce(t *testing.T) {
	var opened atomic.Int32
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpOpen && strings.Contains(op.Path, checkpointsName) && strings.Contains(op.Path, "MANIFEST") {
			opened.Add(1)
		}
		return nil
	}))
	store := openTest(t, "data", func(o *Options) { o.FS = fs })
	m := testMeta(1)
	m.VBuckets = 1024
	slice, err := store.Create(m)
	must(t, err)
	fillVBuckets(t, slice, 10, 20)
	info, err := slice.Checkpoint(context.Background(), CheckpointMeta{})
	must(t, err)
	fillVBuckets(t, slice, 20, 20)
	opened.Store(0)
	must(t, slice.RestoreVBuckets(context.Background(), allVBuckets(slice), info.Seq))
	if n := opened.Load(); n != 1 {
		t.Errorf("the checkpoint was opened %d times for %d vbuckets, want once", n, m.VBuckets)
	}
	if n := slice.Stats().Batch; n != 3 {
		t.Errorf("batch %d after two and a restore", n)
	}
	holds(t, slice, 10)
	must(t, store.Close())
}

// TestInterruptedRestoreIsRepeatable: if a crash ends a restore in the middle, each vbucket is unchanged or restored,
// with the position of its rows; when it is repeated, the result is as without the crash.
func TestInterruptedRestoreIsRepeatable(t *testing.T) {
	fs := vfs.NewCrashableMem()
	store := openTest(t, "data", func(o *Options) { o.FS = fs })
	slice, err := store.Create(testMeta(1))
	must(t, err)
	fillVBuckets(t, slice, 10, 700<<10) // two of them are more than one write takes
	info, err := slice.Checkpoint(context.Background(), CheckpointMeta{})
	must(t, err)
	fillVBuckets(t, slice, 20, 700<<10)
	must(t, slice.Persist(context.Background()))
	to, err := slice.positionsAt(allVBuckets(slice), info.Positions)
	must(t, err)
	old, err := openPebble(store.res, slice.checkpointDir(info.Seq), slice.meta, minMemTable, true)
	must(t, err)
	from := old.view()
	done, err := slice.replaceSome(context.Background(), to, from)
	must(t, errors.Join(err, from.close(), old.close()))
	if done == 0 || done == len(to) {
		t.Fatalf("%d of %d vbuckets in one write: this is no middle", done, len(to))
	}
	must(t, slice.Persist(context.Background()))
	lost := fs.CrashClone(vfs.CrashCloneCfg{RNG: rand.New(rand.NewPCG(1, 1))})
	must(t, store.Close())

	store = openTest(t, "data", func(o *Options) { o.FS = lost })
	slice, _ = store.Slice(1)
	for vb, p := range slice.Positions() {
		if want := map[bool]uint64{true: 10, false: 20}[vb < done]; p.Main != want {
			t.Fatalf("after the crash vbucket %d is at %d, want %d", vb, p.Main, want)
		}
	}
	must(t, slice.RestoreVBuckets(context.Background(), allVBuckets(slice), info.Seq))
	holds(t, slice, 10)
	must(t, store.Close())
}

// TestCheckpointStaysWhileRead: a checkpoint that a restore reads is not removed for a newer one, but with the next.
func TestCheckpointStaysWhileRead(t *testing.T) {
	store := openTest(t, "data", func(o *Options) { o.FS, o.KeepCheckpoints = vfs.NewMem(), 1 })
	slice, err := store.Create(testMeta(1))
	must(t, err)
	next := func() (seqs []uint64) {
		_, err := slice.Checkpoint(context.Background(), CheckpointMeta{})
		must(t, err)
		for _, c := range slice.Checkpoints() {
			seqs = append(seqs, c.Seq)
		}
		return seqs
	}
	next()
	slice.readCheckpoint(1, 1)
	if got := fmt.Sprint(next()); got != "[2 1]" {
		t.Errorf("checkpoints %s while the first is read", got)
	}
	slice.readCheckpoint(1, -1)
	if got := fmt.Sprint(next()); got != "[3]" {
		t.Errorf("checkpoints %s without readers", got)
	}
	must(t, store.Close())
}

// TestUnreadableCheckpoints: a damaged checkpoint is removed, which frees its space; one of a newer version of the
// program, and one that is temporarily unreadable, stay, and are not used.
func TestUnreadableCheckpoints(t *testing.T) {
	for _, c := range []struct {
		name    string
		corrupt func(content []byte) []byte // nil: the file is removed
		fails   bool                        // it cannot be read
		stays   bool
	}{
		{"a flipped bit", func(b []byte) []byte { b[len(b)-2] ^= 1; return b }, false, false},
		{"cut short", func(b []byte) []byte { return b[:len(b)/2] }, false, false},
		{"without its file", func([]byte) []byte { return nil }, false, false},
		{"of a newer version", newer(checkpointName), false, true},
		{"with a version that is damaged", func(b []byte) []byte {
			return bytes.Replace(b, fmt.Appendf(nil, " %d ", fileVersion), fmt.Appendf(nil, " %d ", fileVersion+1), 1)
		}, false, false},
		{"that cannot be read", func(b []byte) []byte { return b }, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var bad atomic.Bool
			fs := brokenOps(func(op errorfs.Op) bool {
				return op.Kind == errorfs.OpOpen && strings.HasSuffix(op.Path, "/1/"+checkpointName)
			}, &bad)
			store := openTest(t, "data", func(o *Options) { o.FS = fs })
			s, err := store.Create(testMeta(1))
			must(t, err)
			for seqno := range uint64(2) {
				fillVBuckets(t, s, seqno+1, 10)
				_, err := s.Checkpoint(t.Context(), CheckpointMeta{})
				must(t, err)
			}
			dir := s.checkpointDir(1)
			must(t, store.Close())
			path := fs.PathJoin(dir, checkpointName)
			content, err := readFile(fs, path)
			must(t, err)
			if content = c.corrupt(content); content == nil {
				must(t, fs.Remove(path))
			} else {
				must(t, writeSynced(fs, path, content))
			}
			bad.Store(c.fails)
			store = openTest(t, "data", func(o *Options) { o.FS = fs })
			s, _ = store.Slice(1)
			if all := s.Checkpoints(); len(all) != 1 || all[0].Seq != 2 || exists(fs, dir) != c.stays {
				t.Errorf("used are %d checkpoints, and its folder is there: %v, want 1, %v", len(all), exists(fs, dir), c.stays)
			}
			info, err := s.Checkpoint(t.Context(), CheckpointMeta{})
			if err != nil || info.Seq != 3 {
				t.Errorf("the next one: %d, %v", info.Seq, err)
			}
			must(t, store.Close())
		})
	}
}
