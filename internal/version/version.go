// Package version tells which version this binary is.
package version

import (
	"runtime"
	"runtime/debug"
)

// Number is the version of the product.
const Number = "0.1.0"

// Info is all that a binary knows of its making.
type Info struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"` // of the source; empty when the build does not know it
	Modified bool   `json:"modified,omitempty"` // the source differed from the revision
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
}

// Get tells what this binary is.
func Get() Info {
	i := Info{Version: Number, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, kv := range build.Settings {
			switch kv.Key {
			case "vcs.revision":
				i.Revision = kv.Value
			case "vcs.modified":
				i.Modified = kv.Value == "true"
			}
		}
	}
	return i
}

// Full gives version, revision where the build knows it, and the Go version.
func Full() string {
	i := Get()
	s := i.Version
	if len(i.Revision) >= 12 {
		s += " (" + i.Revision[:12] + ")"
	}
	return s + " " + i.Go
}
