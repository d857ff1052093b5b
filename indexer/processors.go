package indexer

import (
	"os"
	"runtime"
)

// overcommit is how many threads run Go code for each processor where the process is this indexer alone. Go gives a
// goroutine that has become runnable its turn when another has run for 10 ms; the operating system gives a thread that
// wakes its turn at once. Builds, merges of tables and garbage collection take all processors for seconds, and a scan
// passes through several goroutines of this process: with one thread for each processor it waits for one of them each
// time. What is measured: docs/performance.md, "Session scans beside a build".
const overcommit = 3

// takeProcessors returns how many processors the process may use, and lets the operating system share them out where
// the process is its own and nothing else was asked for.
func takeProcessors(own bool) int {
	n := runtime.GOMAXPROCS(0)
	if own && os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(overcommit * n / 2)
	}
	return n
}
