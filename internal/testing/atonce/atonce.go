// Package atonce sets how many tests of a package run in parallel. The default of go test, the number of cores, is
// right for tests that compute; tests that wait (for a timer, a disk, another process) leave the cores idle.
package atonce

import (
	"flag"
	"strconv"

	"tidemark/internal/testing/raced"
)

// Tests lets n tests that call t.Parallel run in parallel, unless the command line sets a number (go test -parallel).
// With the race detector, under which tests compute most of the time, the default remains the number of cores, unless
// the command line sets one, as .ci/run does. TestMain calls it before the tests run. It panics if n is not positive.
func Tests(n int) {
	if n <= 0 {
		panic("atonce: no tests at once")
	}
	if !flag.Parsed() {
		flag.Parse()
	}
	const parallel = "test.parallel"
	asked := raced.On
	flag.Visit(func(f *flag.Flag) { asked = asked || f.Name == parallel })
	if asked {
		return
	}
	if err := flag.Set(parallel, strconv.Itoa(n)); err != nil {
		panic(err) // cannot fail: the flag is a number
	}
}
