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
	kindOrder   = "order"   // arrays whose order is one of a hash there: compared sorted
	kindRefused = "refused" // taken there and not here
	kindTaken   = "taken"   // taken here and not there
	kindFails   = "fails"   // an evaluation fails there, which here is a value
	kindRange   = "range"   // a number beyond float64, or none, fails here
	kindExact   = "exact"   // integers beyond 2^53 are exact here, and float64 there
	kindFar     = "far"     // a number of 2^63 and more is among the operands
	kindValue   = "value"   // another value on purpose
)

// difference is a row of the table "Other than Couchbase" of docs/expressions.md.
type difference struct {
	kind  string
	names []string // of functions and words; none: any
	met   int

	example string // one that was met
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

// covers reports whether a row is about such a difference in an expression: of one that is a call the row has to name
// the function, or with _ at its end what its name begins with.
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
			at := strings.Index(expr, name) // as a word, not within one
			return at == 0 || at > 0 && !isWord.MatchString(expr[at-1:at])
		}
		rest, found := expr, true
		for part := range strings.SplitSeq(strings.ToUpper(name), "…") { // each behind the last
			if _, rest, found = strings.Cut(rest, part); !found {
				return false
			}
		}
		return true
	})
}
