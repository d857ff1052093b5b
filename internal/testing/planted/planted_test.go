package planted

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPatchesApply checks that each patch matches one place, that the result is valid Go, and that it queries its
// rule.
func TestPatchesApply(t *testing.T) {
	if len(patches()) < 50 {
		t.Fatalf("%d patches", len(patches()))
	}
	for file, all := range byFile() {
		text, err := os.ReadFile(filepath.Join("../../..", file))
		if err != nil {
			t.Errorf("%s: %v", all[0].at, err)
			continue
		}
		patched, err := apply(file, string(text), all)
		if err != nil {
			t.Error(err)
			continue
		}
		if _, err := parser.ParseFile(token.NewFileSet(), file, patched, 0); err != nil {
			t.Error(err)
		}
		for _, p := range all {
			if p.says == "" || !strings.Contains(strings.Join(p.new, "\n"), `planted.Off("`+p.rule+`")`) {
				t.Errorf("%s: a rule says what it is for and asks planted.Off(%q)", p.at, p.rule)
			}
		}
	}
}

// TestPatchThatNoLongerApplies checks the errors for lines that are missing or ambiguous.
func TestPatchThatNoLongerApplies(t *testing.T) {
	const rules = "# one\nrule r: it holds\nin x.go\n-\tif a {\n-\t\tb()\n+\tif a && !planted.Off(\"r\") {\n+\t\tb()\n"
	for text, want := range map[string]string{
		"package x\n\nfunc f() {\n\t\tif a {\n\t\t\tb()\n}\n": "",
		"package x\n\nfunc f() {\n\tif a {\n\t\tc()\n}\n":     "rules/r.txt:4: rule r no longer applies to x.go",
		"package x\nif a {\nb()\n}\nif a {\nb()\n}\n":         "lines 2 and 5",
	} {
		out, err := apply("x.go", text, parse("rules/r.txt", rules))
		switch {
		case want == "" && (err != nil || !strings.Contains(out, "if a && !planted") ||
			!strings.HasPrefix(out, "package x; import ")):
			t.Errorf("%v\n%s", err, out)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestOnlyTestsPlant checks that no product file imports this package.
func TestOnlyTestsPlant(t *testing.T) {
	looked := 0
	err := filepath.WalkDir("../../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
			strings.HasPrefix(path, "../../../internal/testing/") {
			return err
		}
		looked++
		text, err := os.ReadFile(path)
		if strings.Contains(string(text), "internal/testing/planted") {
			t.Errorf("%s imports it", path)
		}
		return err
	})
	if err != nil || looked < 100 {
		t.Errorf("%d files, %v", looked, err)
	}
}

// TestSwitch checks that a program without the patches has all rules on.
func TestSwitch(t *testing.T) {
	if err := Switch(); err != nil {
		t.Error(err)
	}
	for rule, want := range map[string]string{"gapRule": "built without", "gapRules": "no rule"} {
		if err := Switch(rule); err == nil || !strings.Contains(err.Error(), want) || Off(rule) {
			t.Errorf("%s: %v, want %s", rule, err, want)
		}
	}
}
