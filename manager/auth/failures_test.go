package auth

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"tidemark/internal/testing/raced"
	"tidemark/statecontext"
)

// TestCountsAreSmallAndAge: names of the maximum header length take no memory for their text, and old failures take
// none at all.
func TestCountsAreSmallAndAge(t *testing.T) {
	now := time.UnixMilli(1_000_000)
	f := newFailures([32]byte{1}, func() time.Time { return now })
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for i := range maxCounted {
		if err := f.take(fmt.Sprint(i, strings.Repeat("x", 32<<10)), userBurst, userPause); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 100 {
		if err := f.take(fmt.Sprint("one more ", i), userBurst, userPause); err != nil || len(f.of) > maxCounted {
			t.Fatalf("%v; %d are counted, want %d at most", err, len(f.of), maxCounted)
		}
	}
	if grown := int64(heap()) - int64(before); grown > 16<<20 && !raced.On || len(f.of) != maxCounted {
		t.Errorf("%d counts take %d bytes", len(f.of), grown)
	}
	now = now.Add(userPause * userBurst)
	now = now.Add(sweepEvery)
	if err := f.take("somebody", userBurst, userPause); err != nil || len(f.of) != 1 {
		t.Errorf("%v; %d are counted whose failures were long ago", err, len(f.of)-1)
	}
}

// TestSessionsAreThrottled: a user who begins session after session has to wait; other users do not, and wrong
// passwords are counted separately.
func TestSessionsAreThrottled(t *testing.T) {
	w := newWorld(t)
	w.user("root", statecontext.UserAdmin, "correct horse")
	w.user("ann", statecontext.UserReads, "battery staple")
	ann, err := w.ask("ann/battery staple")
	if err != nil {
		t.Fatal(err)
	}
	root, err := w.ask("root/correct horse")
	if err != nil {
		t.Fatal(err)
	}
	many := func(want int) {
		t.Helper()
		for i := range want {
			if wait := w.a.BeginSession(ann); wait != 0 {
				t.Fatalf("session %d waits %s", i, wait)
			}
		}
		for range 3 {
			if wait := w.a.BeginSession(ann); wait != sessionPause {
				t.Fatalf("one too many waits %s", wait)
			}
		}
	}
	many(sessionBurst)
	w.now = w.now.Add(2 * sessionPause)
	many(2)
	if wait := w.a.BeginSession(root); wait != 0 {
		t.Errorf("another user waits %s", wait)
	}
	if len(w.a.failures.of) != 0 || len(w.a.begun.of) != 2 {
		t.Errorf("%d failures, sessions of %d", len(w.a.failures.of), len(w.a.begun.of))
	}
}

// TestTurns: an address with many waiting attempts lets another address go first; a cancelled attempt takes no slot.
func TestTurns(t *testing.T) {
	q := newTurns(1)
	if err := q.enter(t.Context(), "first"); err != nil {
		t.Fatal(err)
	}
	come := make(chan string)
	wait := func(ctx context.Context, address string, waiting int) {
		go func() {
			if err := q.enter(ctx, address); err != nil {
				address = "gave up"
			}
			come <- address
		}()
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // until it waits
			q.mu.Lock()
			n := q.waiting
			q.mu.Unlock()
			if n == waiting {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%d wait, want %d", n, waiting)
			}
		}
	}
	ctx, giveUp := context.WithCancel(t.Context())
	wait(ctx, "flood", 1)
	for i := range 20 {
		wait(t.Context(), "flood", i+2)
	}
	wait(t.Context(), "a", 22)
	wait(t.Context(), "b", 23)
	giveUp()
	if got := <-come; got != "gave up" {
		t.Fatal(got)
	}
	var order []string
	for range 22 {
		q.leave()
		order = append(order, <-come)
	}
	if got := strings.Join(order[:4], " "); got != "flood a b flood" || order[21] != "flood" {
		t.Errorf("%v", order)
	}
	q.leave()
	if q.free != 1 || q.waiting != 0 || len(q.queues)+len(q.order) != 0 {
		t.Errorf("%+v", q)
	}
}

// TestTurnsAreBounded: when the maximum number of logins wait, the next one is refused at once, from any address.
func TestTurnsAreBounded(t *testing.T) {
	q := newTurns(1)
	if err := q.enter(t.Context(), "first"); err != nil {
		t.Fatal(err)
	}
	ctx, giveUp := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range maxWaiting {
		all.Go(func() { _ = q.enter(ctx, fmt.Sprint(i%100)) }) // cancelled
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		q.mu.Lock()
		n := q.waiting
		q.mu.Unlock()
		if n == maxWaiting {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d wait, want %d", n, maxWaiting)
		}
	}
	late, cancel := context.WithTimeout(t.Context(), time.Minute) // hang guard
	defer cancel()
	if err := q.enter(late, "one more"); !errors.Is(err, ErrTooMany) {
		t.Errorf("one more: %v", err)
	}
	giveUp()
	all.Wait()
	if q.waiting != 0 || len(q.queues)+len(q.order) != 0 {
		t.Errorf("%+v", q)
	}
}

// TestCancelledAttemptsAreCounted: attempts cancelled before verification count as failed; otherwise their number
// would be unlimited.
func TestCancelledAttemptsAreCounted(t *testing.T) {
	w := newWorld(t)
	for range hashesAtOnce {
		if err := w.a.slots.enter(t.Context(), "busy"); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for i := range userBurst {
		if err := w.a.tryPassword(ctx, "10.0.0.1", "root", fmt.Sprint(i), nil); !errors.Is(err, context.Canceled) {
			t.Fatalf("try %d: %v", i, err)
		}
	}
	if err := w.a.tryPassword(ctx, "10.0.0.1", "root", "once more", nil); !errors.Is(err, ErrTooMany) {
		t.Errorf("no end to it: %v", err)
	}
}
