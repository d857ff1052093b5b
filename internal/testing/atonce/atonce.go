// Package atonce says how many tests of a package run beside each other. go test takes the number of cores, which is
// right for tests that compute; those that wait (for a timer, a disk, another process) leave the cores idle.
package atonce

import (
	"flag"
	"strconv"

	"tidemark/internal/testing/raced"
)

// Tests lets n tests that call t.Parallel run beside each other, unless the command line says how many (go test
// -parallel). With the race detector, under which tests compute most of their time, as many run as there are cores,
// unless the command line says how many, as .ci/run does. Call it from TestMain, before the tests run. It panics if n
// is not positive.
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
		panic(err) // the flag is a number
	}
}
