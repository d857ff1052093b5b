// Package ports gives tests TCP ports of the loopback interface that nobody else on this machine uses, and that stay
// theirs while nobody listens on them: between the end of a process that was killed and its next start, a port that was
// merely free a moment ago may be taken by another test's.
package ports

import (
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"
)

// The ranges. They lie below the ports that systems give to connections (32,768 and up, or 49,152 and up).
const (
	lowest = 10_000
	ranges = 200
	size   = 100 // ports of a range

	// Size is how many ports of a range a test may use: all but the last, on which the process that has the range listens,
	// so that the system itself takes it back when that process ends, however it ends.
	Size = size - 1
)

// Range returns the first of Size ports that are the test's until it ends.
func Range(t testing.TB) int {
	t.Helper()
	base, guard, err := reserve()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = guard.Close() })
	return base
}

// reserve returns the first port of a range that this process has until guard is closed.
func reserve() (base int, guard net.Listener, err error) {
	first := rand.IntN(ranges)
	for i := range ranges {
		base = lowest + size*((first+i)%ranges)
		if guard, err = net.Listen("tcp", address(base+Size)); err != nil {
			continue // another process has it
		}
		if err = allFree(base); err == nil {
			return base, guard, nil
		}
		_ = guard.Close()
	}
	return 0, nil, fmt.Errorf("none of %d ranges of %d ports from %d on is free: %w", ranges, size, lowest, err)
}

// allFree returns nil if nobody listens on a port of a range: neither a program that knows nothing of ranges, nor what
// a killed test left behind for a moment.
func allFree(base int) error {
	for p := base; p < base+Size; p++ {
		l, err := net.Listen("tcp", address(p))
		if err != nil {
			return err
		}
		if err := l.Close(); err != nil {
			return err
		}
	}
	return nil
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// pool has the ranges of this process from which single addresses are taken. They are kept until it ends.
var pool struct {
	sync.Mutex
	free   []int          // that which was given back last comes last
	guards []net.Listener // held, so that the collector does not close them
}

// Addrs returns n addresses (127.0.0.1:port) that are the test's until it ends.
func Addrs(t testing.TB, n int) []string {
	t.Helper()
	pool.Lock()
	defer pool.Unlock()
	for len(pool.free) < n {
		base, guard, err := reserve()
		if err != nil {
			t.Fatal(err)
		}
		pool.guards = append(pool.guards, guard)
		for p := base; p < base+Size; p++ {
			pool.free = append(pool.free, p)
		}
	}
	taken := slices.Clone(pool.free[:n])
	pool.free = slices.Delete(pool.free, 0, n)
	t.Cleanup(func() {
		pool.Lock()
		defer pool.Unlock()
		pool.free = append(pool.free, taken...)
	})
	all := make([]string, n)
	for i, p := range taken {
		all[i] = address(p)
	}
	return all
}

// Addr returns one address that is the test's until it ends.
func Addr(t testing.TB) string {
	t.Helper()
	return Addrs(t, 1)[0]
}
