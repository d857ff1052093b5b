// Package garbage sets how often the garbage of a package's tests is collected.
package garbage

import (
	"os"
	"runtime/debug"
)

// Rarely is for tests that retain little and allocate much, and would otherwise spend a quarter to two fifths of
// their time on collections: the heap may grow to five times the live memory, unless GOGC is set. TestMain calls it
// before the tests run.
func Rarely() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
}
