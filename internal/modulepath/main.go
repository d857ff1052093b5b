// Command modulepath sets the module path of a fork: in the root's go.mod and everywhere a package is named. `go get`
// accepts only paths whose first element is a host; the project has none until it has a public home
// (docs/decisions.md).
//
//	go run ./internal/modulepath forge.example.org/me/tidemark
package main

import (
	"bytes"
	"errors"
	"fmt"
	"go/format"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "modulepath:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return errors.New("want the new module path, as in: go run ./internal/modulepath forge.example.org/me/tidemark")
	}
	root, err := rootOf(".")
	if err != nil {
		return err
	}
	old, changed, err := rename(root, args[0])
	if err != nil {
		return err
	}
	fmt.Printf("module %s is %s now, in %d files. Build it (go build ./...), commit it, tag it (git tag v0.1.0) and push "+
		"both to where the path leads; then: go get %s@v0.1.0\n", old, args[0], changed, args[0])
	return nil
}

// rootOf returns the root folder of the module that contains a folder.
func rootOf(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "go.mod")); err == nil {
			return at, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("%s: neither it nor a folder above it has a go.mod", dir)
		}
	}
}

// fetchable matches the paths that go get accepts: a host with a dot, and the repository's path on it.
var fetchable = regexp.MustCompile(`^[a-z0-9-]+(\.[a-z0-9-]+)+(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+$`)

var moduleLine = regexp.MustCompile(`(?m)^module\s+(\S+)\s*$`)

// rename makes path the module path of everything below root. It returns the old path, and the number of changed
// files.
func rename(root, path string) (old string, changed int, err error) {
	if !fetchable.MatchString(path) {
		return "", 0, fmt.Errorf("%q: want HOST/PATH of the repository, as in forge.example.org/me/tidemark", path)
	}
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		return "", 0, err
	}
	m := moduleLine.FindSubmatch(mod)
	if m == nil {
		return "", 0, fmt.Errorf("%s has no module line", filepath.Join(root, "go.mod"))
	}
	old = string(m[1])
	if old == path {
		return "", 0, fmt.Errorf("it is %s already", path)
	}
	folders, err := packageFolders(root)
	if err != nil {
		return "", 0, err
	}
	r := newRenamer(old, path, folders)
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == ".git":
			return filepath.SkipDir
		case !d.Type().IsRegular():
			return nil
		}
		done, err := r.file(name)
		if done {
			changed++
		}
		return err
	})
	return old, changed, err
}

// packageFolders returns the root's folders that contain Go files at any depth: import paths begin with them.
func packageFolders(root string) ([]string, error) {
	var found []string
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, err
	}
	errFound := errors.New("it has one")
	for _, e := range entries {
		if !e.IsDir() || e.Name() == ".git" {
			continue
		}
		err := filepath.WalkDir(filepath.Join(root, e.Name()), func(_ string, d fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(d.Name(), ".go") {
				return errFound
			}
			return err
		})
		switch {
		case errors.Is(err, errFound):
			found = append(found, e.Name())
		case err != nil:
			return nil, err
		}
	}
	return found, nil
}

// renamer replaces one module path by another.
type renamer struct {
	packages, prefix, module *regexp.Regexp
	old, path                []byte
}

// newRenamer returns a renamer that recognizes a package by the folder after the module path: a folder of the file
// system (/etc/tidemark/certs) is no package.
func newRenamer(old, path string, folders []string) *renamer {
	quoted := make([]string, len(folders))
	for i, f := range folders {
		quoted[i] = regexp.QuoteMeta(f)
	}
	o := regexp.QuoteMeta(old)
	return &renamer{old: []byte(old), path: []byte(path),
		packages: regexp.MustCompile(`(^|[^\w/.~-])` + o + `(/(?:` + strings.Join(quoted, "|") + `)\b)`),
		prefix:   regexp.MustCompile(`(")` + o + `(/")`),
		module:   regexp.MustCompile(`(?m)(^|[\s])` + o + `((?:/\S+)?(?:\s|$))`)}
}

// text returns the contents of a file with the new path.
func (r *renamer) text(name string, b []byte) []byte {
	with := append(append([]byte("${1}"), r.path...), "${2}"...)
	if filepath.Ext(name) == ".mod" {
		return r.module.ReplaceAll(b, with)
	}
	if !bytes.Contains(b, r.old) {
		return b
	}
	now := make([]byte, 0, len(b)+len(b)/8)
	for line := range bytes.Lines(b) { // most lines need no check
		if bytes.Contains(line, r.old) {
			line = r.packages.ReplaceAll(line, with)
			if filepath.Ext(name) == ".go" {
				line = r.prefix.ReplaceAll(line, with)
			}
		}
		now = append(now, line...)
	}
	return now
}

// file rewrites a file if it contains the old path. Go files are formatted, since the order of their imports may
// change.
func (r *renamer) file(name string) (changed bool, err error) {
	b, err := os.ReadFile(name)
	if err != nil || bytes.IndexByte(b, 0) >= 0 {
		return false, err
	}
	now := r.text(name, b)
	if bytes.Equal(now, b) {
		return false, nil
	}
	if filepath.Ext(name) == ".go" {
		if now, err = format.Source(now); err != nil {
			return false, fmt.Errorf("%s: %w", name, err)
		}
	}
	info, err := os.Stat(name)
	if err != nil {
		return false, err
	}
	return true, os.WriteFile(name, now, info.Mode().Perm())
}
