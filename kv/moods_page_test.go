package kv

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"tidemark/kv/server"
)

// The page about real engines has a row for each mood, and the tests that it names exist.
func TestMoodsPage(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "docs", "couchbase.md"))
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	for _, m := range server.MoodList() {
		if strings.Count(page, "\n| `"+m.Name+"` | ") != 1 {
			t.Errorf("mood %s has no row of its own", m.Name)
		}
	}
	sources := sourcesOfTests(t)
	for _, name := range regexp.MustCompile("`(Test[A-Za-z0-9]+(?:/[^`]*)?)`").FindAllStringSubmatch(page, -1) {
		test, part, _ := strings.Cut(name[1], "/")
		if !strings.Contains(sources, "\nfunc "+test+"(") {
			t.Errorf("there is no %s", test)
		}
		part = strings.TrimSuffix(part, "…")
		spaced := strings.ReplaceAll(part, "-", " ")
		if part != "" && !strings.Contains(sources, `{"`+spaced) && !strings.Contains(sources, `{"`+part) {
			t.Errorf("there is no part %q of %s", part, test)
		}
	}
}

// sourcesOfTests returns the text of all test files of the module.
func sourcesOfTests(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		all.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}
