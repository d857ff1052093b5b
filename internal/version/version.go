// Package version tells which version this binary is.
package version

import (
	"runtime"
	"runtime/debug"
)

// Number is the version of the product.
const Number = "0.1.0"

// Full gives version, revision where the build knows it, and the Go version.
func Full() string {
	s := Number
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, kv := range info.Settings {
			if kv.Key == "vcs.revision" && len(kv.Value) >= 12 {
				s += " (" + kv.Value[:12] + ")"
			}
		}
	}
	return s + " " + runtime.Version()
}
