package storage

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"pgregory.net/rapid"

	"tidemark/ingest"
	"tidemark/internal/testing/garbage"
	"tidemark/internal/testing/raced"
	"tidemark/timestamp"
)

const childVariable = "TIDEMARK_STORAGE_CHILD"

// TestMain also runs the process that is to be killed.
func TestMain(m *testing.M) {
	if dir := os.Getenv(childVariable); dir != "" {
		if err := writeUntilKilled(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	checks := "60"
	if raced.On {
		checks = "15"
	}
	if err := flag.Set("rapid.checks", checks); err != nil { // the command line overrides it
		panic(err)
	}
	garbage.Rarely()
	os.Exit(m.Run())
}

// historyBatch returns batch n of a fixed history: few documents, often overwritten, deletions, several keys, old
// seqnos.
func historyBatch(n uint64) Batch {
	r := rand.New(rand.NewPCG(11, n))
	var b Batch
	for i := range 1 + r.IntN(80) {
		d := r.IntN(300)
		// Each version has a seqno of its own; some come late.
		u := Update{VBucket: uint16(d % testVBuckets), DocID: fmt.Appendf(nil, "doc%03d", d), Seqno: n*1000 + uint64(i)}
		if r.IntN(5) == 0 {
			u.Seqno -= 500 + 1000*uint64(r.IntN(int(min(n, 4))))
		}
		for range r.IntN(4) {
			u.Keys = append(u.Keys, testKey(r.IntN(60)))
		}
		b.Updates = append(b.Updates, u)
	}
	if n == 60 { // much at once, so that there are tables of many blocks
		for d := range 1500 {
			b.Updates = append(b.Updates, Update{VBucket: 3, DocID: fmt.Appendf(nil, "many%05d", d), Seqno: 60_000_000,
				Keys: [][]byte{fmt.Appendf(nil, "%030d\x00", d)}})
		}
	}
	for range 1 + r.IntN(3) {
		p := ingest.Position{VBUUID: 5, Side: n, Main: n * 10, A: n / 2, Floor: n / 3, WindowEnd: n*10 + 3}
		b.Positions = append(b.Positions, VBPosition{VBucket: uint16(r.IntN(testVBuckets)), Position: p,
			Log: timestamp.FailoverLog{{VBUUID: 5, Seqno: n}}})
	}
	if n%3 == 0 {
		b.Timestamp = timestamp.New(testVBuckets)
		for v := range testVBuckets {
			b.Timestamp.Set(v, timestamp.Position{VBUUID: 5, Seqno: n})
		}
	}
	b.KeepTombstones = func(vb uint16) bool { return vb == 2 }
	return b
}

// checkHistory fails unless the slice is exactly at some batch, and returns that batch.
func checkHistory(t fataler, s *Slice) uint64 {
	t.Helper()
	n := s.Stats().Batch
	m := newModel()
	var log timestamp.FailoverLog
	var stable timestamp.Vector
	for i := uint64(1); i <= n; i++ {
		b := historyBatch(i)
		m.apply(b)
		for _, p := range b.Positions {
			if p.VBucket == 1 {
				log = p.Log
			}
		}
		if b.Timestamp.Len() > 0 {
			stable = b.Timestamp
		}
	}
	m.sameSlice(t, s)
	if !s.Logs()[1].Equal(log) {
		t.Fatalf("log of vbucket 1 is %v, want %v", s.Logs()[1], log)
	}
	got, exact := s.Timestamp()
	if stable.Len() > 0 && (!got.Equal(stable) || exact != (n%3 == 0)) {
		t.Fatalf("after batch %d at timestamp %v exact %v, want %v", n, got, exact, stable)
	}
	return n
}

func writeUntilKilled(dir string) error {
	s, err := Open(Options{Dir: dir, CacheBytes: 8 << 20, MemTableBytes: 8 << 20})
	if err != nil {
		return err
	}
	slice, ok := s.Slice(1)
	if !ok {
		if slice, err = s.Create(testMeta(1)); err != nil {
			return err
		}
	}
	for n := slice.Stats().Batch + 1; ; n++ {
		if err := slice.Flush(context.Background(), historyBatch(n)); err != nil {
			return err
		}
		if n%17 == 0 {
			if err := slice.Persist(context.Background()); err != nil {
				return err
			}
			d, err := slice.Durable()
			if err != nil {
				return err
			}
			fmt.Println("durable", d.Batch)
		}
		if n%97 == 0 {
			if _, err := slice.Checkpoint(context.Background(), CheckpointMeta{Number: n}); err != nil {
				return err
			}
		}
		fmt.Println("applied", n)
	}
}

// TestKilled kills a writing process again and again: the store is then in the state after one of its batches,
// reports which, and is no older than what was reported as durable.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	before := uint64(0)
	for round := range 6 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childVariable+"="+dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var applied, durable uint64
		stopAt := before + uint64(60+37*round)
		for sc := bufio.NewScanner(out); sc.Scan(); {
			word, number, _ := strings.Cut(sc.Text(), " ")
			n, err := strconv.ParseUint(number, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			if word == "durable" {
				durable = n
			} else if applied = n; n >= stopAt {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		_ = cmd.Wait() // it was killed
		s := openTest(t, dir)
		slice, ok := s.Slice(1)
		if !ok {
			t.Fatal("the copy is gone")
		}
		if r := slice.Recovery(); r.Outcome != Intact {
			t.Fatalf("%v: %v", r.Outcome, r.Cause)
		}
		before = checkHistory(t, slice)
		if before < durable {
			t.Fatalf("reopened at batch %d, %d was durable", before, durable)
		}
		t.Logf("killed after %d, durable %d, reopened at %d with %d checkpoints", applied, durable, before,
			len(slice.Checkpoints()))
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPowerLoss cuts the power at any moment: what was not synced may exist or not.
func TestPowerLoss(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fs := vfs.NewCrashableMem()
		open := func(o *Options) { o.FS = fs }
		store := openTest(t, "data", open)
		slice, err := store.Create(testMeta(1))
		must(t, err)
		var durable uint64
		steps := rapid.IntRange(1, 40).Draw(t, "steps")
		for n := uint64(1); n <= uint64(steps); n++ {
			must(t, slice.Flush(context.Background(), historyBatch(n)))
			switch rapid.IntRange(0, 6).Draw(t, "then") {
			case 0:
				must(t, slice.Persist(context.Background()))
				d, err := slice.Durable()
				must(t, err)
				durable = d.Batch
			case 1:
				_, err := slice.Checkpoint(context.Background(), CheckpointMeta{Number: n})
				must(t, err)
				durable = n
			case 2:
				if _, err := slice.eng().rotate(); err != nil {
					t.Fatalf("%v", err)
				}
			}
		}
		lost := fs.CrashClone(vfs.CrashCloneCfg{
			UnsyncedDataPercent: rapid.SampledFrom([]int{0, 50, 100}).Draw(t, "unsynced"),
			RNG:                 rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1)),
		})
		must(t, store.Close())
		fs = lost
		store = openTest(t, "data", open)
		slice, ok := store.Slice(1)
		if !ok {
			t.Fatalf("the copy is gone: %v", store.Damaged())
		}
		if r := slice.Recovery(); r.Outcome != Intact {
			t.Fatalf("%v: %v", r.Outcome, r.Cause)
		}
		if n := checkHistory(t, slice); n < durable {
			t.Fatalf("at batch %d, %d was durable", n, durable)
		}
		for _, c := range slice.Checkpoints() {
			must(t, slice.Restore(c.Seq))
			n := checkHistory(t, slice)
			stable, exact := slice.Timestamp()
			if n != c.Batch || exact != c.Exact || !stable.Equal(c.Stable) || !slice.Logs()[1].Equal(c.Logs[1]) {
				t.Fatalf("checkpoint %d is at batch %d, it says %+v", c.Seq, n, c)
			}
		}
		must(t, store.Close())
	})
}

// TestPowerLossInCreate cuts the power before each write that creating a store and a copy in it makes. The store then
// opens, with or without the copy, which may be reported as emptied while it was incomplete; and the copy can be
// created and written durably.
func TestPowerLossInCreate(t *testing.T) {
	type cut struct {
		before string
		fs     *vfs.MemFS
	}
	var cuts []cut
	mem := vfs.NewCrashableMem()
	lose := func(before string) {
		for i, percent := range []int{0, 50, 100} {
			n := uint64(len(cuts) + i)
			cuts = append(cuts, cut{fmt.Sprintf("%s, %d%% of what was not synced", before, percent),
				mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(3, n))})})
		}
	}
	var mu sync.Mutex // the engine writes from several goroutines
	open := func(fs vfs.FS, write func(op errorfs.Op)) *Store {
		return openTest(t, "data", func(o *Options) {
			o.FS = errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if strings.Contains(op.Path, ballastName) {
					return syscall.ENOSPC // most of what would have to be copied
				}
				if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
					write(op)
				}
				return nil
			}))
		})
	}
	store := open(mem, func(op errorfs.Op) {
		mu.Lock()
		defer mu.Unlock()
		lose(fmt.Sprintf("%v %s", op.Kind, op.Path))
	})
	_, err := store.Create(testMeta(1))
	must(t, err)
	mu.Lock()
	made := len(cuts)
	lose("nothing")
	mu.Unlock()
	must(t, store.Close())
	for i, c := range cuts {
		store := open(c.fs, func(errorfs.Op) {})
		slice, there := store.Slice(1)
		switch {
		case there && slice.Recovery().Outcome != Intact && (i >= made || slice.Recovery().Outcome != Emptied):
			t.Fatalf("power lost before %s: %v: %v", c.before, slice.Recovery().Outcome, slice.Recovery().Cause)
		case len(store.Damaged()) != 0:
			t.Fatalf("power lost before %s: %v", c.before, store.Damaged())
		case !there && i >= made:
			t.Fatalf("power lost before %s: the copy is gone", c.before)
		case !there:
			slice, err = store.Create(testMeta(1))
			must(t, err)
		}
		must(t, slice.Flush(t.Context(), historyBatch(1)))
		must(t, store.Close())
		store = open(c.fs, func(errorfs.Op) {})
		if slice, there = store.Slice(1); !there || checkHistory(t, slice) != 1 {
			t.Fatalf("power lost before %s: what was written afterwards is gone", c.before)
		}
		must(t, store.Close())
	}
	if made < 3*20 {
		t.Errorf("%d cuts in the making of a copy, which writes more often than that", made)
	}
}

