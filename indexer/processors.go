package indexer

import (
	"os"
	"runtime"
)

// takeProcessors returns how many processors the process may use. If the process runs this indexer alone and
// GOMAXPROCS is not set, it makes twice as many threads run Go code: the Go scheduler lets a runnable goroutine wait
// until another has run for 10 ms, while the operating system schedules a waking thread at once. Writers, merges of
// tables and garbage collection occupy all processors for seconds, and a scan passes through several goroutines of
// this process. Figures: docs/performance.md, "Session scans beside a build".
func takeProcessors(own bool) int {
	n := runtime.GOMAXPROCS(0)
	if own && os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(2 * n)
	}
	return n
}
