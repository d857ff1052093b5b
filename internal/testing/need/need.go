// Package need is for tests that want something of the machine: a tool, a right. Without it they are skipped on a
// developer's machine, and fail in CI, so that a green run there never hides a part that nobody tried.
package need

import (
	"os"
	"os/exec"
	"syscall"
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

// Tool returns the path of the first of the programs that is installed; pkg is Debian's package that has them.
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

// memoryBytes is how much a file system in memory must have free, so that no test takes it for a full disk.
const memoryBytes = 2 << 30

// Memory returns a folder in memory where the system has one, else one as t.TempDir does. It is for tests that sync
// often, which proves nothing while the machine stays up, and that take a disk that others keep busy for a bad one.
func Memory(t testing.TB) string {
	const shm = "/dev/shm"
	var free syscall.Statfs_t
	if err := syscall.Statfs(shm, &free); err != nil || free.Bavail*uint64(free.Bsize) < memoryBytes {
		return t.TempDir()
	}
	dir, err := os.MkdirTemp(shm, "tidemark-test-") //nolint:usetesting // t.TempDir is not in memory
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}
