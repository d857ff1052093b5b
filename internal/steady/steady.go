// Package steady runs tests of what has seconds to be done: an answer before a limit of the product runs out, a connection
// that stays while somebody is slow. A machine that stands still for longer than such a limit proves nothing about it, and
// the failure is not the product's. Run notices that, and runs the test once more; a failure while the machine ran counts.
//
// It is for tests only, and never for what must hold on a machine that stands still: data, order, outcomes.
package steady

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	// tries is how often a test runs at most; the last failure counts in any case.
	tries = 20
	// look is how often the watch looks at the clock.
	look = 5 * time.Millisecond
)

// memoryBytes is how much a file system in memory must have free, so that no test takes it for a full disk.
const memoryBytes = 2 << 30

// Memory gives a folder in memory where the system has one, else one as t.TempDir does. It is for tests that sync often,
// which proves nothing while the machine stays up, and that take a disk that others keep busy for a bad one.
func Memory(t testing.TB) string {
	const shm = "/dev/shm"
	var free syscall.Statfs_t
	if err := syscall.Statfs(shm, &free); err != nil || free.Bavail*uint64(free.Bsize) < memoryBytes {
		return t.TempDir()
	}
	dir, err := os.MkdirTemp(shm, "tidemark-test-") //nolint:usetesting // t.TempDir is not in memory
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// T is the testing.TB of one try: what fails it fails the test only if the machine ran all the while.
type T struct {
	testing.TB
	ctx context.Context

	mu       sync.Mutex
	path     []string // of parts
	failed   bool
	said     []string
	cleanups []func()
}

// Run runs body, again for as long as it fails and the process stood still for longer than still in the middle of it.
func Run(t testing.TB, still time.Duration, body func(t *T)) {
	t.Helper()
	for n := 1; ; n++ {
		one := &T{TB: t}
		longest := one.run(t.Context(), body)
		failed, said := one.result()
		if !failed {
			return
		}
		if longest <= still || n == tries {
			for _, s := range said {
				t.Error(s)
			}
			t.Fatalf("try %d; the process stood still for %v at the longest", n, longest.Round(time.Millisecond))
			return
		}
		t.Logf("try %d failed (%q), but the process stood still for %v: again", n, said, longest.Round(time.Millisecond))
	}
}

// run is one try. It gives how long the process stood still at the longest.
func (t *T) run(ctx context.Context, body func(t *T)) (longest time.Duration) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t.ctx = ctx
	over, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		tick := time.NewTicker(look)
		defer tick.Stop()
		for last := time.Now(); ; {
			select {
			case <-tick.C:
			case <-over:
			}
			now := time.Now()
			longest = max(longest, now.Sub(last))
			last = now
			select {
			case <-over:
				return
			default:
			}
		}
	}()
	ended := make(chan struct{})
	go func() { // a goroutine of its own, for FailNow to end
		defer close(ended)
		defer t.clean()
		body(t)
	}()
	<-ended
	close(over)
	<-watched
	return longest
}

// clean does what was left to be done, the newest first, as package testing does: the context has ended by then.
func (t *T) clean() {
	for {
		t.mu.Lock()
		n := len(t.cleanups)
		if n == 0 {
			t.mu.Unlock()
			return
		}
		f := t.cleanups[n-1]
		t.cleanups = t.cleanups[:n-1]
		t.mu.Unlock()
		f()
	}
}

// Cleanup is done at the end of the try.
func (t *T) Cleanup(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cleanups = append(t.cleanups, f)
}

// Context ends with the try.
func (t *T) Context() context.Context { return t.ctx }

// Part is a part of the test: what it says begins with the part's name. A fatal part ends the try.
func (t *T) Part(name string, f func(t *T)) {
	t.mu.Lock()
	t.path = append(t.path, name)
	t.mu.Unlock()
	f(t)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.path = t.path[:len(t.path)-1]
}

// Failed tells whether the try has failed.
func (t *T) Failed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failed
}

// Fail fails the try.
func (t *T) Fail() { t.say("") }

// FailNow fails the try and ends it.
func (t *T) FailNow() {
	t.Fail()
	runtime.Goexit()
}

// Error fails the try.
func (t *T) Error(args ...any) { t.say(fmt.Sprintln(args...)) }

// Errorf fails the try.
func (t *T) Errorf(format string, args ...any) { t.say(fmt.Sprintf(format, args...)) }

// Fatal fails the try and ends it.
func (t *T) Fatal(args ...any) {
	t.say(fmt.Sprintln(args...))
	runtime.Goexit()
}

// Fatalf fails the try and ends it.
func (t *T) Fatalf(format string, args ...any) {
	t.say(fmt.Sprintf(format, args...))
	runtime.Goexit()
}

// result is what the try has come to. What a goroutine that outlives it says later is of no try.
func (t *T) result() (failed bool, said []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failed, slices.Clone(t.said)
}

func (t *T) say(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failed, t.said = true, append(t.said, strings.Join(append(slices.Clone(t.path), text), ": "))
}
