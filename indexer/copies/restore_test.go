package copies

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/go-hclog"

	"tidemark/index"
	"tidemark/indexer/storage"
	"tidemark/ingest"
	"tidemark/timestamp"
	"tidemark/wire"
)

// fallen is a bucket whose copies hold 20 in every vbucket, with a checkpoint at 10, all on branch 7.
type fallen struct {
	k        *Bucket
	log      bytes.Buffer // of the indexer, from "warn" on
	vbuckets int
	copies   int
	id       uint64 // of the newest rollback
	dir      string // of the copies
}

func newFallen(t testing.TB, vbuckets, copies int) *fallen {
	t.Helper()
	return newFallenOn(t, vbuckets, copies, nil)
}

// newFallenOn is newFallen on a given disk; nil: the operating system's.
func newFallenOn(t testing.TB, vbuckets, copies int, disk vfs.FS) *fallen {
	t.Helper()
	f := &fallen{vbuckets: vbuckets, copies: copies}
	n := testNode(hclog.New(&hclog.LoggerOptions{Output: &f.log, Level: hclog.Warn}))
	k, err := NewBucket(n, wire.Bucket{Name: "b", UUID: "u", VBuckets: vbuckets})
	if err != nil {
		t.Fatal(err)
	}
	f.k = k
	f.dir = t.TempDir()
	st, err := storage.Open(storage.Options{Dir: f.dir, FS: disk})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		n.Snapshots.CloseAll()
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	for id := range index.CopyID(copies) {
		s, err := st.Create(storage.Meta{Copy: id + 1, Index: index.ID(id) + 1, Bucket: "b", BucketUUID: "u",
			VBuckets: vbuckets, Desc: []bool{false}})
		if err != nil {
			t.Fatal(err)
		}
		f.fill(t, s, 10)
		if _, err := s.Checkpoint(t.Context(), storage.CheckpointMeta{}); err != nil {
			t.Fatal(err)
		}
		f.fill(t, s, 20)
		k.slices[id+1] = s
		if err := k.st.Add(ingest.Copy{ID: id + 1, Index: index.ID(id) + 1, Ready: true, Positions: s.Positions(),
			Logs: s.Logs()}); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// fill writes a document to each vbucket at a seqno.
func (f *fallen) fill(t testing.TB, s *storage.Slice, seqno uint64) {
	t.Helper()
	var b storage.Batch
	for vb := range f.vbuckets {
		b.Updates = append(b.Updates, storage.Update{VBucket: uint16(vb), DocID: fmt.Appendf(nil, "doc-%d-%d", vb, seqno),
			Seqno: seqno, Keys: [][]byte{{2, byte(seqno)}}})
		b.Positions = append(b.Positions, storage.VBPosition{VBucket: uint16(vb),
			Position: ingest.Position{VBUUID: 7, Main: seqno, Side: seqno, A: seqno}, Log: timestamp.FailoverLog{{VBUUID: 7}}})
	}
	if err := s.Flush(t.Context(), b); err != nil {
		t.Fatal(err)
	}
}

// rollBack carries out the next rollback, to a branch that begins at 15: all vbuckets of all copies are restored to
// 10.
func (f *fallen) rollBack(t testing.TB) {
	t.Helper()
	f.rollBackIn(t.Context(), t)
}

func (f *fallen) rollBackIn(ctx context.Context, t testing.TB) {
	t.Helper()
	if err := f.tryRollBack(ctx); err != nil {
		t.Fatal(err)
	}
}

func (f *fallen) tryRollBack(ctx context.Context) error {
	f.id++
	log := timestamp.FailoverLog{{VBUUID: 7 + f.id, Seqno: 15}, {VBUUID: 7}}
	req := &wire.RollbackRequest{Bucket: "b", RollbackID: f.id, Incarnation: index.Incarnation{Counter: f.id}}
	for range f.vbuckets {
		req.Logs = append(req.Logs, log)
	}
	return f.k.CarryOut(ctx, req, &wire.RollbackReply{})
}

func (f *fallen) run(t testing.TB) {
	ended := make(chan error, 1)
	go func() { ended <- f.k.Run(t.Context()) }()
	t.Cleanup(func() {
		f.k.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestRollbackTogether: all vbuckets of a copy are restored by a few writes, and logged in one line.
func TestRollbackTogether(t *testing.T) {
	const vbuckets, copies = 64, 3
	f := newFallen(t, vbuckets, copies)
	var batches [copies]uint64
	for i := range batches {
		batches[i] = f.k.slices[index.CopyID(i)+1].Stats().Batch
	}
	f.run(t)
	f.rollBack(t)
	for i := range batches {
		s := f.k.slices[index.CopyID(i)+1]
		for vb, p := range s.Positions() {
			if p.Main != 10 {
				t.Fatalf("copy %d holds %+v of vbucket %d, want what the checkpoint has", i+1, p, vb)
			}
		}
		if n := s.Stats().Items; n != vbuckets {
			t.Errorf("copy %d has %d rows, want %d", i+1, n, vbuckets)
		}
		if n := s.Stats().Batch - batches[i]; n != 1 {
			t.Errorf("copy %d was put back by %d writes, want 1", i+1, n)
		}
	}
	if n := strings.Count(f.log.String(), "\n"); n != copies {
		t.Errorf("%d lines for %d copies, the first of them:\n%.500s", n, copies, &f.log)
	}
}

// TestRollbackPastADamagedCheckpoint: an unreadable checkpoint is not chosen again: the copy is restored to an older
// one, or emptied, and the rollback ends.
func TestRollbackPastADamagedCheckpoint(t *testing.T) {
	for what, damage := range map[string]func(t *testing.T, path string) bool{
		"its list of files": func(t *testing.T, path string) bool {
			return strings.HasPrefix(filepath.Base(path), "MANIFEST") && overwritten(t, path, []byte("nothing that can be read"))
		},
		"a table": func(t *testing.T, path string) bool {
			if filepath.Ext(path) != ".sst" {
				return false
			}
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			content[10] ^= 1
			return overwritten(t, path, content)
		},
		"a table that is gone": func(t *testing.T, path string) bool {
			return filepath.Ext(path) == ".sst" && os.Remove(path) == nil
		},
	} {
		t.Run(what, func(t *testing.T) {
			f := newFallen(t, 8, 2)
			for _, s := range f.k.slices { // a reopened copy is not older than 20
				if err := s.Persist(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			damaged := 0
			if err := filepath.WalkDir(f.dir, func(path string, d fs.DirEntry, err error) error {
				// of copy 1
				if err == nil && !d.IsDir() && strings.Contains(path, "/1/checkpoints/") && damage(t, path) {
					damaged++
				}
				return err
			}); err != nil || damaged == 0 {
				t.Fatalf("%d files, %v", damaged, err)
			}
			f.run(t)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second) // hang guard
			defer cancel()
			f.rollBackIn(ctx, t)
			for id, want := range map[index.CopyID]uint64{1: 0, 2: 10} {
				for vb, p := range f.k.slices[id].Positions() {
					if p.Main != want {
						t.Fatalf("copy %d holds %+v of vbucket %d, want %d", id, p, vb, want)
					}
				}
			}
			if n := len(f.k.slices[1].Checkpoints()); n != 0 {
				t.Errorf("%d checkpoints are left of the one that is damaged", n)
			}
		})
	}
}

// TestRollbackBesideAShutCopy: a rollback does not wait for a copy that cannot be opened. The copy returns when it
// can.
func TestRollbackBesideAShutCopy(t *testing.T) {
	f := newFallen(t, 8, 2)
	f.k.node.Marks = noMarks(t)
	shut := f.k.slices[1]
	if err := shut.Persist(t.Context()); err != nil {
		t.Fatal(err)
	}
	folder, away := filepath.Join(f.dir, shut.Meta().Copy.String()), filepath.Join(t.TempDir(), "away")
	if err := errors.Join(os.Rename(folder, away), os.WriteFile(folder, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := f.k.reopen(t.Context(), shut); err == nil {
		t.Fatal("a copy without a folder was opened")
	}
	f.run(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience) // hang guard
	defer cancel()
	f.rollBackIn(ctx, t)
	here := func() (here bool) {
		if err := f.k.do(ctx, func() { here = f.k.slices[1] == shut }); err != nil {
			t.Fatal(err)
		}
		return here
	}
	if here() {
		t.Error("a copy that is shut is here")
	}
	if err := errors.Join(os.Remove(folder), os.Rename(away, folder)); err != nil {
		t.Fatal(err)
	}
	for !here() {
		time.Sleep(time.Millisecond)
	}
	f.rollBackIn(ctx, t)
	for id := range index.CopyID(2) {
		for vb, p := range f.k.slices[id+1].Positions() {
			if p.Main > 15 {
				t.Fatalf("copy %d holds %+v of vbucket %d, which is on no branch", id+1, p, vb)
			}
		}
	}
}

// overwritten replaces a file by another one, because it may share its data with a current table.
func overwritten(t *testing.T, path string, content []byte) bool {
	t.Helper()
	if err := errors.Join(os.Remove(path), os.WriteFile(path, content, 0o600)); err != nil {
		t.Fatal(err)
	}
	return true
}

// BenchmarkRollback measures a rollback of all of 1,024 vbuckets of 12 copies, from the command to its answer.
func BenchmarkRollback(b *testing.B) {
	f := newFallen(b, 1024, 12)
	f.run(b)
	for b.Loop() {
		b.StopTimer()
		fell := make(chan struct{})
		f.k.calls.queue <- func() {
			for id, s := range f.k.slices {
				f.fill(b, s, 20)
				if err := f.k.st.Reopened(id, s.Positions(), s.Logs()); err != nil {
					b.Error(err)
				}
			}
			close(fell)
		}
		<-fell
		b.StartTimer()
		f.rollBack(b)
	}
}
