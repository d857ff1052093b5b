package rpctest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestPathValues checks that every path value that a handler reads is in a path of the same package; r.PathValue
// would otherwise return "" silently.
func TestPathValues(t *testing.T) {
	asked, named := regexp.MustCompile(`\.PathValue\("(\w+)"\)`), regexp.MustCompile(`\{(\w+)[:}]`)
	asks, names := map[string]map[string]string{}, map[string]map[string]bool{}
	err := filepath.WalkDir("../../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		dir := filepath.Dir(path)
		if asks[dir] == nil {
			asks[dir], names[dir] = map[string]string{}, map[string]bool{}
		}
		for _, m := range asked.FindAllStringSubmatch(string(text), -1) {
			asks[dir][m[1]] = path
		}
		for _, m := range named.FindAllStringSubmatch(string(text), -1) {
			names[dir][m[1]] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for dir, list := range asks {
		for name, path := range list {
			found++
			if !names[dir][name] {
				t.Errorf("%s asks for %q of a path, which no path of its package has", path, name)
			}
		}
	}
	if found < 10 {
		t.Errorf("%d names are asked for: is this the root of the tree?", found)
	}
}