// eng returns the engine of an open slice.
func (s *Slice) eng() *pebbleEngine { return s.gen.eng.(*pebbleEngine) }

// TestNewCopyHasItsFormatFromTheStart: a new copy's folder has its format from the start. Pebble's own way through
// each of its formats creates and syncs a file for each, and building ten indexes creates sixty copies.
func TestNewCopyHasItsFormatFromTheStart(t *testing.T) {
	fs := vfs.NewMem()
	store := openTest(t, "data", func(o *Options) { o.FS = fs })
	slice, err := store.Create(testMeta(1))
	must(t, err)
	names, err := fs.List(slice.gen.dir)
	must(t, err)
	var formats []string
	for _, name := range names {
		if strings.HasPrefix(name, "marker.format-version.") {
			formats = append(formats, name)
		}
	}
	if want := fmt.Sprintf("marker.format-version.000001.%03d", formatVersion); !slices.Equal(formats, []string{want}) {
		t.Errorf("the folder has %v, want %s", formats, want)
	}
	must(t, store.Close())
}

// build creates a store with a checkpoint at batch 30 and batches up to 60, all flushed, and closes it.
func build(t fataler, fs vfs.FS) {
	store := openTest(t, "data", func(o *Options) { o.FS = fs })
	slice, err := store.Create(testMeta(1))
	must(t, err)
	for n := uint64(1); n <= 60; n++ {
		must(t, slice.Flush(context.Background(), historyBatch(n)))
		if n == 30 {
			_, err := slice.Checkpoint(context.Background(), CheckpointMeta{Number: n})
			must(t, err)
		}
	}
	must(t, slice.Persist(context.Background()))
	must(t, store.Close())
}

