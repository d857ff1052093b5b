package indexer

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"tidemark/index"
	"tidemark/indexer/storage"
	"tidemark/wire"
)

// TestHealthTellsOfAWriteThatDoesNotEnd: and no more when it has ended.
func TestHealthTellsOfAWriteThatDoesNotEnd(t *testing.T) {
	k := testBucketLoop(t)
	_, s := openStore(t)
	going := make(chan struct{})
	done := make(chan outcome, 1)
	source := copySource + s.Meta().Copy.String()
	go func() {
		done <- k.persistentlyWithin(t.Context(), s, time.Millisecond, func() error { <-going; return nil })
	}()
	for k.x.health.all()[source] == "" {
		select {
		case <-t.Context().Done():
			t.Fatal("the node's health says nothing")
		case <-k.x.report:
		}
	}
	close(going)
	if o := <-done; o.missing || o.again != nil || k.x.health.get() != "" {
		t.Errorf("%+v, health %q", o, k.x.health.get())
	}
}

// TestStopWithin: an orderly stop waits for what is under way, but not for ever.
func TestStopWithin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := errors.New("failed")
		ctx, cancel := context.WithCancel(t.Context())
		if err := stopWithin(ctx, time.Second, func() error { time.Sleep(time.Hour); return failed }); !errors.Is(err,
			failed) {
			t.Errorf("it ended by itself: %v", err)
		}
		cancel()
		if err := stopWithin(ctx, time.Second,
			func() error { time.Sleep(999 * time.Millisecond); return failed }); !errors.Is(err, failed) {
			t.Errorf("it ended in time: %v", err)
		}
		began := time.Now()
		if err := stopWithin(ctx, time.Second, func() error { time.Sleep(time.Hour); return nil }); !errors.Is(err,
			ErrHangs) || time.Since(began) != time.Second {
			t.Errorf("%v after %s, want ErrHangs after 1s", err, time.Since(began))
		}
		part, fail := context.WithCancelCause(t.Context()) // a part of the whole has failed, without a signal
		fail(failed)
		began = time.Now()
		if err := stopWithin(part, time.Second, func() error { time.Sleep(time.Hour); return nil }); !errors.Is(err,
			ErrHangs) || !errors.Is(err, failed) || time.Since(began) != time.Second {
			t.Errorf("%v after %s, want ErrHangs and why after 1s", err, time.Since(began))
		}
		time.Sleep(time.Hour) // what was given up ends here, the bubble with it
	})
}

// TestComesBack: a copy that was never whole catches up at the rate of others that come back when it is not new and its
// index is ready elsewhere. Else a build waits for it.
func TestComesBack(t *testing.T) {
	_, s := openStore(t)
	m := s.Meta()
	d := func(state index.State) *wire.Definitions {
		return &wire.Definitions{Indexes: []index.Definition{{ID: m.Index, State: state},
			{ID: m.Index + 1, State: index.Backfill}}}
	}
	for _, c := range []struct {
		what string
		old  bool
		defs *wire.Definitions
		ids  []index.CopyID
		want bool
	}{
		{"killed before it was stored as whole", true, d(index.Maintenance), []index.CopyID{m.Copy}, true},
		{"new", false, d(index.Maintenance), []index.CopyID{m.Copy}, false},
		{"its index is being built", true, d(index.Backfill), []index.CopyID{m.Copy}, false},
		{"beside one that is not here", true, d(index.Maintenance), []index.CopyID{m.Copy, m.Copy + 1}, false},
		{"its index is gone", true, &wire.Definitions{}, []index.CopyID{m.Copy}, false},
		{"none", true, d(index.Maintenance), nil, false},
	} {
		x := &Indexer{old: map[index.CopyID]bool{m.Copy: c.old, m.Copy + 1: c.old}}
		k := &bucket{x: x, slices: map[index.CopyID]*storage.Slice{m.Copy: s}}
		if got := x.comesBack(k, c.ids, c.defs); got != c.want {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
	}
}
