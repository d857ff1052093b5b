package rpc

import (
	"encoding"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
)

// WrongType describes the value of a field of a JSON body, and what it must be.
func WrongType(err *json.UnmarshalTypeError) string {
	is, literal := err.Value, false
	if is, literal = strings.CutPrefix(is, "number "); !literal { // else the number itself
		is = map[string]string{"string": "a string", "number": "a number", "bool": "true or false", "array": "an array",
			"object": "an object"}[err.Value]
	}
	what := "it"
	if err.Field != "" {
		what = fmt.Sprintf("field %q", err.Field)
	}
	return fmt.Sprintf("%s is %s, want %s", what, is, wanted(err.Type))
}

func wanted(t reflect.Type) string {
	if reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		return "a string"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return wanted(t.Elem())
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return fmt.Sprintf("a whole number up to %d", int64(math.MaxInt64)>>(64-t.Bits()))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return fmt.Sprintf("a whole number from 0 to %d", uint64(math.MaxUint64)>>(64-t.Bits()))
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Slice, reflect.Array:
		return "an array"
	case reflect.Map, reflect.Struct:
		return "an object"
	}
	return "a string"
}
