package main

import (
	"archive/zip"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const fork = "forge.example.org/me/tidemark"

func TestText(t *testing.T) {
	r := newRenamer("tidemark", fork, []string{"client", "cmd", "internal"})
	for _, tc := range []struct{ file, text, want string }{
		{"a.go", `import "tidemark/client"`, `import "` + fork + `/client"`},
		{"a.go", `exec.Command("go", "list", "tidemark/cmd/tidemark")`,
			`exec.Command("go", "list", "` + fork + `/cmd/tidemark")`},
		{"a.go", `const module = "tidemark/"`, `const module = "` + fork + `/"`},
		{"a.go", "// see [tidemark/client.Client]", "// see [" + fork + "/client.Client]"},
		{"a.go", `"/etc/tidemark/client"`, ""},
		{"a.go", `"tidemark/history in XDG_STATE_HOME"`, ""},
		{"a.go", `"tidemark/clients"`, ""},
		{"a.go", `"tidemark index list"`, ""},
		{"a.md", "go doc tidemark/client", "go doc " + fork + "/client"},
		{"a.md", "https://x.org/tidemark/client", ""},
		{"go.mod", "module tidemark\n", "module " + fork + "\n"},
		{"go.mod", "module tidemark/bench/n1ql\n", "module " + fork + "/bench/n1ql\n"},
		{"go.mod", "replace tidemark => ../..\n\nrequire tidemark v0.0.0\n",
			"replace " + fork + " => ../..\n\nrequire " + fork + " v0.0.0\n"},
		{"go.mod", "require other.org/tidemark v0.0.0\n", ""},
	} {
		want := tc.want
		if want == "" {
			want = tc.text
		}
		if got := string(r.text(tc.file, []byte(tc.text))); got != want {
			t.Errorf("%s: %q, want %q", tc.file, got, want)
		}
	}
}

func TestPathsThatCannotBeFetched(t *testing.T) {
	for _, path := range []string{"", "tidemark", "me/tidemark", "example.org", "https://example.org/me/tidemark",
		"example.org/me/tide mark", "example.org//tidemark"} {
		if _, _, err := rename(t.TempDir(), path); err == nil || !strings.Contains(err.Error(), "want HOST/PATH") {
			t.Errorf("%q: %v", path, err)
		}
	}
}

// TestFork checks that a copy under another path has all of its packages, formatted, and that go get finds there
// everything that a program of another module with its client needs, and that no package of the old path is left.
func TestFork(t *testing.T) {
	t.Parallel()
	root, err := rootOf(".")
	if err != nil {
		t.Fatal(err)
	}
	copied := t.TempDir()
	if err := copySource(copied, root); err != nil {
		t.Fatal(err)
	}
	const other = "forge.example.org/she/tidemark"
	old, changed, err := rename(copied, other)
	if err != nil || changed < 100 {
		t.Fatalf("%d files have changed: %v", changed, err)
	}
	if again, n, err := rename(copied, fork); err != nil || again != other || n < changed {
		t.Errorf("a fork of the fork: of %s, %d files, want %d at least: %v", again, n, changed, err)
	}
	if list := command(t, copied, nil, "go", "list", "-m"); strings.TrimSpace(list) != fork {
		t.Errorf("the module is %s", list)
	}
	all := command(t, copied, nil, "go", "list", "-deps", "-test", "-f", "{{.ImportPath}}", "./...")
	for name := range strings.Lines(all) {
		name = strings.TrimSpace(name)
		if strings.HasPrefix(name, old+"/") || strings.HasPrefix(name, other+"/") {
			t.Errorf("there is still a package %s", name)
		}
	}
	if ugly := command(t, copied, nil, "gofmt", "-l", "."); ugly != "" {
		t.Errorf("not formatted:\n%s", ugly)
	}
	proxy, user := t.TempDir(), t.TempDir()
	publish(t, proxy, copied, "v0.1.0")
	program := "package main\n\nimport \"" + fork + "/client\"\n\nfunc main() { client.New().Close() }\n"
	for name, text := range map[string]string{"go.mod": "module example.com/app\n\ngo 1.26.0\n", "main.go": program} {
		if err := os.WriteFile(filepath.Join(user, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	modules := strings.TrimSpace(command(t, root, nil, "go", "env", "GOMODCACHE"))
	others := strings.TrimSpace(command(t, root, nil, "go", "env", "GOPROXY"))
	env := []string{"GOPROXY=file://" + proxy + ",file://" + filepath.Join(modules, "cache", "download") + "," + others,
		"GONOSUMDB=" + fork, "GOFLAGS=-mod=mod -modcacherw", "GOMODCACHE=" + filepath.Join(t.TempDir(), "mod"), "GOSUMDB=off"}
	command(t, user, env, "go", "get", fork+"@v0.1.0")
	command(t, user, env, "go", "list", "-deps", ".") // every package that it is built of is found
}

// copySource copies the repository without its history and data.
func copySource(to, from string) error {
	return filepath.WalkDir(from, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, name)
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == ".git":
			return filepath.SkipDir
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, rel), 0o700)
		case !d.Type().IsRegular():
			return nil
		}
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), b, 0o600)
	})
}

// publish stores a version of a module in a folder, in the layout of a Go module proxy.
func publish(t *testing.T, proxy, root, version string) {
	t.Helper()
	dir := filepath.Join(proxy, fork, "@v")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"list": version + "\n", version + ".mod": string(mod),
		version + ".info": `{"Version":"` + version + `","Time":"2026-11-28T00:00:00Z"}`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Create(filepath.Join(dir, version+".zip"))
	if err != nil {
		t.Fatal(err)
	}
	z := zip.NewWriter(f)
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if _, err := os.Stat(filepath.Join(name, "go.mod")); err == nil && name != root { // a module of its own
				return filepath.SkipDir
			}
			return nil
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		w, err := z.CreateHeader(&zip.FileHeader{Name: fork + "@" + version + "/" + filepath.ToSlash(rel)}) // as it is
		if err != nil {
			return err
		}
		_, err = w.Write(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func command(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var talk strings.Builder
	cmd.Stderr = &talk
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, talk.String())
	}
	return string(out)
}
