package cli

import (
	"bytes"
	"strings"
	"testing"
	"text/tabwriter"
)

// TestFormats: one thing in each form; strings that look like numbers stay strings, numbers of any size are exact, and
// the order of names is that of JSON.
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

// TestHabits: what people type without looking it up.
func TestHabits(t *testing.T) {
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
