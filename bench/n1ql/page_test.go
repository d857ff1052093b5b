package n1ql

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Kinds of differences, the first column of the table.
const (
	kindOrder   = "order"   // the order of an array is that of a hash there: compared sorted
	kindRefused = "refused" // accepted there and refused here
	kindTaken   = "taken"   // accepted here and refused there
	kindFails   = "fails"   // the evaluation fails there and has a value here
	kindRange   = "range"   // a number beyond float64, or not a number, fails here
	kindExact   = "exact"   // integers beyond 2^53 are exact here, and float64 there
	kindFar     = "far"     // a number of 2^63 and more is among the operands
	kindValue   = "value"   // the value differs on purpose
)

// difference is a row of the table "Other than Couchbase" of docs/expressions.md.
type difference struct {
	kind  string
	names []string // of functions and words; none: any
	met   int

	example string // one that was found
}

var quoted = regexp.MustCompile("`([^`]+)`")

// readPage reads the table.
func readPage(t *testing.T, path string) (rows []*difference) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## Other than Couchbase\n")
	if !found {
		t.Fatalf("%s has no section of differences", path)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	for line := range strings.Lines(section) {
		cells := strings.Split(line, " | ")
		kind := strings.TrimPrefix(cells[0], "| ")
		if !slices.Contains([]string{kindOrder, kindRefused, kindTaken, kindFails, kindRange, kindExact, kindFar,
			kindValue}, kind) {
			continue
		}
		row := &difference{kind: kind}
		for _, name := range quoted.FindAllStringSubmatch(cells[1], -1) {
			row.names = append(row.names, name[1])
		}
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		t.Fatalf("%s: the table of differences has no rows", path)
	}
	return rows
}

var (
	isFunction = regexp.MustCompile(`^[A-Z0-9_]+$`)
	isWord     = regexp.MustCompile(`[A-Z0-9_]`)
	isCall     = regexp.MustCompile(`^(ARRAY_SORT\()?[A-Z0-9_]+\(`)
)

// covers reports whether the row is about a difference of this kind in an expression. For a call the row must name
// the function, or with a trailing _ a prefix of its name.
func (d *difference) covers(kind, expr string) bool {
	if d.kind != kind {
		return false
	}
	if len(d.names) == 0 {
		return true
	}
	expr = strings.ToUpper(expr)
	call := isCall.MatchString(expr)
	return slices.ContainsFunc(d.names, func(name string) bool {
		if call && isFunction.MatchString(name) {
			rest, begins := strings.CutPrefix(strings.TrimPrefix(expr, "ARRAY_SORT("), name)
			return begins && (strings.HasSuffix(name, "_") || strings.HasPrefix(rest, "("))
		}
		if isFunction.MatchString(name) {
			at := strings.Index(expr, name) // as a word, not within a longer one
			return at == 0 || at > 0 && !isWord.MatchString(expr[at-1:at])
		}
		rest, found := expr, true
		for part := range strings.SplitSeq(strings.ToUpper(name), "…") { // each part after the previous one
			if _, rest, found = strings.Cut(rest, part); !found {
				return false
			}
		}
		return true
	})
}
