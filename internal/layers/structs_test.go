package layers

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// mostFields is the number of fields that a struct may have without a documented reason.
const mostFields = 20

// Reasons for more fields.
const (
	flags = "the settings of a process, as flat as its flags and its file"
	body  = "a body of an interface, as flat as who reads it has it"
)

// large lists the structs with more than mostFields fields, and why they are not split.
var large = map[string]string{
	"indexer.Config":               flags,
	"manager.Config":               flags,
	"projector.Config":             flags,
	"kv.Config":                    flags,
	"internal/localcluster.Config": flags,
	"internal/cli.scanFlags":       flags,

	"manager/api/v1.IndexInfo":               body,
	"manager/api/v1.IndexStats":              body,
	"manager/api/v1.IndexerStats":            body,
	"manager/api/v1.IndexerStatus":           body,
	"manager/api/v1.ScanRequest":             body,
	"manager/api/v1.Timestamps":              body,
	"manager/coordinator/core.IndexerStatus": "what v1.IndexerStatus is made of, in the coordinator's own types",
	"indexer/scan.Request":                   "a body of an interface, checked",
	"kv/server.Counters":                     "a page of figures",
	"internal/testing/simulation.Report":     "figures of a run, which are added up field by field",

	"statecontext.State":   "the replicated state: a field for each kind of thing in it",
	"statecontext.Event":   "one record for all kinds of events: a history is a list of them",
	"index.Definition":     "what a statement says of an index; it is compared and encoded as one",
	"projector/feed.Event": "one record for all messages of a stream, in blocks that are used again",

	"streams.Ledger": "one decider; what has invariants of its own (repair, participants, kvNodes, changes) is a type",

	"indexer.Indexer":              "the role: it holds its parts, each a package, and little else",
	"projector.Projector":          "the role: it holds its parts and the lock over what the coordinator has sent it",
	"indexer/storage.Slice":        "what outlives a generation of a copy: two locks, each with what it guards below",
	"indexer/storage.pebbleEngine": "one engine: five locks, each with what it guards below it",
	"kv/store.VBucket":             "one vbucket under one lock: versions, their order, and counts change together",
	"kv/server.producer":           "one DCP connection's streams under one lock; flow and noops are types",
	"projector.bucket":             "a bucket's streams: three locks, each with what it guards below it",
	"projector/feed.Conn":          "one DCP connection: what is set before use, then one lock with what it guards",
	"client/topic.Subscription":    "one subscription: what is set before use, then one lock with what it guards",
}

// TestLargeStructs checks that each struct of the product with many fields has a documented reason.
func TestLargeStructs(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch name := d.Name(); {
		case err != nil:
			return err
		case d.IsDir() && (name == "testdata" || path != root && strings.HasPrefix(name, ".")):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return fmt.Errorf("reading %s: %w", path, err)
		}
		rel, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if s, ok := spec.Type.(*ast.StructType); ok && s.Fields.NumFields() > mostFields {
				name := filepath.ToSlash(rel) + "." + spec.Name.Name
				seen[name] = true
				if large[name] == "" {
					t.Errorf("%s has %d fields: make a type of those that have an invariant or a lifetime of their own; if none "+
						"have, say in large (structs_test.go) and in its comment why it is one thing", name, s.Fields.NumFields())
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range large {
		if !seen[name] {
			t.Errorf("large (structs_test.go) has %s, which has no more than %d fields any more, or is gone: take it out", name,
				mostFields)
		}
	}
}
