package cli

import (
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

	"tidemark/errcode"
	"tidemark/kv/doctor"
	"tidemark/kv/mcbp"
)

// TestFirstHour checks that the page explains exactly the checks of the doctor, and that its commands and codes
// exist.
func TestFirstHour(t *testing.T) {
	b, err := os.ReadFile("../../docs/first-hour.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(b)
	_, rows, _ := strings.Cut(page, "| check | examines |")
	rows, _, _ = strings.Cut(rows, "\n## ")
	var named []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z]+)` \\|").FindAllStringSubmatch(rows, -1) {
		named = append(named, m[1])
	}
	if got, want := strings.Join(named, " "), strings.Join(doctor.Checks(), " "); got != want {
		t.Errorf("the page explains %s; the checks are %s", got, want)
	}
	statuses := mcbp.StatusAuthError.String() + mcbp.StatusNoAccess.String()
	for _, m := range regexp.MustCompile("`([A-Z]+_[A-Z_]+)`").FindAllStringSubmatch(page, -1) {
		if _, ok := errcode.Lookup(errcode.Code(m[1])); !ok && !strings.Contains(statuses, m[1]) {
			t.Errorf("the page has %s, which is not a code", m[1])
		}
	}
	root := newRoot(Streams{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard})
	lines := regexp.MustCompile("(?m)^tidemark .*$|`tidemark [^`]*`").FindAllString(strings.ReplaceAll(page, "\\\n", " "), -1)
	if len(lines) < 8 {
		t.Errorf("only %d commands were found", len(lines))
	}
	for _, line := range lines {
		line = strings.Trim(line, "`")
		c, _, err := root.Find(strings.Fields(line)[1:])
		if err != nil || c == root {
			t.Errorf("%q is not a command: %v", line, err)
			continue
		}
		for _, w := range strings.Fields(line) {
			if name, isFlag := strings.CutPrefix(w, "--"); isFlag && c.Flag(name) == nil {
				t.Errorf("%q: there is no --%s", line, name)
			}
		}
	}
}
