package layers

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	glossaryRow = regexp.MustCompile(`(?m)^\| ([^|]+) \| [^|]+ \| ([^|]+) \|$`)
	inCode      = regexp.MustCompile("`(\\w+)\\.(\\w+)`")
)

// TestGlossary checks that each word is there once, in order, and that its name exists in the code.
func TestGlossary(t *testing.T) {
	all := read(t)
	names := map[string]bool{}
	for file, text := range all {
		if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), file, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for name := range exported(tree) {
			names[tree.Name.Name+"."+name] = true
		}
	}
	var words []string
	for _, row := range glossaryRow.FindAllStringSubmatch(all["docs/glossary.md"], -1) {
		if row[1] == "word" || strings.HasPrefix(row[1], "-") {
			continue
		}
		words = append(words, strings.ToLower(row[1]))
		places := inCode.FindAllStringSubmatch(row[2], -1)
		if len(places) == 0 {
			t.Errorf("%s is nothing in the code", row[1])
		}
		for _, p := range places {
			if !names[p[1]+"."+p[2]] {
				t.Errorf("%s: there is no %s.%s", row[1], p[1], p[2])
			}
		}
	}
	if len(words) < 30 || !slices.IsSorted(words) || len(slices.Compact(slices.Clone(words))) != len(words) {
		t.Errorf("%d words of %s, not in order or doubled", len(words), path.Base("docs/glossary.md"))
	}
}

// exported lists the exported top-level names of a file.
func exported(tree *ast.File) map[string]bool {
	names := map[string]bool{}
	for _, d := range tree.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				names[d.Name.Name] = true
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					names[s.Name.Name] = true
				case *ast.ValueSpec:
					for _, n := range s.Names {
						names[n.Name] = true
					}
				}
			}
		}
	}
	return names
}