func walk(t fataler, fs vfs.FS, dir string) (files []string) {
	names, err := fs.List(dir)
	must(t, err)
	for _, name := range names {
		path := fs.PathJoin(dir, name)
		info, err := fs.Stat(path)
		must(t, err)
		if info.IsDir() {
			files = append(files, walk(t, fs, path)...)
		} else if info.Size() > 0 {
			files = append(files, path)
		}
	}
	return files
}

// TestFlippedBits flips one bit in one file of a store, or truncates or removes the file: opening never panics, and
// the readable data is the state after a batch; otherwise the copy is reported as damaged.
func TestFlippedBits(t *testing.T) {
	template := vfs.NewMem()
	build(t, template)
	outcomes := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		fs := vfs.NewMem()
		if _, err := vfs.Clone(template, fs, "data", "data"); err != nil {
			t.Fatalf("%v", err)
		}
		corrupt(t, fs, rapid.SampledFrom(walk(t, fs, "data")).Draw(t, "file"))
		openDamaged(t, fs, rapid.SampledFrom([]int64{-1, 1 << 30}).Draw(t, "verify"), rapid.Bool().Draw(t, "drop it"),
			outcomes)
	})
	t.Log(outcomes)
}

// TestEachMissingFile removes each file in turn; each outcome occurs.
func TestEachMissingFile(t *testing.T) {
	template := vfs.NewMem()
	build(t, template)
	outcomes := map[string]int{}
	for i, path := range walk(t, template, "data") {
		fs := vfs.NewMem()
		if _, err := vfs.Clone(template, fs, "data", "data"); err != nil {
			t.Fatal(err)
		}
		must(t, fs.Remove(path))
		openDamaged(t, fs, 1<<30, i%2 == 0, outcomes)
	}
	for _, want := range []string{Intact.String(), FromCheckpoint.String(), "folder given up"} {
		if outcomes[want] == 0 {
			t.Errorf("no run came out as %q: the test does not reach it; %v", want, outcomes)
		}
	}
}

