// Package need serves tests that need something of the machine: a tool, a privilege. Without it they are skipped on a
// developer's machine and fail in CI, so that a green CI run has run every test.
package need

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// Missing skips the test, or fails it if the environment variable CI is "true". The arguments describe what is
// missing.
func Missing(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// Tool returns the path of the first installed program of names; pkg is the Debian package that contains them.
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

// memoryBytes is how many bytes a file system in memory must have free, so that no test fills it.
const memoryBytes = 2 << 30

// Memory returns a folder on a file system in memory if the system has one, otherwise one as t.TempDir does. It is
// for tests that sync often, which proves nothing while the machine stays up, and that would take a disk busy with
// other work for a failing one.
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
