package client

import (
	"encoding/json"
	"reflect"
	"testing"

	"tidemark/manager/api/v1"
)

// slowRow is the reference for parseRow.
func slowRow(line []byte) (row v1.Row, ok bool) {
	var l struct {
		Key []json.RawMessage `json:"key"`
		ID  *string           `json:"id"`
	}
	if json.Unmarshal(line, &l) != nil || l.ID == nil {
		return v1.Row{}, false
	}
	return v1.Row{Key: l.Key, ID: *l.ID}, true
}

func rowLines() []string {
	return []string{
		`{"key":[],"id":"a"}`, `{"key":["x"],"id":"a"}`, `{"key":["x",1,-2.5e+7,null,true,false],"id":"a b"}`, `{"key":["é\u00e9\"\\\n"],"id":"日本"}`,
		`{"key":[[1,2],{"a":"]"}],"id":"a"}`, `{"key":["x"],"id":"a\"b"}`, `{"key":["x"],"id":""}`, `{"key":["x","y"],"id":"]}"}`,
		// None of these is a row.
		``, `{}`, `{"key":[`, `{"key":["x"],"id":"a"`, `{"key":["x",],"id":"a"}`, `{"key":[,"x"],"id":"a"}`, `{"key":["x" "y"],"id":"a"}`, `{"key":[01],"id":"a"}`,
		`{"key":[-],"id":"a"}`, `{"key":[tru],"id":"a"}`, `{"key":["\x"],"id":"a"}`, `{"key":["\u12g4"],"id":"a"}`, "{\"key\":[\"\n\"],\"id\":\"a\"}",
		`{"key":["x"],"id":"a"}}`, `{"key":["x"],"id":"a","id":"b"}`, "{\"key\":[\"\xff\"],\"id\":\"a\"}", "{\"key\":[\"x\"],\"id\":\"\xff\"}", `{"end":true,"rows":1}`,
		`{"key":["x"],"id":"}`, `{"key":["],"id":"}`, `{"key":[truefalse],"id":"a"}`,
	}
}

// TestParseRow: the fast parser agrees with encoding/json.
func TestParseRow(t *testing.T) {
	for i, line := range rowLines() {
		var got v1.Row
		quick := parseRow([]byte(line), &got)
		want, ok := slowRow([]byte(line))
		if quick && (!ok || !reflect.DeepEqual(got, want)) {
			t.Errorf("%s: %+v, want %+v (%v)", line, got, want, ok)
		}
		if !quick && i < 4 {
			t.Errorf("%s: read the slow way", line)
		}
	}
}

func FuzzParseRow(f *testing.F) {
	for _, line := range rowLines() {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		var got v1.Row
		if !parseRow(line, &got) {
			return
		}
		if want, ok := slowRow(line); !ok || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, want %+v (%v)", line, got, want, ok)
		}
	})
}

func BenchmarkParseRow(b *testing.B) {
	line := []byte(`{"key":["name 0000000000001234"],"id":"bench::000000123"}`)
	b.ReportAllocs()
	for b.Loop() {
		var row v1.Row
		if !parseRow(line, &row) {
			b.Fatal("not a row")
		}
	}
}
