package keeper

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/hashicorp/go-hclog"

	"tidemark/index"
	"tidemark/indexer/snapshots"
	"tidemark/indexer/storage"
	"tidemark/indexer/storage/storagetest"
	"tidemark/wire"
)

// TestTurns checks that each copy has one turn per period, the first within a period after the copy was first seen,
// and that the turns are spread.
func TestTurns(t *testing.T) {
	const period, rounds = 5 * time.Second, 4
	for _, copies := range []int{1, 2, 6, 7, 100, 1000} {
		now := time.Unix(1_700_000_000, 0)
		turns := newTurns(period)
		last, count, began := map[index.CopyID]time.Time{}, map[index.CopyID]int{}, now
		for ; now.Sub(began) < rounds*period; now = now.Add(period / turnsPer) {
			together := 0
			for id := index.CopyID(1); id <= index.CopyID(copies); id++ {
				if last[id].IsZero() {
					last[id] = now
				}
				if !turns.its(id, now) {
					if now.Sub(last[id]) > period+period/turnsPer {
						t.Fatalf("%d copies: number %d has had no turn for %v", copies, id, now.Sub(last[id]))
					}
					continue
				}
				together++
				count[id]++
				last[id] = now
			}
			if most := 2 + 2*copies/turnsPer; together > most {
				t.Errorf("%d copies: %d have their turn together, want at most %d", copies, together, most)
			}
		}
		for id, n := range count {
			if n < rounds-1 || n > rounds {
				t.Errorf("%d copies: number %d had %d turns in %d periods", copies, id, n, rounds)
			}
		}
		if len(count) != copies {
			t.Errorf("%d of %d copies had a turn", len(count), copies)
		}
	}
}

// TestLateTurns checks that copies that have missed their turns for long have one at once, and that the next ones are
// spread again.
func TestLateTurns(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	turns := newTurns(time.Second)
	for id := range index.CopyID(6) {
		if turns.its(id, now) {
			t.Errorf("copy %d has a turn at first sight", id)
		}
	}
	now = now.Add(10*time.Second + 300*time.Millisecond)
	for id := range index.CopyID(6) {
		if !turns.its(id, now) {
			t.Errorf("copy %d has no turn after ten periods", id)
		}
	}
	for range 10 {
		now = now.Add(100 * time.Millisecond)
		together := 0
		for id := range index.CopyID(6) {
			if turns.its(id, now) {
				together++
			}
		}
		if together > 2 {
			t.Errorf("%d of 6 copies have their turn together", together)
		}
	}
}

