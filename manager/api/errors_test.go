package api

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"tidemark/internal/rpc"
	"tidemark/statecontext"
)

var update = flag.Bool("update", false, "write the documents that are made from the tables")

// declared finds the constants that name codes: in package rpc, client and api those called Code…, in statecontext and
// scan those of type Code.
func declared(t *testing.T) map[string]bool {
	t.Helper()
	return declaredIn(t, "../../internal/rpc", "../../client", ".", "../../statecontext", "../../indexer/scan")
}

func declaredIn(t *testing.T, folders ...string) map[string]bool {
	t.Helper()
	codes := map[string]bool{}
	for _, folder := range folders {
		files, err := os.ReadDir(folder)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
				continue
			}
			tree, err := parser.ParseFile(token.NewFileSet(), folder+"/"+f.Name(), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(tree, func(n ast.Node) bool {
				v, ok := n.(*ast.ValueSpec)
				if !ok || len(v.Values) != 1 {
					return true
				}
				kind, _ := v.Type.(*ast.Ident)
				text, isText := v.Values[0].(*ast.BasicLit)
				if isText && text.Kind == token.STRING && (strings.HasPrefix(v.Names[0].Name, "Code") || kind != nil &&
					kind.Name == "Code") {
					code, err := strconv.Unquote(text.Value)
					if err != nil {
						t.Fatal(err)
					}
					codes[code] = true
				}
				return true
			})
		}
	}
	return codes
}

// TestOneTableOfCodes: what can be answered is in the table, and the table has nothing else.
func TestOneTableOfCodes(t *testing.T) {
	codes := declared(t)
	if len(codes) < 50 {
		t.Errorf("only %d codes were found", len(codes))
	}
	known := map[string]bool{}
	for _, c := range rpc.Codes() {
		if known[c.Code] {
			t.Errorf("%s is in the table twice", c.Code)
		}
		known[c.Code] = true
		if !codes[c.Code] {
			t.Errorf("%s is in the table of internal/rpc/codes.go, and no constant names it", c.Code)
		}
		if c.Title == "" || c.WayOut == "" || c.Status < 400 || c.Status > 599 || c.Exit < rpc.ExitFailed ||
			c.Exit > rpc.ExitTimeout || strings.HasSuffix(c.Title, ".") {
			t.Errorf("%+v is not whole", c)
		}
		if c.Retry != (rpc.Refuse(c.Code, "").Temporary()) || rpc.Refuse(c.Code, "").Status != c.Status {
			t.Errorf("%s is not answered as the table says", c.Code)
		}
	}
	for code := range codes {
		if !known[code] {
			t.Errorf("%s is a code, and the table of internal/rpc/codes.go has no line for it", code)
		}
	}
	for _, s := range sentinels() {
		if !known[s.code] {
			t.Errorf("%v becomes %s, which is in no table", s.is, s.code)
		}
	}
	if !slices.IsSortedFunc(rpc.Codes(), func(a, b rpc.CodeInfo) int { return a.Status - b.Status }) {
		t.Error("the table is not in the order of statuses")
	}
}

// TestPassingCodes: a refusal that clients send again by themselves, or whose status says that it is the cluster's
// trouble, is none that the request ledger may remember; with every other one of the state's codes a retry gets the
// same answer.
func TestPassingCodes(t *testing.T) {
	replicated := declaredIn(t, "../../statecontext")
	passing := 0
	for _, c := range rpc.Codes() {
		if !replicated[c.Code] {
			continue
		}
		if got := statecontext.Code(c.Code).Passing(); got != (c.Retry || c.Status >= 500) {
			t.Errorf("%s: status %d, again %v; that it passes by itself is %v", c.Code, c.Status, c.Retry, got)
		} else if got {
			passing++
		}
	}
	if passing == 0 {
		t.Error("no code of the state was looked at")
	}
}

// TestDocumentOfCodes: docs/errors.md is what the table says; go test ./manager/api -update writes it.
func TestDocumentOfCodes(t *testing.T) {
	var b strings.Builder
	b.WriteString(`# Errors

Every refusal is problem JSON (RFC 9457, ` + "`application/problem+json`" + `): ` + "`type`, `title`, `status`, `code`, `detail`" + `, and where they
apply ` + "`request_id`, `leader`, `retry_after_ms`, `modified_cas`" + `. ` + "`code`" + ` is for programs, ` + "`detail`" + ` for people. ` + "`type`" + ` is
where any manager explains the code: ` + "`GET /v1/errors/CAS_MISMATCH`; `GET /v1/errors`" + ` gives all of this table as JSON.
"Again" says that the same request may be sent again as it is, with its Idempotency-Key, to any manager: the Go client
and the command line do so by themselves until their time is over. "Exit" is the exit code of the command line.

This page is made from the table in internal/rpc/codes.go (` + "`go test ./manager/api -run TestDocumentOf -update`" + `).

## What users may meet

| status | code | what it is | way out | again | exit |
|---|---|---|---|---|---|
`)
	line := func(c rpc.CodeInfo) {
		again := ""
		if c.Retry {
			again = "yes"
		}
		fmt.Fprintf(&b, "| %d | `%s` | %s | %s | %s | %d |\n", c.Status, c.Code, c.Title, c.WayOut, again, c.Exit)
	}
	for _, c := range rpc.Codes() {
		if !c.Between {
			line(c)
		}
	}
	b.WriteString("\n## Between components\n\nManagers, projectors and indexers say these to each other; people meet " +
		"them in logs.\n\n| status | code | what it is | way out | again | exit |\n|---|---|---|---|---|---|\n")
	for _, c := range rpc.Codes() {
		if c.Between {
			line(c)
		}
	}
	same(t, "../../docs/errors.md", b.String())
}

// same compares a document with what the tables say, or writes it.
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
