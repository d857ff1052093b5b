package copies

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// TestRestoresOfANode: no more than so many hold a place, whoever they are; one that does not end loses it.
func TestRestoresOfANode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const patience = time.Minute
		r, began := NewRestores(1), time.Now()
		var leave [2]func()
		for i := range leave {
			var err error
			if leave[i], err = r.enter(t.Context(), patience); err != nil {
				t.Fatal(err)
			}
		}
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := r.enter(soon, patience); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a third place: %v", err)
		}
		leave[0]()
		leave[0]()
		third, err := r.enter(t.Context(), 2*patience)
		if err != nil || time.Since(began) != time.Second {
			t.Fatalf("after one has ended: %v, at %v", err, time.Since(began))
		}
		fourth, err := r.enter(t.Context(), patience) // the other one hangs
		if err != nil || time.Since(began) != patience {
			t.Fatalf("while one hangs: %v, at %v", err, time.Since(began))
		}
		leave[1]()
		third()
		fourth()
		if !r.places.TryAcquire(r.most) || r.places.TryAcquire(1) {
			t.Error("places are lost, or given back twice")
		}
	})
}

// TestRestoreHoldsAPlace: whatever checkpoint is opened in a rollback, its bucket holds a place of the node's for it.
func TestRestoreHoldsAPlace(t *testing.T) {
	r := NewRestores(2)
	var opened, without atomic.Int32
	f := newFallenOn(t, 4, 3, errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind != errorfs.OpOpen || !strings.Contains(op.Path, "checkpoints") ||
			!strings.HasPrefix(filepath.Base(op.Path), "MANIFEST") {
			return nil
		}
		opened.Add(1)
		if r.places.TryAcquire(r.most) {
			without.Add(1)
			r.places.Release(r.most)
		}
		return nil
	})))
	f.k.node.Restores = r
	f.run(t)
	opened.Store(0)
	without.Store(0)
	f.rollBack(t)
	if opened.Load() < 3 || without.Load() > 0 {
		t.Errorf("%d checkpoints were opened, %d of them without a place", opened.Load(), without.Load())
	}
	if err := r.places.Acquire(t.Context(), r.most); err != nil { // all are given back
		t.Error(err)
	}
}
