// Package version returns the version of this binary.
package version

import (
	"runtime"
	"runtime/debug"
)

// Number is the version of the product.
const Number = "0.1.0"

// Info describes how a binary was built.
type Info struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"` // source revision; empty if the build does not record it
	Modified bool   `json:"modified,omitempty"` // the source differed from the revision
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
}

// Get returns the description of this binary.
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

// Full returns the version, the revision if the build records it, and the Go version.
func Full() string {
	i := Get()
	s := i.Version
	if len(i.Revision) >= 12 {
		s += " (" + i.Revision[:12] + ")"
	}
	return s + " " + i.Go
}
