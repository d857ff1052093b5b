package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"text/tabwriter"
	"unicode/utf8"

	"tidemark/manager/api/v1"
)

// TestFormats checks each format: strings that look like numbers stay strings, numbers of any size are exact, and
// names have the order of the JSON.
func TestFormats(t *testing.T) {
	v := struct {
		ID    string   `json:"id"`
		CAS   uint64   `json:"cas"`
		Keys  []string `json:"keys"`
		Where string   `json:"where"`
		None  []string `json:"none"`
	}{"42", 1<<64 - 1, []string{"a", "true", ""}, `x > "1" AND y = <é>`, nil}
	for as, want := range map[format]string{
		formatJSONL: `{"id":"42","cas":18446744073709551615,"keys":["a","true",""],"where":"x > \"1\" AND y = <é>","none":null}` +
			"\n",
		formatYAML: `---
id: "42"
cas: 18446744073709551615
keys:
    - a
    - "true"
    - ""
where: x > "1" AND y = <é>
none: null
`} {
		var b bytes.Buffer
		if err := write(&b, as, v); err != nil || b.String() != want {
			t.Errorf("%s: %v\n%s\nwant\n%s", as, err, b.String(), want)
		}
	}
	var b bytes.Buffer
	if err := show(&b, formatYAML, []int{1, 2}, []int{1, 2}, func(*tabwriter.Writer) {}); err != nil ||
		b.String() != "---\n- 1\n- 2\n" {
		t.Errorf("%v %q", err, b.String())
	}
	b.Reset()
	for i := range 2 {
		if err := write(&b, formatYAML.each(), i); err != nil {
			t.Fatal(err)
		}
	}
	if b.String() != "---\n0\n---\n1\n" || formatJSON.each() != formatJSONL {
		t.Errorf("%q", b.String())
	}
	var f format
	if err := f.Set("xml"); err == nil || !strings.Contains(err.Error(), "yaml") {
		t.Errorf("xml: %v", err)
	}
}

