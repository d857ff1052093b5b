package expression_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"tidemark/collate"
	"tidemark/expression"
	"tidemark/partition"
)

// TestScripts runs the golden scripts:
//
//	parse        the statements of the input, each in canonical text and as a definition; or the error
//	expression   the canonical text of each line; or the error
//	keys id=… [limit=…]
//	             the first lines are key components ("expr [DESC], …", "PRIMARY", each with an optional "WHERE …"), one
//	             index per line; after "--" the document. Prints the keys of each index, decoded.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "parse":
				return runParse(t, d.Input)
			case "expression":
				return runExpressions(t, d.Input)
			case "keys":
				return runKeys(t, d)
			}
			d.Fatalf(t, "unknown command %s", d.Cmd)
			return ""
		})
	})
}

func runParse(t *testing.T, text string) string {
	all, err := expression.Parse(text)
	if err != nil {
		return showError(t, err)
	}
	var out strings.Builder
	for _, s := range all {
		fmt.Fprintln(&out, s)
		again, err := expression.Parse(s.String())
		if err != nil || len(again) != 1 || again[0].String() != s.String() {
			t.Errorf("%s reads as %v (%v)", s, again, err)
		}
		if c, ok := s.(*expression.CreateIndex); ok {
			d := c.Definition()
			fmt.Fprintf(&out, "  primary=%v keys=%+v where=%q partitions=%d replicas=%d deferred=%v nodes=%q\n",
				d.IsPrimary, d.Keys, d.Where, d.Partitions, d.Replicas, d.Deferred, d.Nodes)
			if !d.PartitionBy.IsZero() {
				fmt.Fprintf(&out, "  by %s of %q %s\n", d.PartitionBy.Scheme, d.PartitionBy.Exprs, d.PartitionBy.Values)
			}
			normal := d
			if err := expression.Normalize(&normal); err != nil || normal.Partitions != d.Partitions ||
				!normal.PartitionBy.Equal(&d.PartitionBy) {
				t.Errorf("%s as a definition in parts: %+v, %v", s, normal, err)
			}
			if d.Partitions == 0 {
				d.Partitions = 6
			}
			if _, err := partition.LayoutOf(&d); err != nil {
				t.Errorf("%s has no layout: %v", s, err)
			}
		}
	}
	return out.String()
}

func showError(t *testing.T, err error) string {
	var syntax *expression.SyntaxError
	if !errors.As(err, &syntax) || !errors.Is(err, expression.ErrSyntax) {
		t.Errorf("%v is not a SyntaxError", err)
		return err.Error()
	}
	if errors.Is(err, expression.ErrUnsupported) {
		return "(unsupported) " + err.Error()
	}
	return err.Error()
}

func runExpressions(t *testing.T, lines string) string {
	var out strings.Builder
	for _, line := range strings.Split(lines, "\n") {
		x, err := expression.ParseExpression(line)
		if err != nil {
			fmt.Fprintln(&out, showError(t, err))
			continue
		}
		fmt.Fprintln(&out, x)
		if again, err := expression.ParseExpression(x.String()); err != nil || again.String() != x.String() {
			t.Errorf("%s reads as %v (%v)", x, again, err)
		}
	}
	return out.String()
}

// sourceOf parses a line of the keys command with the statement parser.
func sourceOf(t *testing.T, line string) (expression.Source, []bool) {
	text := "CREATE PRIMARY INDEX ON b"
	if line != "PRIMARY" {
		components, where, ok := strings.Cut(line, " WHERE ")
		if text = "CREATE INDEX i ON b(" + components + ")"; ok {
			text += " WHERE " + where
		}
	}
	all, err := expression.Parse(text)
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	d := all[0].(*expression.CreateIndex).Definition()
	return expression.SourceOf(&d), d.Desc()
}

func runKeys(t *testing.T, d *datadriven.TestData) string {
	id, limit := "doc", 0
	d.MaybeScanArgs(t, "id", &id)
	d.MaybeScanArgs(t, "limit", &limit)
	head, doc, _ := strings.Cut(d.Input, "\n--\n")
	var sources []expression.Source
	var desc [][]bool
	lines := strings.Split(head, "\n")
	for _, line := range lines {
		s, down := sourceOf(t, line)
		sources, desc = append(sources, s), append(desc, down)
	}
	p, err := expression.CompileLimits(sources, expression.Limits{KeyBytes: limit})
	if err != nil {
		t.Fatal(err)
	}
	var s expression.Scratch
	r := p.Evaluate(&s, []byte(id), []byte(doc))
	var out strings.Builder
	for i, line := range lines {
		fmt.Fprintf(&out, "%s:", line)
		for _, key := range r.Keys(i) {
			text, err := collate.DecodeComposite(nil, key, desc[i])
			if err != nil {
				t.Fatal(err)
			}
			missing, _ := collate.MissingComponents(key, desc[i])
			fmt.Fprintf(&out, " %s", text)
			if missing != nil {
				fmt.Fprintf(&out, " missing%v", missing)
			}
		}
		if err := r.Err(i); err != nil {
			fmt.Fprintf(&out, " error: %v", err)
		}
		fmt.Fprintln(&out)
	}
	if r.NotJSON {
		fmt.Fprintln(&out, "not JSON")
	}
	if r.Errors > 0 {
		fmt.Fprintf(&out, "errors: %d\n", r.Errors)
	}
	return out.String()
}
