package api

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/statecontext"
)

var update = flag.Bool("update", false, "write the documents that are made from the tables")

// TestCodesAreAnswered checks that answers match the table of codes, and that each known error has a code in it.
func TestCodesAreAnswered(t *testing.T) {
	for _, c := range errcode.All() {
		p := rpc.Refuse(c.Code, "")
		if p.Temporary() != c.Retry || p.Status != c.Status || p.Title != c.Title || p.Exit() != c.Exit {
			t.Errorf("%s is answered with %+v", c.Code, p)
		}
	}
	for _, s := range sentinels() {
		if _, ok := errcode.Lookup(s.code); !ok {
			t.Errorf("%v becomes %s, which is not in the table", s.is, s.code)
		}
	}
}

// replicated returns the codes with which package statecontext rejects commands.
func replicated(t *testing.T) map[string]bool {
	t.Helper()
	const folder = "../../statecontext/"
	files, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), folder+f.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := s.X.(*ast.Ident); ok && x.Name == "errcode" {
					names[strings.ToUpper(s.Sel.Name)] = true
				}
			}
			return true
		})
	}
	return names
}

// TestTransientCodes checks that codes that clients retry by themselves, or whose status blames the cluster, are not
// stored in the request ledger; with every other code of the state a retry gets the same answer.
func TestTransientCodes(t *testing.T) {
	names, passing, seen := replicated(t), 0, 0
	for _, c := range errcode.All() {
		if !names[strings.ReplaceAll(string(c.Code), "_", "")] {
			continue
		}
		seen++
		if got := statecontext.Passing(c.Code); got != (c.Retry || c.Status >= 500) {
			t.Errorf("%s: status %d, again %v; that it passes by itself is %v", c.Code, c.Status, c.Retry, got)
		} else if got {
			passing++
		}
	}
	if passing == 0 || seen < 30 {
		t.Errorf("only %d codes of the state were looked at", seen)
	}
}

// TestDocumentOfCodes checks docs/errors.md against the table; go test ./manager/api -update writes it.
func TestDocumentOfCodes(t *testing.T) {
	var b strings.Builder
	b.WriteString(`# Errors

Every refusal is problem JSON (RFC 9457, ` + "`application/problem+json`" + `): ` + "`type`, `title`, `status`, `code`, `detail`" + `, and where they
apply ` + "`request_id`, `leader`, `retry_after_ms`, `modified_cas`" + `. ` + "`code`" + ` is for programs, ` + "`detail`" + ` for people. ` + "`type`" + ` is
where any manager explains the code: ` + "`GET /v1/errors/CAS_MISMATCH`; `GET /v1/errors`" + ` gives all of this table as JSON.
"Again" says that the same request may be sent again as it is, with its Idempotency-Key, to any manager: the Go client
and the command line do so by themselves until their time is over. "Exit" is the exit code of the command line.

This page is made from the table in errcode/table.go (` + "`go test ./manager/api -run TestDocumentOf -update`" + `).

## What users may meet

| status | code | what it is | way out | again | exit |
|---|---|---|---|---|---|
`)
	line := func(c errcode.CodeInfo) {
		again := ""
		if c.Retry {
			again = "yes"
		}
		fmt.Fprintf(&b, "| %d | `%s` | %s | %s | %s | %d |\n", c.Status, c.Code, c.Title, c.WayOut, again, c.Exit)
	}
	for _, c := range errcode.All() {
		if !c.Between {
			line(c)
		}
	}
	b.WriteString("\n## Between components\n\nManagers, projectors and indexers say these to each other; people meet " +
		"them in logs.\n\n| status | code | what it is | way out | again | exit |\n|---|---|---|---|---|---|\n")
	for _, c := range errcode.All() {
		if c.Between {
			line(c)
		}
	}
	same(t, "../../docs/errors.md", b.String())
}

// same compares a generated document with its file, or writes it.
func same(t *testing.T, path, want string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != want {
		t.Errorf("%s is not what the tables say: go test ./manager/api -run TestDocumentOf -update, then look at the "+
			"difference", path)
	}
}
