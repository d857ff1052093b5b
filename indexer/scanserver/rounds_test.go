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

// shared has rounds that request strings, and records what happens to each round.
type shared struct {
	t *testing.T
	x *rounds[string, int]

	mu       sync.Mutex
	requests []string            // by round, in order
	ended    []bool              // by round
	goOn     map[int]chan answer // by round
}

type answer struct {
	n   int
	err error
}

// newShared returns rounds in which two strings are requested together if they begin with the same letter.
func newShared(t *testing.T) *shared {
	a := &shared{t: t, goOn: map[int]chan answer{}}
	a.x = newRounds(func(ctx context.Context, _ string, q string) (int, error) {
		a.mu.Lock()
		n := len(a.requests)
		a.requests, a.ended = append(a.requests, q), append(a.ended, false)
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

// share requests q in the background. The channel receives the answer.
func (a *shared) share(ctx context.Context, q string) <-chan answer {
	came := make(chan answer, 1)
	go func() {
		n, err := a.x.share(ctx, "b", q)
		came <- answer{n, err}
	}()
	synctest.Wait()
	return came
}

// answer ends a round with the given answer.
func (a *shared) answer(round, n int, err error) {
	a.mu.Lock()
	goOn := a.goOn[round]
	a.mu.Unlock()
	goOn <- answer{n, err}
	synctest.Wait()
}

// want checks which rounds have begun.
func (a *shared) want(rounds ...string) {
	a.t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.Equal(a.requests, rounds) {
		a.t.Fatalf("requested %q, want %q", a.requests, rounds)
	}
}

// wasEnded reports whether a round's context ended before the round was answered.
func (a *shared) wasEnded(round int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ended[round]
}

// got returns what the channel has received, or that nothing has arrived yet.
func got(came <-chan answer) string {
	select {
	case s := <-came:
		return fmt.Sprint(s.n, " ", s.err)
	default:
		return "nothing"
	}
}

// over checks that no round is left.
func (a *shared) over() {
	a.t.Helper()
	synctest.Wait()
	a.x.mu.Lock()
	defer a.x.mu.Unlock()
	if len(a.x.of) > 0 {
		a.t.Errorf("%d buckets are remembered", len(a.x.of))
	}
}

// TestRoundsAreShared checks that all callers that come during a round share the next one, and get the same answer or
// the same error.
func TestRoundsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newShared(t)
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

// TestIncompatibleRequestsGetSeparateRounds checks that requests that cannot be combined run one after the other, and
// that requests for another bucket run at once.
func TestIncompatibleRequestsGetSeparateRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newShared(t)
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

// TestHungRoundDelaysTheNextBriefly checks that a round that hangs delays the next one for a moment only, and that at
// most two rounds run at a time.
func TestHungRoundDelaysTheNextBriefly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newShared(t)
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
		a.answer(1, 2, nil) // whichever of the two rounds ends
		a.want("a1", "a2", "a3")
		a.answer(2, 3, nil)
		if s := got(a3); s != "3 <nil>" {
			t.Error(s)
		}
		a4 := a.share(ctx, "a4") // the first round still hangs, but delays no caller
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

// TestRoundContinuesForRemainingCallers checks that a round continues while a caller waits for it, and a moment
// longer. A round for which no caller waits any more is not started.
func TestRoundContinuesForRemainingCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newShared(t)
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

		only, leave := context.WithCancel(t.Context())
		a.share(only, "a4")
		leave()
		time.Sleep(roundGrace - time.Nanosecond)
		synctest.Wait()
		if a.wasEnded(2) {
			t.Error("it was ended at once")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if !a.wasEnded(2) {
			t.Error("it continues without a caller")
		}
		a.over()
	})
}

// TestRoundsBeginAfterTheirRequests checks that each of many concurrent callers sees what was written before its
// request.
func TestRoundsBeginAfterTheirRequests(t *testing.T) {
	var written, requests atomic.Int64
	x := newRounds(func(_ context.Context, _ string, _ bool) (int64, error) {
		requests.Add(1)
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
	t.Logf("%d of %d requested for themselves", requests.Load(), workers*each)
}
