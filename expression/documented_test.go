package expression_test

import (
	"os"
	"strings"
	"testing"

	"tidemark/expression"
)

// TestDocumentedForms checks what docs/ddl.md states for each form in Couchbase's documentation: that it is accepted,
// or the text of its refusal. An accepted form can be evaluated, and its canonical text parses to the same form.
func TestDocumentedForms(t *testing.T) {
	page, err := os.ReadFile("../docs/ddl.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Forms of Couchbase's documents\n")
	section, _, _ = strings.Cut(section, "\n## ")
	taken, refused := 0, 0
	for line := range strings.Lines(section) {
		text, verdict, _ := strings.Cut(strings.TrimSpace(line), "` | ")
		text, row := strings.CutPrefix(text, "| `")
		if !row {
			continue
		}
		text = strings.ReplaceAll(text, `\|`, "|")
		verdict = strings.TrimSuffix(verdict, " |")
		all, err := expression.Parse(text)
		if why, no := strings.CutPrefix(verdict, "refused: "); no {
			if refused++; err == nil || !strings.Contains(err.Error(), why) {
				t.Errorf("%s\nreturns %v\nthe page states %s", text, err, why)
			}
			continue
		}
		if taken++; err != nil || verdict != "taken" {
			t.Errorf("%s is %s: %v", text, verdict, err)
			continue
		}
		if again, err := expression.Parse(all[0].String()); err != nil || again[0].String() != all[0].String() {
			t.Errorf("%s is printed as %s: %v", text, all[0], err)
		}
		if s, ok := all[0].(*expression.CreateIndex); ok {
			d := s.Definition()
			if _, err := expression.Compile([]expression.Source{expression.SourceOf(&d)}); err != nil {
				t.Errorf("%s: %v", text, err)
			}
		}
	}
	if taken < 50 || refused < 20 {
		t.Errorf("the page has %d accepted forms, and %d refused ones", taken, refused)
	}
}
