package storage

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"tidemark/index"
)

// TestDamagedFolderIsRemovedConcurrently: while a damaged folder's copy is dropped, or created anew, and any step of
// that hangs, other copies are listed and created, and nothing else is done in its place.
func TestDamagedFolderIsRemovedConcurrently(t *testing.T) {
	removes := map[string]func(store *Store) error{
		"dropped": func(store *Store) error {
			gone, err := store.DropDamaged(1)
			if err == nil && !gone {
				err = ErrNotFound
			}
			return err
		},
		"made anew": func(store *Store) error {
			_, err := store.Create(testMeta(1))
			return err
		},
	}
	for what, remove := range removes {
		for step, is := range map[string]func(op errorfs.Op) bool{
			"looked for": func(op errorfs.Op) bool { return op.Kind == errorfs.OpStat && op.Path == "data/1" },
			"moved away": func(op errorfs.Op) bool { return op.Kind == errorfs.OpRename && op.Path == "data/1" },
			"being erased": func(op errorfs.Op) bool {
				return op.Kind == errorfs.OpRemoveAll && strings.Contains(op.Path, "data/1-")
			},
		} {
			if what == "dropped" && step == "looked for" {
				continue // it is listed
			}
			t.Run(what+", "+step, func(t *testing.T) { removedBeside(t, remove, is, step == "being erased") })
		}
	}
}

func removedBeside(t *testing.T, remove func(*Store) error, is func(errorfs.Op) bool, moved bool) {
	mem := vfs.NewMem()
	begun, goOn := make(chan struct{}), make(chan struct{})
	var hang atomic.Bool
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if is(op) && hang.Swap(false) {
			close(begun)
			<-goOn
		}
		return nil
	}))
	open := func() *Store { return openTest(t, "data", func(o *Options) { o.FS = fs }) }
	store := open()
	_, err := store.Create(testMeta(1))
	must(t, err)
	must(t, store.Close())
	f, err := mem.Create("data/1/"+metaName, diskCategory)
	must(t, err)
	must(t, f.Close())
	store = open()
	if len(store.Damaged()) != 1 {
		t.Fatal("the folder is not damaged")
	}
	hang.Store(true)
	ended := make(chan error)
	go func() { ended <- remove(store) }()
	<-begun
	beside := make(chan error, 1)
	go func() {
		_, err := store.Create(testMeta(2))
		beside <- err
	}()
	select {
	case err := <-beside:
		must(t, err)
		if listed := len(store.Damaged()) == 0; len(store.Slices()) != 1 || listed != moved {
			t.Errorf("meanwhile there are %d copies and %d damaged folders", len(store.Slices()), len(store.Damaged()))
		}
		if !moved {
			if _, err := store.Create(testMeta(1)); !errors.Is(err, ErrExists) {
				t.Errorf("another copy in its place: %v", err)
			}
			if gone, err := store.DropDamaged(1); gone || err != nil {
				t.Errorf("dropped beside it: %v, %v", gone, err)
			}
		}
	case <-time.After(time.Minute):
		t.Error("another copy waits for it")
		defer func() { must(t, <-beside) }()
	}
	close(goOn)
	must(t, <-ended)
	if left, err := mem.List("data"); err != nil || strings.Contains(strings.Join(left, " "), tmpSuffix) {
		t.Errorf("left: %v, %v", left, err)
	}
	must(t, store.Close())
}

// TestBallastIsCreatedConcurrently: while the ballast is being created again on a hung disk, other copies write; if
// it cannot be created, not every batch retries.
func TestBallastIsCreatedConcurrently(t *testing.T) {
	var tries atomic.Int32
	var hang atomic.Bool
	begun, goOn := make(chan struct{}), make(chan struct{})
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind != errorfs.OpCreate || !strings.HasSuffix(op.Path, ballastName) {
			return nil
		}
		if tries.Add(1); hang.Swap(false) {
			close(begun)
			<-goOn
			return syscall.EIO
		}
		return nil
	}))
	store := openTest(t, "data", func(o *Options) { o.FS = fs })
	one, err := store.Create(testMeta(1))
	must(t, err)
	two, err := store.Create(testMeta(2))
	must(t, err)
	space := store.res.space
	if !space.give() || space.give() {
		t.Fatal("there was not one ballast")
	}
	hang.Store(true)
	tries.Store(0)
	ended := make(chan error)
	go func() { ended <- one.Flush(context.Background(), historyBatch(1)) }()
	<-begun
	must(t, two.Flush(context.Background(), historyBatch(1)))
	close(goOn)
	must(t, <-ended)
	until(t, func() error {
		space.mu.Lock()
		defer space.mu.Unlock()
		if space.filling || space.refill.IsZero() {
			return errors.New("that the ballast could not be made is not known")
		}
		space.refill = time.Now().Add(time.Hour)
		return nil
	})
	must(t, one.Flush(context.Background(), historyBatch(2)))
	if n := tries.Load(); n != 1 {
		t.Errorf("tried %d times before the pause was over, want once", n)
	}
	space.mu.Lock()
	space.refill = time.Time{}
	space.mu.Unlock()
	must(t, one.Flush(context.Background(), historyBatch(3)))
	if n := tries.Load(); n != 2 || !space.give() {
		t.Errorf("tried %d times, want that it is made after the pause", n)
	}
	must(t, store.Close())
}

// TestMergesBesideAHungManifest checks that a copy that waits for its merge while its manifest hangs does not keep
// other copies from merging.
func TestMergesBesideAHungManifest(t *testing.T) {
	var hang atomic.Bool
	begun, goOn := make(chan struct{}), make(chan struct{})
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		syncs := op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData
		if syncs && strings.Contains(op.Path, "data/1/") && strings.Contains(op.Path, "MANIFEST") && hang.Swap(false) {
			close(begun)
			<-goOn
		}
		return nil
	}))
	store := openTest(t, "data", func(o *Options) { o.FS, o.Compactions = fs, 1 })
	all := store.res.compactions
	holder := &mergeable{m: all.member()}
	holder.m.db = holder // not a member: it takes a slot, and is given none
	all.mu.Lock()
	holder.m.take()
	all.mu.Unlock()
	var copies []*Slice
	for id := range index.CopyID(2) {
		s, err := store.Create(testMeta(id + 1))
		must(t, err)
		copies = append(copies, s)
		for n := range uint64(l0Threshold) {
			must(t, s.Flush(t.Context(), historyBatch(n+1)))
			must(t, s.Persist(t.Context()))
		}
	}
	until(t, func() error {
		all.mu.Lock()
		defer all.mu.Unlock()
		if all.waiting != len(copies) {
			return fmt.Errorf("%d copies wait for a merge, want %d", all.waiting, len(copies))
		}
		return nil
	})
	ended := make(chan error, 2)
	go func() {
		hang.Store(true)
		ended <- errors.Join(copies[0].Flush(t.Context(), historyBatch(100)), copies[0].Persist(t.Context()))
	}()
	<-begun
	go func() {
		holder.m.Done()
		ended <- nil
	}()
	level0 := func() int {
		levels, err := copies[1].gen.eng.(*pebbleEngine).db.SSTables()
		must(t, err)
		return len(levels[0])
	}
	deadline := time.After(time.Minute)
	for level0() >= l0Threshold {
		select {
		case <-deadline:
			close(goOn)
			t.Fatal("a copy is not merged while the manifest of another hangs")
		case <-time.After(5 * time.Millisecond):
		}
	}
	close(goOn)
	must(t, <-ended)
	must(t, <-ended)
	must(t, store.Close())
}
