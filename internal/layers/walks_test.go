package layers

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	walkRow  = regexp.MustCompile("(?m)^\\| `([\\w/]+\\.go)` \\| (`.+`) \\| .+ \\|$")
	question = regexp.MustCompile("(?m)^\\| …(.+) \\| (`.+`) \\|$")
)

// functions returns the functions of a file, by name and by type and name.
func functions(t *testing.T, path string) map[string]bool {
	t.Helper()
	tree, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, path), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, d := range tree.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		names[f.Name.Name] = true
		if f.Recv == nil {
			continue
		}
		of := f.Recv.List[0].Type
		if star, ok := of.(*ast.StarExpr); ok {
			of = star.X
		}
		if id, ok := of.(*ast.Ident); ok {
			names[id.Name+"."+f.Name.Name] = true
		}
	}
	return names
}

// TestWalks checks that the files and functions exist through which docs/reading-order.md leads, and that it answers
// each question with at most three files.
func TestWalks(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/reading-order.md"))
	if err != nil {
		t.Fatal(err)
	}
	steps := walkRow.FindAllStringSubmatch(string(page), -1)
	if len(steps) < 40 {
		t.Errorf("only %d steps were found", len(steps))
	}
	for _, step := range steps {
		has := functions(t, step[1])
		for name := range strings.FieldsSeq(step[2]) {
			if name = strings.Trim(name, "`"); !has[name] {
				t.Errorf("%s has no function %s", step[1], name)
			}
		}
	}
	questions := question.FindAllStringSubmatch(string(page), -1)
	if len(questions) != 10 {
		t.Errorf("%d questions were found", len(questions))
	}
	for _, q := range questions {
		files := strings.Split(q[2], ", ")
		if len(files) > 3 {
			t.Errorf("…%s: %d files", q[1], len(files))
		}
		for _, f := range files {
			if _, err := os.Stat(filepath.Join(root, strings.Trim(f, "`"))); err != nil {
				t.Errorf("…%s: %v", q[1], err)
			}
		}
	}
}
