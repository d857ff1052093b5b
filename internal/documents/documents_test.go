package documents

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

// readAll returns "key=value" of each document, and the error that ended reading.
func readAll(in io.Reader, o Options) (all []string, err error) {
	r, err := New(in, o)
	if err != nil {
		return nil, err
	}
	for {
		d, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		all = append(all, d.Key+"="+string(d.Value))
	}
}

func TestFormats(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		o        Options
		want     string
	}{
		{"keys and values", "{\"key\":\"a\",\"value\":1}\n\n {\"key\":\"b\",\"value\":{\"x\": 2}}", Options{}, `a=1 b={"x": 2}`},
		{"lines", "{\"id\":7,\"n\":\"x\"}\r\n{\"id\":\"k\"}\n", Options{KeyField: "id", KeyPrefix: "p::"},
			`p::7={"id":7,"n":"x"} p::k={"id":"k"}`},
		{"a nested key", `{"m":{"id":"é"}}`, Options{KeyField: "m.id"}, `é={"m":{"id":"é"}}`},
		{"a list", "\n [ {\"id\": 1},\n\t{\"id\":\n2 } ]\n", Options{KeyField: "id"}, "1={\"id\": 1} 2={\"id\":\n2 }"},
		{"a list of keys and values", `[{"key":"a","value":[]}]`, Options{}, `a=[]`},
		{"an empty list", `[]`, Options{}, ``},
		{"nothing", ``, Options{}, ``},
		{"a mark of byte order", "\ufeff[{\"id\":1}]", Options{KeyField: "id"}, `1={"id":1}`},
		{"csv", "id,name,n\n1,\"a, \"\"b\"\"\",5\n2,,<>\n", Options{KeyField: "id"},
			`1={"id":"1","name":"a, \"b\"","n":"5"} 2={"id":"2","name":"","n":"<>"}`},
		{"csv with types", "id,a,b,c,d\n1,true,-1.5e3,007,\n", Options{KeyField: "id", InferTypes: true},
			`1={"id":1,"a":true,"b":-1.5e3,"c":"007"}`},
		{"tsv", "id\tn\nx\t1,2\n", Options{Format: TSV, KeyField: "id"}, `x={"id":"x","n":"1,2"}`},
		{"a table of a name alone", "id\n", Options{KeyField: "id"}, ``},
	} {
		t.Run(tc.name, func(t *testing.T) {
			all, err := readAll(strings.NewReader(tc.in), tc.o)
			if got := strings.Join(all, " "); err != nil || got != tc.want {
				t.Errorf("%s, %v, want %s", got, err, tc.want)
			}
			var z bytes.Buffer
			w := gzip.NewWriter(&z)
			if _, err := w.Write([]byte(tc.in)); err != nil {
				t.Fatal(err)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			zipped, err := readAll(&z, tc.o)
			if got := strings.Join(zipped, " "); err != nil || got != tc.want {
				t.Errorf("gzipped: %s, %v, want %s", got, err, tc.want)
			}
		})
	}
}

func TestErrorsNameTheLine(t *testing.T) {
	for _, tc := range []struct {
		in   string
		o    Options
		want string
	}{
		{"{\"key\":\"a\",\"value\":1}\n\n{\"key\":", Options{}, "line 3: unexpected end"},
		{`{"value":1}`, Options{}, "line 1: want {\"key\": \"…\", \"value\": …}; for documents as they are, name the field"},
		{`{"key":"a"}`, Options{}, `line 1: key "a" has no "value"`},
		{`{"key":"` + strings.Repeat("ä", 126) + `","value":1}`, Options{}, "has 252 bytes, KV takes 250"},
		{"{\"id\":1}\n{\"x\":1}", Options{KeyField: "id"}, `line 2: the document has no field "id"`},
		{`{"id":[1]}`, Options{KeyField: "id"}, `is [1]: want a string or a number`},
		{`{"id":""}`, Options{KeyField: "id"}, "is empty"},
		{`{"id":null}`, Options{KeyField: "id"}, "is null"},
		{`{"a":1}`, Options{KeyField: "a.b"}, `looking for the key in "a.b"`},
		{"5\n", Options{Format: Lines}, "line 1: want a JSON object, found 5"},
		{"[{\"id\":1},\n{\"id\":2},\n{\"id\" 3}]", Options{KeyField: "id"}, "line 3: invalid character"},
		{"[{\"id\":1},\n7]", Options{KeyField: "id"}, "line 2: want a JSON object, found 7"},
		{"[{\"id\":1},\n{\"id\":2}", Options{KeyField: "id"}, "line 2: the file ends before the list does"},
		{"[]\n[]", Options{KeyField: "id"}, "something follows the list"},
		{"id,a\n1,2\n3\n", Options{KeyField: "id"}, "line 3: wrong number of fields"},
		{"id,id\n", Options{KeyField: "id"}, `line 1: two columns are called "id"`},
		{"id,\n", Options{KeyField: "id"}, "line 1: column 2 has no name"},
		{"id,a\n1,\xff\n", Options{KeyField: "id"}, `line 2: field "a" is not UTF-8`},
		{"id\n1\n", Options{}, "--key-field"},
		{"{}", Options{Format: "xml"}, "want one of auto, lines"},
		{"\x1f\x8bxx", Options{}, "gzip"},
	} {
		if _, err := readAll(strings.NewReader(tc.in), tc.o); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: %v, want %s", short(tc.in), err, tc.want)
		}
	}
}

// endless is a list with one endless string, or an endless line.
type endless struct{ head string }

func (e *endless) Read(p []byte) (int, error) {
	n := copy(p, e.head)
	e.head = e.head[n:]
	for i := n; i < len(p); i++ {
		p[i] = 'x'
	}
	return len(p), nil
}

// TestTooLong checks that no document makes a reader hold more than the longest document takes.
func TestTooLong(t *testing.T) {
	for _, head := range []string{`[{"id":"`, `{"id":"`, "id\n\""} {
		_, err := readAll(&endless{head: head}, Options{KeyField: "id"})
		if err == nil || !strings.Contains(err.Error(), fmt.Sprint("longer than ", MaxSize)) {
			t.Errorf("%s…: %v", head, err)
		}
	}
}

func FuzzReader(f *testing.F) {
	for _, s := range []string{`{"id":1}`, `[{"id":1}]`, "id,a\n1,2", "\x1f\x8b", `{"key":"a","value":1}`} {
		f.Add(s, "id", true)
		f.Add(s, "", false)
	}
	f.Fuzz(func(t *testing.T, in, field string, infer bool) {
		r, err := New(strings.NewReader(in), Options{KeyField: field, InferTypes: infer})
		if err != nil {
			return
		}
		for range 1000 {
			d, err := r.Next()
			if err != nil {
				return
			}
			if d.Key == "" || len(d.Value) == 0 {
				t.Fatalf("%q: %+v", in, d)
			}
		}
	})
}
