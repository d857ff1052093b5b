package expression_test

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"tidemark/collate"
	"tidemark/expression"
	"tidemark/index"
)

// exampleDoc is the document of the examples.
const exampleDoc = `{"s": "aß c", "n": 7, "tags": ["x", "y", "x"], "items": [{"sku": "p", "qty": 2}, {"sku": "q", "qty": 1}], "none": null}`

// attributes returns a section of extended attributes: names and values alternate.
func attributes(pairs ...string) (section []byte) {
	for i := 0; i < len(pairs); i += 2 {
		section = binary.BigEndian.AppendUint32(section, uint32(len(pairs[i])+len(pairs[i+1])+2))
		section = append(append(append(append(section, pairs[i]...), 0), pairs[i+1]...), 0)
	}
	return section
}

// valueOf evaluates one expression through the key of an index whose leading component is the document's id.
func valueOf(t *testing.T, text, doc string) string {
	t.Helper()
	sources := []expression.Source{{Keys: keysOf("META().id", text)}}
	p, err := expression.Compile(sources)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	var s expression.Scratch
	r := p.EvaluateMeta(&s, []byte("doc"), expression.DocMeta{CAS: 1 << 60, Expiration: 9, Flags: 3,
		Xattrs: attributes("_sync", `{"rev": "1-a"}`, "owner", `"ann"`)}, []byte(doc))
	if err := r.Err(0); err != nil {
		return "error: " + err.Error()
	}
	key := r.Keys(0)[0]
	json, err := collate.DecodeComposite(nil, key, []bool{false, false})
	if err != nil {
		t.Fatal(err)
	}
	if m, _ := collate.MissingComponents(key, []bool{false, false}); len(m) > 0 {
		return "MISSING"
	}
	return strings.TrimSuffix(strings.TrimPrefix(string(json), `["doc",`), "]")
}

// TestFunctionExamples executes the example of every function.
func TestFunctionExamples(t *testing.T) {
	names := map[string]bool{}
	for _, f := range expression.Functions() {
		if got := valueOf(t, f.Example.Expr, exampleDoc); got != f.Example.Value {
			t.Errorf("%s = %s, its example has %s", f.Example.Expr, got, f.Example.Value)
		}
		if !strings.Contains(f.Example.Expr, f.Name+"(") {
			t.Errorf("the example of %s is %s", f.Name, f.Example.Expr)
		}
		for _, n := range append([]string{f.Name}, f.Aliases...) {
			if names[n] {
				t.Errorf("two functions are called %s", n)
			}
			names[n] = true
		}
		// MISSING propagates, unless the function handles it.
		if f.Min == 0 {
			continue
		}
		args := make([]string, f.Min)
		for i := range args {
			args[i] = `"year"`
		}
		args[0] = "gone"
		if f.Name == "MILLIS_TO_TZ" {
			args[1] = `"UTC"`
		}
		if f.Name == "DATE_FORMAT_STR" {
			args[1] = `"2024-02-29"`
		}
		call := f.Name + "(" + strings.Join(args, ", ") + ")"
		got := valueOf(t, call, exampleDoc)
		lenient := strings.HasPrefix(f.Name, "IF") || f.Family == expression.FamilyConditional ||
			slices.Contains([]string{"TYPE", "ENCODED_SIZE", "JSON_ENCODE"}, f.Name) || f.Name == "GREATEST" || f.Name == "LEAST"
		if got != "MISSING" && !lenient {
			t.Errorf("%s = %s, want MISSING", call, got)
		}
	}
	if len(expression.Functions()) < 60 {
		t.Errorf("%d functions", len(expression.Functions()))
	}
}

func keysOf(exprs ...string) (keys []index.KeyExpr) {
	for _, x := range exprs {
		keys = append(keys, index.KeyExpr{Expr: x})
	}
	return keys
}

// TestOperatorForms executes the example of every operator written as a function, under each of its names; it is
// printed as the operator.
func TestOperatorForms(t *testing.T) {
	for _, f := range expression.OperatorForms() {
		for _, name := range append([]string{f.Name}, f.Aliases...) {
			text := strings.Replace(f.Example.Expr, f.Name, name, 1)
			if got := valueOf(t, text, exampleDoc); got != f.Example.Value {
				t.Errorf("%s = %s, its example has %s", text, got, f.Example.Value)
			}
			x, err := expression.ParseExpression(text)
			if err != nil || strings.Contains(x.String(), name) {
				t.Errorf("%s is printed as %v (%v)", text, x, err)
			}
		}
		few := f.Name + "(" + strings.TrimSuffix(strings.Repeat("n, ", f.Min-1), ", ") + ")"
		if _, err := expression.ParseExpression(few); err == nil || !strings.Contains(err.Error(), f.Name+" takes") {
			t.Errorf("%s: %v", few, err)
		}
	}
}

// TestRefusedFunctions checks that each function is refused with the reason and an alternative, and that none of them
// is supported.
func TestRefusedFunctions(t *testing.T) {
	names := expression.FunctionNames()
	for _, r := range expression.RefusedFunctionTable() {
		for _, name := range r.Names {
			if strings.HasSuffix(name, "_") {
				name += "X"
			}
			if slices.Contains(names, name) {
				t.Errorf("%s is supported and refused", name)
			}
			_, err := expression.ParseExpression(name + "(a)")
			if err == nil || !strings.Contains(err.Error(), name+"() "+r.Why+"; ") || r.Instead == "" {
				t.Errorf("%s: %v, want why and what to write instead", name, err)
			}
		}
	}
}
