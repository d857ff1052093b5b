package scan

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// slowRequest reads a body without quickRequest, which white space keeps away.
func slowRequest(body []byte) (Request, error) { return ParseRequest(append([]byte{' '}, body...)) }

// TestQuickAndStrictReadTheSame: whatever quickRequest takes, encoding/json reads in the same way; and it takes what clients write.
func TestQuickAndStrictReadTheSame(t *testing.T) {
	values := []string{`"a"`, `"name 00ff"`, `""`, `0`, `-7`, `12345678901234`, `true`, `false`, `null`, `1.5`, `1e3`, `-0`, `01`, `"\u0061"`, `"é"`, `[1]`, `{"a":1}`, ` 1`, `"a`, `-`, `1234567890123456789012`}
	names := []string{"limit", "offset", "consistency", "stability", "equal", "range", "ranges", "reverse", "distinct", "want_timestamp", "timestamp", "project", "Limit", "x"}
	rapid.Check(t, func(t *rapid.T) {
		list := func() string {
			return "[" + strings.Join(rapid.SliceOfN(rapid.SampledFrom(values), 0, 3).Draw(t, "values"), ",") + "]"
		}
		member := func() string {
			name := rapid.SampledFrom(names).Draw(t, "name")
			value := rapid.SampledFrom(values).Draw(t, "value")
			switch rapid.IntRange(0, 5).Draw(t, "shape") {
			case 0:
				value = list()
			case 1:
				value = `{"low":` + list() + `,"high":` + list() + `,"inclusion":"` + rapid.SampledFrom([]string{"both", "low", "x"}).Draw(t, "inclusion") + `"}`
			case 2:
				value = rapid.SampledFrom([]string{`"any"`, `"scan"`, `"none"`, `{"low":[1],"low":[2]}`, `{"low":null}`, `{}`, `100`}).Draw(t, "often")
			}
			return `"` + name + `":` + value
		}
		var members []string
		for range rapid.IntRange(0, 4).Draw(t, "members") {
			members = append(members, member())
		}
		body := []byte("{" + strings.Join(members, ",") + "}" + rapid.SampledFrom([]string{"", "", "", "}", ","}).Draw(t, "end"))
		quick, ok := quickRequest(body)
		if !ok {
			return
		}
		checked := quick.check()
		strict, err := slowRequest(body)
		if (err == nil) != (checked == nil) || err != nil && err.Error() != checked.Error() {
			t.Fatalf("%s: %v, quickly %v", body, err, checked)
		}
		if err == nil && !reflect.DeepEqual(quick, strict) {
			t.Fatalf("%s: %+v, quickly %+v", body, strict, quick)
		}
	})
	for _, body := range []string{
		`{}`, `{"limit":100,"consistency":"any","range":{"low":["name 00ff"],"inclusion":"both"}}`,
		`{"equal":["a",7,null,true],"reverse":true,"offset":3,"distinct":false,"want_timestamp":true,"stability":"none"}`,
		`{"range":{"low":[1,"b"],"high":[2]}}`,
	} {
		quick, ok := quickRequest([]byte(body))
		if !ok || quick.check() != nil {
			t.Errorf("%s is not read quickly", body)
		}
		if strict, err := slowRequest([]byte(body)); err != nil || !reflect.DeepEqual(quick, strict) {
			t.Errorf("%s: %+v, quickly %+v (%v)", body, strict, quick, err)
		}
	}
	for _, body := range []string{`{"limit":1}x`, `{"limit":1,"limit":2}`, `{"limit": 1}`, `{"limit":1,}`, `{"equal":[1,]}`, `{"equal":[,1]}`, `{"equal":[1 2]}`, `{"equal":[12.5]}`, `{"limit":-}`, `{`, ``, `[]`} {
		if quick, ok := quickRequest([]byte(body)); ok {
			t.Errorf("%q is read as %+v", body, quick)
		}
	}
	if _, ok := quickRequest([]byte(`{"equal":[1,[2]]}`)); ok || !json.Valid([]byte(`{"equal":[1,[2]]}`)) {
		t.Error("arrays are not for the quick one")
	}
}
