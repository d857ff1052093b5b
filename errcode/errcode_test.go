package errcode

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// constants returns the codes among this package's constants: text by name.
func constants(t *testing.T) map[string]Code {
	t.Helper()
	tree, err := parser.ParseFile(token.NewFileSet(), "errcode.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	codes := map[string]Code{}
	ast.Inspect(tree, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if kind, _ := v.Type.(*ast.Ident); kind == nil || kind.Name != "Code" {
			return true
		}
		text, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		codes[v.Names[0].Name] = Code(text)
		return true
	})
	return codes
}

// TestTable checks that each code has one complete line, and that each constant is named like its text.
func TestTable(t *testing.T) {
	named := constants(t)
	if len(named) < 80 {
		t.Fatalf("only %d codes were found", len(named))
	}
	lines := map[Code]bool{}
	for _, c := range All() {
		if lines[c.Code] {
			t.Errorf("%s is in the table twice", c.Code)
		}
		lines[c.Code] = true
		if c.Title == "" || c.WayOut == "" || c.Status < 400 || c.Status > 599 || c.Exit < ExitFailed ||
			c.Exit > ExitTimeout || strings.HasSuffix(c.Title, ".") {
			t.Errorf("%+v is not whole", c)
		}
		if got, ok := Lookup(c.Code); !ok || got != c {
			t.Errorf("Lookup(%s) = %+v, %t", c.Code, got, ok)
		}
	}
	for name, code := range named {
		if !lines[code] {
			t.Errorf("%s has no line in the table", name)
		}
		if !strings.EqualFold(name, strings.ReplaceAll(string(code), "_", "")) {
			t.Errorf("%s is the name of %s", name, code)
		}
	}
	if len(lines) != len(named) {
		t.Errorf("%d lines, %d constants", len(lines), len(named))
	}
	if !slices.IsSortedFunc(All(), func(a, b CodeInfo) int { return a.Status - b.Status }) {
		t.Error("the table is not in the order of statuses")
	}
	if _, ok := Lookup("OF_A_NEWER_VERSION"); ok {
		t.Error("an unknown code was found")
	}
}

// TestNoCodeElsewhere checks that no other package contains a code as a string. KV's own statuses (kv/mcbp) share
// some of the words; tests may contain codes, as they check what users see.
func TestNoCodeElsewhere(t *testing.T) {
	seen := 0
	err := filepath.WalkDir("..", func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "errcode" || d.Name() == "mcbp" || len(d.Name()) > 2 && d.Name()[0] == '.'):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		seen++
		fset := token.NewFileSet()
		tree, err := parser.ParseFile(fset, path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			text, err := strconv.Unquote(lit.Value)
			if err != nil {
				t.Fatal(err)
			}
			if _, isCode := Lookup(Code(text)); isCode {
				t.Errorf("%s: the code %s as a string: use package errcode", fset.Position(lit.Pos()), text)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 300 {
		t.Errorf("only %d files were looked at", seen)
	}
}
