package expression

import (
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"
	"weak"

	"tidemark/collate"
	"tidemark/index"
)

// TestScratchReleasesMemory checks that memory beyond keptBytes that one document needs is not kept for the next one,
// and that nothing that is kept points into it, or into the document.
func TestScratchReleasesMemory(t *testing.T) {
	list := func(n int, value string) string { return "[" + strings.Repeat(value+",", n-1) + value + "]" }
	numbers := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "%d,", 100_000_000+i)
		}
		return "[" + b.String() + "0]"
	}
	var members strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&members, `"m%d":%d,`, i, i)
	}
	large := strings.Repeat("x", keptBytes+1)
	for name, c := range map[string]struct {
		indexes int
		keys    []string
		doc     string
	}{
		"keys":     {10, []string{"ALL a", "b"}, `{"a":` + numbers(1000) + `,"b":"` + large[:1000] + `"}`},
		"ends":     {60, []string{"ALL a"}, `{"a":` + numbers(9999) + `}`},
		"elements": {1, []string{"ALL a"}, `{"a":` + numbers(500_000) + `}`},
		"stack":    {1, []string{"ARRAY_LENGTH(a)", "a[*]"}, `{"a":` + list(200_000, "{}") + `}`},
		"members":  {1, []string{"OBJECT_LENGTH(a)"}, `{"a":{` + members.String() + `"m":0}}`},
		"name":     {1, []string{"a"}, `{"\u0061` + large + `":1}`},
		"temp":     {1, []string{`LENGTH(a || "")`}, `{"a":"` + large + `"}`},
		"heap":     {1, []string{`ARRAY REPLACE(v, "y", "z") FOR v IN [a, a] END`}, `{"a":"` + large[:keptBytes/2+1] + `"}`},
		"document": {1, []string{"FIRST v FOR v IN a WHEN LENGTH(v) > 0 END"}, `{"a":["` + large + `"]}`},
	} {
		t.Run(name, func(t *testing.T) {
			var sources []Source
			for i := range c.indexes {
				source := Source{Where: fmt.Sprintf("%d = %d", i, i)}
				for _, k := range c.keys {
					source.Keys = append(source.Keys, index.KeyExpr{Expr: k})
				}
				sources = append(sources, source)
			}
			p, err := Compile(sources)
			if err != nil {
				t.Fatal(err)
			}
			var s Scratch
			gone := evaluated(&s, p, c.doc)
			p.Deleted(&s)
			checkKept(t, &s)
			runtime.GC()
			for what, pointer := range gone {
				if pointer.Value() != nil {
					t.Errorf("%s: something that is kept points into it", what)
				}
			}
			runtime.KeepAlive(&s)
		})
	}
}

// evaluated evaluates a document, and returns which of its memory is larger than what is kept.
func evaluated(s *Scratch, p *Program, text string) map[string]weak.Pointer[byte] {
	doc := []byte(text)
	p.Evaluate(s, nil, doc)
	gone := map[string]weak.Pointer[byte]{}
	note := func(what string, b []byte, most int) {
		if len(b) > most {
			gone[what] = weak.Make(unsafe.SliceData(b))
		}
	}
	note("the document", doc, keptBytes)
	note("keys", s.keys[:cap(s.keys)], keptBytes)
	note("temp", s.temp[:cap(s.temp)], keptBytes)
	for i, v := range s.stack[:cap(s.stack)] {
		note(fmt.Sprintf("value %d of the stack", i), v.data, keptBytes/2)
	}
	return gone
}

// checkKept checks that no list of a Scratch has more than keptBytes.
func checkKept(t *testing.T, s *Scratch) {
	t.Helper()
	v := reflect.ValueOf(s).Elem()
	for _, f := range reflect.VisibleFields(v.Type()) {
		if f.Type.Kind() != reflect.Slice {
			continue
		}
		if size := v.FieldByIndex(f.Index).Cap() * int(f.Type.Elem().Size()); size > keptBytes {
			t.Errorf("%s: %d bytes are kept, want at most %d", f.Name, size, keptBytes)
		}
	}
}

// TestLongTextIsNotEncoded checks that a text that exceeds the length of a key is detected before it is encoded,
// whatever the document's other indexes, and only once, not for each component.
func TestLongTextIsNotEncoded(t *testing.T) {
	const size = 1 << 20 // less than the keys of the first index
	sources := []Source{{Keys: []index.KeyExpr{{Expr: "ALL a"}, {Expr: "b"}}}}
	for _, long := range []string{"t", "e", "n"} {
		sources = append(sources, Source{Keys: slices.Repeat([]index.KeyExpr{{Expr: long}}, 20)})
	}
	p, err := Compile(sources)
	if err != nil {
		t.Fatal(err)
	}
	var a strings.Builder
	for i := range 2 * size / 1000 {
		fmt.Fprintf(&a, "%d,", i)
	}
	doc := fmt.Sprintf(`{"a":[%s0],"b":"%s","t":"%s","e":"\u0041%[3]s","n":%s}`, a.String(), strings.Repeat("x", 1000),
		strings.Repeat("y", size), strings.Repeat("9", size))
	var s Scratch
	r := p.Evaluate(&s, nil, []byte(doc))
	if len(r.Keys(0)) == 0 {
		t.Fatal(r.Err(0))
	}
	for i := range sources[1:] {
		if err := r.Err(1 + i); !errors.Is(err, collate.ErrTooLong) {
			t.Errorf("%s: %v", sources[1+i].Keys[0].Expr, err)
		}
	}
	if cap(s.keys) > 8*size {
		t.Errorf("%d bytes are written", cap(s.keys))
	}
}
