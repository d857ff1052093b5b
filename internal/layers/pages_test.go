package layers

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// tree holds the files below the root, by path from there.
type tree map[string]string

// read reads all pages and all code.
func read(t *testing.T) tree {
	t.Helper()
	all := tree{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); strings.HasPrefix(name, ".") && name != root && name != ".." {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".md") && !strings.HasSuffix(path, ".go") {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		all[filepath.ToSlash(name)] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

var (
	pageLink    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	pageName    = regexp.MustCompile(`docs/[\w-]+\.md\b`)
	pageHeading = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	notInAnchor = regexp.MustCompile(`[^\w\- ]`)
	requirement = regexp.MustCompile(`\b(IM|PR|RT|IX|KV|OP)-[0-9]+\b`)
	inPackage   = regexp.MustCompile("`'?([\\w./$'|\\\\]+) (\\./[\\w/]+)[ `]")
	seenRow     = regexp.MustCompile(`(?m)^\| ((?:IM|PR|RT|IX|KV|OP)-[0-9]+) \| (.+) \|$`)
	declared    = regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz)\w*)\(`)
)

// anchors returns the places of a page that a link can name.
func anchors(page string) map[string]bool {
	all := map[string]bool{}
	code := false
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "```") {
			code = !code
		}
		if m := pageHeading.FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil && !code {
			all[strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
		}
	}
	return all
}

// TestPages checks that the pages agree with the code and with each other.
func TestPages(t *testing.T) {
	all := read(t)
	if len(all) < 300 {
		t.Fatalf("only %d files: looked at the wrong place", len(all))
	}
	t.Run("links", all.links)
	t.Run("requirements", all.requirements)
	t.Run("seen", all.seen)
	t.Run("figures", all.figures)
}

// links checks that the target of every link between the pages exists, and every page that code names.
func (all tree) links(t *testing.T) {
	for name, text := range all {
		for _, at := range pageName.FindAllString(text, -1) {
			if _, ok := all[at]; !ok {
				t.Errorf("%s names %s, which is not there", name, at)
			}
		}
		if !strings.HasSuffix(name, ".md") {
			continue
		}
		for _, m := range pageLink.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			path, anchor, _ := strings.Cut(m[1], "#")
			at := name
			if path != "" {
				at = filepath.ToSlash(filepath.Join(filepath.Dir(name), path))
			}
			if _, err := os.Stat(filepath.Join(root, at)); err != nil {
				t.Errorf("%s: a link leads to %s, which is not there", name, m[1])
			} else if anchor != "" && !anchors(all[at])[anchor] {
				t.Errorf("%s: a link leads to %s, which has no such heading", name, m[1])
			}
		}
	}
}

// requirements checks that docs/requirements.md explains each id that appears in the code.
func (all tree) requirements(t *testing.T) {
	known := map[string]bool{}
	for _, id := range requirement.FindAllString(all["docs/requirements.md"], -1) {
		known[id] = true
	}
	if len(known) < 50 {
		t.Fatalf("docs/requirements.md has %d ids", len(known))
	}
	for name, text := range all {
		for _, id := range requirement.FindAllString(text, -1) {
			if !known[id] {
				t.Errorf("%s cites %s, which docs/requirements.md does not have", name, id)
			}
		}
	}
}

// tests returns the names of all tests and benchmarks by folder.
func (all tree) tests() map[string][]string {
	tests := map[string][]string{}
	for name, text := range all {
		if !strings.HasSuffix(name, "_test.go") {
			continue
		}
		dir := "./" + filepath.ToSlash(filepath.Dir(name))
		for _, m := range declared.FindAllStringSubmatch(text, -1) {
			tests[dir] = append(tests[dir], m[1])
		}
	}
	return tests
}

// seen checks that docs/requirements.md lists existing tests for each id, or states that there are none.
func (all tree) seen(t *testing.T) {
	what, tests, found := strings.Cut(all["docs/requirements.md"], "\n## Who sees it\n")
	if !found {
		t.Fatal("docs/requirements.md has no table of tests")
	}
	there := all.tests()
	rows := map[string]bool{}
	for _, m := range seenRow.FindAllStringSubmatch(tests, -1) {
		id := m[1]
		if rows[id] {
			t.Errorf("%s stands there twice", id)
		}
		if rows[id] = true; m[2] == "none" {
			continue
		}
		for in := range strings.SplitSeq(m[2], "; ") {
			dir, names, _ := strings.Cut(in, ": ")
			for name := range strings.SplitSeq(names, ", ") {
				if !slices.Contains(there["./"+dir], name) {
					t.Errorf("%s is seen by %q in %q, which is not there", id, name, dir)
				}
			}
		}
	}
	for _, m := range seenRow.FindAllStringSubmatch(what, -1) {
		if !rows[m[1]] {
			t.Errorf("docs/requirements.md does not say which tests see %s; none would be an answer", m[1])
		}
		delete(rows, m[1])
	}
	for id := range rows {
		t.Errorf("%s has tests and does not say what it is", id)
	}
}

// figures checks that the tests and benchmarks exist that the pages with figures name.
func (all tree) figures(t *testing.T) {
	tests := all.tests()
	for page, least := range map[string]int{"docs/performance.md": 30, "docs/campaigns.md": 10, "docs/rivals.md": 3} {
		if seen := all.named(t, page, tests); seen < least {
			t.Errorf("%s names %d tests and benchmarks: read in the wrong way", page, seen)
		}
	}
}

// named checks the tests and benchmarks that a page names, and returns their number.
func (all tree) named(t *testing.T, page string, tests map[string][]string) (seen int) {
	for _, m := range inPackage.FindAllStringSubmatch(all[page], -1) {
		if m[2] == "./pkg" { // where the page explains the form of these names
			continue
		}
		seen++
		pattern, _, _ := strings.Cut(strings.Trim(strings.ReplaceAll(m[1], `\`, ""), "'$"), "/")
		for want := range strings.SplitSeq(pattern, "|") {
			found := false
			for _, have := range tests[m[2]] {
				kind := "Benchmark"
				if strings.HasPrefix(want, "Test") {
					kind = "Test"
				}
				found = found || strings.HasPrefix(have, kind) && (want == "." || strings.Contains(have, want))
			}
			if !found {
				t.Errorf("%s names %s in %s, which is not there", page, want, m[2])
			}
		}
	}
	return seen
}
