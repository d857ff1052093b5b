package n1ql

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math"
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

// batchSize is the number of evaluations that the oracle gets at once.
const batchSize = 2000

// TestAgainstOracle checks that evaluations of drawn expressions give the result of the other evaluator, except for
// the differences in the page's table.
func TestAgainstOracle(t *testing.T) {
	path := os.Getenv("N1QL_ORACLE")
	if path == "" {
		t.Skip("N1QL_ORACLE names no evaluator to compare with")
	}
	rows := readPage(t, *page)
	g := newGenerator(*seed, rows)
	found := findings{oracle: startOracle(t, path), list: map[string][]string{}, count: map[string]int{}, rows: rows}
	for done := 0; done < *evaluations; done += batchSize {
		batch, nodes := make([]request, batchSize), make([]*node, batchSize)
		for i := range batch {
			batch[i], nodes[i] = g.request()
		}
		replies, err := found.oracle.ask(batch)
		if err != nil {
			t.Fatal(err)
		}
		var differing []*part
		for i, r := range batch {
			if p := found.compare(r, nodes[i], replies[i]); p != nil {
				differing = append(differing, p)
			}
		}
		if err := found.innermost(differing); err != nil {
			t.Fatal(err)
		}
		for _, p := range differing {
			found.add(p)
		}
	}
	found.report(t)
}

// findings collects the differences.
type findings struct {
	oracle     *oracle
	scratch    expression.Scratch
	rows       []*difference
	alike      int
	refused    int // by both
	list       map[string][]string
	count      map[string]int
	uncovered  int
	comparable int
}

// part is an expression, or a part of one, whose results differ.
type part struct {
	request
	*node
	here, there reply
	most        float64 // the largest absolute number in its operands and in its value there
}

// compare returns the part that differs, nil if the results are equal.
func (f *findings) compare(r request, x *node, there reply) *part {
	mine := here(&f.scratch, r)
	if mine.Parse != "" && there.Parse != "" {
		f.refused++
		return nil
	}
	f.comparable++
	if kindOf(r, mine, there) == "" {
		f.alike++
		return nil
	}
	return &part{r, x, mine, there, largest(there)}
}

// innermost replaces each expression that differs by the innermost part of it that differs although none of its own
// parts does: the table lists such parts.
func (f *findings) innermost(open []*part) error {
	for len(open) > 0 {
		var batch []request
		for _, p := range open {
			for _, k := range p.kids {
				batch = append(batch, request{Expr: k.text, Doc: p.Doc, Xattrs: p.Xattrs})
			}
		}
		replies, err := f.oracle.ask(batch)
		if err != nil {
			return err
		}
		var deeper []*part
		for _, p := range open {
			n := len(p.kids)
			if f.step(p, batch[:n], replies[:n]) {
				deeper = append(deeper, p)
			}
			batch, replies = batch[n:], replies[n:]
		}
		open = deeper
	}
	return nil
}

// step descends into the first part that differs, if there is one.
func (f *findings) step(p *part, kids []request, replies []reply) bool {
	for i, r := range kids {
		mine := here(&f.scratch, r)
		if kindOf(r, mine, replies[i]) != "" {
			*p = part{r, p.kids[i], mine, replies[i], largest(replies[i])}
			return true
		}
		p.most = max(p.most, largest(replies[i]))
	}
	return false
}

// add counts a difference.
func (f *findings) add(p *part) {
	kind := kindOf(p.request, p.here, p.there)
	switch {
	case p.most >= 1<<63 && (kind == kindValue || kind == kindFails):
		kind = kindFar
	case p.most >= 1<<53 && kind == kindValue:
		kind = kindExact
	}
	seen := fmt.Sprintf("%s\n      on %s %s\n      here  %.300s\n      there %.300s", cmp.Or(p.Here, p.Expr), p.Doc,
		p.Xattrs, p.here, p.there)
	for _, row := range f.rows {
		if row.covers(kind, p.Expr) {
			row.met++
			row.example = cmp.Or(row.example, seen)
			return
		}
	}
	f.uncovered++
	name := kind + " " + head(p.Expr)
	f.count[name]++
	if len(f.list[name]) < *shown {
		f.list[name] = append(f.list[name], seen)
	}
}

// largest returns the largest absolute number in a value.
func largest(r reply) (most float64) {
	for _, e := range r.Elements {
		most = max(most, largest(e))
	}
	var v any
	if json.Unmarshal(r.Value, &v) == nil {
		most = max(most, largestIn(v))
	}
	return most
}

func largestIn(v any) (most float64) {
	switch v := v.(type) {
	case float64:
		return math.Abs(v)
	case []any:
		for _, x := range v {
			most = max(most, largestIn(x))
		}
	case map[string]any:
		for _, x := range v {
			most = max(most, largestIn(x))
		}
	}
	return most
}

// kindOf returns the kind of the difference between two answers, "" if they are equal.
func kindOf(r request, here, there reply) string {
	switch {
	case here.Parse != "" && there.Parse != "":
		return ""
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
	case isArrayKey(r.Expr):
		return kindOfElements(r, here.Elements, there.Elements)
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

// kindOfElements compares the elements of an array key, each once, in any order.
func kindOfElements(r request, here, there []reply) string {
	if len(r.Desc) > 0 {
		there = flat(there, len(r.Desc))
	}
	a, b := encoded(here, false), encoded(there, false)
	switch {
	case slices.Equal(a, b):
		return ""
	case slices.Equal(encoded(here, true), encoded(there, true)):
		return kindExact
	}
	return kindValue
}

// encoded returns the elements as they are encoded in keys, each once; with round set, their numbers are rounded
// first.
func encoded(elements []reply, round bool) (out []string) {
	for _, e := range elements {
		key, text := []byte(nil), e.Value
		if round {
			text = rounded(text)
		}
		if e.Missing {
			key = collate.AppendMissing(nil)
		} else if all, err := collate.AppendJSON(nil, text); err == nil {
			key = all
		}
		out = append(out, string(key))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// rounded returns a value in which each number is the nearest float64.
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

// head returns the outermost function or operator, as far as the text shows it.
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
		if row.met > 0 && *shown > 0 {
			t.Logf("           such as %s", row.example)
		}
	}
	if f.uncovered == 0 {
		return
	}
	t.Errorf("%d differences that the page does not list", f.uncovered)
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

// TestRecordedValuesMatchTheEvaluator checks that the values with which the tests of package expression compare are
// those of the other evaluator.
func TestRecordedValuesMatchTheEvaluator(t *testing.T) {
	path := os.Getenv("N1QL_ORACLE")
	if path == "" {
		t.Skip("N1QL_ORACLE names no evaluator to compare with")
	}
	text, err := os.ReadFile("../../expression/testdata/n1ql.txt")
	if err != nil {
		t.Fatal(err)
	}
	const doc = `{"s": "aß c", "n": 7, "tags": ["x", "y", "x"], "items": [{"sku": "p", "qty": 2}, {"sku": "q", "qty": 1}], "none": null}`
	rows := readPage(t, *page)
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
		if slices.ContainsFunc(rows, func(d *difference) bool { return d.covers(kindOrder, expr) }) {
			expr = "ARRAY_SORT(" + expr + ")"
		}
		batch, want = append(batch, request{Expr: expr, Doc: []byte(doc)}), append(want, there)
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
