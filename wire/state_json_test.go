package wire

import (
	"encoding/json"
	"reflect"
	"testing"
)

// fill sets every field of a value to something other than zero; lists get two elements.
func fill(v reflect.Value, n *int) {
	*n++
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(v.Index(i), n)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.String:
		v.SetString("\"<é" + string(rune('a'+*n%26)))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Uint8:
		v.SetUint(1) // enumerations
	case reflect.Uint, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(*n))
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(int64(*n))
	default:
		panic("a field of kind " + v.Kind().String())
	}
}

// AppendJSON must be equal to encoding/json, with every field set, and with none.
func TestStateAppendsTheSameJSON(t *testing.T) {
	n := 0
	var full ProjectorState
	fill(reflect.ValueOf(&full).Elem(), &n)
	// Lists that are never omitted.
	empty := ProjectorState{Buckets: []BucketState{}, Topics: []TopicState{}}
	for name, s := range map[string]*ProjectorState{"full": &full, "empty": &empty} {
		got, err := s.AppendJSON(nil)
		if err != nil {
			t.Fatal(name, err)
		}
		want, err := json.Marshal(s)
		if err != nil {
			t.Fatal(name, err)
		}
		var a, b any
		if err := json.Unmarshal(got, &a); err != nil {
			t.Fatalf("%s: %v in %s", name, err, got)
		}
		if err := json.Unmarshal(want, &b); err != nil {
			t.Fatal(name, err)
		}
		if !reflect.DeepEqual(a, b) {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, want)
		}
	}
	if columns, _ := (&ProjectorState{Buckets: []BucketState{{}}}).AppendJSON(nil); !json.Valid(columns) {
		t.Errorf("without a vbucket: %s", columns)
	}
}