// TestHungCheckpointBlocksNothing checks that while the checkpoint of a copy hangs, copies still become
// durable, and the size of the bucket is still measured.
func TestHungCheckpointBlocksNothing(t *testing.T) {
	t.Parallel()
	st, one := storagetest.Open(t)
	two, err := st.Create(storage.Meta{Copy: 2, Index: 1, Bucket: "b", BucketUUID: "u", VBuckets: 2, Desc: []bool{false}})
	if err != nil {
		t.Fatal(err)
	}
	// A checkpoint waits for the set's lock, which the call below already holds.
	asking, answer := make(chan struct{}), make(chan struct{})
	held := snapshots.New(2, hclog.NewNullLogger(), func() time.Time {
		select {
		case asking <- struct{}{}:
		case <-answer:
		}
		<-answer
		return time.Now()
	})
	go held.KeepFor(wire.StabilityRef{}, time.Minute)
	<-asking
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	var measured atomic.Bool
	go func() {
		ended <- New(Options{Store: st, Snapshots: held, PersistEvery: time.Millisecond,
			Checkpoint: time.Millisecond, Skips: func(index.CopyID) bool { return false },
			Measure: func() { _, err := one.Durable(); measured.Store(err == nil) },
			Log:     hclog.NewNullLogger(), Now: time.Now}).Run(ctx)
	}()
	defer func() {
		cancel()
		close(answer)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	late := time.After(time.Minute)
	wait := func(what string, ok func() bool) {
		for !ok() {
			select {
			case <-late:
				t.Fatalf("%s", what)
			case <-time.After(time.Millisecond):
			}
		}
	}
	for round := range uint64(3) { // which copy's checkpoint waits depends on who has its turn first
		for _, s := range []*storage.Slice{one, two} {
			storagetest.FlushAt(t, s, 7, round+1)
			wait("a copy does not become durable", func() bool {
				d, err := s.Durable()
				return err == nil && d.Batch == s.Stats().Batch
			})
		}
	}
	wait("nothing is measured", measured.Load)
}

// TestHungCopyDelaysNoOther checks that while the tables of one copy cannot be written because its disk hangs, others
// become durable and get checkpoints, and that it does, too, when the disk goes on.
func TestHungCopyDelaysNoOther(t *testing.T) {
	t.Parallel()
	var hangs atomic.Bool
	held, goOn := make(chan struct{}), make(chan struct{})
	hold, free := sync.OnceFunc(func() { close(held) }), sync.OnceFunc(func() { close(goOn) })
	folder := "/" + index.CopyID(1).String() + "/"
	st, one := storagetest.OpenOn(t, errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if hangs.Load() && strings.Contains(op.Path, folder) && strings.HasSuffix(op.Path, ".sst") {
			hold()
			<-goOn
		}
		return nil
	})))
	two, err := st.Create(storage.Meta{Copy: 2, Index: 1, Bucket: "b", BucketUUID: "u", VBuckets: 2, Desc: []bool{false}})
	if err != nil {
		t.Fatal(err)
	}
	p := New(Options{Store: st, Snapshots: snapshots.New(2, hclog.NewNullLogger(), time.Now),
		PersistEvery: time.Millisecond, Checkpoint: time.Millisecond, Skips: func(index.CopyID) bool { return false },
		Measure: func() {}, Log: hclog.NewNullLogger(), Now: time.Now})
	p.patience = 10 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	defer func() {
		free()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	late := time.After(time.Minute)
	stored := func(s *storage.Slice, batch uint64) {
		t.Helper()
		for {
			d, err := s.Durable()
			all := s.Checkpoints()
			if err == nil && d.Batch >= batch && len(all) > 0 && all[0].Batch >= batch {
				return
			}
			select {
			case <-late:
				t.Fatalf("copy %s: batch %d is durable, and the checkpoints are %+v, want batch %d: %v", s.Meta().Copy, d.Batch,
					all, batch, err)
			case <-time.After(time.Millisecond):
			}
		}
	}
	hangs.Store(true)
	storagetest.FlushAt(t, one, 7, 1)
	select {
	case <-held:
	case <-late:
		t.Fatal("no table of the first copy is written")
	}
	for seqno := range uint64(3) {
		storagetest.FlushAt(t, two, 7, seqno+1)
		stored(two, two.Stats().Batch)
	}
	free()
	stored(one, one.Stats().Batch)
}

