package indexer

import (
	"context"
	"errors"
	"testing"
	"time"

	"tidemark/index"
	"tidemark/ingest"
)

// serve runs what the bucket's loop is told, but for handing out more.
func (w *laneWorld) serve() {
	ctx, stop := context.WithCancel(w.t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case f := <-w.k.control:
				f()
			case r := <-w.k.results:
				w.k.finish(r)
			case <-ctx.Done():
				return
			}
		}
	}()
	w.t.Cleanup(func() {
		stop()
		<-ended
	})
}

// TestToldIsWhatIsAcknowledged: the leader paces promotions by what is written, not by what was handed out.
func TestToldIsWhatIsAcknowledged(t *testing.T) {
	w := newLaneWorld(t)
	w.promote()
	w.begins()
	w.begins()
	if b, _ := w.k.report(map[index.ID]index.State{}, true); b.Heartbeat.LastNumber != 0 {
		t.Errorf("stability timestamp %d is told, and no copy has it", b.Heartbeat.LastNumber)
	}
	w.ends(1)
	w.ends(2)
	for len(w.k.under) > 0 {
		w.result()
	}
	if b, _ := w.k.report(map[index.ID]index.State{}, true); b.Heartbeat.LastNumber != 1 {
		t.Errorf("stability timestamp %d is told, all copies have 1", b.Heartbeat.LastNumber)
	}
}

// TestACopyIsLetGoOfOnce: the removal of a copy waits for what is being written to it, also when it is asked for again.
func TestACopyIsLetGoOfOnce(t *testing.T) {
	w := newLaneWorld(t)
	w.promote()
	w.begins()
	w.begins()
	w.serve()
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if err := w.k.removeCopy(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("removed while it is being written to: %v", err)
		}
		cancel()
	}
	w.ends(1)
	if err := w.k.removeCopy(t.Context(), 1); err != nil {
		t.Error(err)
	}
	w.ends(2)
}

// TestACopyThatComesAgainHoldsNothing: what was under way when a copy was removed is not counted for another one of its
// id.
func TestACopyThatComesAgainHoldsNothing(t *testing.T) {
	w := newLaneWorld(t)
	w.promote()
	w.begins()
	w.begins()
	w.serve()
	w.ends(1)
	s := w.k.slices[1]
	if err := w.k.removeCopy(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	w.k.x.snapshots.Drop(1)
	err := w.k.do(t.Context(), func() {
		if err := w.k.st.Add(ingest.Copy{ID: 1, Index: 1, Positions: s.Positions(), Logs: s.Logs()}); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	w.ends(2)
	for under := 1; under > 0; {
		if err := w.k.do(t.Context(), func() { under = len(w.k.under) }); err != nil {
			t.Fatal(err)
		}
	}
	err = w.k.do(t.Context(), func() {
		for _, st := range w.k.st.States() {
			if st.ID == 1 && st.Held.Number != 0 {
				t.Errorf("it is told to hold %+v, and has no snapshot", st.Held)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestWhoIsLetGoWaitsForNoDisk: a copy that cannot be written is let go of at once.
func TestWhoIsLetGoWaitsForNoDisk(t *testing.T) {
	w := newLaneWorld(t)
	n := w.k.lane(1)
	tries := 0
	o := w.k.toLane(t.Context(), n, func() error {
		if tries++; tries == 2 {
			n.lost.Store(true)
		}
		return errors.New("no space left")
	})
	if !o.missing || tries != 2 {
		t.Errorf("%d tries, %+v", tries, o)
	}
}

// TestACopyThatIsAway: a copy that gets files waits for what is being written to it. Meanwhile lists of definitions
// find it where it is, and wait for nothing; one that lets it go keeps it from coming back.
func TestACopyThatIsAway(t *testing.T) {
	w := newLaneWorld(t)
	w.promote()
	w.begins()
	w.begins()
	w.serve()
	here := func(id index.CopyID) (yes bool) {
		if err := w.k.do(t.Context(), func() { yes = w.k.slices[id] != nil }); err != nil {
			t.Fatal(err)
		}
		return yes
	}
	may := func() error { return nil }
	w.k.x.marks = &marks{dir: t.TempDir()}
	s := w.k.slices[1]
	if err := w.k.takeAway(t.Context(), s, func() error { return errAnew }); !errors.Is(err, errAnew) || !here(1) {
		t.Errorf("taken away against a no: %v", err)
	}
	away := make(chan error, 1)
	go func() { away <- w.k.takeAway(t.Context(), s, may) }()
	for here(1) {
		time.Sleep(time.Millisecond)
	}
	if err := w.k.addCopy(t.Context(), s, nil); err != nil || here(1) {
		t.Errorf("a list of definitions: %v, and it is added: %v", err, here(1))
	}
	select {
	case err := <-away:
		t.Fatalf("it is away while it is being written to: %v", err)
	default:
	}
	w.ends(1)
	if err := <-away; err != nil {
		t.Fatal(err)
	}
	if err := w.k.bringBack(t.Context(), s); err != nil || !here(1) {
		t.Errorf("brought back: %v, here: %v", err, here(1))
	}
	if err := w.k.takeAway(t.Context(), s, may); err != nil {
		t.Fatal(err)
	}
	if err := w.k.removeCopy(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if err := w.k.bringBack(t.Context(), s); err != nil || here(1) {
		t.Errorf("let go of while it was away, it comes back: %v", err)
	}
	w.ends(2)
}
