// Package ports gives tests TCP ports of the loopback interface that no other process on this machine uses, and keeps
// them for the test while no process listens on them. A port that was merely free a moment ago may be taken by
// another test between the end of a killed process and its restart.
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

// The ranges are below the ports that systems use for outgoing connections (from 32,768 or 49,152 on).
const (
	lowest = 10_000
	ranges = 200
	size   = 100 // ports per range

	// Size is how many ports of a range a test may use: all but the last. The process that owns the range listens on
	// the last one, so that the system releases the range when the process ends, however it ends.
	Size = size - 1
)

// Range returns the first of Size ports that the test owns until it ends.
func Range(t testing.TB) int {
	t.Helper()
	base, guard, err := reserve()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = guard.Close() })
	return base
}

// reserve returns the first port of a range that this process owns until guard is closed.
func reserve() (base int, guard net.Listener, err error) {
	first := rand.IntN(ranges)
	for i := range ranges {
		base = lowest + size*((first+i)%ranges)
		if guard, err = net.Listen("tcp", address(base+Size)); err != nil {
			continue // another process owns it
		}
		if err = allFree(base); err == nil {
			return base, guard, nil
		}
		_ = guard.Close()
	}
	return 0, nil, fmt.Errorf("none of %d ranges of %d ports from %d on is free: %w", ranges, size, lowest, err)
}

// allFree returns nil if no process listens on a port of a range: neither a program that does not use this package,
// nor one that a killed test has left for a moment.
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

// pool holds the ranges of this process from which single addresses are taken. The process keeps them until it ends.
var pool struct {
	sync.Mutex
	free   []int          // in the order of their release
	guards []net.Listener // references that keep the collector from closing them
}

// Addrs returns n addresses (127.0.0.1:port) that the test owns until it ends.
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

// Addr returns one address that the test owns until it ends.
func Addr(t testing.TB) string {
	t.Helper()
	return Addrs(t, 1)[0]
}