// openDamaged opens a store with a damaged file and reads it, or recreates the copy if its folder was given up.
func openDamaged(t fataler, fs vfs.FS, verify int64, drop bool, outcomes map[string]int) {
	store := openTest(t, "data", func(o *Options) { o.ReserveBytes, o.VerifyBytes, o.FS = 1, verify, fs })
	defer func() { must(t, store.Close()) }()
	slice, ok := store.Slice(1)
	if !ok {
		if len(store.Damaged()) != 1 {
			t.Fatalf("the copy is gone without a word")
		}
		outcomes["folder given up"]++
		if d := store.Damaged()[0]; d.Copy != 1 || d.Bytes == 0 {
			t.Fatalf("the folder is reported as %+v", d)
		}
		if drop {
			other, err := store.DropDamaged(2)
			must(t, err)
			gone, err := store.DropDamaged(1)
			must(t, err)
			if other || !gone || exists(fs, "data/1") || len(store.Damaged()) != 0 {
				t.Fatalf("dropped %v, %v", other, gone)
			}
		}
		slice, err := store.Create(testMeta(1))
		must(t, err)
		checkHistory(t, slice)
		return
	}
	outcome := slice.Recovery().Outcome
	outcomes[outcome.String()]++
	if c := slice.Recovery().Cause; (outcome == Intact) != (c == nil) || c != nil &&
		!strings.Contains(c.Error(), "data/1/") {
		t.Fatalf("%v: the cause %v names no file", outcome, c)
	}
	readOrRecover(t, slice, outcomes)
}

