// Package garbage says how often the memory of a package's tests is collected.
package garbage

import (
	"os"
	"runtime/debug"
)

// Rarely is for tests that keep little and make much, a quarter to two fifths of whose time goes to collecting it
// otherwise: it is collected when there is five times as much as is kept, unless GOGC says otherwise. Call it from
// TestMain, before the tests run.
func Rarely() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
}
