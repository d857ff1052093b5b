// Package need is for tests that want something of the machine: a tool, a right. Without it they are skipped on a
// developer's machine, and fail in CI, so that a green run there never hides a part that nobody tried.
package need

import (
	"os"
	"os/exec"
	"testing"
)

// Missing skips the test, or fails it where the environment variable CI is "true". It says what is missing.
func Missing(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// Tool gives the path of the first of the programs that is installed; pkg is Debian's package that has them.
func Tool(t testing.TB, pkg string, names ...string) string {
	t.Helper()
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	Missing(t, "%v: not installed; Debian's package is %s", names, pkg)
	return ""
}