// readOrRecover reads everything: it is correct, or damage is named and Recover repairs it.
func readOrRecover(t fataler, slice *Slice, outcomes map[string]int) {
	snap, err := slice.Snapshot()
	must(t, err)
	err = snap.Iterate(context.Background(), Range{}, false, func(_, _ []byte) error { return nil })
	for vb := uint16(0); err == nil && vb < testVBuckets; vb++ {
		err = snap.Back(context.Background(), vb, func([]byte, uint64, [][]byte) error { return nil })
	}
	must(t, snap.Close())
	var corrupt *CorruptError
	if err != nil {
		if !errors.As(err, &corrupt) || !strings.Contains(corrupt.File, "data/1/") {
			t.Fatalf("reading a damaged file gave %v", err)
		}
		outcomes["found when read"]++
		r, err := slice.Recover(context.Background(), time.Minute, nil)
		must(t, err)
		if r.Outcome == Intact {
			t.Fatalf("recovered as intact")
		}
	}
	checkHistory(t, slice)
	must(t, slice.Flush(context.Background(), historyBatch(slice.Stats().Batch+1)))
	checkHistory(t, slice)
}

// TestDamageIsFoundWhenRead: damage outside the budget of Open is found by the first read of it, named, and repaired by
// Recover.
func TestDamageIsFoundWhenRead(t *testing.T) {
	template := vfs.NewMem()
	build(t, template)
	found := 0
	for _, path := range walk(t, template, "data/1/db-1") {
		content, err := readFile(template, path)
		must(t, err)
		if !isTable(path) || len(content) < 2*blockBytes {
			continue // one block: Open itself reads it for the state
		}
		for at := 20; at < len(content); at += len(content)/6 + 1 {
			fs := vfs.NewMem()
			if _, err := vfs.Clone(template, fs, "data", "data"); err != nil {
				t.Fatal(err)
			}
			flipped := bytes.Clone(content)
			flipped[at] ^= 4
			must(t, writeSynced(fs, path, flipped))
			found += damagedRead(t, fs)
		}
	}
	if found == 0 {
		t.Fatal("no damage was found by reading: the test does not reach it")
	}
}

func damagedRead(t *testing.T, fs vfs.FS) (found int) {
	store := openTest(t, "data", func(o *Options) { o.FS, o.VerifyBytes = fs, -1 })
	defer func() { must(t, store.Close()) }()
	slice, ok := store.Slice(1)
	if !ok {
		t.Fatal(store.Damaged())
	}
	return readDamaged(t, slice)
}

// readDamaged reads everything: it is correct, or damage is named, found, and repaired.
func readDamaged(t *testing.T, slice *Slice) (found int) {
	snap, err := slice.Snapshot()
	must(t, err)
	_, err = snap.Count(context.Background(), []Range{{Low: []byte{0}}})
	for vb := uint16(0); err == nil && vb < testVBuckets; vb++ {
		err = snap.Back(context.Background(), vb, func([]byte, uint64, [][]byte) error { return nil })
	}
	must(t, snap.Close())
	if err != nil {
		if !errors.Is(err, ErrDamaged) || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), ".sst") {
			t.Fatalf("%q does not name the damaged file on one line", err)
		}
		if err := slice.Flush(context.Background(), historyBatch(61)); !errors.Is(err, ErrDamaged) {
			t.Fatalf("a batch on damaged data: %v", err)
		}
		r, err := slice.Recover(context.Background(), time.Minute, nil)
		if err != nil || r.Outcome != FromCheckpoint {
			t.Fatalf("recovered %v: %v", r.Outcome, err)
		}
		found++
	}
	checkHistory(t, slice)
	return found
}

func corrupt(t *rapid.T, fs vfs.FS, path string) {
	content, err := readFile(fs, path)
	must(t, err)
	switch rapid.IntRange(0, 9).Draw(t, "how") {
	case 0:
		must(t, fs.Remove(path))
		return
	case 1:
		content = content[:rapid.IntRange(0, len(content)-1).Draw(t, "cut")]
	default:
		content[rapid.IntRange(0, len(content)-1).Draw(t, "byte")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
	}
	f, err := fs.Create(path, diskCategory)
	must(t, err)
	if _, err := f.Write(content); err != nil {
		t.Fatalf("%v", err)
	}
	must(t, f.Close())
}
