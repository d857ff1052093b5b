package n1ql

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"tidemark/collate"
	"tidemark/expression"
)

var (
	evaluations = flag.Int("n1ql.evaluations", 20_000, "how many expressions are evaluated")
	seed        = flag.Uint64("n1ql.seed", 1, "of the generator")
	page        = flag.String("n1ql.page", "../../docs/expressions.md", "the page with the table of differences")
	shown       = flag.Int("n1ql.shown", 3, "how many differences of a kind and function are shown")
)

// batchSize is how many evaluations go to the oracle at once.
const batchSize = 500

// TestAgainstOracle: of so many evaluations each gives what the other evaluator gives, but for what the page's table
// says.
func TestAgainstOracle(t *testing.T) {
	path := os.Getenv("N1QL_ORACLE")
	if path == "" {
		t.Skip("N1QL_ORACLE names no evaluator to compare with")
	}
	rows := readPage(t, *page)
	o := startOracle(t, path)
	g := &generator{Rand: rand.New(rand.NewPCG(*seed, 0)), functions: expression.Functions()}
	for _, row := range rows {
		if row.kind == kindOrder {
			g.unordered = append(g.unordered, row.names...)
		}
	}
	var s expression.Scratch
	found := findings{list: map[string][]string{}, count: map[string]int{}, rows: rows}
	for done := 0; done < *evaluations; done += batchSize {
		batch := make([]request, batchSize)
		for i := range batch {
			batch[i] = request{g.expr(1 + g.IntN(3)), pick(g, documents)}
		}
		replies, err := o.ask(batch)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range batch {
			found.compare(r, here(&s, r), replies[i])
		}
	}
	found.report(t)
}

// findings are the differences that were met.
type findings struct {
	rows       []*difference
	alike      int
	refused    int // by both
	list       map[string][]string
	count      map[string]int
	uncovered  int
	comparable int
}

func (f *findings) compare(r request, here, there reply) {
	if here.Parse != "" && there.Parse != "" {
		f.refused++
		return
	}
	kind := kindOf(here, there)
	f.comparable++
	if kind == "" {
		f.alike++
		return
	}
	for _, row := range f.rows {
		if row.covers(kind, r.Expr) {
			row.met++
			return
		}
	}
	f.uncovered++
	name := kind + " " + head(r.Expr)
	f.count[name]++
	if len(f.list[name]) < *shown {
		f.list[name] = append(f.list[name], fmt.Sprintf("%s\n      on %s\n      here  %.300s\n      there %.300s", r.Expr,
			r.Doc, here, there))
	}
}

// kindOf says in what way two answers differ, or nothing.
func kindOf(here, there reply) string {
	switch {
	case here.Parse != "":
		return kindRefused
	case there.Parse != "":
		return kindTaken
	case here.Error != "" && there.Error != "":
		return ""
	case there.Error != "":
		return kindFails
	case here.Error != "":
		return kindRange
	case bytes.Contains(there.Value, []byte(`"NaN"`)), bytes.Contains(there.Value, []byte(`Infinity"`)):
		return kindRange
	case here.Missing != there.Missing:
		return kindValue
	case here.Missing:
		return ""
	}
	a, err := collate.AppendJSON(nil, here.Value)
	b, otherErr := collate.AppendJSON(nil, there.Value)
	switch {
	case err != nil || otherErr != nil:
		return kindValue
	case bytes.Equal(a, b):
		return ""
	case bytes.Equal(rounded(here.Value), rounded(there.Value)):
		return kindExact
	}
	return kindValue
}

// rounded gives a value with all numbers as the float64 nearest to them.
func rounded(text []byte) []byte {
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		return text
	}
	out, err := json.Marshal(v)
	if err != nil {
		return text
	}
	return out
}

// head is the outermost function or operator, as far as it can be told from the text.
func head(expr string) string {
	for strings.HasPrefix(expr, "ARRAY_SORT(") {
		expr = strings.TrimPrefix(expr, "ARRAY_SORT(")
	}
	if i := strings.IndexByte(expr, '('); i > 0 {
		return strings.TrimSpace(expr[:i])
	}
	words := strings.Fields(strings.TrimLeft(expr, "("))
	if len(words) > 1 && strings.HasPrefix(expr, "(") {
		for _, w := range words {
			if w == strings.ToUpper(w) && len(w) > 1 && strings.Trim(w, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == "" {
				return "operator " + w
			}
		}
	}
	return cmp.Or(words[0], expr)
}

func (f *findings) report(t *testing.T) {
	t.Logf("%d comparable evaluations, %d alike; %d refused by both", f.comparable, f.alike, f.refused)
	for _, row := range f.rows {
		t.Logf("  %6d differences: %s %v", row.met, row.kind, row.names)
	}
	if f.uncovered == 0 {
		return
	}
	t.Errorf("%d differences that the page does not tell of", f.uncovered)
	for _, name := range slices.SortedFunc(maps.Keys(f.count), func(a, b string) int {
		return cmp.Compare(f.count[b],
			f.count[a])
	}) {
		t.Logf("%6d %s", f.count[name], name)
		for _, x := range f.list[name] {
			t.Logf("    %s", x)
		}
	}
}

// TestSeen: the values that the tests of package expression hold against are those that the other evaluator gives.
func TestSeen(t *testing.T) {
	path := os.Getenv("N1QL_ORACLE")
	if path == "" {
		t.Skip("N1QL_ORACLE names no evaluator to compare with")
	}
	text, err := os.ReadFile("../../expression/testdata/n1ql.txt")
	if err != nil {
		t.Fatal(err)
	}
	const doc = `{"s": "aß c", "n": 7, "tags": ["x", "y", "x"], "items": [{"sku": "p", "qty": 2}, {"sku": "q", "qty": 1}], "none": null}`
	var batch []request
	var want []string
	for line := range strings.Lines(string(text)) {
		expr, values, found := strings.Cut(strings.TrimSpace(line), " ⇒ ")
		if strings.HasPrefix(line, "#") || !found {
			continue
		}
		here, there, other := strings.Cut(values, " ⇏ ")
		if !other {
			there = here
		}
		batch, want = append(batch, request{expr, []byte(doc)}), append(want, there)
	}
	replies, err := startOracle(t, path).ask(batch)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range replies {
		got := r.String()
		if word, _, found := strings.Cut(got, ": "); found && (r.Error != "" || r.Parse != "") {
			got = word
		}
		if got != want[i] && (r.Value == nil || !sameValue(r.Value, []byte(want[i]))) {
			t.Errorf("%s = %s, the file says %s", batch[i].Expr, got, want[i])
		}
	}
}

func sameValue(a, b []byte) bool {
	x, err := collate.AppendJSON(nil, a)
	y, otherErr := collate.AppendJSON(nil, b)
	return err == nil && otherErr == nil && bytes.Equal(x, y)
}
