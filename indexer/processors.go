package indexer

import (
	"os"
	"runtime"
)

// takeProcessors returns how many processors the process may use. Where it is this indexer's own, and nothing else
// was asked for, twice as many threads run Go code: Go gives a goroutine that has become runnable its turn when another
// has run for 10 ms, the operating system gives a thread that wakes its turn at once. Writers, merges of tables and
// garbage collection take all processors for seconds, and a scan passes through several goroutines of this process.
// Figures: docs/performance.md, "Session scans beside a build".
func takeProcessors(own bool) int {
	n := runtime.GOMAXPROCS(0)
	if own && os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(2 * n)
	}
	return n
}
