package scanserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// asking are rounds that ask for words, with what becomes of each round.
type asking struct {
	t *testing.T
	x *rounds[string, int]

	mu    sync.Mutex
	asked []string            // by round, in order
	ended []bool              // by round
	goOn  map[int]chan answer // by round
}

type answer struct {
	n   int
	err error
}

// newAsking asks for words together unless they begin with different letters.
func newAsking(t *testing.T) *asking {
	a := &asking{t: t, goOn: map[int]chan answer{}}
	a.x = newRounds(func(ctx context.Context, _ string, q string) (int, error) {
		a.mu.Lock()
		n := len(a.asked)
		a.asked, a.ended = append(a.asked, q), append(a.ended, false)
		goOn := make(chan answer, 1)
		a.goOn[n] = goOn
		a.mu.Unlock()
		select {
		case s := <-goOn:
			return s.n, s.err
		case <-ctx.Done():
			a.mu.Lock()
			defer a.mu.Unlock()
			a.ended[n] = true
			return 0, ctx.Err()
		}
	}, func(p, q string) (string, bool) { return p + " " + q, p[0] == q[0] })
	return a
}

// share asks in the background; the channel has what is answered.
func (a *asking) share(ctx context.Context, q string) <-chan answer {
	came := make(chan answer, 1)
	go func() {
		n, err := a.x.share(ctx, "b", q)
		came <- answer{n, err}
	}()
	synctest.Wait()
	return came
}

// answer ends a round.
func (a *asking) answer(round, n int, err error) {
	a.mu.Lock()
	goOn := a.goOn[round]
	a.mu.Unlock()
	goOn <- answer{n, err}
	synctest.Wait()
}

// want says which rounds have begun.
func (a *asking) want(rounds ...string) {
	a.t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.Equal(a.asked, rounds) {
		a.t.Fatalf("asked %q, want %q", a.asked, rounds)
	}
}

// wasEnded reports whether a round was ended before its answer.
func (a *asking) wasEnded(round int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ended[round]
}

// got is what has come, or that nothing has.
func got(came <-chan answer) string {
	select {
	case s := <-came:
		return fmt.Sprint(s.n, " ", s.err)
	default:
		return "nothing"
	}
}

// over checks that nothing is left.
func (a *asking) over() {
	a.t.Helper()
	synctest.Wait()
	a.x.mu.Lock()
	defer a.x.mu.Unlock()
	if len(a.x.of) > 0 {
		a.t.Errorf("%d buckets are remembered", len(a.x.of))
	}
}

// TestRoundsAreShared: who comes while a round is under way gets the answer of the next one, with all who came
// meanwhile, and an error as they do.
func TestRoundsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsking(t)
		first := a.share(t.Context(), "a1")
		a.want("a1")
		second, third := a.share(t.Context(), "a2"), a.share(t.Context(), "a3")
		a.want("a1")
		a.answer(0, 10, nil)
		a.want("a1", "a2 a3")
		if got(first) != "10 <nil>" || got(second) != "nothing" {
			t.Error("who came while the first round was under way got its answer")
		}
		fourth := a.share(t.Context(), "a4")
		a.answer(1, 11, nil)
		if s, u := got(second), got(third); s != "11 <nil>" || u != s {
			t.Errorf("the second round: %s, %s", s, u)
		}
		a.want("a1", "a2 a3", "a4")
		a.answer(2, 0, errors.New("no"))
		if s := got(fourth); s != "0 no" {
			t.Errorf("the third round: %s", s)
		}
		a.over()
	})
}

// TestRoundsOfTheirOwn: what cannot be asked for together is asked for one after the other; of another bucket, at once.
func TestRoundsOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsking(t)
		a.share(t.Context(), "a1")
		b1, a2, b2 := a.share(t.Context(), "b1"), a.share(t.Context(), "a2"), a.share(t.Context(), "b2")
		go func() { _, _ = a.x.share(t.Context(), "other", "c") }()
		synctest.Wait()
		a.want("a1", "c")
		a.answer(0, 0, nil)
		a.want("a1", "c", "b1 b2")
		a.answer(2, 2, nil)
		a.want("a1", "c", "b1 b2", "a2")
		a.answer(3, 3, nil)
		if s := strings.Join([]string{got(b1), got(b2), got(a2)}, ", "); s != "2 <nil>, 2 <nil>, 3 <nil>" {
			t.Error(s)
		}
		a.answer(1, 0, nil)
		a.over()
	})
}

// TestARoundThatHangs: it holds up the next one for a moment only, and two of them are under way at most.
func TestARoundThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsking(t)
		ctx, cancel := context.WithCancel(t.Context())
		a.share(ctx, "a1")
		a.share(ctx, "a2")
		time.Sleep(roundHolds - time.Nanosecond)
		a.want("a1")
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		a.want("a1", "a2")
		a3 := a.share(ctx, "a3")
		time.Sleep(time.Hour)
		a.want("a1", "a2")
		a.answer(1, 2, nil) // whichever ends
		a.want("a1", "a2", "a3")
		a.answer(2, 3, nil)
		if s := got(a3); s != "3 <nil>" {
			t.Error(s)
		}
		a4 := a.share(ctx, "a4") // the first one hangs still, and holds nobody up
		a.want("a1", "a2", "a3", "a4")
		cancel()
		synctest.Wait()
		if s := got(a4); s != "0 context canceled" {
			t.Error(s)
		}
		time.Sleep(roundGrace)
		a.over()
	})
}

// TestWhoLeavesEndsNothingForOthers: a round goes on while somebody waits for it, and a moment longer; one that nobody
// waits for any more is not begun.
func TestWhoLeavesEndsNothingForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsking(t)
		a1 := a.share(t.Context(), "a1")
		leaving, leave := context.WithCancel(t.Context())
		gone, stays := a.share(leaving, "a2"), a.share(t.Context(), "a3")
		b1 := a.share(leaving, "b1")
		a.answer(0, 1, nil)
		a.want("a1", "a2 a3")
		leave()
		synctest.Wait()
		if s := got(a1) + ", " + got(gone) + ", " + got(b1) + ", " + got(stays); s !=
			"1 <nil>, 0 context canceled, 0 context canceled, nothing" {
			t.Error(s)
		}
		time.Sleep(roundGrace + time.Millisecond)
		a.answer(1, 3, nil)
		if s := got(stays); s != "3 <nil>" {
			t.Error(s)
		}
		a.want("a1", "a2 a3")

		alone, leave := context.WithCancel(t.Context())
		a.share(alone, "a4")
		leave()
		time.Sleep(roundGrace - time.Nanosecond)
		synctest.Wait()
		if a.wasEnded(2) {
			t.Error("it was ended at once")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if !a.wasEnded(2) {
			t.Error("it goes on for nobody")
		}
		a.over()
	})
}

// TestRoundsAreOfAfterTheyWereAskedFor: many ask at once, and each sees what was written before.
func TestRoundsAreOfAfterTheyWereAskedFor(t *testing.T) {
	var written, asked atomic.Int64
	x := newRounds(func(_ context.Context, _ string, _ bool) (int64, error) {
		asked.Add(1)
		return written.Load(), nil
	}, func(a, b bool) (bool, bool) { return a || b, true })
	const workers, each = 16, 200
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for range each {
				mine := written.Add(1)
				if saw, err := x.share(t.Context(), "b", false); err != nil || saw < mine {
					t.Errorf("%d was written, %d seen, %v", mine, saw, err)
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d of %d asked for themselves", asked.Load(), workers*each)
}
