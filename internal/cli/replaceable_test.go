package cli

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestOnlyFilesAreReplaced checks that what is renamed to a name that the user gives does not take the place of a
// device, a pipe or a folder.
func TestOnlyFilesAreReplaced(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	if err := syscall.Mkfifo(in("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"link": "fifo", "device": os.DevNull, "dangling": "nothing", "out": "file"} {
		if err := os.Symlink(to, in(link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(in("file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{in("fifo"): "a pipe", in("link"): "a pipe", in("device"): "a device",
		os.DevNull: "a device", dir: "a folder", in("file"): "", in("new"): "", in("dangling"): "", in("out"): ""} {
		err := replaceable(path)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}

	// Whatever replaces a file asks.
	fifo := in("fifo")
	all := &contexts{}
	if err := all.write(fifo); err == nil || !strings.Contains(err.Error(), "TIDEMARK_CONTEXTS") {
		t.Errorf("contexts: %v", err)
	}
	if err := (&typedLines{history: fifo}).save(); err == nil || !strings.Contains(err.Error(), "a pipe") {
		t.Errorf("history: %v", err)
	}
	if code, _, talk := run(t, "", "cluster", "backup", fifo); code != 2 ||
		!strings.Contains(talk, "- for standard output") {
		t.Errorf("backup: exit code %d, %s", code, talk)
	}
	if info, err := os.Lstat(fifo); err != nil || info.Mode()&fs.ModeNamedPipe == 0 {
		t.Errorf("the pipe is now %v, %v", info, err)
	}
	if got := historyFile(os.DevNull); got != "" {
		t.Errorf("the history of --history %s is kept in %q", os.DevNull, got)
	}
}