// TestOfflineIndexers checks that cluster status shows for how long an indexer is offline, and when its copies are made
// anew elsewhere.
func TestOfflineIndexers(t *testing.T) {
	in, now := int64(700_400), int64(0)
	offline := v1.IndexerStatus{ID: "i1", UUID: "u1", Admin: "http://i1", Role: "lost", State: "offline",
		OfflineSinceMS: 7, OfflineForMS: 200_100, Placed: 8}
	soon, due, never := offline, offline, offline
	soon.RepairInMS, due.RepairInMS = &in, &now
	active := v1.IndexerStatus{ID: "i2", Admin: "http://i2", Role: "serving", State: "active", OfflineForMS: 5,
		RepairInMS: &in}
	var b bytes.Buffer
	if err := printStatus(&b, formatTable, v1.Status{Indexers: []v1.IndexerStatus{soon, due, never, active}}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	for k, want := range []string{
		"indexer i1 offline for 3m20s http://i1 its slices are rebuilt on other indexers in 11m40s; 8 slices, lost, uuid u1",
		"indexer i1 offline for 3m20s http://i1 its slices are being rebuilt on other indexers with room; 8 slices, " +
			"lost, uuid u1",
		"indexer i1 offline for 3m20s http://i1 8 slices, lost, uuid u1",
		"indexer i2 active http://i2 0 slices, 0 MiB",
	} {
		if got := strings.Join(strings.Fields(lines[len(lines)-4+k]), " "); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestCommonInput checks common short forms that users type.
func TestCommonInput(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--version"}, "tidemark 0."}, {[]string{"-v"}, "tidemark 0."},
		{[]string{"version", "-o", "yaml"}, "---\nversion: 0."},
		{[]string{"index", "ls", "--help"}, "tidemark index list"},
		{[]string{"user", "ls", "--help"}, "tidemark user list"}, {[]string{"token", "ls", "--help"}, "tidemark token list"},
	} {
		var out, err bytes.Buffer
		if code := Main(tc.args, Streams{In: strings.NewReader(""), Out: &out, Err: &err}); code != 0 ||
			!strings.Contains(out.String(), tc.want) {
			t.Errorf("%v: %d\n%s%s", tc.args, code, out.String(), err.String())
		}
	}
}

// TestCSV checks that lists have a line of names, in order of their first occurrence, whichever members items omit,
// and that scans have the id first.
func TestCSV(t *testing.T) {
	type item struct {
		ID    string `json:"id"`
		Bytes int    `json:"bytes,omitempty"`
		Keys  []any  `json:"keys"`
	}
	var b bytes.Buffer
	items := []item{{ID: `a,"b"`}, {ID: "2", Bytes: 7, Keys: []any{"x", nil}}}
	if err := show(&b, formatCSV, 0, items, func(*tabwriter.Writer) {}); err != nil {
		t.Fatal(err)
	}
	if want := "id,keys,bytes\n\"a,\"\"b\"\"\",,\n2,\"[\"\"x\"\",null]\",7\n"; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
	b.Reset()
	if err := show(&b, formatCSV, 0, []item{}, func(*tabwriter.Writer) {}); err != nil || b.Len() > 0 {
		t.Errorf("no items: %v %q", err, b.String())
	}
	if err := write(&b, formatCSV, items[1]); err != nil || b.String() != "id,bytes,keys\n2,7,\"[\"\"x\"\",null]\"\n" {
		t.Errorf("one item: %v %q", err, b.String())
	}
	b.Reset()
	row, flush := scanPrinter(&b, formatCSV)
	for _, key := range []string{`"é\n"`, `12345678901234567890`, `null`, `{"a":1}`} {
		if err := row(v1.Row{ID: "d", Key: []json.RawMessage{json.RawMessage(key), []byte("true")}}); err != nil {
			t.Fatal(err)
		}
	}
	want := "id,key1,key2\nd,\"é\n\",true\nd,12345678901234567890,true\nd,,true\nd,\"{\"\"a\"\":1}\",true\n"
	if err := flush(); err != nil || b.String() != want {
		t.Errorf("%v %q, want %q", err, b.String(), want)
	}
}

// TestTableRowsAreLines checks that, whatever documents have in their ids and keys, each row of a table is one
// line with its cells, and contains no terminal commands.
func TestTableRowsAreLines(t *testing.T) {
	var b bytes.Buffer
	row, flush := scanPrinter(&b, formatTable)
	for id, key := range map[string]string{
		"a\nb":         `"x"`,
		"a\tb":         `"\u2028"`,
		"\x1b[2Jclear": "\"\u009b2J\"",
		"\u202egpj":    "\"\u2066\"",
		"\xff":         `"日本 👩‍🚀 é"`,
	} {
		if err := row(v1.Row{ID: id, Key: []json.RawMessage{json.RawMessage(key)}}); err != nil {
			t.Fatal(err)
		}
	}
	group, flushGroups := groupPrinter(&b, formatTable, []string{"name"})
	err := errors.Join(flush(), group(v1.Group{Key: []json.RawMessage{[]byte("\"\u0085\"")}}), flushGroups())
	if err != nil {
		t.Fatal(err)
	}
	text := b.String()
	if lines := strings.Count(text, "\n"); lines != 8 || !utf8.ValidString(text) ||
		strings.ContainsAny(text, "\t\x1b\u009b\u0085\u202e\u2066") {
		t.Errorf("%d lines: %q", lines, text)
	}
	for _, cell := range []string{`a\u000ab`, `a\u0009b`, `\u001b[2Jclear`, `"\u009b2J"`, `\u202egpj`, "\ufffd",
		`"日本 👩‍🚀 é"`} {
		if !strings.Contains(text, cell) {
			t.Errorf("%s is not in %q", cell, text)
		}
	}
}
