// Package generators makes common generators generate clients of manager/api/openapi.json, and runs programs with
// these clients against a cluster: the clients must compile and do what a program needs. Tests are skipped without
// the flag, and where a generator cannot be fetched.
package generators

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
)

var wanted = flag.Bool("generators", false, "generate clients of the API, and run programs with them")

// Versions of the generators. The Go module comes from the module proxy, the npm packages from the npm registry.
const (
	oapiCodegen = "github.com/oapi-codegen/oapi-codegen/v2@v2.8.2"
	oapiRuntime = "github.com/oapi-codegen/runtime@v1.8.0"
)

var npmPackages = []string{"openapi-typescript@7.13.0", "openapi-fetch@0.17.0", "typescript@5.9.3"}

// fetchTime limits downloads, patience everything else; both detect hangs.
const (
	fetchTime = 5 * time.Minute
	patience  = 10 * time.Minute
)

func TestMain(m *testing.M) { harness.Main(m) }

// workshop is a folder in which a client is generated.
type workshop struct {
	t   *testing.T
	dir string
	env []string
}

func newWorkshop(t *testing.T, program, as string, env ...string) *workshop {
	t.Helper()
	if !*wanted {
		t.Skip("clients are generated with -generators")
	}
	w := &workshop{t: t, dir: t.TempDir(), env: append(os.Environ(), env...)}
	for from, to := range map[string]string{"../../../../manager/api/openapi.json": "openapi.json",
		filepath.Join("testdata", program): as} {
		b, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(w.dir, to), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func (w *workshop) try(limit time.Duration, args ...string) (out string, err error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Env = w.dir, w.env
	b, err := cmd.CombinedOutput()
	return string(b), err
}

// fetch downloads something, and skips the test where that is impossible, as without a network.
func (w *workshop) fetch(args ...string) {
	w.t.Helper()
	if out, err := w.try(fetchTime, args...); err != nil {
		w.t.Skipf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
}

func (w *workshop) run(args ...string) string {
	w.t.Helper()
	out, err := w.try(patience, args...)
	if err != nil {
		w.t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out[max(0, len(out)-4<<10):])
	}
	return out
}

// against runs a program with a cluster's manager and bucket as its last arguments, and checks its output: the number
// of documents with a name, and the row of one of them.
func (w *workshop) against(args ...string) {
	w.t.Helper()
	up := testcluster.Start(w.t, filepath.Join(w.dir, "cluster"), "--managers", "1", "--kv", "1", "--indexers", "1",
		"--sample")
	m := up.Manifest()
	got := strings.TrimSpace(w.run(append(args, m.Managers[0].REST, m.Bucket)...))
	count, row, _ := strings.Cut(got, " ")
	if count == "0" || !strings.Contains(row, "France") {
		w.t.Errorf("the program prints %q", got)
	}
}

// TestGo tests oapi-codegen.
func TestGo(t *testing.T) {
	w := newWorkshop(t, "main.go.txt", "main.go", "GOFLAGS=-mod=mod", "GOWORK=off")
	w.run("go", "mod", "init", "example.com/program")
	w.fetch("go", "mod", "download", oapiCodegen)
	w.fetch("go", "get", oapiRuntime)
	w.run("go", "run", strings.Replace(oapiCodegen, "@", "/cmd/oapi-codegen@", 1), "-generate", "types,client", "-package",
		"main", "-o", "api.go", "openapi.json")
	w.run("go", "vet", ".")
	w.run("go", "build", "-o", "program", ".")
	w.against(filepath.Join(w.dir, "program"))
}

// TestTypeScript tests openapi-typescript.
func TestTypeScript(t *testing.T) {
	w := newWorkshop(t, "main.ts", "main.ts")
	if err := os.WriteFile(filepath.Join(w.dir, "package.json"), []byte(`{"type":"module","private":true}`),
		0o600); err != nil {
		t.Fatal(err)
	}
	w.fetch(append([]string{"npm", "install", "--no-audit", "--no-fund"}, npmPackages...)...)
	w.run("npx", "--no-install", "openapi-typescript", "openapi.json", "-o", "api.d.ts")
	w.run("npx", "--no-install", "tsc", "--strict", "--target", "es2022", "--module", "nodenext", "--lib", "es2022,dom",
		"main.ts")
	w.against("node", "main.js")
}