// TestSmallChangesSkipTurns checks that a copy with few changes that are not durable skips its turns, but not
// forever. A copy with more does not skip turns, and neither does any copy if there is no memory for it.
func TestSmallChangesSkipTurns(t *testing.T) {
	st, one := storagetest.Open(t)
	durable := func() bool {
		t.Helper()
		d, err := one.Durable()
		if err != nil {
			t.Fatal(err)
		}
		return d.Batch == one.Stats().Batch
	}
	now := time.Unix(1_700_000_000, 0)
	p := New(Options{Store: st, PersistEvery: time.Second, Memory: 64 << 20, Log: hclog.NewNullLogger(),
		Now: func() time.Time { return now }})
	p.begin()
	turns := func(most int) (n int) { // turns until it is durable
		for n = 0; n < most && !durable(); n++ {
			now = now.Add(p.PersistEvery)
			p.makeDurable(t.Context())
		}
		return n
	}
	for range 2 { // it is seen, and has its turn each time from now on
		now = now.Add(p.PersistEvery)
		p.makeDurable(t.Context())
	}
	for seqno := range uint64(2) {
		storagetest.FlushAt(t, one, 7, seqno+1)
		if durable() {
			t.Fatal("a batch is durable at once")
		}
		if n := turns(20); n != persistTurns+1 {
			t.Errorf("it became durable at turn %d, want %d", n, persistTurns+1)
		}
	}
	for busy := range uint64(3) { // few changes of its own, many of the bucket's
		storagetest.FlushAt(t, one, 7, 4+(busy+1)*littleChanges)
		if n := turns(20); n != 1 {
			t.Errorf("in a busy bucket it became durable at turn %d", n)
		}
	}
	storagetest.FlushAt(t, one, 7, 10*littleChanges)
	p.Memory = memoryPart // one byte each
	if n := turns(20); n != 1 {
		t.Errorf("without memory it became durable at turn %d", n)
	}
}

// TestChangesDuringATurn checks that changes that come while a copy is made durable, which may take long, count as
// changes that are not durable.
func TestChangesDuringATurn(t *testing.T) {
	st, one := storagetest.Open(t)
	p := New(Options{Store: st, PersistEvery: time.Second, Memory: 64 << 20, Log: hclog.NewNullLogger(), Now: time.Now})
	p.begin()
	storagetest.FlushAt(t, one, 7, 1)
	turn := p.persist(one)
	if err := turn.do(t.Context()); err != nil {
		t.Fatal(err)
	}
	storagetest.FlushAt(t, one, 7, 1+littleChanges)
	turn.kept()
	if p.pass(one) {
		t.Errorf("it skips its next turn after %d changes", littleChanges)
	}
}

// TestTimeOfTheNextLook checks the time of the next look: when the next copy has its turn, but soon enough that a new
// copy does not wait long.
func TestTimeOfTheNextLook(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	turns := newTurns(64 * time.Second)
	look := func(want time.Duration) {
		t.Helper()
		if got := turns.look(now); got != want {
			t.Errorf("looks again after %v, want %v", got, want)
		}
	}
	look(lookMost)
	turns.period = 6400 * time.Millisecond
	turns.due[1] = now.Add(700 * time.Millisecond)
	turns.due[2] = now.Add(2 * time.Second)
	look(700 * time.Millisecond)
	turns.due[3] = now.Add(-time.Second)
	look(100 * time.Millisecond)
}

// TestFailuresAreReportedOnce checks that a copy that cannot be kept safe is reported at the first failure, not at
// each of its turns, and again if it fails after a success.
func TestFailuresAreReportedOnce(t *testing.T) {
	var full atomic.Bool
	st, one := storagetest.OpenOn(t, errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if full.Load() && op.Kind == errorfs.OpCreate {
			return syscall.ENOSPC
		}
		return nil
	})))
	var said bytes.Buffer // the logger has a lock
	now := time.Unix(1_700_000_000, 0)
	p := New(Options{Store: st, PersistEvery: time.Second, Now: func() time.Time { return now },
		Log: hclog.New(&hclog.LoggerOptions{Output: &said})})
	p.begin()
	rounds := func() {
		for range 4 {
			now = now.Add(p.PersistEvery)
			p.makeDurable(t.Context())
		}
	}
	for seqno := range uint64(2) {
		storagetest.FlushAt(t, one, 7, seqno+1)
		full.Store(true)
		rounds()
		full.Store(false)
		for until := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // it is tried again by itself
			rounds()
			if d, err := one.Durable(); err == nil && d.Batch == one.Stats().Batch {
				break
			}
			if time.Now().After(until) {
				t.Fatal("it does not become durable")
			}
		}
	}
	if n := strings.Count(said.String(), "checkpoint of a copy cannot be stored"); n != 2 {
		t.Errorf("it is said %d times, want 2:\n%s", n, said.String())
	}
}
