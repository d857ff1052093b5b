package storage

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"tidemark/ingest"
	"tidemark/timestamp"
)

// TestVerifyEnds: the verification of received files ends with its context, after any number of reads, and does not
// report damage. A second verification succeeds.
func TestVerifyEnds(t *testing.T) {
	from := openTest(t, t.TempDir())
	_, e, m := exported(t, from)
	var reads, most atomic.Int64
	var end atomic.Pointer[context.CancelFunc]
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if read := op.Kind == errorfs.OpFileRead || op.Kind == errorfs.OpFileReadAt; read && reads.Add(1) == most.Load() {
			(*end.Load())()
		}
		return nil
	}))
	store := openTest(t, "d", func(o *Options) { o.FS = fs })
	s, err := store.Create(testMeta(9))
	must(t, err)
	in, err := s.Receive(e.Source, e.Files)
	must(t, err)
	send(t, e, in, 1<<20, -1)
	for n := int64(0); ; n++ {
		ctx, cancel := context.WithCancel(t.Context())
		reads.Store(0)
		most.Store(n)
		if end.Store(&cancel); n == 0 {
			cancel()
		}
		err := in.Verify(ctx, nil)
		ended := ctx.Err() != nil
		cancel()
		if !ended {
			must(t, err)
			break
		}
		if !errors.Is(err, context.Canceled) || errors.Is(err, ErrDamaged) {
			t.Fatalf("ended at read %d: %v", n, err)
		}
		if err := s.Install(t.Context(), in); !errors.Is(err, ErrInvalid) {
			t.Fatalf("what was not checked to its end: %v", err)
		}
	}
	must(t, s.Install(t.Context(), in))
	m.sameSlice(t, s)
	must(t, store.Close())
	must(t, e.Close())
	must(t, from.Close())
}

// TestPositionOfInstalledFilesIsABatch: setting the position of installed files is a batch of its own, even if it
// cannot be made durable in time: the next batch has another number.
func TestPositionOfInstalledFilesIsABatch(t *testing.T) {
	var armed atomic.Bool
	gate := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if armed.Load() && op.Kind == errorfs.OpCreate && strings.HasSuffix(op.Path, ".sst") {
			cancel() // the batch is applied, and about to be written
			<-gate
		}
		return nil
	}))
	store := openTest(t, "d", func(o *Options) { o.FS = fs })
	s, err := store.Create(testMeta(1))
	must(t, err)
	must(t, s.Flush(t.Context(), historyBatch(1)))
	must(t, s.Persist(t.Context()))
	in := &Incoming{s: s}
	in.info.Positions = make([]ingest.Position, testVBuckets)
	in.info.Positions[2] = ingest.Position{VBUUID: 5, Main: 900_000, Side: 900_000, A: 900_000}
	in.info.Logs, in.info.Stable = make([]timestamp.FailoverLog, testVBuckets), timestamp.New(testVBuckets)
	armed.Store(true)
	if err := s.stand(ctx, in); !errors.Is(err, context.Canceled) {
		t.Errorf("on a disk that hangs: %v", err)
	}
	close(gate)
	if n := s.Stats().Batch; n != 2 || s.Positions()[2].Main != 900_000 {
		t.Errorf("it is at batch %d, at %+v", n, s.Positions()[2])
	}
	must(t, s.Flush(t.Context(), historyBatch(2)))
	if n := s.Stats().Batch; n != 3 {
		t.Errorf("the next batch is number %d, want 3", n)
	}
	must(t, store.Close())
}

// TestUnremovableCheckpointsObstructNothing: a checkpoint that cannot be removed obstructs nothing, neither now nor
// after a restart.
func TestUnremovableCheckpointsObstructNothing(t *testing.T) {
	var stuck atomic.Bool
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if stuck.Load() && op.Kind == errorfs.OpRename && strings.Contains(op.Path, checkpointsName) &&
			!strings.HasSuffix(op.Path, tmpSuffix) {
			return errors.New("busy")
		}
		return nil
	}))
	store := openTest(t, "d", func(o *Options) { o.FS = fs })
	s, err := store.Create(testMeta(1))
	must(t, err)
	for n := uint64(1); n <= 3; n++ {
		must(t, s.Flush(t.Context(), historyBatch(n)))
		_, err := s.Checkpoint(t.Context(), CheckpointMeta{})
		must(t, err)
	}
	stuck.Store(true)
	s.forgetCheckpoints()
	if all := s.Checkpoints(); len(all) > 0 {
		t.Errorf("left: %v", all)
	}
	c, err := s.Checkpoint(t.Context(), CheckpointMeta{})
	must(t, err)
	must(t, store.Close())
	store = openTest(t, "d", func(o *Options) { o.FS = fs })
	s, _ = store.Slice(1)
	d, err := s.Checkpoint(t.Context(), CheckpointMeta{})
	if must(t, err); c.Seq != 4 || d.Seq != 5 {
		t.Errorf("checkpoints %d and %d, want 4 and 5", c.Seq, d.Seq)
	}
	must(t, store.Close())
}

// TestMarkOfAnotherGeneration: batches of a copy that was restored to a checkpoint are numbered anew: an earlier
// checkpoint is not valid for its present position, even if the number is the same.
func TestMarkOfAnotherGeneration(t *testing.T) {
	store := openTest(t, t.TempDir())
	s, err := store.Create(testMeta(1))
	must(t, err)
	var seqs []uint64
	for n := uint64(1); n <= 2; n++ {
		must(t, s.Flush(t.Context(), historyBatch(n)))
		c, err := s.Checkpoint(t.Context(), CheckpointMeta{})
		must(t, err)
		seqs = append(seqs, c.Seq)
	}
	must(t, s.Restore(seqs[0]))
	must(t, s.Flush(t.Context(), historyBatch(7)))
	if s.Mark(); s.Stats().Batch != 2 || len(s.Pasts()) != 2 {
		t.Errorf("at batch %d it could go back to %d states, want 2", s.Stats().Batch, len(s.Pasts()))
	}
	must(t, store.Close())
}
