package planted

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Build builds a program of a package's tests, with all patches, and returns its path. The package is that of the
// test's folder. Build fails the test if a patch no longer applies or the program does not compile.
func Build(t testing.TB) (program string) {
	t.Helper()
	return BuildIn(t, t.TempDir())
}

// BuildIn is Build into dir, for a program that several tests run.
func BuildIn(t testing.TB, dir string) (program string) {
	t.Helper()
	overlay, err := writeOverlay(dir)
	if err != nil {
		t.Fatal(err)
	}
	program = filepath.Join(dir, "planted.test")
	// Omit the debugger tables, as go test itself does for the programs that it runs: they take a third of the
	// linking time.
	cmd := exec.CommandContext(t.Context(), "go", "test", "-c", "-ldflags=-s -w", "-overlay", overlay, "-o", program, ".")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building with planted rules: %v\n%s", err, out)
	}
	return program
}

// Run runs a program that Build has built, in the test's folder, and returns its output.
func Run(t testing.TB, program string, args ...string) (string, error) {
	t.Helper()
	return RunWith(t, nil, program, args...)
}

// RunWith is Run with additional environment variables, each NAME=VALUE.
func RunWith(t testing.TB, env []string, program string, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// Again runs the current test command a second time, in a program with the patches. It is for tests that get the
// rules to switch off from a flag.
func Again(t testing.TB) {
	t.Helper()
	args := []string{"-test.v"}
	for _, a := range os.Args[1:] {
		if !strings.HasPrefix(a, "-test.testlogfile") && !strings.HasPrefix(a, "-test.v") {
			args = append(args, a)
		}
	}
	out, err := Run(t, Build(t), args...)
	fmt.Print(out)
	if err != nil {
		t.Errorf("with planted rules: %v", err)
	}
}

// writeOverlay writes the patched files and the overlay file for go test -overlay to dir, and returns the overlay's
// path.
func writeOverlay(dir string) (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	put := func(file, text string) error {
		to := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		replace[filepath.Join(root, filepath.FromSlash(file))] = to
		return os.WriteFile(to, []byte(text), 0o600)
	}
	for file, patches := range byFile() {
		text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
		if err != nil {
			return "", fmt.Errorf("%s: %w", patches[0].at, err)
		}
		patched, err := apply(file, string(text), patches)
		if err != nil {
			return "", err
		}
		if err := put(file, patched); err != nil {
			return "", err
		}
	}
	built := "package planted\n\n// Built reports whether this program has the patches.\nconst Built = true\n"
	if err := put("internal/testing/planted/built.go", built); err != nil {
		return "", err
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	to := filepath.Join(dir, "overlay.json")
	return to, os.WriteFile(to, text, 0o600)
}

// moduleRoot returns the folder of go.mod, searched from the test's folder upwards.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	for ; err == nil; dir = filepath.Dir(dir) {
		if _, missing := os.Stat(filepath.Join(dir, "go.mod")); missing == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no go.mod above the test's folder")
		}
	}
	return "", err
}
